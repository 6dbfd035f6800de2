#!/usr/bin/env bash
# What is too slow for every commit. Run once for each change that is complete.
#
#   tests/hardening.sh [SECTION...]
#
# Sections; all without any:
#   asan   all tests with AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan   all tests with ThreadSanitizer
#   clang  everything built by clang: thread annotations, layering
#   tidy   clang-tidy on every source of our own
#   fuzz   the fuzz targets, TORPOR_FRAME_RUNS (10 million),
#          TORPOR_JOURNAL_RUNS (10 million) and TORPOR_HANDLER_RUNS (1 million)
#          runs
#   survival  every operation held up at each of its steps, and all that is in
#          docs/survival.md, three times
#   deploy the package, installed in a Debian of its own whose systemd runs it;
#          needs root
#
# TORPOR_JOBS (2) processes at a time. TORPOR_HARDENING_CACHE
# (~/.cache/torpor-hardening) keeps each section's build apart from the usual
# one, a log for each section, and what the fuzzers found.
# shellcheck disable=SC2317  # functions are called as "run_$section"
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
cache=${TORPOR_HARDENING_CACHE:-$HOME/.cache/torpor-hardening}
jobs=${TORPOR_JOBS:-2}
all=(asan tsan clang tidy fuzz survival deploy)

usage() { sed -n '2,22s/^# \{0,1\}//p' "$0"; }

sections=()
for section in "$@"; do
  case $section in
    asan | tsan | clang | tidy | fuzz | survival | deploy) sections+=("$section") ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ ${#sections[@]} -gt 0 ] || sections=("${all[@]}")
mkdir -p "$cache/logs"

# BASE COMMAND ARGUMENT...
run_bazel() {
  local base=$1 command=$2
  shift 2
  bazel --output_base="$cache/$base" --max_idle_secs=60 "$command" --jobs="$jobs" --keep_going \
    --experimental_convenience_symlinks=ignore "$@"
}

# Sanitizers slow everything down.
run_tests() { run_bazel "$1" test "--config=$1" --test_timeout=300,900,1800,3600 //...; }

run_asan() { run_tests asan; }
run_tsan() { run_tests tsan; }
run_clang() { run_bazel clang build --config=clang //...; }

# One source; those of other compilers and generated ones are not among them.
tidy_one() {
  local output status=0
  output=$(clang-tidy --quiet "$1" -- -std=c++17 -I. "-I$GENERATED" "-I$GENERATED/proto" \
    "-I$GENERATED/third_party/googleapis" "-I$GENERATED/third_party/grpc" \
    -isystem .deps/cuda/include -isystem third_party/prometheus_cpp/core/include -DFMT_HEADER_ONLY -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL \
    '-DTORPOR_PACKAGE_VERSION="0"' 2>&1) || status=$?
  [ "$status" = 0 ] || printf '%s\n%s\n' "$1" "$output"
  return "$status"
}

run_tidy() {
  run_bazel clang build --config=clang //proto/... //third_party/... || return 1
  GENERATED=$(run_bazel clang info --config=clang bazel-bin 2> /dev/null) || return 1
  export GENERATED
  export -f tidy_one
  git ls-files 'lib/*.cc' 'client/*.cc' 'daemon/*.cc' 'tests/*.cc' |
    xargs -P "$jobs" -I{} bash -c 'tidy_one {}'
}

# TARGET CORPUS RUNS LONGEST_INPUT. Leaks are looked for once, at the end: with
# threads each look is slow. So is the weighing of inputs by entropy where one
# covers thousands of features.
fuzz_one() {
  local found=$cache/fuzz-$1
  mkdir -p "$found/corpus"
  ASAN_OPTIONS=malloc_context_size=10:quarantine_size_mb=32:thread_local_quarantine_size_kb=64 \
    "$programs/tests/fuzz/$1" "-runs=$3" "-max_len=$4" -print_final_stats=1 -timeout=120 \
    -entropic=0 -detect_leaks=0 -rss_limit_mb=8192 "-artifact_prefix=$found/" "$found/corpus" "tests/fuzz/corpus/$2"
}

run_fuzz() {
  local programs
  run_bazel fuzz build --config=fuzz //tests/fuzz:frame_fuzz //tests/fuzz:journal_fuzz \
    //tests/fuzz:handlers_fuzz || return 1
  programs=$(run_bazel fuzz info --config=fuzz bazel-bin 2> /dev/null) || return 1
  fuzz_one frame_fuzz frame "${TORPOR_FRAME_RUNS:-10000000}" 4096 &&
    fuzz_one journal_fuzz journal "${TORPOR_JOURNAL_RUNS:-10000000}" 512 &&
    fuzz_one handlers_fuzz handlers "${TORPOR_HANDLER_RUNS:-1000000}" 256
}

run_survival() {
  for _ in 1 2 3; do
    TORPOR_BAZEL_FLAGS="--output_base=$cache/survival --max_idle_secs=60" \
      tests/survival/survival.sh --check || return 1
  done
}

run_deploy() {
  local built
  bazel build --jobs="$jobs" //deploy:deb || return 1
  built=$(bazel info bazel-bin 2> /dev/null) || return 1
  tests/deploy/install_test.sh "$built"/deploy/torpor_*_amd64.deb "$cache/deploy"
}

failed=0
table="section   result  seconds"$'\n'
for section in "${sections[@]}"; do
  log=$cache/logs/$section.log
  echo "==== $section ($log)"
  start=$SECONDS
  if "run_$section" > "$log" 2>&1; then
    result=passed
  else
    result=FAILED
    failed=1
    tail -n 40 "$log"
  fi
  echo "==== $section $result after $((SECONDS - start)) s"
  table+=$(printf '%-8s  %-6s  %7d' "$section" "$result" $((SECONDS - start)))$'\n'
done
echo
printf '%s' "$table"
exit "$failed"
