#!/usr/bin/env bash
# The units are what systemd understands, and as closed as they can be. Offline: nothing is started.
#
#   systemd_test.sh TORPOR.deb
set -euo pipefail
deb=$1
failed=0
bad() { echo "systemd: $*" >&2; failed=1; }

if ! command -v systemd-analyze > /dev/null; then
  echo "systemd: SKIPPED, no systemd-analyze (apt-get install systemd)"
  exit 0
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
dpkg-deb -x "$deb" "$root"
units=$root/usr/lib/systemd/system
# The usual units and programs, which ours refer to.
mkdir -p "$root/bin"
cp /bin/sh "$root/bin/"
for usual in /usr/lib/systemd/system /lib/systemd/system; do
  [ ! -d "$usual" ] || cp -n "$usual"/*.{target,slice,socket,mount} "$units/"
done

# Prints what it finds; it has exit status 0 for many a mistake.
verify() {
  systemd-analyze verify --root="$root" --man=no --recursive-errors=no "torpor@GPU-0a1b.service" \
    torpor@0.service torpor.target torpor-gpus.service torpor-nvidia.service 'run-torpor\x2dpool.mount' 2>&1
}
said=$(verify) || bad "verify has exit status $?"
[ -z "$said" ] || bad "verify: $said"

# It does find mistakes.
cp "$units/torpor@.service" "$root/kept"
for mistake in 'LimitNOFILES=3' 'ExecStartPre=/usr/bin/not-there' 'After=a b.nonsense'; do
  sed "s|^Type=notify|Type=notify\n$mistake|" "$root/kept" > "$units/torpor@.service"
  [ -n "$(verify || true)" ] || bad "verify does not find $mistake"
done
cp "$root/kept" "$units/torpor@.service"

# In tenths. What stays open, and why, stands at the unit's end.
exposure() {
  systemd-analyze security --offline=yes --root="$root" --no-pager --threshold="$1" torpor@0.service
}
said=$(exposure 16) || bad "more open than it was: $said"

# What the death of one process must not bring about, and room for the threads of 1024 sessions.
for setting in KillMode=process Restart=on-failure OOMPolicy=continue RuntimeDirectoryPreserve=yes \
  RestartPreventExitStatus=2 TimeoutStartSec=infinity NotifyAccess=main TasksMax=8192; do
  grep -qx "$setting" "$units/torpor@.service" || bad "no $setting"
done
exit "$failed"
