#ifndef TORPOR_LIB_CUDA_CALL_KIND_H_
#define TORPOR_LIB_CUDA_CALL_KIND_H_

namespace torpor {

// One per method of Driver that can fail.
enum class CallKind {
  kGetMemoryInfo,
  kReserveAddresses,
  kFreeAddresses,
  kCreate,
  kRelease,
  kExport,
  kImport,
  kMap,
  kSetAccess,
  kUnmap,
  kRegisterHost,
  kUnregisterHost,
  kCreateStream,
  kDestroyStream,
  kCopyToHost,
  kCopyToDevice,
  kClear,
  kDigest,
  kRecordEvent,
  kWaitEvent,
  kSynchronize,
};
inline constexpr int kCallKinds = static_cast<int>(CallKind::kSynchronize) + 1;
const char* CallName(CallKind kind);

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CALL_KIND_H_
