#!/usr/bin/env bash
# Runs monitoring_test.py on the repository that it lies in.
set -euo pipefail
script=$(readlink -f "$1")
shift
exec /usr/bin/python3 "$script" "$@"
