#!/usr/bin/env bash
# Builds what it needs, and runs soak.py, which says what it takes:
#
#   tests/soak/soak.sh --minutes 30 [--seed N] [--workers N] [--every S] [--out FILE.json]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
programs=(daemon/keeper/torpor-keeper daemon/torpord client/ctl/torporctl tests/worker/test_worker)
bazel build --jobs="${TORPOR_JOBS:-2}" \
  //daemon/keeper:torpor-keeper //daemon:torpord //client/ctl:torporctl //tests/worker:test_worker
export PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 tests/soak/soak.py "$@" --programs "${programs[@]/#/bazel-bin/}"
