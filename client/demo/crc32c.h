#ifndef TORPOR_CLIENT_DEMO_CRC32C_H_
#define TORPOR_CLIENT_DEMO_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace torpor::demo {

// The CRC-32C (Castagnoli) of what `crc` is the checksum of (0: nothing), followed by `data`.
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace torpor::demo

#endif  // TORPOR_CLIENT_DEMO_CRC32C_H_
