#!/usr/bin/env bash
# Lints the Dockerfile and validates Kubernetes' manifests, with what deploy/setup.sh puts into .deps.
#
#   manifests_test.sh THIS_SCRIPT MANIFESTS_TEST.py BUNDLE TORPORD
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$1")")/../..")
lint=$root/.deps/lint/bin
if [ ! -x "$lint/python" ]; then
  echo "manifests: no .deps/lint (deploy/setup.sh makes it)" >&2
  exit 1
fi
exec "$lint/python" "$(readlink -f "$2")" --root "$root" --bundle "$(readlink -f "$3")" --torpord "$4"
