#!/usr/bin/env bash
# Runs cookbook_test.py on the repository that it lies in, with the programs given.
#
#   cookbook_test.sh COOKBOOK_TEST.PY FOLDER/PROGRAM=FILE...
set -euo pipefail
script=$(readlink -f "$1")
shift
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
for place; do
  mkdir -p "$programs/$(dirname "${place%%=*}")"
  ln -s "$(readlink -f "${place#*=}")" "$programs/${place%%=*}"
done
PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$script" --programs "$programs"
