#!/usr/bin/env bash
# The commands of README with the real grpcurl (fetched by deploy/setup.sh)
# against a running torpord.
#
#   grpcurl_test.sh THIS_SCRIPT TORPORD TEST_WORKER
set -euo pipefail

root=$(dirname "$(readlink -f "$1")")/../..
torpord=$2
test_worker=$3
grpcurl=$root/.deps/bin/grpcurl

scratch=$(mktemp -d /tmp/torpor.XXXXXX)
daemon=
clean_up() {
  [ -z "$daemon" ] || kill -KILL "$daemon" 2> /dev/null || true
  rm -rf "$scratch"
}
trap clean_up EXIT

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  sed 's/^/torpord: /' "$scratch/log" >&2
  exit 1
}

# expect TEXT PATTERN...: every extended regular expression matches some line.
expect() {
  local text=$1 pattern
  shift
  for pattern; do
    grep -Eq -- "$pattern" <<< "$text" || fail "no line matches $pattern in: $text"
  done
}

"$torpord" --driver=host --host_device_memory=128MiB --host_pool=64MiB --safety_reserve=0 \
  --runtime_dir="$scratch" > "$scratch/greeting" 2> "$scratch/log" &
daemon=$!
for _ in $(seq 600); do
  [ ! -s "$scratch/greeting" ] || break
  kill -0 "$daemon" 2> /dev/null || fail "torpord has ended"
  sleep 0.1
done
target=unix://$scratch/host-0/control.sock
service=torpor.v1.MemoryService

# call METHOD [REQUEST]: the answer as JSON.
call() {
  "$grpcurl" -plaintext -d "${2:-{\}}" "$target" "$service/$1" 2>&1
}

# refused METHOD REQUEST: the error as grpcurl shows it.
refused() {
  local answer
  if answer=$(call "$@"); then
    fail "$1 was not refused: $answer"
  fi
  printf '%s\n' "$answer"
}

echo '--- list, describe, health'
services=$("$grpcurl" -plaintext "$target" list)
expect "$services" '^torpor\.v1\.MemoryService$' '^grpc\.health\.v1\.Health$' \
  '^grpc\.reflection\.v1\.ServerReflection$' '^grpc\.reflection\.v1alpha\.ServerReflection$'
methods=$("$grpcurl" -plaintext "$target" list $service)
for method in Sleep WakeUp Usage Reserve Release; do
  expect "$methods" "^torpor\.v1\.MemoryService\.$method$"
done
expect "$("$grpcurl" -plaintext "$target" describe $service.Sleep)" \
  'rpc Sleep \( \.torpor\.v1\.SleepRequest \) returns \( \.torpor\.v1\.SleepResponse \);'
expect "$("$grpcurl" -plaintext "$target" describe torpor.v1.SleepRequest)" \
  'map<string, \.torpor\.v1\.Policy> policies = 3;'
expect "$("$grpcurl" -plaintext -d "{\"service\": \"$service\"}" "$target" \
  grpc.health.v1.Health/Check)" '"status": "SERVING"'

echo '--- a worker'
coproc worker { exec "$test_worker"; }
# Subshells do not inherit a coprocess' own descriptors.
exec {to_worker}>&"${worker[1]}" {from_worker}<&"${worker[0]}"
ask() {
  local answer
  printf '%s\n' "$*" >&"$to_worker"
  read -r -t 60 answer <&"$from_worker" || fail "the worker does not answer: $*"
  case $answer in
    ok*) printf '%s\n' "$answer" ;;
    *) fail "$*: $answer" ;;
  esac
}
ask "connect driver=host socket=$scratch/host-0/worker.sock name=model quiesce=guard"
weights=$(ask "alloc weights 16MiB 1" | cut -d' ' -f2)
cache=$(ask "alloc kv_cache 8MiB 2" | cut -d' ' -f2)

echo '--- Usage, Sleep, WakeUp'
expect "$(call Usage)" '"name": "model"' '"tag": "weights"' '"resident_?[bB]ytes": "16777216"'
expect "$(call Sleep '{"level": 1, "selector": {"workers": ["model"]}}')" \
  '"device_?[bB]ytes": "25165824"' '"copied_?[bB]ytes": "16777216"' \
  '"discarded_?[bB]ytes": "8388608"'
expect "$(call Usage)" '"offloaded_?[bB]ytes": "16777216"'
expect "$(call WakeUp '{"selector": {"all": true}, "order": ["weights"]}')" \
  '"device_?[bB]ytes": "25165824"'
ask "check $weights 1"
ask "checkzero $cache"
expect "$(call Sleep '{"policies": {"kv_cache": "POLICY_DISCARD"}, "selector": {"tags": ["kv_cache"]}}')" \
  '"device_?[bB]ytes": "8388608"'
ask "check $weights 1"

echo '--- Reserve, Release'
reservation=$(call Reserve \
  '{"name": "next", "parts": [{"name": "weights", "device_bytes": "4194304"}], "ttl": "30s"}' |
  sed -n 's/.*"reservation_\?[iI]d": "\([^"]*\)".*/\1/p')
expect "$(call Release "{\"reservation_id\": \"$reservation\"}")" '"device_?[bB]ytes": "4194304"'

echo '--- errors with details'
expect "$(refused Sleep '{"level": 1, "selector": {"workers": ["nobody"]}}')" \
  'Code: NotFound' 'Message: .*nobody' 'google\.rpc\.ErrorInfo' '"domain": "torpor"' \
  '"reason": "UNKNOWN_WORKER"' '"worker": "nobody"'
expect "$(refused Reserve \
  '{"name": "huge", "parts": [{"name": "weights", "device_bytes": "1099511627776"}], "ttl": "30s"}')" \
  'Code: ResourceExhausted' '"reason": "NEVER_FITS"' \
  '"requested_bytes": "1099511627776"' '"most_bytes": "[0-9]+"'
expect "$(refused Sleep '{"selector": {"all": true}, "level": 3}')" 'Code: InvalidArgument' \
  '"reason": "BAD_LEVEL"' '"level": "3"'

echo '--- the end'
ask "exit"
kill -TERM "$daemon"
status=0
wait "$daemon" || status=$?
daemon=
[ "$status" = 0 ] || fail "torpord ended with $status"
