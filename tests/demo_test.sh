#!/usr/bin/env bash
# deploy/demo.sh, as with a bundle, on a published model and on a file of its own.
set -euo pipefail
root=$(dirname "$(readlink -f "$1")")/..
bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT
mkdir "$bundle/bin"
ln -s "$(readlink -f "$2")" "$(readlink -f "$3")" "$(readlink -f "$4")" \
  "$(readlink -f "$5")" "$bundle/bin"
export TORPOR_BUNDLE=$bundle TORPOR_PYTHON=$root/.deps/venv/bin/python

expect() { grep -qE -- "$1" "$bundle/output" || { echo "not there: $1" >&2; exit 1; }; }

"$root/deploy/demo.sh" "$root/.deps/models/all-minilm-l6-v2/model.safetensors" |
  tee "$bundle/output"
expect '^weights: 104 tensors, 90856960 bytes, each as in the file'
expect '^sleep, level 1 +132120576 +109051904 '
expect '^wake, next daemon +132120576 +109051904 '
expect '^demo: everything as it should be'

"$root/deploy/demo.sh" | tee "$bundle/output"
expect '^weights: 25 tensors, '
expect '^demo: everything as it should be'

# refused STATUS PATTERN ARGUMENT...: the demo ends so, and its last line is that.
refused() {
  local expected=$1 pattern=$2 status=0
  shift 2
  "$root/deploy/demo.sh" "$@" > "$bundle/output" 2>&1 || status=$?
  if [ "$status" != "$expected" ] || ! tail -n 1 "$bundle/output" | grep -qE -- "$pattern"; then
    cat "$bundle/output"
    echo "demo.sh $*: status $status, expected $expected and: $pattern" >&2
    exit 1
  fi
}

# checkpoint HEADER DATA: a safetensors file.
checkpoint() {
  printf "\\x$(printf %02x ${#1})\\0\\0\\0\\0\\0\\0\\0%s%s" "$1" "$2" > "$bundle/file"
}

# What cannot be a checkpoint is refused before anything is looked for or built.
good=$TORPOR_BUNDLE
export TORPOR_BUNDLE=$bundle/none
refused 2 '^demo: there is no file /nowhere/x.safetensors$' /nowhere/x.safetensors
refused 2 '^demo: /tmp is no file$' /tmp
refused 2 '^demo: unknown option --bogus$' --bogus
grep -q 'deploy/demo.sh \[CHECKPOINT' "$bundle/output"
refused 2 '^demo: one checkpoint at most$' a b
refused 2 'is no safetensors file: its header would be [0-9]+ bytes long' "$root/LICENSE"
: > "$bundle/file"
refused 2 'is empty: nothing to compare$' "$bundle/file"
checkpoint '{}' ''
refused 2 'has no bytes of weights: nothing to compare$' "$bundle/file"
checkpoint '{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' ''
refused 2 'has no bytes of weights: nothing to compare$' "$bundle/file"
export TORPOR_BUNDLE=$good

# What only the worker can tell is told in its words, and nothing is left behind.
checkpoint 'garbage' 'garbage'
refused 1 '^demo: the worker does not start: demo_worker: .*the header does not begin with' "$bundle/file"
if pgrep -f -- "--runtime_dir=/tmp/torpor-demo" > /dev/null; then
  echo "a process is left" >&2
  exit 1
fi
