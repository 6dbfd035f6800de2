#!/usr/bin/env bash
# build_deb.sh OUT VERSION FOLDER_OF_CONTROL_FILES [SOURCE=TARGET:MODE]...
#
# TARGET: a path; FOLDER/ for the source's name in it; FOLDER// for the source's path without its first
# folder.
#
# Packs files into a .deb, the same bytes each time: no times, no users of the build. Programs and
# libraries are stripped. What lies in /etc is a conffile.
set -euo pipefail

out=$1 version=$2 control=$3
shift 3
# 2024-01-01: times of 1970 are taken for a mistake.
export SOURCE_DATE_EPOCH=1704067200

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 755 "$root"
for item in "$@"; do
  source=${item%%=*} target=${item#*=}
  mode=${target##*:} target=${target%:*}
  [[ $target != *// ]] || target=${target%/}$(dirname "${source#*/}")/
  [[ $target != */ ]] || target+=$(basename "$source")
  install -D -m "$mode" "$source" "$root/$target"
  if [ "$(head -c4 "$source" | tail -c3)" = ELF ]; then strip --strip-unneeded "$root/$target"; fi
done
perl "$control/fit_links.pl" "$root/usr/share/doc/torpor"

declare -A about=(
  [torpord]="owns the device memory of the workers of one GPU"
  [torpor-keeper]="keeps what must outlive torpord"
  [torporctl]="has torpord put workers to sleep and wake them"
)
mkdir -p "$root/usr/share/man/man1"
for program in "${!about[@]}"; do
  page=$root/usr/share/man/man1/$program.1
  "$root/usr/bin/$program" --help |
    awk -v program="$program" -v version="$version" -v date=2024-01-01 -v about="${about[$program]}" \
      -f "$control/manual.awk" > "$page"
  gzip -9n "$page"
done
sed "s/@VERSION@/$version/" "$control/changelog.in" | gzip -9n > "$root/usr/share/doc/torpor/changelog.gz"

mkdir "$root/DEBIAN"
size=$(find "$root" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
sed -e "s/@VERSION@/$version/" -e "s/@SIZE@/$size/" "$control/control.in" > "$root/DEBIAN/control"
for script in postinst prerm postrm; do install -m 755 "$control/$script" "$root/DEBIAN/$script"; done
echo "activate-noawait ldconfig" > "$root/DEBIAN/triggers"
(cd "$root" && find etc -type f | sort | sed 's,^,/,' > DEBIAN/conffiles)
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
chmod 644 "$root"/DEBIAN/{control,triggers,conffiles,md5sums}
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

dpkg-deb --root-owner-group -Zxz -z6 --build "$root" "$out" > /dev/null
