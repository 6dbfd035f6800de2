#ifndef TORPOR_LIB_WIRE_CODEC_H_
#define TORPOR_LIB_WIRE_CODEC_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor::wire {

// A message type lists its fields once, in `template <class A> void Fields(A& a) { a(x, y); }`;
// Writer and Reader walk the same list. Integers and enums are little-endian at their own width,
// bool one byte, strings and vectors a 32-bit count and their elements.

class Writer {
 public:
  template <typename... T>
  void operator()(T&... values) {
    (Put(values), ...);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  template <typename T>
  void Put(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      bytes_.push_back(value ? 1 : 0);
    } else if constexpr (std::is_integral_v<T>) {
      char raw[sizeof value];
      std::memcpy(raw, &value, sizeof value);
      bytes_.append(raw, sizeof raw);
    } else if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<std::underlying_type_t<T>>(value);
      Put(number);
    } else {
      value.Fields(*this);
    }
  }
  void Count(size_t n) {
    auto count = static_cast<uint32_t>(n);
    Put(count);
  }
  void Put(std::string& text) {
    Count(text.size());
    bytes_.append(text);
  }
  template <typename T>
  void Put(std::vector<T>& items) {
    Count(items.size());
    for (T& item : items) Put(item);
  }
  template <typename Tag, typename Rep>
  void Put(Strong<Tag, Rep>& strong) {
    Rep value = strong.value();
    Put(value);
  }
  void Put(Bytes& bytes) {
    int64_t value = bytes.value();
    Put(value);
  }
  void Put(Status& status);

  std::string bytes_;
};

// Reads what Writer wrote, and survives anything else: after the first byte that is missing,
// everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }
  bool ok() const { return ok_; }
  // Everything was read and nothing is left over.
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  bool Take(void* to, size_t size) {
    if (!ok_ || rest_.size() < size) {
      ok_ = false;
      return false;
    }
    std::memcpy(to, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }
  template <typename T>
  void Get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      Take(&byte, 1);
      if (byte > 1) ok_ = false;
      value = byte == 1;
    } else if constexpr (std::is_integral_v<T>) {
      value = 0;
      if (!Take(&value, sizeof value)) value = 0;
    } else if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      Get(number);
      value = static_cast<T>(number);
    } else {
      value.Fields(*this);
    }
  }
  // A count of elements that take at least a byte each.
  size_t Count() {
    uint32_t count = 0;
    Get(count);
    if (count > rest_.size()) {
      ok_ = false;
      return 0;
    }
    return count;
  }
  void Get(std::string& text) {
    const size_t size = Count();
    text.assign(rest_.data(), size);
    rest_.remove_prefix(size);
  }
  template <typename T>
  void Get(std::vector<T>& items) {
    const size_t count = Count();
    items.clear();
    for (size_t i = 0; i < count && ok_; ++i) {
      items.emplace_back();
      Get(items.back());
    }
  }
  template <typename Tag, typename Rep>
  void Get(Strong<Tag, Rep>& strong) {
    Rep value{};
    Get(value);
    strong = Strong<Tag, Rep>(value);
  }
  void Get(Bytes& bytes) {
    int64_t value = 0;
    Get(value);
    bytes = Bytes(value);
  }
  void Get(Status& status);

  std::string_view rest_;
  bool ok_ = true;
};

template <typename Message>
std::string Encode(Message message) {
  Writer writer;
  message.Fields(writer);
  return writer.Take();
}

// INVALID_ARGUMENT BAD_FRAME when `bytes` are not exactly one Message.
template <typename Message>
Result<Message> Decode(std::string_view bytes) {
  Message message;
  Reader reader(bytes);
  message.Fields(reader);
  if (!reader.complete()) {
    return InvalidArgument("BAD_FRAME", "payload does not have the fields of its type")
        .With("payload_bytes", bytes.size());
  }
  return message;
}

}  // namespace torpor::wire

#endif  // TORPOR_LIB_WIRE_CODEC_H_
