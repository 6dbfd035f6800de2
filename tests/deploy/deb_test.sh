#!/usr/bin/env bash
# The package holds together: what it needs is what it depends on, units and scripts name what is in
# it, and building it again gives the same bytes.
#
#   deb_test.sh TORPOR.deb
set -euo pipefail
deb=$1
failed=0
bad() { echo "deb: $*" >&2; failed=1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
dpkg-deb -R "$deb" "$root"

depends=$(dpkg-deb -f "$deb" Depends)
declare -A package_of=(
  [libc.so.6]=libc6 [libm.so.6]=libc6 [ld-linux-x86-64.so.2]=libc6
  [libstdc++.so.6]=libstdc++6 [libgcc_s.so.1]=libgcc-s1
)
for file in "$root"/usr/bin/* "$root"/usr/lib/x86_64-linux-gnu/*; do
  name=${file#"$root"}
  for needed in $(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    package=${package_of[$needed]:-}
    [[ -n $package && $depends == *"$package "* ]] || bad "$name needs $needed: $depends"
  done
  newest=$(readelf -VW "$file" | grep -oE 'GLIBC_2[0-9.]+' | sort -Vu | tail -n 1)
  least=$(sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p' <<< "$depends")
  [ "$(printf '%s\n' "${newest#GLIBC_}" "$least" | sort -V | tail -n 1)" = "$least" ] ||
    bad "$name needs $newest, the package libc6 $least"
  ! readelf -SW "$file" | grep -q '\.symtab' || bad "$name is not stripped"
done

version=$(dpkg-deb -f "$deb" Version)
for program in torpord torporctl torpor-keeper; do
  said=$("$root/usr/bin/$program" --version)
  [ "$said" = "$program $version" ] || bad "$program --version says: $said"
done

completion=$root/usr/share/bash-completion/completions/torporctl
bash -c "source '$completion' && complete -p torporctl" > /dev/null || bad "no completion"

units=$root/usr/lib/systemd/system
for unit in torpor@.service torpor.target torpor-gpus.service torpor-nvidia.service 'run-torpor\x2dpool.mount'; do
  [ -f "$units/$unit" ] || bad "no $unit"
done
# shellcheck disable=SC2013  # words without spaces
for program in $(grep -hoE '(/usr/bin/torpor|/usr/libexec/torpor/)[a-z-]*' "$units"/*); do
  [ -x "$root$program" ] || bad "a unit runs $program, which is not there"
done
[ "$(cat "$root/DEBIAN/conffiles")" = /etc/torpor/torpord.conf ] || bad "conffiles"
(cd "$root" && md5sum --quiet -c DEBIAN/md5sums) || bad "md5sums"
for script in postinst prerm postrm; do sh -n "$root/DEBIAN/$script"; done

# Whoever builds it and when: root's, of one time, readable by all.
listed=$(TZ=UTC dpkg-deb -c "$deb")
[ "$(awk '{ print $2, $4, $5 }' <<< "$listed" | sort -u)" = "root/root 2024-01-01 00:00" ] ||
  bad "owners or times: $listed"
! awk '{ print $1 }' <<< "$listed" | grep -vE '^(d|-)rw.r-.r-.$' || bad "modes: $listed"

# An instance that was enabled starts with the machine, also alone.
systemctl --root="$root" enable torpor@GPU-1 2> /dev/null || bad "systemctl enable"
[ -L "$root/etc/systemd/system/multi-user.target.wants/torpor@GPU-1.service" ] || bad "nothing starts torpor@GPU-1"

pages=$root/usr/share/doc/torpor
for file in operations.md integration/kubernetes.md examples/worker.cc deploy/access.conf deploy/kubernetes/worker.yaml; do
  [ -f "$pages/$file" ] || bad "no $file"
done
for name in grpc++ prometheus_cpp fmt libevent; do grep -q "$name" "$pages/NOTICES" || bad "no notice of $name"; done
links=0
while IFS= read -r page; do
  while IFS= read -r link; do
    links=$((links + 1))
    [ -e "$(dirname "$page")/$link" ] || bad "${page#"$pages"/}: broken link to $link"
  done < <(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -vE '^[a-z]+:' | grep -v ' ')
done < <(find "$pages" -name '*.md')
[ "$links" -gt 100 ] || bad "$links links"
exit "$failed"
