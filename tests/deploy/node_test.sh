#!/usr/bin/env bash
# torpor-devices and torpor-node: what they make of what nvidia-smi prints, and, on the host driver,
# real keepers and daemons that are killed and stopped.
#
#   node_test.sh TORPOR_DEVICES TORPOR_NODE TORPORD TORPOR_KEEPER TORPORCTL
set -euo pipefail
scratch=$(mktemp -d /dev/shm/torpor.XXXXXX)
node=
cleanup() {
  local lock pid keeper
  if [ -n "$node" ]; then kill -KILL "$node" || true; fi
  for lock in "$scratch"/run/host-*/lock; do
    if [ ! -e "$lock" ] || flock --nonblock "$lock" true; then continue; fi
    pid=$(cat "$lock")
    keeper=$(parent_of "$pid")
    if [ "$(cat "/proc/$keeper/comm")" = torpor-keeper ]; then kill -KILL "$keeper" || true; fi
    kill -KILL "$pid" || true
  done
  rm -rf "$scratch"
}
trap cleanup EXIT
die() {
  echo "node: $*" >&2
  [ ! -e "$scratch/log" ] || cat "$scratch/log" >&2
  exit 1
}

mkdir "$scratch/bin"
install -m 755 "$1" "$scratch/bin/torpor-devices"
install -m 755 "$2" "$scratch/bin/torpor-node"
for program in "$3" "$4" "$5"; do ln -s "$(readlink -f "$program")" "$scratch/bin/"; done
export PATH=$scratch/bin:$PATH

# A GPU, one with MIG instances, one that is called like an instance.
cat > "$scratch/bin/nvidia-smi" << 'X'
#!/bin/sh
[ "$1" = -L ] && cat "$(dirname "$0")/list"
X
chmod +x "$scratch/bin/nvidia-smi"
cat > "$scratch/bin/list" << 'X'
GPU 0: NVIDIA H200 (UUID: GPU-1b2c3d4e-0000-4106-c12f-20bd9faed9f6)
GPU 1: NVIDIA H200 (UUID: GPU-2b2c3d4e-0000-4106-c12f-20bd9faed9f6)
  MIG 1g.18gb     Device  0: (UUID: MIG-3b2c3d4e-0000-5106-912f-20bd9faed9f6)
  MIG 1g.18gb     Device  1: (UUID: MIG-4b2c3d4e-0000-5106-912f-20bd9faed9f6)
GPU 2: NVIDIA A MIG (UUID: GPU-5b2c3d4e-0000-4106-c12f-20bd9faed9f6)
X
expected="GPU-1b2c3d4e-0000-4106-c12f-20bd9faed9f6
MIG-3b2c3d4e-0000-5106-912f-20bd9faed9f6
MIG-4b2c3d4e-0000-5106-912f-20bd9faed9f6
GPU-5b2c3d4e-0000-4106-c12f-20bd9faed9f6"
[ "$(torpor-devices)" = "$expected" ] || die "torpor-devices: $(torpor-devices)"
: > "$scratch/bin/list"
if torpor-devices 2> "$scratch/err"; then die "no device is no error"; fi
grep -q 'shows no device' "$scratch/err" || die "says: $(cat "$scratch/err")"
rm "$scratch/bin/list"
if torpor-node run 2> "$scratch/err"; then die "a driver that fails is no error"; fi
grep -q 'is the driver loaded' "$scratch/err" || die "says: $(cat "$scratch/err")"

# COMMAND...: until it succeeds.
await() {
  for _ in $(seq 600); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  die "in vain: $*"
}
daemon_pid() { cat "$TORPOR_RUNTIME_DIR/$1/lock"; }
parent_of() { awk '/^PPid:/ { print $2 }' "/proc/$1/status"; }
# Or is waited for by nobody, as an orphan may be.
ended() { ! grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2> /dev/null; }
changed() { [ "$(daemon_pid "$1")" != "$2" ] && torpor-node check; }

