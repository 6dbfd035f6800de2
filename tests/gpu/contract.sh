#!/usr/bin/env bash
# The driver's contract on CudaDriver, and what is particular to it.
set -uo pipefail
status=0
"$TORPOR_BUNDLE/bin/driver_contract_gpu" || status=1
"$TORPOR_BUNDLE/bin/cuda_driver_gpu" || status=1
exit "$status"
