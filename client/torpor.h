/* Torpor: device memory that a daemon owns, can take away and gives back at the same address.
 *
 * This is the C interface of libtorpor.so. A process opens a session with the daemon of its GPU,
 * allocates segments under tags ("weights", "kv_cache", ...), and submits work between
 * torpor_work_begin and torpor_work_end. The daemon may then put tags to sleep (their memory goes
 * to host memory or is dropped) and wake them up again.
 *
 * Conventions
 *   - Sizes are bytes, times milliseconds. Strings are UTF-8, end in NUL and are copied.
 *   - Functions return TORPOR_OK or one of torpor_code. torpor_last_error() then tells more.
 *   - Every function may be called from any thread, also at the same time, unless it says
 * otherwise. A session must not be closed while another thread uses it.
 *   - No function throws or ends the process. Nothing starts a thread or touches the GPU before the
 *     first torpor_connect, and a process that has not connected may fork freely. In a forked child
 *     of a process that has, its sessions answer TORPOR_FAILED_PRECONDITION, reason FORKED.
 *   - Memory that is resident stays usable when the daemon goes away. Where a keeper starts it
 *     again, functions that need it wait for it, and go on as if nothing had been; otherwise, and
 *     when it does not come in its grace time, they answer TORPOR_UNAVAILABLE, reason DAEMON_GONE.
 *   - Structures that callers fill or receive begin with struct_size. Set it to sizeof the
 * structure (the _INIT macros do): a newer library then serves older programs.
 */
#ifndef TORPOR_CLIENT_TORPOR_H_
#define TORPOR_CLIENT_TORPOR_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TORPOR_VERSION_MAJOR 0
#define TORPOR_VERSION_MINOR 1
#define TORPOR_VERSION_PATCH 0

/* "0.1.0": of the library that is loaded. */
const char* torpor_version(void);

/* ---- Errors ---------------------------------------------------------------------------------- */

/* What kind of failure. The numbers equal those of google.rpc.Code. */
typedef enum torpor_code {
  TORPOR_OK = 0,
  TORPOR_CANCELLED = 1,
  TORPOR_INVALID_ARGUMENT = 3,    /* will fail again */
  TORPOR_DEADLINE_EXCEEDED = 4,   /* late */
  TORPOR_NOT_FOUND = 5,           /* unknown name or address */
  TORPOR_PERMISSION_DENIED = 7,   /* not allowed */
  TORPOR_RESOURCE_EXHAUSTED = 8,  /* no memory, no descriptors */
  TORPOR_FAILED_PRECONDITION = 9, /* wrong state: change it first */
  TORPOR_ABORTED = 10,            /* lost a race: try again */
  TORPOR_UNIMPLEMENTED = 12,
  TORPOR_INTERNAL = 13,    /* a bug */
  TORPOR_UNAVAILABLE = 14, /* the daemon is not there or going away */
  TORPOR_DATA_LOSS = 15    /* contents are gone */
} torpor_code;

/* An error. `reason` is a word in upper snake case that programs may compare, `message` is for
 * people, details are the numbers behind it, by name ("requested_bytes", "available_bytes"). */
typedef struct torpor_error torpor_error;

/* The error of this thread's last call that failed; never NULL (TORPOR_OK before any). Owned by the
 * library, valid until this thread's next call that fails. */
const torpor_error* torpor_last_error(void);

torpor_code torpor_error_code(const torpor_error* error);
const char* torpor_error_reason(const torpor_error* error);
const char* torpor_error_message(const torpor_error* error);
/* The detail `key`; NULL where there is none. */
const char* torpor_error_detail(const torpor_error* error, const char* key);
/* The detail `key` as a number, into `value`; 0 where there is none, else 1. */
int torpor_error_number(const torpor_error* error, const char* key, int64_t* value);
/* Detail number `index`, counted from 0 in the order of keys, into `key` and `value`; 0 where there
 * are not so many, else 1. */
int torpor_error_detail_at(const torpor_error* error, size_t index, const char** key,
                           const char** value);
/* Code, reason, message and all details in one line. */
const char* torpor_error_text(const torpor_error* error);
/* "RESOURCE_EXHAUSTED" for TORPOR_RESOURCE_EXHAUSTED. */
const char* torpor_code_name(int code);

/* ---- Sessions -------------------------------------------------------------------------------- */

typedef struct torpor_session torpor_session;

/* How others can bring this process to rest before they put it to sleep. */
typedef enum torpor_quiesce {
  TORPOR_QUIESCE_NONE = 0,        /* they cannot: only its own torpor_sleep works */
  TORPOR_QUIESCE_SYNCHRONIZE = 1, /* a device synchronize is enough: the process promises to submit
                                     nothing that needs memory asleep */
  TORPOR_QUIESCE_GUARD = 2,       /* it submits work only inside the work guard */
  TORPOR_QUIESCE_CALLBACK = 3     /* a pause callback stops it */
} torpor_quiesce;

