#ifndef TORPOR_CLIENT_DEMO_MODEL_H_
#define TORPOR_CLIENT_DEMO_MODEL_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/demo/placement.h"
#include "client/demo/safetensors.h"
#include "client/torpor.hpp"

namespace torpor::demo {

// The tensors of a file in device memory under the tag "weights".
//
// Every function that touches device memory works in pieces of kPiece, each inside the work guard,
// and throws torpor::Error, reason ASLEEP, where the weights sleep for longer than `patience`.
// The session and the file must outlive the model. Not thread-safe; two models may share both.
class Model {
 public:
  static constexpr std::int64_t kPiece = std::int64_t{4} << 20;
  static const char kTag[];

  // Allocates the segments and copies the tensors into them.
  Model(Session& session, const SafetensorsFile& file);

  struct Comparison {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;              // of the device's bytes, in the file's order
    std::vector<std::string> differences;  // "name at byte 17", one for each wrong tensor
  };
  // Compares every byte of every tensor on the device with the file.
  Comparison Compare(std::chrono::milliseconds patience) const;

  // Reads one piece of the weights through `buffer` and compares its checksum with that of what was
  // loaded; `step` counts up from 0 and goes round. False: they differ.
  bool Compute(std::uint64_t step, std::vector<char>& buffer,
               std::chrono::milliseconds patience) const;

  const std::vector<void*>& segments() const { return addresses_; }
  const std::vector<std::uint64_t>& segment_sizes() const { return placement_.segments; }

 private:
  struct Piece {
    const char* file = nullptr;
    char* device = nullptr;
    std::int64_t size = 0;
    size_t tensor = 0;
    std::uint64_t offset = 0;  // in the tensor
    std::uint32_t crc32c = 0;  // of the file's bytes
  };

  void Read(const Piece& piece, std::vector<char>& buffer,
            std::chrono::milliseconds patience) const;

  Session& session_;
  const SafetensorsFile& file_;
  const Placement placement_;
  std::vector<void*> addresses_;
  std::vector<Piece> pieces_;
};

// A segment under the tag "kv_cache", filled with a pattern of its own. Throws as Model does.
class KvCache {
 public:
  static const char kTag[];

  KvCache(Session& session, std::int64_t size);

  void Fill(std::chrono::milliseconds patience);
  enum class Contents { kFilled, kZero, kOther };
  Contents Check(std::chrono::milliseconds patience) const;

  void* address() const { return address_; }
  std::int64_t size() const { return size_; }

 private:
  Session& session_;
  const std::int64_t size_;
  void* const address_;
};

}  // namespace torpor::demo

#endif  // TORPOR_CLIENT_DEMO_MODEL_H_
