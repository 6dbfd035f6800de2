#!/usr/bin/env bash
# Installs the package in a Debian of its own, boots that one's systemd in namespaces, kills and stops
# what it runs (on the host driver), and removes and purges the package: nothing is left.
#
#   install_test.sh TORPOR.deb CACHE
#
# Needs root and, the first time, a Debian mirror. CACHE keeps the Debian, a minute's work.
set -euo pipefail
deb=$(readlink -f "$1")
mkdir -p "$2"
cache=$(readlink -f "$2")

skip() { echo "install: SKIPPED, $*"; exit 0; }
die() { echo "install: $*" >&2; exit 1; }
say() { echo "install: $*"; }

[ "$(id -u)" = 0 ] || skip "not root"
command -v debootstrap > /dev/null || apt-get -qq install -y debootstrap > /dev/null ||
  skip "no debootstrap"
base=$cache/bookworm-2  # another number when what is in it changes
if [ ! -e "$base.ready" ]; then
  rm -rf "$base"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,libstdc++6 bookworm "$base" \
    > "$cache/debootstrap.log" 2>&1 || skip "debootstrap fails: $(tail -n 1 "$cache/debootstrap.log")"
  # Tools only, which debootstrap itself does not sort out.
  cp -r /etc/apt/apt.conf.d "$base/etc/apt/"
  chroot "$base" sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends lintian man-db && apt-get clean' \
    > "$cache/apt.log" 2>&1 || say "no lintian: $(tail -n 1 "$cache/apt.log")"
  touch "$base.ready"
fi

root=$(mktemp -d "$cache/root.XXXXXX")
booted=
cleanup() {
  if [ -n "$booted" ]; then
    kill -KILL "$booted" || true
    # With it end all processes of its namespaces, and their mounts.
    tail --pid="$booted" -f /dev/null
  fi
  rm -rf --one-file-system "$root" "$root".*
}
trap cleanup EXIT
cp -a "$base/." "$root"
cp "$deb" "$root/srv/torpor.deb"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
listing() { (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/cache \) -prune -o -print | sort); }
users() { inside getent passwd; inside getent group; }
# PATTERN COMMAND...: in what it prints.
prints() { grep -qE -e "$1" <<< "$("${@:2}")"; }

# ---- Looked at

if [ -e "$root/usr/bin/lintian" ]; then
  said=$(inside lintian --allow-root --fail-on error,warning /srv/torpor.deb 2>&1) || die "lintian: $said"
  say "lintian has nothing to say"
else
  say "lintian SKIPPED"
fi

# ---- Installed, removed, purged, without systemd

listing > "$root.before"
users > "$root.users"
inside dpkg -i /srv/torpor.deb > /dev/null 2>&1
for program in torpord torporctl torpor-keeper; do
  inside "$program" --version > /dev/null
  inside "$program" --help > /dev/null
  [ ! -e "$root/usr/bin/man" ] || prints '^ +--help' inside man "$program" || die "no manual of $program"
done
prints 'libtorpor\.so' inside ldconfig -p || die "libtorpor.so is not found"
prints '^torpor:' users || die "no user torpor"
echo 'TORPORD_FLAGS=--host_pool=1GiB' > "$root/etc/torpor/GPU-1.conf"
inside dpkg -r torpor > /dev/null
[ -e "$root/etc/torpor/torpord.conf" ] || die "remove has taken the configuration"
[ ! -e "$root/usr/bin/torpord" ] || die "remove has left torpord"
inside dpkg -P torpor > /dev/null
# Copies that useradd makes of what it changes.
listing | grep -vE '^\./etc/(passwd|group|shadow|gshadow)-$' |
  diff <(grep -vE '^\./etc/(passwd|group|shadow|gshadow)-$' "$root.before") - || die "purge has left something"
users | diff "$root.users" - || die "purge has left users"
rm "$root.before" "$root.users"
say "installed, removed and purged"

# ---- Under systemd

cat > "$root.boot" << 'X'
#!/bin/bash
set -e
root=$1
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sys sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty; do
  touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/shm
mount -t tmpfs shm dev/shm
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 run run
mkdir -p mnt
pivot_root . mnt
cd /
umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
X
for unit in systemd-sysctl systemd-udevd systemd-modules-load systemd-random-seed systemd-logind \
  systemd-timesyncd; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
for unit in apt-daily apt-daily-upgrade e2scrub_all fstrim; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit.timer"
done
unshare --mount --pid --fork --uts --ipc --net --cgroup --propagation private --kill-child \
  bash "$root.boot" "$root" > "$root.log" 2>&1 < /dev/null &
unshare=$!