/* Everything may be 0 or NULL. */
typedef struct torpor_options {
  size_t struct_size;
  /* The daemon's worker socket. NULL: that of the device's daemon,
   * <runtime_dir>/<device uuid>/worker.sock; where no device is known, the only daemon's there. */
  const char* socket_path;
  /* NULL: $TORPOR_RUNTIME_DIR, else /run/torpor for root, else $XDG_RUNTIME_DIR/torpor. */
  const char* runtime_dir;
  /* Of this worker: 1 to 63 of [A-Za-z0-9_.-]. NULL: the daemon makes one. */
  const char* name;
  /* CUDA ordinal, as this process counts. Not used if device_uuid is set. */
  int device;
  /* "GPU-..." or "MIG-..."; a host device's name. */
  const char* device_uuid;
  int quiesce; /* torpor_quiesce */
  /* Id of a reservation to draw on. NULL: the free budget. */
  const char* reservation;
  /* "cuda", "host" (device memory made of files, for machines without a GPU) or, as NULL, "auto":
   * CUDA where there is an NVIDIA device, otherwise what the daemon has. */
  const char* driver;
} torpor_options;

#define TORPOR_OPTIONS_INIT \
  { sizeof(torpor_options), NULL, NULL, NULL, 0, NULL, TORPOR_QUIESCE_NONE, NULL, NULL }

/* Opens a session. `options` may be NULL. Blocks for the daemon's answer, at most 30 seconds.
 * *session is NULL on failure.
 *   UNAVAILABLE DAEMON_NOT_RUNNING
 *   FAILED_PRECONDITION AMBIGUOUS_DAEMON: no device known and several daemons there; the detail
 *     "candidates" names them
 *   FAILED_PRECONDITION WRONG_DEVICE: the daemon serves another device; details name both */
int torpor_connect(const torpor_options* options, torpor_session** session);

/* Ends the session: waits for the device, unmaps all its segments, closes the connection. NULL is
 * ignored. Without it the end of the process does the same.
 *   FAILED_PRECONDITION CALLED_FROM_CALLBACK, FORKED: the session is as before */
int torpor_close(torpor_session* session);

typedef struct torpor_session_info {
  size_t struct_size;
  uint64_t worker_id;   /* the daemon's number for this worker */
  char device_kind[16]; /* "cuda" or "host" */
  char device_uuid[96];
  int64_t device_total_bytes;
  int64_t granularity_bytes; /* segments are multiples of it */
} torpor_session_info;

