/* The C interface of torch_memory_saver's hook library (0.0.10), on Torpor: libtorpor_tms.so, for
 * programs that load that library, or look its symbols up, themselves. From Python use
 * torpor.compat.torch_memory_saver.
 *
 * tms_torch_malloc and tms_torch_free are for torch.cuda.memory.CUDAPluggableAllocator, as
 * torpor_torch_malloc and torpor_torch_free of torpor.h, whose sessions they share: one
 * libtorpor.so serves a process. Why a call failed is in its torpor_last_error(). What is set is
 * per thread, but for the last two.
 *
 * Unlike the original it hooks neither cudaMalloc nor cudaFree, never ends the process, and gives
 * memory without a cpu backup back zeroed. If a tag is used with and without one, the kind that
 * comes second is `<tag>.backup` or `<tag>.scratch` in Torpor. */
#ifndef TORPOR_CLIENT_TMS_H_
#define TORPOR_CLIENT_TMS_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL on failure: outside of a region (set_interesting_region), with a disk backup, or as
 * torpor_torch_malloc. */
void* tms_torch_malloc(ssize_t size, int device, void* stream);
/* From any thread, in a region or not. */
void tms_torch_free(void* address, ssize_t size, int device, void* stream);

/* $TMS_INIT_ENABLE at first. */
void tms_set_interesting_region(bool interesting);
bool tms_get_interesting_region(void);
/* "default" at first; NULL is ignored. What get returns is valid until the thread sets another. */
void tms_set_current_tag(const char* tag);
const char* tms_get_current_tag(void);
/* $TMS_INIT_ENABLE_CPU_BACKUP at first. */
void tms_set_enable_cpu_backup(bool enable);
bool tms_get_enable_cpu_backup(void);
/* No effect: backups lie in the daemon's pinned memory. */
void tms_set_cpu_backup_backend(const char* backend);
const char* tms_get_cpu_backup_backend(void);
/* There is no disk backup: allocations fail while it is enabled. */
void tms_set_enable_disk_backup(bool enable);
bool tms_get_enable_disk_backup(void);
void tms_set_disk_backup_dir(const char* folder);

/* Gives the device memory of `tag` (NULL or "": of all) back, or takes it again, on every device
 * that was allocated on; blocks until that is done. 0, or the torpor_code of the first device where
 * it failed, which is as before; the others are done. What is paused, or not, stays so. */
int tms_pause(const char* tag);
int tms_resume(const char* tag);

/* Always NULL: backups are not in this process's memory. */
uint8_t* tms_get_cpu_backup_pointer(const uint8_t* address, uint64_t size);

/* No effect: the daemon keeps backups while it has room. $TMS_RETAIN_CPU_BACKUP at first. */
void tms_set_retain_cpu_backup(bool retain);
bool tms_get_retain_cpu_backup(void);
/* No effect: how much of the device stays free is the daemon's --safety_reserve. (The original has
 * it without a prefix, too.) */
void set_memory_margin_bytes(uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* TORPOR_CLIENT_TMS_H_ */
