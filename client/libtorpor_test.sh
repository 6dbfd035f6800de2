#!/bin/sh
# libtorpor.so needs only what every C++ program has, and exports only torpor_*.
set -eu
library=$1
failed=0

for needed in $(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $needed in
    libc.so.6 | libm.so.6 | libstdc++.so.6 | libgcc_s.so.1 | ld-linux-x86-64.so.2) ;;
    *)
      echo "NEEDED: $needed"
      failed=1
      ;;
  esac
done

exported=$(nm -D --defined-only "$library" | awk '{ print $3 }')
for symbol in $exported; do
  case $symbol in
    torpor_*) ;;
    *)
      echo "exported: $symbol"
      failed=1
      ;;
  esac
done

for symbol in torpor_connect torpor_allocate torpor_torch_malloc torpor_torch_free; do
  if ! echo "$exported" | grep -qx "$symbol"; then
    echo "missing: $symbol"
    failed=1
  fi
done
exit $failed
