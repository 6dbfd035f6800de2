#ifndef TORPOR_CLIENT_DEMO_SAFETENSORS_H_
#define TORPOR_CLIENT_DEMO_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace torpor::demo {

// A file that is no valid safetensors file, or cannot be read.
class SafetensorsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Tensor {
  std::string name;
  std::string dtype;  // as in the file: "BF16"
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // of its first byte in the data
  uint64_t size = 0;    // bytes
};

// The tensors that a header describes, by offset. `data_size` is the number of bytes after the
// header. Throws SafetensorsError unless the tensors fill them exactly: known dtypes, sizes that
// follow from shape and dtype, no overlap, no gap.
std::vector<Tensor> ParseSafetensorsHeader(std::string_view header, uint64_t data_size);

struct Unmap {
  void operator()(void* mapping) const;
  size_t size = 0;
};

// A safetensors file, mapped into memory read-only.
class SafetensorsFile {
 public:
  // Throws SafetensorsError.
  explicit SafetensorsFile(const std::string& path);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  uint64_t data_size() const { return data_size_; }
  const char* bytes(const Tensor& tensor) const { return data_ + tensor.offset; }

 private:
  void Open(const std::string& path);

  std::unique_ptr<void, Unmap> mapping_;
  const char* data_ = nullptr;
  uint64_t data_size_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace torpor::demo

#endif  // TORPOR_CLIENT_DEMO_SAFETENSORS_H_
