#!/usr/bin/env bash
# Writes what commands print now, and what is generated, into the pages. Read the difference, cut
# long outputs with a line `...`, and build again with Bazel, since the pages are packaged.
#
#   tests/docs/update.sh [PAGE...]     as docs/cookbook.md; none: all of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bazel build //client:libtorpor.so //client/ctl:torporctl //client/demo:demo_worker \
  //daemon:torpord //daemon/keeper:torpor-keeper
export PYTHONDONTWRITEBYTECODE=1
docs/generate_rpc_reference.py
/usr/bin/python3 tests/docs/cookbook_test.py --programs bazel-bin --update "$@"
