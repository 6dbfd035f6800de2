#!/usr/bin/env bash
# What bash completes of a torporctl command line, with a real daemon, worker and reservation.
#
#   completion_test.sh TORPORCTL TORPORD TEST_WORKER
set -euo pipefail
scratch=$(mktemp -d /tmp/torpor.XXXXXX)
pids=()
cleanup() {
  [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2> /dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT
mkdir "$scratch/bin"
ln -s "$(readlink -f "$1")" "$scratch/bin/torporctl"
export PATH=$scratch/bin:$PATH TORPOR_RUNTIME_DIR=$scratch/run
failed=0

# LINE WANTED: what is completed at the end of LINE, split as bash splits it, sorted, between commas.
completes() {
  local said
  # shellcheck disable=SC2016  # it is the inner shell's
  said=$(bash -c '
    source <(torporctl completion bash)
    line=$1 COMP_WORDS=()
    # Words end at blanks; "=" and ":" are words of their own.
    while [[ $line =~ ^(\ *)([^\ =:]+|[=:]+)(.*)$ ]]; do
      COMP_WORDS+=("${BASH_REMATCH[2]}") line=${BASH_REMATCH[3]}
    done
    [ -z "$line" ] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _torporctl torporctl
    printf "%s\n" "${COMPREPLY[@]}"' bash "$1" 2>&1 | sort | paste -sd,)
  if [ "$said" != "$2" ]; then
    echo "completion of \"$1\": \"$said\" and not \"$2\"" >&2
    failed=1
  fi
}

completes "torporctl us" usage
completes "torporctl --targ" --target=
completes "torporctl --target" --target=
completes "torporctl sleep " ""  # nobody is there
completes "torporctl completion " bash,fish,zsh

"$2" --driver=host --runtime_dir="$TORPOR_RUNTIME_DIR" --host_device_memory=64MiB \
  --host_pool=16MiB 2> "$scratch/log" > "$scratch/greeting" &
pids+=($!)
until [ -s "$scratch/greeting" ]; do
  kill -0 "${pids[0]}" || { cat "$scratch/log"; exit 1; }
  sleep 0.05
done
mkfifo "$scratch/commands"
"$3" < "$scratch/commands" > "$scratch/answers" &
pids+=($!)
exec 9> "$scratch/commands"
printf 'connect socket=%s name=model quiesce=guard\nalloc weights 4MiB 1\nalloc kv_cache 4MiB 1\n' \
  "$TORPOR_RUNTIME_DIR/host-0/worker.sock" >&9
until [ "$(grep -c '^ok' "$scratch/answers")" = 3 ]; do
  kill -0 "${pids[1]}"
  sleep 0.05
done
torporctl reserve --name next --part all=1MiB --ttl 1h > /dev/null

completes "torporctl sleep mo" model
completes "torporctl sleep " model,w-1
completes "torporctl sleep --level=" 1,2
completes "torporctl sleep --level " 1,2
completes "torporctl sleep --pol" --policy=
completes "torporctl sleep --policy=we" weights=
completes "torporctl sleep --policy=weights=o" offload
completes "torporctl wake --tag k" kv_cache
completes "torporctl release " r-1
completes "torporctl usage --device=" host-0
completes "torporctl usage --dev" --device=
completes "torporctl --target=unix:$TORPOR_RUNTIME_DIR/host-0/control.sock sleep m" model

touch "$scratch/ca.pem"
completes "torporctl --tls-ca=$scratch/c" "$scratch/ca.pem,$scratch/commands"
completes "torporctl usage --runtime-dir $scratch/b" "$scratch/bin"

# Who does not answer is waited for only shortly, and nothing is said.
kill -STOP "${pids[0]}"
completes "torporctl sleep mo" ""
completes "torporctl sleep --forc" --force
[ -z "$(torporctl __complete sleep mo 2>&1)" ] || failed=1
[ "$failed" = 0 ]