# Process 1 of the namespaces.
in_system() { nsenter -t "$booted" -a env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
await() {
  for _ in $(seq 600); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  in_system journalctl --no-pager -o cat -n 60 >&2 || cat "$root.log" >&2
  die "in vain: $*"
}
running() {
  booted=$(pgrep -P "$unshare" | head -n 1)
  [ -n "$booted" ] && in_system systemctl is-system-running
}
if ! unshare --mount --cgroup true 2> /dev/null; then skip "no namespaces"; fi
await running
rm -f "$root.log"
say "systemd runs"

unit=torpor@host-0.service
signal() { in_system sh -c "kill -$1 $2"; }
show() { in_system systemctl show -P "$1" "$unit"; }
daemon() { in_system cat /run/torpor/host-0/lock; }
usage() { in_system torporctl usage --json | tr -d ' \n'; }
protected() { prints '"protection":\{"code":0' usage; }
another_daemon() { [ "$(daemon)" != "$1" ] && protected; }
another_keeper() { [ "$(show MainPID)" != "$1" ] && [ "$(show ActiveState)" = active ] && protected; }

in_system dpkg -i /srv/torpor.deb > /dev/null 2>&1
[ "$(show ActiveState)" = inactive ] || die "an instance was started by itself"
in_system sh -c 'cat > /etc/torpor/torpord.conf' << 'X'
TORPORD_DRIVER=host
TORPORD_FLAGS=--host_device_memory=64MiB
X
in_system sh -c 'echo TORPORD_DEVICE_FLAGS=--host_pool=16MiB --listen=127.0.0.1:0 > /etc/torpor/host-0.conf'
in_system systemctl start "$unit"
await protected
prints '"kind":"file,' usage || die "the pool is no file"
prints '"kind":"file,hugepages"' usage || say "no huge pages here"
prints 'has daemon' show StatusText || die "StatusText: $(show StatusText)"
[ "$(in_system stat -c %U "/proc/$(daemon)")" = torpor ] ||
  die "torpord runs as another user"
caps=$(in_system grep -E '^Cap(Eff|Bnd)' "/proc/$(daemon)/status")
[ "$(cut -f 2 <<< "$caps" | sort -u)" = 0000000000000000 ] || die "torpord has capabilities: $caps"

# A member of the group may, others may not.
as() { in_system setpriv --reuid 65534 --regid 65534 "$@" torporctl usage --runtime-dir=/run/torpor; }
group=$(in_system getent group torpor | cut -d: -f3)
await as --groups "$group"
if as --clear-groups > /dev/null 2>&1; then die "everybody may"; fi

before=$(daemon)
in_system dpkg -i /srv/torpor.deb > /dev/null 2>&1
[ "$(daemon)" = "$before" ] || die "an upgrade of the package has ended the daemon"
protected || die "an upgrade of the package has ended the keeper"
say "an upgrade leaves it alone"

signal KILL "$before"
await another_daemon "$before"
say "another daemon follows one that was killed"

before=$(daemon)
keeper=$(show MainPID)
signal KILL "$keeper"
await another_keeper "$keeper"
[ "$(daemon)" = "$before" ] || die "the keeper's death has ended the daemon"
say "another keeper takes the daemon over"

in_system systemctl reload "$unit"
await another_daemon "$before"
say "reload brings another daemon"

# A keeper that stands still is ended by the watchdog; the daemon goes on.
in_system mkdir -p "/run/systemd/system/$unit.d"
in_system sh -c "printf '[Service]\nWatchdogSec=2s\n' > /run/systemd/system/$unit.d/watchdog.conf"
in_system systemctl daemon-reload
keeper=$(show MainPID)
signal KILL "$keeper"
await another_keeper "$keeper"
before=$(daemon)
keeper=$(show MainPID)
signal STOP "$keeper"
await another_keeper "$keeper"
[ "$(daemon)" = "$before" ] || die "the watchdog has ended the daemon"
say "the watchdog brings another keeper"

# All GPUs of the machine: here of a driver that is not there.
in_system sh -c 'printf "#!/bin/sh\necho \"GPU 0: H200 (UUID: GPU-0a1b)\"\n" > /usr/bin/nvidia-smi'
in_system chmod +x /usr/bin/nvidia-smi
in_system systemctl start torpor.target torpor-gpus.service
gpu_active() { in_system systemctl is-active torpor@GPU-0a1b.service; }
await gpu_active
in_system systemctl stop torpor.target
for instance in host-0 GPU-0a1b; do
  [ "$(in_system systemctl is-active "torpor@$instance" || true)" = inactive ] || die "$instance runs on"
done
if in_system sh -c 'ls /run/torpor/*/*.sock' 2> /dev/null; then die "sockets are left"; fi
say "the target starts and stops all"

in_system systemctl enable torpor.target torpor-gpus.service torpor@host-0 2> /dev/null
in_system systemctl start "$unit"
in_system dpkg -P torpor > /dev/null
[ "$(in_system systemctl is-active "$unit" || true)" = inactive ] || die "it runs on without its package"
left=$(in_system sh -c "find / -xdev -name '*torpor*' -not -path '/proc/*' -not -path '/srv/*' -not -path '/var/cache/man/*'; ls -d /run/torpor* 2> /dev/null" || true)
[ -z "$left" ] || die "purge has left $left"
say "stopped and purged"
