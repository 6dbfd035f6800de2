#include "lib/cuda/cuda_device.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace torpor {

Result<std::string> CudaDeviceName(const CudaApi& api, CUdevice device) {
  char name[256] = {};
  TORPOR_RETURN_IF_ERROR(
      api.Translate(api.DeviceGetName(name, sizeof name - 1, device), "cuDeviceGetName"));
  return std::string(name);
}

// CUDA gives the bytes alone; MIG instances have "MIG" in their name.
Result<std::string> CudaDeviceUuid(const CudaApi& api, CUdevice device) {
  CUuuid uuid;
  TORPOR_RETURN_IF_ERROR(api.Translate(api.DeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  TORPOR_ASSIGN_OR_RETURN(const std::string name, CudaDeviceName(api, device));
  std::string text = name.find(" MIG ") != std::string::npos ? "MIG" : "GPU";
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex;
  }
  return text;
}

std::string CudaDevicePciAddress(const CudaApi& api, CUdevice device) {
  char bus_id[32] = {};
  if (api.DeviceGetPCIBusId(bus_id, sizeof bus_id, device) != CUDA_SUCCESS) return "";
  std::string address(bus_id);
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

Result<int> CudaDeviceAttribute(const CudaApi& api, CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  TORPOR_RETURN_IF_ERROR(
      api.Translate(api.DeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute"));
  return value;
}

}  // namespace torpor