# Two that follow each other.
free_ports() {
  /usr/bin/python3 -c '
import socket
while True:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        try:
            two.bind(("127.0.0.1", port + 1))
        except (OSError, OverflowError):
            continue
        print(port, port + 1)
        break'
}
metrics_of() {
  /usr/bin/python3 -c '
import sys, urllib.request
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=60).read().decode())' "$1"
}
export TORPOR_DEVICES="host-0 host-1" TORPOR_RUNTIME_DIR=$scratch/run
if torpor-node check 2> /dev/null; then die "check: nothing runs"; fi
status=0
TORPOR_METRICS=9877 torpor-node run 2> "$scratch/err" || status=$?
[ "$status" = 2 ] || die "an address without a port: exit status $status"
start_node() {
  torpor-node run --driver=host --host_device_memory=64MiB --host_pool=16MiB --pool_memory=memfd \
    > "$scratch/log" 2>&1 &
  node=$!
}
read -r port next < <(free_ports)
TORPOR_METRICS=127.0.0.1:$port start_node
await torpor-node check

for device in "host-0 $port" "host-1 $next"; do
  # Not through a pipe, which grep would close too early.
  grep -q "torpor_device_info{.*uuid=\"${device% *}\"" <<< "$(metrics_of "${device#* }")" ||
    die "port ${device#* } has not the metrics of ${device% *}"
done

# A daemon that dies is followed by another, a keeper that dies as well, which takes over.
before=$(daemon_pid host-0)
keeper=$(parent_of "$before")
kill -KILL "$before"
await changed host-0 "$before"
after=$(daemon_pid host-0)
[ "$(parent_of "$after")" = "$keeper" ] || die "another keeper has started it"
kill -KILL "$keeper"
await grep -q "daemon $after lives on without its keeper: taken over" "$scratch/log"
[ "$(daemon_pid host-0)" = "$after" ] || die "the daemon did not survive its keeper"

# One that hangs is told.
kill -STOP "$after"
if torpor-node check 2> "$scratch/err"; then die "check: host-0 stands still"; fi
grep -q 'the daemon of host-0 does not answer' "$scratch/err" || die "says: $(cat "$scratch/err")"
kill -CONT "$after"
await torpor-node check

# DAEMON...: the node ends, and so do all of them.
ends_clean() {
  local pid status=0
  await ended "$node"
  wait "$node" || status=$?
  node=
  [ "$status" = 0 ] || die "stopped, it has exit status $status"
  for pid in "$@"; do ended "$pid" || die "daemon $pid is left"; done
  if ls "$scratch"/run/host-*/*.sock 2> /dev/null; then die "sockets are left"; fi
}
other=$(daemon_pid host-1)
kill -TERM "$node"
ends_clean "$after" "$other"

# Stopped when a keeper has just died: before the next one is there, as it starts, and after that.
for pause in 0 0.45 0.55 0.7; do
  start_node
  await torpor-node check
  after=$(daemon_pid host-0)
  other=$(daemon_pid host-1)
  kill -KILL "$(parent_of "$after")"
  await grep -q 'the keeper of host-0 has ended with status 137' "$scratch/log"
  sleep "$pause"
  kill -TERM "$node"
  ends_clean "$after" "$other"
done

# Stopped as it starts.
for pause in 0 0.01 0.02 0.05 0.1; do
  start_node
  sleep "$pause"
  kill -TERM "$node"
  await ended "$node"
  wait "$node" || true
  node=
  for lock in "$scratch"/run/host-*/lock; do
    flock --nonblock "$lock" true || die "stopped after $pause s, it leaves the daemon $(cat "$lock")"
  done
done

# All of the group get the signal, as at a terminal, and some get it twice.
set -m
start_node
set +m
await torpor-node check
after=$(daemon_pid host-0)
other=$(daemon_pid host-1)
kill -INT -- "-$node"
ends_clean "$after" "$other"

# A wrong command line does not get better.
status=0
torpor-node run --no_such_flag > "$scratch/log" 2>&1 || status=$?
[ "$status" = 2 ] || die "a wrong flag: exit status $status"
