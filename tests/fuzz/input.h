#ifndef TORPOR_TESTS_FUZZ_INPUT_H_
#define TORPOR_TESTS_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace torpor::fuzz {

// Decisions out of a fuzzer's bytes. After the last byte everything reads as zero. Not thread-safe.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : next_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *next_++;
  }
  bool OneIn(unsigned n) { return Byte() % n == n - 1; }
  size_t Below(size_t n) { return n == 0 ? 0 : Byte() % n; }
  uint64_t Word() {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | Byte();
    return word;
  }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[Below(choices.size())];
  }
  std::string String(size_t size) {
    std::string text;
    while (text.size() < size) text.push_back(static_cast<char>(Byte()));
    return text;
  }

 private:
  const uint8_t* next_;
  size_t left_;
};

}  // namespace torpor::fuzz

#endif  // TORPOR_TESTS_FUZZ_INPUT_H_
