#!/usr/bin/env bash
# Runs bench_sleep_test.py.
set -euo pipefail
exec /usr/bin/python3 "$@"
