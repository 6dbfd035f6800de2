#!/usr/bin/env bash
# Runs a test of the package: package_test.sh TEST.py TORPORCTL WHEEL TORPORD.
# Python and the model are those that deploy/setup.sh fetched.
set -euo pipefail
script=$(readlink -f "$1")
root=$(cd "$(dirname "$script")/../.." && pwd)
python=$root/.deps/venv/bin/python
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
"$python" -m zipfile -e "$3" "$package"
unset "${!TORPOR_@}" "${!CUDA_@}"
export TEST_TORPORCTL=$2 TEST_WHEEL=$3 TEST_TORPORD=$4
export TEST_MODEL=$root/.deps/models/all-minilm-l6-v2/model.safetensors
export PYTHONPATH=$package:$root/tests/python:$root/tests/gpu
export PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
"$python" "$script"