/* What the daemon said when the session was opened. */
int torpor_describe(const torpor_session* session, torpor_session_info* info);

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Allocates at least `size` bytes (rounded up to the device's granularity), zeroed unless reused,
 * under `tag` (1 to 63 of [A-Za-z0-9_.-]). The address stays the same while the segment lives; its
 * memory does not stay while it sleeps. Never waits for memory or for an operation; may be called
 * inside the work guard. On failure *address is NULL and nothing has changed.
 *   INVALID_ARGUMENT EMPTY_ALLOCATION (size 0), BAD_ALLOCATION_SIZE (negative), BAD_TAG
 *   RESOURCE_EXHAUSTED: for want of memory with requested_bytes, and with what there is of it:
 *     available_bytes (DEVICE_BUDGET_EXHAUSTED, RESERVATION_TOO_SMALL), most_bytes (NEVER_FITS),
 *     total_bytes (LARGER_THAN_DEVICE), largest_range_bytes (ARENA_EXHAUSTED) */
int torpor_allocate(torpor_session* session, const char* tag, int64_t size, void** address);

/* As torpor_allocate, but waits in its turn for device memory that others have: until they free it,
 * are put to sleep, or have ended. `timeout_ms`: TORPOR_NO_TIMEOUT waits as long as it takes (a
 * day), 0 not at all. Not inside the work guard, nor in a callback: those that it waits for may be
 * waiting for this thread. What a reservation has not left is not waited for.
 *   DEADLINE_EXCEEDED ALLOCATION_DEADLINE: with the numbers of the refusal, and waited_ms
 *   FAILED_PRECONDITION WORK_GUARD_HELD, CALLED_FROM_CALLBACK: at once
 *   RESOURCE_EXHAUSTED NEVER_FITS, QUEUE_FULL: at once; others as torpor_allocate */
int torpor_allocate_wait(torpor_session* session, const char* tag, int64_t size, int64_t timeout_ms,
                         void** address);

/* Frees the segment that starts at `address` (NULL is ignored), from any thread, also while it
 * sleeps. Never waits for an operation. If memory is to be unmapped, synchronizes the device first;
 * while a thread is inside the work guard, that is left to the last one that leaves it.
 *   NOT_FOUND UNKNOWN_ADDRESS: with address */
int torpor_free(torpor_session* session, void* address);

typedef struct torpor_segment_info {
  size_t struct_size;
  void* address;
  int64_t size; /* as allocated, a multiple of the granularity */
  char tag[64];
} torpor_segment_info;

/* The segment that contains `address`. NOT_FOUND UNKNOWN_ADDRESS. */
int torpor_segment(torpor_session* session, const void* address, torpor_segment_info* info);

/* Copies between host memory and a part of one segment, for programs without a GPU library of their
 * own. Blocks until the bytes have arrived, inside the work guard for the segment's tag: waits like
 * torpor_work_begin_tags without a timeout, and a sleep waits for it.
 *   NOT_FOUND UNKNOWN_ADDRESS, INVALID_ARGUMENT BAD_SIZE (not inside the segment)
 *   FAILED_PRECONDITION ASLEEP: this thread is inside the work guard, and the tag is asleep */
int torpor_copy_to_device(torpor_session* session, void* to, const void* from, int64_t size);
int torpor_copy_from_device(torpor_session* session, void* to, const void* from, int64_t size);

/* ---- Work ------------------------------------------------------------------------------------ */

#define TORPOR_NO_TIMEOUT ((int64_t)-1)

/* Enters the work guard: until torpor_work_end on the same thread nothing is unmapped under what
 * the thread submits. Covers submission (and graph capture), not the work itself: what was
 * submitted is waited for. Enter and leave as often as you like, also nested; only outermost
 * entries wait.
 *
 * Blocks while an operation needs this process quiet, or a tag is asleep: any tag, or with _tags
 * one of `tags`. `timeout_ms` 0 does not wait. DEADLINE_EXCEEDED ASLEEP: still so after timeout_ms
 *   FAILED_PRECONDITION ASLEEP: nested, and a tag is asleep; waiting here could last for ever
 *   FAILED_PRECONDITION CALLED_FROM_CALLBACK: in a callback, and it would have to wait
 *   UNAVAILABLE DAEMON_GONE: a tag is asleep, and lost with its daemon
 *   DATA_LOSS SEGMENTS_LOST: likewise, and the daemon was started again; until they are freed */
int torpor_work_begin(torpor_session* session, int64_t timeout_ms);
int torpor_work_begin_tags(torpor_session* session, const char* const* tags, size_t tag_count,
                           int64_t timeout_ms);
/* Leaves it. FAILED_PRECONDITION WORK_GUARD_NOT_HELD. */
int torpor_work_end(torpor_session* session);

/* States how others may quiet this process; replaces what torpor_options said. */
int torpor_set_quiesce(torpor_session* session, int quiesce /* torpor_quiesce */);

/* Says how this process is put to sleep by its own means, as "POST http://host:port/sleep": for
 * engines that bring themselves to rest. Others see it in Usage, and where their Sleep is refused
 * because they cannot quiet this process. `endpoint`: text for people, at most 255 bytes of UTF-8
 * without control characters; NULL or "" takes it back.
 *   INVALID_ARGUMENT BAD_ENDPOINT */
int torpor_set_sleep_endpoint(torpor_session* session, const char* endpoint);

/* Stops whatever submits work and returns 0 when it has stopped. Another number refuses: the
 * operation fails with FAILED_PRECONDITION, reason PAUSE_REFUSED. */
typedef int (*torpor_pause_fn)(void* user);
typedef void (*torpor_resume_fn)(void* user);

/* Sets the callbacks (pause NULL: none) and states TORPOR_QUIESCE_CALLBACK (or what was stated
 * before). They are called in turn, on a thread of the library that holds no lock: pause before the
 * process is quieted, resume when none of its tags is asleep any more. They must not throw. They
 * may allocate and free; they may not sleep, wake, close or set callbacks (FAILED_PRECONDITION
 * CALLED_FROM_CALLBACK). Blocks while a callback runs; afterwards the former ones are not called
 * again. */
int torpor_on_pause(torpor_session* session, torpor_pause_fn pause, torpor_resume_fn resume,
                    void* user);

/* ---- Sleep ----------------------------------------------------------------------------------- */

typedef enum torpor_policy {
  TORPOR_KEEP = 0,    /* stays resident */
  TORPOR_OFFLOAD = 1, /* its bytes go to host memory */
  TORPOR_DISCARD = 2  /* its bytes are dropped; it comes back zeroed */
} torpor_policy;

typedef struct torpor_tag_policy {
  const char* tag;
  int policy; /* torpor_policy */
} torpor_tag_policy;

/* What a sleep or wake has done. */
typedef struct torpor_sleep_result {
  size_t struct_size;
  int64_t device_bytes;    /* freed by a sleep, taken by a wake */
  int64_t copied_bytes;    /* between device and host memory */
  int64_t discarded_bytes; /* dropped by a sleep, zeroed by a wake */
} torpor_sleep_result;

#define TORPOR_SLEEP_RESULT_INIT \
  { sizeof(torpor_sleep_result), 0, 0, 0 }

/* Puts this process's own segments to sleep: those under `tags`, all for tag_count 0. `level` 1
 * keeps weights and drops the KV cache, 2 drops both; other tags keep their bytes unless the
 * daemon's table says otherwise. Blocks until the memory is free for others or, after `timeout_ms`,
 * everything is as it was. `result` may be NULL. What sleeps already is left alone.
 *   FAILED_PRECONDITION WORK_GUARD_HELD: this thread is inside the work guard
 *   RESOURCE_EXHAUSTED: no room in host memory; nothing has changed */
int torpor_sleep(torpor_session* session, int level, const char* const* tags, size_t tag_count,
                 int64_t timeout_ms, torpor_sleep_result* result);
/* The same with a policy for each tag; tags that are not named are kept. `force` not 0: DISCARD
 * also drops the bytes of what is asleep with its bytes kept. */
int torpor_sleep_policies(torpor_session* session, const torpor_tag_policy* policies,
                          size_t policy_count, int force, int64_t timeout_ms,
                          torpor_sleep_result* result);
/* Wakes the tags named, in that order, or all. `reservation` NULL: that of the session. Blocks
 * until the memory is usable or, on failure, everything is asleep as before. RESOURCE_EXHAUSTED:
 * the device has no room; with requested_bytes and available_bytes */
int torpor_wake_up(torpor_session* session, const char* const* tags, size_t tag_count,
                   const char* reservation, int64_t timeout_ms, torpor_sleep_result* result);

/* ---- Usage ----------------------------------------------------------------------------------- */

typedef struct torpor_usage_info {
  size_t struct_size;
  int64_t device_total_bytes;
  int64_t device_free_bytes; /* as the driver sees it */
  int64_t available_bytes;   /* what could be allocated now without a reservation */
  size_t tag_count;          /* of this session */
} torpor_usage_info;

typedef struct torpor_tag_usage {
  size_t struct_size;
  char tag[64];
  uint64_t segments;
  int64_t resident_bytes;
  int64_t offloaded_bytes;
  int64_t discarded_bytes;
} torpor_tag_usage;

/* The device and this session's tags. Fills at most `capacity` elements of `tags` (whose first
 * element has struct_size set; it is the distance between elements); usage->tag_count is how many
 * there are. `tags` may be NULL if capacity is 0. */
int torpor_usage(torpor_session* session, torpor_usage_info* usage, torpor_tag_usage* tags,
                 size_t capacity);

/* Tells the daemon what this process's own allocator says: bytes in live tensors and bytes that it
 * holds. Shown beside the daemon's figures. */
int torpor_report_usage(torpor_session* session, int64_t live_bytes, int64_t reserved_bytes);

/* ---- PyTorch --------------------------------------------------------------------------------- */

/* For torch.cuda.memory.CUDAPluggableAllocator("libtorpor.so", "torpor_torch_malloc",
 * "torpor_torch_free"), used through torch.cuda.MemPool. Each device has a session of its own: the
 * one given to torpor_torch_use, else one that the first allocation opens with the options
 * TORPOR_SOCKET, TORPOR_RUNTIME_DIR, TORPOR_WORKER_NAME, TORPOR_RESERVATION and TORPOR_DRIVER of
 * the environment. Those sessions are never closed.
 *
 * NULL on failure (size 0 or less included): torpor_last_error() tells why, and the next call may
 * well succeed. */
void* torpor_torch_malloc(ssize_t size, int device, void* stream);
/* Frees from any thread, while asleep, and while the process exits. Ignores what it does not know.
 */
void torpor_torch_free(void* address, ssize_t size, int device, void* stream);

/* The tag of this thread's later allocations through torpor_torch_malloc; NULL: back to "default".
 * INVALID_ARGUMENT BAD_TAG. */
int torpor_torch_set_tag(const char* tag);
/* Makes `session` the one of its device (torpor_options.device) from now on; what others have
 * allocated stays theirs. torpor_close takes it back. */
int torpor_torch_use(torpor_session* session);
/* The session of `device`, for guards, sleep and wake; opened if there is none. The library owns
 * sessions that it has opened: do not close them. */
int torpor_torch_session(int device, torpor_session** session);

#ifdef __cplusplus
}
#endif

#endif /* TORPOR_CLIENT_TORPOR_H_ */
