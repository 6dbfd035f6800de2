#!/bin/sh
# libtorpor_tms.so finds the libtorpor.so beside it, and exports what torch_memory_saver's hook library
# does, and nothing else.
set -eu
library=$1
failed=0

needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libtorpor.so | libc.so.6 | libm.so.6 | libstdc++.so.6 | libgcc_s.so.1 | ld-linux-x86-64.so.2) ;;
    *)
      echo "NEEDED: $name"
      failed=1
      ;;
  esac
done
if ! echo "$needed" | grep -qx libtorpor.so; then
  echo "does not need libtorpor.so"
  failed=1
fi
runpath=$(readelf -dW "$library" | sed -n 's/.*(RUNPATH).*\[\(.*\)\]/\1/p')
if [ "$runpath" != "\$ORIGIN" ]; then
  echo "RUNPATH: $runpath"
  failed=1
fi

cat > "${TEST_TMPDIR:-/tmp}/expected" << 'END'
set_memory_margin_bytes
tms_get_cpu_backup_backend
tms_get_cpu_backup_pointer
tms_get_current_tag
tms_get_enable_cpu_backup
tms_get_enable_disk_backup
tms_get_interesting_region
tms_get_retain_cpu_backup
tms_pause
tms_resume
tms_set_cpu_backup_backend
tms_set_current_tag
tms_set_disk_backup_dir
tms_set_enable_cpu_backup
tms_set_enable_disk_backup
tms_set_interesting_region
tms_set_retain_cpu_backup
tms_torch_free
tms_torch_malloc
END
nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort |
  diff "${TEST_TMPDIR:-/tmp}/expected" - || failed=1
exit $failed
