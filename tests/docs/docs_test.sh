#!/usr/bin/env bash
# Runs docs_test.py on the repository that it lies in.
set -euo pipefail
script=$(readlink -f "$1")
exec /usr/bin/python3 "$script" --torpord "$2" --torporctl "$3"
