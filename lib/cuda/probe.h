#ifndef TORPOR_LIB_CUDA_PROBE_H_
#define TORPOR_LIB_CUDA_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace torpor {

// What the NVIDIA driver's libraries say of themselves and of the devices. Neither makes a context
// nor takes device memory that outlives the process. May hang as long as the driver does.

struct CudaProbe {
  std::string library;  // its file, links resolved; empty: it was not loaded
  int version = 0;      // of CUDA, 13000 for 13.0; 0: unknown
  // UNAVAILABLE CUDA_LIBRARY_MISSING; UNIMPLEMENTED CUDA_DRIVER_TOO_OLD; INTERNAL with CUDA's name
  Status status;
  struct Device {
    std::string uuid;
    std::string name;
    std::string pci_address;  // "0000:19:00.0"; empty: unknown
    int64_t total_bytes = 0;
    int compute_mode = 0;         // 0 default, 2 prohibited, 3 one process
    int capability = 0;           // 90 for 9.0
    bool virtual_memory = false;  // management, cuMemCreate and so on
    bool descriptors = false;     // its handles are exported as POSIX file descriptors
  };
  std::vector<Device> devices;  // that this process sees
};
// Also where `initialize` is false, which only loads the library. A process that calls it must not
// use CUDA in children that it forks.
CudaProbe ProbeCuda(bool initialize);

struct NvmlProbe {
  std::string error;  // empty: it answered
  std::string driver_version;
  struct Gpu {
    std::string uuid;
    int mig_mode = -1;  // 0 off, 1 on; -1: the GPU has none
    int pending_mig_mode = -1;
    int64_t total_bytes = 0;
    int64_t used_bytes = 0;
  };
  std::vector<Gpu> gpus;  // also those that CUDA_VISIBLE_DEVICES hides
};
NvmlProbe ProbeNvml();

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_PROBE_H_
