#!/usr/bin/env bash
# Runs ctypes_test.py with the Python and the model that deploy/setup.sh fetched.
set -euo pipefail
script=$(readlink -f "$1")
root=$(dirname "$script")/../..
export PYTHONPATH=$root/tests/gpu PYTHONDONTWRITEBYTECODE=1
exec "$root/.deps/venv/bin/python" "$script" "$2" "$3" "$4" \
  "$root/.deps/models/all-minilm-l6-v2/model.safetensors"
