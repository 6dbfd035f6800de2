#!/usr/bin/env bash
# Sets up, builds everything and passes all tests (or the targets given). The
# last line counts test cases: "N passed, N failed", with ", N skipped" if any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export HOME="${HOME:-$PWD/.deps/home}"
export USER="${USER:-$(id -un)}"
mkdir -p "$HOME"

if ! { deploy/setup.sh && .deps/bin/buf lint; }; then
  echo "0 passed, 1 failed"
  exit 1
fi

events=$(mktemp)
trap 'rm -f "$events"' EXIT

status=0
bazel test --jobs="$(nproc)" --keep_going --build_event_json_file="$events" -- "${@:-//...}" ||
  status=$?
if [ -n "${CI:-}" ]; then
  bazel shutdown
fi
/usr/bin/python3 tests/count_cases.py "$events" "$status"
