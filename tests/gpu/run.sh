#!/usr/bin/env bash
# The tests and measurements that need an NVIDIA GPU.
#
#   TORPOR_BUNDLE=DIR|TARBALL tests/gpu/run.sh [--out DIR] [SECTION...]
#     [--peers=all|none|PEER:LOAD,...] [--tms-wheel=FILE] [--bench=FLAG]
#     [--wheels=DIR] [--prometheus=FILE] [--multi=FLAG] [--tensor-parallel=FLAG]
#
# Sections, each done in less than 8 minutes; without any, all that the GPUs
# here suffice for:
#   bench     sleeps and wakes, beside those of the peers; --bench= passes a
#             flag to bench_sleep, as in --bench=--loads=seed,b14
#   compat    torch_memory_saver's interface, with its users' scenarios
#   contract  the driver's contract suite on CudaDriver
#   demo      deploy/demo.sh, on a small checkpoint and on one of 1 GiB
#   doctor    torporctl doctor, before there is a daemon and with one
#   examples  docs/examples/python with models of PyTorch
#   faults    workers that are killed, awake and asleep
#   multi     sleeps and wakes on all GPUs of the host at once, a daemon for
#             each, beside the link of one and of all; --multi= passes a flag
#             to multi_gpu.py, as in --multi=--load=seed
#   operate   torporctl's top and health, metrics; with --prometheus= sleeps and
#             wakes beside those while that Prometheus scrapes
#   package   PyTorch through the Python package: models of 2B and 7B shape,
#             graphs, torch.compile, 50 cycles, what the package costs
#   pytorch   a PyTorch transformer of two billion parameters
#   restart   a daemon that is killed under two PyTorch processes, with a keeper
#   tensor_parallel
#             a PyTorch model on two GPUs over NCCL, within 2 minutes;
#             --tensor-parallel= passes a flag to tensor_parallel.py, as in
#             --tensor-parallel=--steps=levels,graph
#   vllm      vLLM's allocator and sleep-mode backend, without vLLM
#
# Needs the NVIDIA driver and Python (TORPOR_PYTHON names it): for bench and demo
# with numpy, safetensors; for peers, compat, examples, operate, package, pytorch,
# restart, tensor_parallel and vllm with torch; for package, pytorch, restart and vllm also
# transformers, for pytorch nvidia-ml-py, for examples grpcio and protobuf. The
# package torpor is that of the bundle. --wheels= has wheels in DIR, as of those,
# that are unpacked for this run.
# Logs and figures go to DIR (default $OUT, else gpu-results).
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${TORPOR_PYTHON:-python3}
out=${OUT:-gpu-results}
sections=()
bench=()
multi=()
tensor_parallel=()
wheels=
operate=()

usage() { sed -n '2,39s/^# \{0,1\}//p' "$0"; }

while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out needs a folder}; shift ;;
    --out=*) out=${1#--out=} ;;
    --peers=* | --tms-wheel=*) bench+=("$1") ;;
    --bench=*) bench+=("${1#--bench=}") ;;
    --multi=*) multi+=("${1#--multi=}") ;;
    --tensor-parallel=*) tensor_parallel+=("${1#--tensor-parallel=}") ;;
    --prometheus=*) operate+=("$1") ;;
    --wheels=*) wheels=${1#--wheels=} ;;
    -h | --help) usage; exit 0 ;;
    bench | compat | contract | demo | doctor | examples | faults | multi | operate | package | \
      pytorch | restart | tensor_parallel | vllm)
      sections+=("$1")
      ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if [ ${#sections[@]} -eq 0 ]; then
  sections=(bench compat contract demo doctor examples faults operate package pytorch restart vllm)
  if [ "$(nvidia-smi -L 2> /dev/null | grep -c '^GPU ')" -gt 1 ]; then
    sections+=(multi tensor_parallel)
  fi
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

bundle=${TORPOR_BUNDLE:-}
if [ -f "$bundle" ]; then
  tar -C "$scratch" -xf "$bundle" || exit 2
  bundle=$(echo "$scratch"/torpor-*)
fi
if [ ! -x "$bundle/bin/torpord" ]; then
  echo "TORPOR_BUNDLE is neither an unpacked bundle nor its tarball: ${TORPOR_BUNDLE:-not set}" >&2
  exit 2
fi
TORPOR_BUNDLE=$(cd "$bundle" && pwd)
export TORPOR_BUNDLE

"$python" -m zipfile -e "$TORPOR_BUNDLE"/python/torpor-*.whl "$scratch/site" || exit 2
if [ -n "$wheels" ]; then
  tag=$("$python" -c 'import sys; print("-cp%d%d-" % sys.version_info[:2])')
  for wheel in "$wheels"/*.whl; do
    case $wheel in
      *"$tag"* | *-abi3-* | *-none-*) "$python" -m zipfile -e "$wheel" "$scratch/site" || exit 2 ;;
    esac
  done
fi
export PYTHONPATH=$scratch/site${PYTHONPATH:+:$PYTHONPATH}

summary=$out/summary.md
{
  echo "# GPU run"
  echo
  date -u +'%Y-%m-%d %H:%M UTC'
  echo
  "$TORPOR_BUNDLE/bin/torpord" --version
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  echo "$(uname -sr), glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2), $(nproc) processors"
  echo
  echo "| section | result | seconds |"
  echo "| --- | --- | ---: |"
} > "$summary" 2>&1

failed=0
for section in "${sections[@]}"; do
  case $section in
    bench) command=("$here/bench.sh" --out "$out" "${bench[@]}") ;;
    contract | demo) command=("$here/$section.sh") ;;
    compat) command=("$python" "$here/compat_tms.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    doctor) command=("$python" "$here/doctor.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    examples) command=("$python" "$here/examples.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    faults) command=("$python" "$here/faults.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    multi)
      command=("$python" "$here/multi_gpu.py" --bundle "$TORPOR_BUNDLE" --out "$out" "${multi[@]}")
      ;;
    operate)
      command=("$python" "$here/operate.py" --bundle "$TORPOR_BUNDLE" --out "$out" "${operate[@]}")
      ;;
    package) command=("$python" "$here/package_torch.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    pytorch) command=("$python" "$here/pytorch_sleep.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    restart) command=("$python" "$here/restart_torch.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
    tensor_parallel)
      command=("$python" "$here/tensor_parallel.py" --bundle "$TORPOR_BUNDLE" --out "$out"
        "${tensor_parallel[@]}")
      ;;
    vllm) command=("$python" "$here/vllm_allocator.py" --bundle "$TORPOR_BUNDLE" --out "$out") ;;
  esac
  echo "==== $section"
  start=$SECONDS
  timeout -k 15 460 "${command[@]}" 2>&1 | tee "$out/$section.log"
  status=${PIPESTATUS[0]}
  result=passed
  if [ "$status" != 0 ]; then
    failed=1
    result="failed with status $status"
    nvidia-smi 2>&1 | tee -a "$out/$section.log"
  fi
  echo "| $section | $result | $((SECONDS - start)) |" >> "$summary"
  echo "==== $section $result after $((SECONDS - start)) s"
done
echo
cat "$summary"
exit "$failed"
