#ifndef TORPOR_LIB_CUDA_NVML_H_
#define TORPOR_LIB_CUDA_NVML_H_

#include <string>

#include "lib/base/units.h"

namespace torpor {

// Memory use of one device as the driver's management library sees it: also without a context, and
// with everything that contexts take. Not thread-safe.
class Nvml {
 public:
  // `uuid` as in DeviceInfo.
  explicit Nvml(const std::string& uuid);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // -1: the library is not there or does not know the device.
  Bytes UsedMemory() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_NVML_H_
