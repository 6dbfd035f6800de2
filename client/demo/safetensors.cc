#include "client/demo/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace torpor::demo {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthSize = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

// Bits of one element; 0: unknown.
uint64_t BitsOf(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBits = {
      {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
      {"I32", 32},    {"U32", 32}, {"F32", 32}, {"I64", 64},    {"U64", 64},
      {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
  };
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

[[noreturn]] void Fail(const std::string& what) { throw SafetensorsError(what); }
[[noreturn]] void FailTensor(const std::string& name, const std::string& what) {
  Fail("tensor \"" + name + "\": " + what);
}

json ParseJson(std::string_view header) {
  // The parser itself would keep the last of several equal names.
  std::vector<std::set<std::string>> keys;
  const auto callback = [&keys](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      Fail("the header has two entries named \"" + value.get<std::string>() + "\"");
    }
    return true;
  };
  try {
    return json::parse(header.begin(), header.end(), callback);
  } catch (const json::exception& error) {
    Fail(std::string("the header is not JSON: ") + error.what());
  }
}

uint64_t Unsigned(const std::string& name, const json& value, const char* what) {
  if (!value.is_number_unsigned()) {
    FailTensor(name, std::string(what) + " is not a number of 0 or more: " + value.dump());
  }
  return value.get<uint64_t>();
}

const json& Field(const std::string& name, const json& entry, const char* field) {
  if (!entry.is_object() || !entry.contains(field)) {
    FailTensor(name, std::string("has no \"") + field + "\"");
  }
  return entry.at(field);
}

uint64_t SizeOf(const Tensor& tensor) {
  uint64_t bits = BitsOf(tensor.dtype);
  if (bits == 0) FailTensor(tensor.name, "unknown dtype \"" + tensor.dtype + "\"");
  for (const uint64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) FailTensor(tensor.name, "shape is too large");
  }
  if (bits % 8 != 0) FailTensor(tensor.name, "does not end at a whole byte");
  return bits / 8;
}

Tensor ParseTensor(const std::string& name, const json& entry, uint64_t data_size) {
  Tensor tensor;
  tensor.name = name;
  const json& dtype = Field(name, entry, "dtype");
  if (!dtype.is_string()) FailTensor(name, "dtype is not a string");
  tensor.dtype = dtype.get<std::string>();
  const json& shape = Field(name, entry, "shape");
  if (!shape.is_array()) FailTensor(name, "shape is not a list");
  for (const json& extent : shape) tensor.shape.push_back(Unsigned(name, extent, "shape"));
  const json& offsets = Field(name, entry, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) FailTensor(name, "data_offsets is not a pair");
  tensor.offset = Unsigned(name, offsets[0], "data_offsets");
  const uint64_t end = Unsigned(name, offsets[1], "data_offsets");
  if (end < tensor.offset || end > data_size) {
    FailTensor(name, "data_offsets " + offsets.dump() + " lie outside the file's " +
                         std::to_string(data_size) + " bytes of data");
  }
  tensor.size = end - tensor.offset;
  const uint64_t expected = SizeOf(tensor);
  if (tensor.size != expected) {
    FailTensor(name, "has " + std::to_string(tensor.size) + " bytes, but " + tensor.dtype + " " +
                         shape.dump() + " takes " + std::to_string(expected));
  }
  return tensor;
}

void CheckMetadata(const json& metadata) {
  if (!metadata.is_object()) Fail("__metadata__ is not an object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) Fail("__metadata__ \"" + key + "\" is not a string");
  }
}

class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) Fail("cannot open it: " + std::string(std::strerror(errno)));
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

std::vector<Tensor> ParseSafetensorsHeader(std::string_view header, uint64_t data_size) {
  if (header.empty() || header.front() != '{') Fail("the header does not begin with \"{\"");
  const json entries = ParseJson(header);
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") {
      CheckMetadata(entry);
    } else {
      tensors.push_back(ParseTensor(name, entry, data_size));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::make_pair(a.offset, a.size) < std::make_pair(b.offset, b.size);
  });
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.offset < end) FailTensor(tensor.name, "overlaps the tensor before it");
    if (tensor.offset > end) {
      FailTensor(tensor.name, "begins at " + std::to_string(tensor.offset) + ", after a gap from " +
                                  std::to_string(end));
    }
    end += tensor.size;
  }
  if (end != data_size) {
    Fail("the tensors end at " + std::to_string(end) + ", the file's data at " +
         std::to_string(data_size));
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path) {
  try {
    Open(path);
  } catch (const SafetensorsError& error) {
    throw SafetensorsError(path + ": " + error.what());
  }
}

void SafetensorsFile::Open(const std::string& path) {
  const File file(path);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) Fail("not a regular file");
  const auto file_size = static_cast<uint64_t>(status.st_size);
  if (file_size < kLengthSize) Fail("too short for a safetensors file");

  void* const mapping = ::mmap(nullptr, file_size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (mapping == MAP_FAILED) Fail("cannot map it: " + std::string(std::strerror(errno)));
  mapping_ = std::unique_ptr<void, Unmap>(mapping, Unmap{file_size});

  const auto* bytes = static_cast<const unsigned char*>(mapping);
  uint64_t header_size = 0;
  for (size_t i = kLengthSize; i-- > 0;) header_size = header_size << 8 | bytes[i];
  if (header_size > kMaxHeader || header_size > file_size - kLengthSize) {
    Fail("its header would be " + std::to_string(header_size) + " bytes long, the file is " +
         std::to_string(file_size));
  }
  const char* const header = static_cast<const char*>(mapping) + kLengthSize;
  data_ = header + header_size;
  data_size_ = file_size - kLengthSize - header_size;
  tensors_ = ParseSafetensorsHeader(std::string_view(header, header_size), data_size_);
}

void Unmap::operator()(void* mapping) const { ::munmap(mapping, size); }

}  // namespace torpor::demo
