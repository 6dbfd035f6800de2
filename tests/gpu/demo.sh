#!/usr/bin/env bash
# deploy/demo.sh on the checkpoint that it writes itself and on one of 1 GiB.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

on_gpu() {
  "$root/deploy/demo.sh" "$@" | tee "$scratch/output" || status=1
  grep -q '(cuda,' "$scratch/output" || { echo "this was not on the GPU"; status=1; }
}

on_gpu
"${TORPOR_PYTHON:-python3}" - "$scratch/large.safetensors" << 'PYTHON' || exit 1
import sys

import numpy
from safetensors.numpy import save_file

random = numpy.random.default_rng(2)
block = random.integers(0, 1 << 16, 32 << 20, dtype=numpy.uint16)
save_file({f"layer.{i}": numpy.roll(block, i) for i in range(16)}, sys.argv[1])
PYTHON
on_gpu "$scratch/large.safetensors"
exit "$status"
