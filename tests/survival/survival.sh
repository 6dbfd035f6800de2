#!/usr/bin/env bash
# Holds up every operation at every step, lets everything happen that can, and
# writes what came of it as a table.
#
#   tests/survival/survival.sh [--out FILE | --check] [--filter TESTS]
#
# FILE: docs/survival.md by default. --check: that is compared, and stays as it
# is. TESTS: of survival_test, as of --gtest_filter; without all of them no
# table is written. TORPOR_SHARDS (5) run at a time, and mostly wait.
# TORPOR_BAZEL_FLAGS go before bazel's command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=docs/survival.md
filter=
check=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --check) check=1; shift ;;
    --filter) filter=$2; shift 2 ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
done
out=$(realpath "$out")
shards=${TORPOR_SHARDS:-5}
read -ra flags <<< "${TORPOR_BAZEL_FLAGS:-}"

bazel "${flags[@]}" build //tests/survival:survival_test
bin=$(bazel "${flags[@]}" info bazel-bin 2> /dev/null)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

failed=0
running=()
for ((shard = 0; shard < shards; ++shard)); do
  (
    cd "$bin/tests/survival/survival_test.runfiles/torpor"
    export GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard
    export TORPOR_SURVIVAL_EVERY=1
    [ -n "$check" ] || export TORPOR_SURVIVAL_OUT=$results
    exec ./tests/survival/survival_test "--gtest_filter=${filter:-*}" > "$results/$shard.log" 2>&1
  ) &
  running+=($!)
done
for pid in "${running[@]}"; do
  wait "$pid" || failed=1
done
if [ "$failed" = 1 ]; then
  cat "$results"/*.log
  exit 1
fi
grep -h '^\[  PASSED' "$results"/*.log
[ -n "$filter$check" ] || /usr/bin/python3 tests/survival/table.py "$results" "$out"
