#ifndef TORPOR_LIB_BASE_CRC32C_H_
#define TORPOR_LIB_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace torpor {

// The CRC-32C (Castagnoli) of what `crc` is the checksum of (0: nothing), followed by `data`.
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_CRC32C_H_
