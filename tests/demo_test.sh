#!/usr/bin/env bash
# deploy/demo.sh, as with a bundle, on a published model and on a file of its own.
set -euo pipefail
root=$(dirname "$(readlink -f "$1")")/..
bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT
mkdir "$bundle/bin"
ln -s "$(readlink -f "$2")" "$(readlink -f "$3")" "$(readlink -f "$4")" "$bundle/bin"
export TORPOR_BUNDLE=$bundle TORPOR_PYTHON=$root/.deps/venv/bin/python

expect() { grep -qE -- "$1" "$bundle/output" || { echo "not there: $1" >&2; exit 1; }; }

"$root/deploy/demo.sh" "$root/.deps/models/all-minilm-l6-v2/model.safetensors" |
  tee "$bundle/output"
expect '^weights: 104 tensors, 90856960 bytes, each as in the file'
expect '^sleep, level 1 +132120576 +109051904 '
expect '^demo: everything as it should be'

"$root/deploy/demo.sh" | tee "$bundle/output"
expect '^weights: 25 tensors, '
expect '^demo: everything as it should be'

# A file that is no checkpoint: status 1, the reason, and nothing left behind.
if "$root/deploy/demo.sh" "$root/LICENSE" > "$bundle/output" 2>&1; then
  echo "the demo took a licence for a checkpoint" >&2
  exit 1
fi
expect 'its header would be [0-9]+ bytes long'
if pgrep -f -- "--runtime_dir=/tmp/torpor-demo" > /dev/null; then
  echo "a process is left" >&2
  exit 1
fi
