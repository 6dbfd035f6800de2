#include "lib/base/utf8.h"

#include <cstdint>

namespace torpor {
namespace {

bool Between(uint32_t c, uint32_t first, uint32_t last) { return c >= first && c <= last; }

}  // namespace

size_t Utf8SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool surrogate = byte(0) == 0xed && byte(1) >= 0xa0;
  const bool beyond = byte(0) == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

bool IsPrintableUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    const auto first = static_cast<unsigned char>(text[0]);
    uint32_t c = length == 1 ? first : first & (0x7fu >> length);
    for (size_t i = 1; i < length; ++i) {
      c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
    }
    const bool control = c < 0x20 || Between(c, 0x7f, 0x9f);
    const bool separator = Between(c, 0x2028, 0x2029);
    const bool turns = Between(c, 0x200e, 0x200f) || Between(c, 0x202a, 0x202e) ||
                       Between(c, 0x2066, 0x2069) || c == 0x061c;
    if (control || separator || turns) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Shorten(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t end = limit;
  while (end > 0 && limit - end < 3 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;
  }
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace torpor
