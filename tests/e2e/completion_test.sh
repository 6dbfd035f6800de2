#!/usr/bin/env bash
# What bash, zsh and fish complete of a torporctl command line, with a real daemon, worker and
# reservation. zsh and fish are left out where they are not installed, which is said.
#
#   completion_test.sh TORPORCTL TORPORD TEST_WORKER COMPLETION_ZSH
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

# Installed as docs/reference.md says.
mkdir -p "$scratch/zsh" "$scratch/home/fish/completions"
torporctl completion zsh > "$scratch/zsh/_torporctl"
torporctl completion fish > "$scratch/home/fish/completions/torporctl.fish"
export HOME=$scratch/home XDG_CONFIG_HOME=$scratch/home
zsh_script=$4
shells=(bash)
for shell in zsh fish; do
  if command -v "$shell" > /dev/null; then
    shells+=("$shell")
  else
    echo "completion_test: NOT RUN with $shell, which is not installed (apt-get install $shell)"
  fi
done

# LINE: what the shell offers for its last word, each on a line. Of bash: what follows the last '='
# or ':', which end a word there.
offers_bash() {
  # shellcheck disable=SC2016  # it is the inner shell's
  bash -c '
    source <(torporctl completion bash)
    line=$1 COMP_WORDS=()
    # Words end at blanks; "=" and ":" are words of their own.
    while [[ $line =~ ^(\ *)([^\ =:]+|[=:]+)(.*)$ ]]; do
      COMP_WORDS+=("${BASH_REMATCH[2]}") line=${BASH_REMATCH[3]}
    done
    [ -z "$line" ] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _torporctl torporctl
    printf "%s\n" "${COMPREPLY[@]}"' bash "$1"
}
offers_zsh() {
  printf '%s\n' "$1" | zsh -f "$zsh_script" "$scratch/zsh" | sed 's/ $//; s/.* //'
}
offers_fish() {
  # shellcheck disable=SC2016  # it is fish's
  fish -c 'complete -C $argv[1]' "$1" | cut -f 1
}

# LINE WANTED: what is offered for the last word of LINE, sorted, between commas; bash's way.
completes() {
  local shell said wanted word=${1##* } before item
  for shell in "${shells[@]}"; do
    wanted=$2 before=
    if [ "$shell" != bash ] && [[ $word == *[=:]* ]]; then
      before=${word%"${word##*[=:]}"} wanted=
      for item in ${2//,/ }; do wanted+=${wanted:+,}$before$item; done
    fi
    said=$("offers_$shell" "$1" 2>&1 | sed 's,/$,,' | sort | paste -sd,)
    said=${said#,}
    if [ "$said" != "$wanted" ]; then
      echo "$shell completes \"$1\" with \"$said\" and not \"$wanted\"" >&2
      failed=1
    fi
  done
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

if command -v zsh > /dev/null; then
  # A blank follows a whole word, and nothing what goes on; quotes are closed.
  typed=$(printf 'torporctl %s\n' us --targ "sleep 'mo" | zsh -f "$zsh_script" "$scratch/zsh" | paste -sd,)
  [ "$typed" = "torporctl usage ,,torporctl --target=,,torporctl sleep 'model' ," ] ||
    { echo "zsh types \"$typed\"" >&2; failed=1; }
fi

# Who does not answer is waited for only shortly, and nothing is said.
kill -STOP "${pids[0]}"
completes "torporctl sleep mo" ""
completes "torporctl sleep --forc" --force
[ -z "$(torporctl __complete sleep mo 2>&1)" ] || failed=1
[ "$failed" = 0 ]
