#!/usr/bin/env bash
# Times sleeps and wakes (tests/bench/bench_sleep.cc), then, with no daemon
# there any more, those of the peers (tests/bench/peers), and puts both together.
#
#   bench.sh --out DIR [--peers=all|none|PEER:LOAD,...] [--tms-wheel=FILE]
#            [flags of bench_sleep]
#
# Writes DIR/<gpu>.json and DIR/<gpu>.md, DIR/bench-torpord.log, and what they
# are made of. A peer that cannot run is noted and fails nothing.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${TORPOR_PYTHON:-python3}
out=
peers=all
wheel=()
flags=()

while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --peers=*) peers=${1#*=} ;;
    --tms-wheel=*) wheel=(--tms-wheel "${1#*=}") ;;
    *) flags+=("$1") ;;
  esac
  shift
done
[ -n "$out" ] || { echo "bench.sh: --out DIR" >&2; exit 2; }

case $peers in
  none) runs=() ;;
  all)
    # tms takes minutes for more than the small load.
    runs=(cumem:seed tms:seed tms-retain:seed cumem:b14 tms-retain:b14 cumem:b32 tms-retain:b32)
    ;;
  *) IFS=, read -ra runs <<< "$peers" ;;
esac

commit=${TORPOR_COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2> /dev/null || echo unknown)}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 2> /dev/null || true)
figures=$out/bench_sleep.json
lines=$out/bench_peers.jsonl
status=0
rm -f "$figures" "$lines"
: > "$out/bench-torpord.log"

"$TORPOR_BUNDLE/bin/bench_sleep" --commit "$commit" --driver_version "$driver" --out "$figures" \
  --torpord_log "$out/bench-torpord.log" "${flags[@]}" || status=1
[ -f "$figures" ] || exit 1
if [ "$status" != 0 ]; then tail -n 20 "$out/bench-torpord.log"; fi

: > "$lines"
for run in "${runs[@]}"; do
  peer=${run%%:*} load=${run#*:}
  echo "peer $peer, $load"
  errors=$(mktemp)
  if line=$(timeout -k 10 170 "$python" "$root/tests/bench/peers/in_process.py" "$peer" "$load" \
    --library "$TORPOR_BUNDLE/lib/libpeer_cumem.so" "${wheel[@]}" 2> "$errors"); then
    printf '%s\n' "$line" | tail -n 1 | tee -a "$lines"
  else
    cat "$errors"
    "$python" - "$peer" "$load" "$errors" << 'PYTHON' >> "$lines"
import json, sys

text = open(sys.argv[3], errors="replace").read().strip().splitlines()
error = text[-1] if text else "ended without a word, or took too long"
print(json.dumps({"peer": sys.argv[1], "load": sys.argv[2], "error": error}))
PYTHON
  fi
  rm -f "$errors"
done

echo
"$python" "$root/tests/bench/report.py" "$figures" --peers "$lines" --out "$out" || status=1
exit "$status"
