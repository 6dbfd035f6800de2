#!/usr/bin/env bash
# A model falls asleep and wakes up through the daemon, every byte of it checked,
# also when the daemon is killed meanwhile.
#
#   deploy/demo.sh [CHECKPOINT.safetensors]
#
# Sets up and builds, starts torpor-keeper and behind it torpord on the GPU (or,
# where there is none, on the host driver), and a worker that holds the
# checkpoint's tensors and a KV cache; at the end another one.
# Without a checkpoint it writes a small one with Python's safetensors.
#
#   TORPOR_BUNDLE=DIR  uses the programs of an unpacked bundle, builds nothing
#   TORPOR_PYTHON=P    the Python that has safetensors and numpy
set -euo pipefail

say() { printf '%s\n' "$*"; }
usage_text() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }
# Exits before anything has been done.
refuse() { printf 'demo: %s\n' "$*" >&2; exit 2; }

case "${1:-}" in
  -h | --help) usage_text; exit 0 ;;
  -*) usage_text >&2; refuse "unknown option $1" ;;
esac
[ $# -le 1 ] || { usage_text >&2; refuse "one checkpoint at most"; }

# check_checkpoint FILE: refuses what cannot be one. It begins with the length of
# its header, 8 bytes; behind the header come the tensors' bytes.
check_checkpoint() {
  local size header
  [ -e "$1" ] || refuse "there is no file $1"
  [ -f "$1" ] || refuse "$1 is no file"
  [ -r "$1" ] || refuse "$1 cannot be read"
  size=$(stat -Lc %s -- "$1")
  [ "$size" -gt 0 ] || refuse "$1 is empty: nothing to compare"
  [ "$size" -ge 8 ] || refuse "$1 is no safetensors file: it has $size bytes only"
  header=$(od -An -t u8 --endian=little -N 8 -- "$1" | tr -d ' ')
  if [ ${#header} -gt 15 ] || [ $((header + 8)) -gt "$size" ]; then
    refuse "$1 is no safetensors file: its header would be $header bytes long, the file has $size"
  fi
  [ $((header + 8)) -lt "$size" ] || refuse "$1 has no bytes of weights: nothing to compare"
}

checkpoint=
if [ $# = 1 ]; then
  check_checkpoint "$1"
  checkpoint=$(realpath -- "$1")
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$(mktemp -d /tmp/torpor-demo.XXXXXX)
keeper='' result=1 failure=''
# By the worker's name: its process, and where its commands go.
declare -A worker=() to=()

# The failure is the last line: it comes behind the logs.
fail() { failure=$*; exit 1; }

stop() {
  [ -n "$1" ] || return 0
  kill -TERM "$1" 2> /dev/null || return 0
  for _ in $(seq 100); do
    kill -0 "$1" 2> /dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2> /dev/null || true
}

clean_up() {
  local name
  for name in "${!worker[@]}"; do stop "${worker[$name]}"; done
  stop "$keeper"
  if [ "$result" != 0 ]; then
    for log in torpord demo.err other.err; do
      [ -s "$scratch/$log" ] || continue
      printf -- '---- %s\n' "$log" >&2
      tail -n 40 "$scratch/$log" >&2
    done
    [ -z "$failure" ] || printf 'demo: %s\n' "$failure" >&2
  fi
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- Programs

if [ -n "${TORPOR_BUNDLE:-}" ]; then
  bin=$(cd "$TORPOR_BUNDLE/bin" && pwd)
  python=${TORPOR_PYTHON:-python3}
else
  say "demo: setting up and building; the first time that takes about 6 minutes on two cores"
  "$root/deploy/setup.sh" --build || fail "deploy/setup.sh failed"
  say "demo: building"
  (
    cd "$root"
    set -e
    export HOME="${HOME:-$root/.deps/home}" USER="${USER:-$(id -un)}"
    mkdir -p "$HOME"
    bazel build --show_progress --show_progress_rate_limit=5 \
      //daemon/keeper:torpor-keeper //daemon:torpord //client/ctl:torporctl \
      //client/demo:demo_worker
  ) || fail "the build failed"
  bin=$scratch/bin
  mkdir "$bin"
  ln -s "$root"/bazel-bin/{daemon/keeper/torpor-keeper,daemon/torpord,client/ctl/torporctl,client/demo/demo_worker} "$bin"
  python=${TORPOR_PYTHON:-$root/.deps/venv/bin/python}
fi

if [ -z "$checkpoint" ]; then
  checkpoint=$scratch/random.safetensors
  "$python" - "$checkpoint" << 'PYTHON' || fail "no checkpoint (give one, or a TORPOR_PYTHON with safetensors and numpy)"
import sys

import numpy
from safetensors.numpy import save_file

random = numpy.random.default_rng(1)
tensors = {"embedding": random.standard_normal((16000, 512), dtype=numpy.float32)}
for layer in range(8):
    for name, shape in {"attention": (512, 2048), "mlp": (512, 4096), "norm": (512,)}.items():
        values = random.standard_normal(shape, dtype=numpy.float32)
        tensors[f"layers.{layer}.{name}"] = values.astype(numpy.float16)
save_file(tensors, sys.argv[1])
PYTHON
fi
size=$(stat -c %s -- "$checkpoint")

# ---- The keeper, the daemon and a worker

mib=$(((size >> 20) + 1))
"$bin/torpor-keeper" --socket="$scratch/keeper.sock" --journal="$scratch/keeper.journal" -- \
  "$bin/torpord" --driver=auto --runtime_dir="$scratch" --pool_memory=memfd \
  --host_pool=$((mib * 5 / 4 + 64))MiB --host_device_memory=$((mib * 2 + 256))MiB \
  > "$scratch/torpord" 2>&1 &
keeper=$!

# wait_for FILE PATTERN PROCESS: the first line that matches.
wait_for() {
  for _ in $(seq 3000); do
    if grep -m 1 -E -- "$2" "$1" 2> /dev/null; then return 0; fi
    kill -0 "$3" 2> /dev/null || break
    sleep 0.02
  done
  grep -m 1 -E -- "$2" "$1" 2> /dev/null
}

serving=$(wait_for "$scratch/torpord" '^torpord .* serves ' "$keeper") || fail "torpord does not start"
socket=$(sed -E 's/.* at ([^ ]+) and .*/\1/' <<< "$serving")
say "$serving"
if grep -q '(host,' <<< "$serving"; then
  say "No GPU here: the demo runs on the host driver, device memory is made of files."
fi

ctl() { "$bin/torporctl" --target="$socket" "$@"; }

# start NAME: a worker, to which `ask` speaks from now on.
start() {
  who=$1
  mkfifo "$scratch/$who.in"
  "$bin/demo_worker" --name="$who" --runtime_dir="$scratch" "$checkpoint" \
    < "$scratch/$who.in" > "$scratch/$who" 2> "$scratch/$who.err" &
  worker[$who]=$!
  exec {to[$who]}> "$scratch/$who.in"
  ready=$(wait_for "$scratch/$who" '^ready ' "${worker[$who]}") ||
    worker_failed "the worker does not start"
  say "worker $who: $(field tensors "$ready") tensors in $(field weights_segments "$ready")" \
    "segments, KV cache of $(field kv_bytes "$ready") bytes, loaded in $(field seconds "$ready") s"
}

# ask COMMAND PATTERN: has the worker do it; its answer, which matches. Lines of
# before do not count.
ask() {
  local lines
  lines=$(wc -l < "$scratch/$who")
  printf '%s\n' "$1" >&"${to[$who]}"
  for _ in $(seq 6000); do
    if answer=$(tail -n +$((lines + 1)) "$scratch/$who" | grep -m 1 -E "^$1 |^error"); then
      [[ $answer =~ $2 ]] || fail "the worker says: $answer"
      return 0
    fi
    kill -0 "${worker[$who]}" 2> /dev/null || worker_failed "the worker has ended"
    sleep 0.01
  done
  fail "the worker does not answer \"$1\""
}

# worker_failed WORDS: with the worker's own error, if it has told one.
worker_failed() {
  local told
  told=$(tail -n 1 "$scratch/$who.err")
  : > "$scratch/$who.err"
  fail "$1${told:+: $told}"
}

# quit NAME: ends a worker, which must be content.
quit() {
  local status=0
  printf 'quit\n' >&"${to[$1]}"
  wait "${worker[$1]}" || status=$?
  unset "worker[$1]"
  [ "$status" = 0 ] || fail "the worker $1 ended with status $status"
}

field() { sed -nE "s/.*\<$1=([^ ]+).*/\1/p" <<< "$2"; }
start demo

# ---- The steps

# number JSON NAME: the first number of that name in an answer.
number() {
  grep -oE "\"$2\": *\"?[0-9]+" <<< "$1" | head -n 1 | grep -oE '[0-9]+$' || echo 0
}
total() {
  grep -oE '"total": *"[0-9.]+s"' <<< "$1" | head -n 1 | grep -oE '[0-9.]+' | head -n 1 || echo 0
}

printf -v table '%-22s %14s %14s %9s %7s %16s\n' \
  step 'device bytes' 'copied bytes' seconds GB/s 'device free'

row() { # STEP DEVICE_BYTES COPIED_BYTES SECONDS
  local json free rate line
  json=$(ctl --json usage) || fail "torporctl usage"
  free=$(number "$json" 'free_bytes')
  rate=$(awk -v b="$3" -v s="$4" 'BEGIN { if (b > 0 && s > 0) printf "%.2f", b / s / 1e9 }')
  printf -v line '%-22s %14s %14s %9.4f %7s %16s\n' "$1" "$2" "$3" "$4" "$rate" "$free"
  table+=$line
}

# operate STEP COMMAND...: one sleep or wake, and its row.
operate() {
  local step=$1 json
  shift
  say
  say "\$ torporctl $*"
  json=$(ctl --json "$@") || fail "torporctl $*"
  row "$step" "$(number "$json" 'device_bytes')" "$(number "$json" 'copied_bytes')" \
    "$(total "$json")"
}

usage() {
  say
  say "\$ torporctl usage"
  ctl usage
}

crc='' digest=''

verify() {
  ask verify '^verify ok'
  [ "$(field crc32c "$answer")" = "${crc:=$(field crc32c "$answer")}" ] ||
    fail "the checksum of the weights has changed: $answer"
  say "weights: $(field tensors "$answer") tensors, $(field bytes "$answer") bytes, each as in" \
    "the file; CRC-32C $crc"
}

kv_cache() { # filled|zero
  ask kv "^kv $1 "
  say "KV cache: $1"
}

same_addresses() {
  ask addresses '^addresses '
  [ "$(field digest "$answer")" = "${digest:=$(field digest "$answer")}" ] ||
    fail "an address has changed"
  say "addresses of all $(field segments "$answer") segments: unchanged"
}

row 'load' "$(number "$(ctl --json usage)" 'resident_bytes')" \
  "$(field weights_bytes "$ready")" "$(field seconds "$ready")"
usage
ask addresses '^addresses '
digest=$(field digest "$answer")
verify
kv_cache filled

operate 'sleep, level 1' sleep --worker=demo --level=1
usage
operate 'wake' wake --worker=demo
usage
verify
same_addresses
kv_cache zero

ask fill '^fill ok'
operate 'sleep kv_cache' sleep --worker=demo --level=1 --tag=kv_cache
usage
verify
operate 'wake kv_cache' wake --worker=demo --tag=kv_cache
verify
same_addresses
kv_cache zero

# ---- The daemon is killed

operate 'sleep, level 1' sleep --worker=demo --level=1
say
start other
say
killed=$(sed -nE 's/^.* torpor-keeper: daemon ([0-9]+) started$/\1/p' "$scratch/torpord" | tail -n 1)
say "\$ kill -KILL $killed   # torpord: demo sleeps, other works"
served=$(grep -c '^torpord .* serves ' "$scratch/torpord")
kill -KILL "$killed"
verify
for _ in $(seq 3000); do
  [ "$(grep -c '^torpord .* serves ' "$scratch/torpord")" = "$served" ] || break
  sleep 0.02
done
say "the keeper has started another one"
for _ in $(seq 3000); do
  ctl --json usage > "$scratch/usage" || fail "torporctl usage"
  grep -q '"awaited": true' "$scratch/usage" || break
  sleep 0.02
done
usage
verify
quit other
who=demo
operate 'wake, next daemon' wake --worker=demo
verify
same_addresses
kv_cache zero

# ---- The end

quit demo
kill -TERM "$keeper"
status=0
wait "$keeper" || status=$?
keeper=''
[ "$status" = 0 ] || fail "torpor-keeper ended with status $status"
result=0
say
printf '%s' "$table"
say
say "demo: everything as it should be; the daemon has stopped"
