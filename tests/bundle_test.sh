#!/usr/bin/env bash
# The bundle runs on x86-64 Linux with glibc 2.36 or newer: what its programs
# need, how large it is, and that they run.
set -euo pipefail
tarball=$1
failed=0
bad() { echo "bundle: $*" >&2; failed=1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xf "$tarball"
root=$(echo "$folder"/*)

[ "$(stat -Lc %s "$tarball")" -le $((25 << 20)) ] || bad "larger than 25 MiB"

for file in LICENSE include/torpor.h include/torpor.hpp lib/libtorpor.so bin/torpord \
  bin/torporctl bin/torpor-keeper bin/demo_worker bin/bench_sleep lib/libpeer_cumem.so bin/driver_contract_gpu \
  bin/cuda_driver_gpu libexec/torpor-devices libexec/torpor-node \
  share/bash-completion/completions/torporctl \
  python/torpor-*-py3-none-manylinux_2_36_x86_64.whl; do
  compgen -G "$root/$file" > /dev/null || bad "no $file"
done

for file in "$root"/bin/* "$root"/lib/*; do
  name=${file#"$root/"}
  allowed=' libc.so.6 libm.so.6 ld-linux-x86-64.so.2 '
  [ "$name" != lib/libtorpor.so ] || allowed+='libstdc++.so.6 libgcc_s.so.1 '
  for needed in $(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    [[ $allowed == *" $needed "* ]] || bad "$name needs $needed"
  done
  newest=$(readelf -VW "$file" | grep -oE 'GLIBC_2[0-9.]+' | sort -Vu | tail -n 1)
  [ "$(printf '%s\n' "$newest" GLIBC_2.36 | sort -V | tail -n 1)" = GLIBC_2.36 ] ||
    bad "$name needs $newest"
  if readelf -SW "$file" | grep -q '\.symtab'; then bad "$name is not stripped"; fi
done

version=$(basename "$root" | sed -E 's/^torpor-([0-9.]+)-.*/\1/')
for program in torpord torporctl torpor-keeper demo_worker bench_sleep; do
  said=$("$root/bin/$program" --version)
  [ "$said" = "$program $version" ] || bad "$program --version says: $said"
done
exit "$failed"
