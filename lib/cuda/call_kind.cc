#include "lib/cuda/call_kind.h"

namespace torpor {

const char* CallName(CallKind kind) {
  switch (kind) {
    case CallKind::kGetMemoryInfo:
      return "GetMemoryInfo";
    case CallKind::kReserveAddresses:
      return "ReserveAddresses";
    case CallKind::kFreeAddresses:
      return "FreeAddresses";
    case CallKind::kCreate:
      return "Create";
    case CallKind::kRelease:
      return "Release";
    case CallKind::kExport:
      return "Export";
    case CallKind::kImport:
      return "Import";
    case CallKind::kMap:
      return "Map";
    case CallKind::kSetAccess:
      return "SetAccess";
    case CallKind::kUnmap:
      return "Unmap";
    case CallKind::kRegisterHost:
      return "RegisterHost";
    case CallKind::kUnregisterHost:
      return "UnregisterHost";
    case CallKind::kCreateStream:
      return "CreateStream";
    case CallKind::kDestroyStream:
      return "DestroyStream";
    case CallKind::kCopyToHost:
      return "CopyToHost";
    case CallKind::kCopyToDevice:
      return "CopyToDevice";
    case CallKind::kClear:
      return "Clear";
    case CallKind::kDigest:
      return "Digest";
    case CallKind::kRecordEvent:
      return "RecordEvent";
    case CallKind::kWaitEvent:
      return "WaitEvent";
    case CallKind::kSynchronize:
      return "Synchronize";
  }
  return "?";
}

}  // namespace torpor
