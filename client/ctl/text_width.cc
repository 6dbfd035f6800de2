#include "client/ctl/text_width.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace torpor::ctl {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// What terminals in use agree on of Unicode's properties Mn, Me, Cf.
constexpr Range kZero[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},    {0x610, 0x61a},
                           {0x64b, 0x65f},   {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},  {0x200b, 0x200f},
                           {0x202a, 0x202e}, {0x2060, 0x2064}, {0x20d0, 0x20ff},  {0xfe00, 0xfe0f},
                           {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}, {0xe0100, 0xe01ef}};
// East_Asian_Width W and F.
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},   {0x2614, 0x2615},
    {0x26a1, 0x26a1},   {0x2705, 0x2705},   {0x2728, 0x2728},   {0x274c, 0x274c},
    {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},   {0x4e00, 0xa4cf},
    {0xa960, 0xa97c},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
    {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff},
    {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd}};

template <size_t n>
bool In(const Range (&ranges)[n], uint32_t character) {
  return std::any_of(std::begin(ranges), std::end(ranges), [&](const Range& range) {
    return range.first <= character && character <= range.last;
  });
}

// One character of a text as a terminal shows it.
struct Glyph {
  size_t bytes = 1;
  size_t width = 1;
  bool printable = false;
};

Glyph First(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char head = byte(0);
  if (head < 0x80) return {1, 1, head >= 0x20 && head != 0x7f};
  const size_t bytes = head >= 0xf0 ? 4 : head >= 0xe0 ? 3 : 2;
  if (head < 0xc2 || head > 0xf4 || text.size() < bytes) return {};
  uint32_t character = head & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    character = (character << 6) | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  if (character < kLeast[bytes] || character > 0x10ffff || surrogate) return {};
  if (character < 0xa0) return {};  // C1 controls
  return {bytes, In(kZero, character) ? 0u : In(kWide, character) ? 2u : 1u, true};
}

}  // namespace

size_t TextWidth(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    const Glyph glyph = First(text);
    width += glyph.width;
    text.remove_prefix(glyph.bytes);
  }
  return width;
}

std::string Printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const Glyph glyph = First(text);
    shown += glyph.printable ? text.substr(0, glyph.bytes) : "?";
    text.remove_prefix(glyph.bytes);
  }
  return shown;
}

std::string FitText(std::string_view text, size_t width) {
  std::string shown = Printable(text);
  const size_t all = TextWidth(shown);
  if (all <= width) return shown.append(width - all, ' ');
  if (width == 0) return "";
  std::string cut;
  size_t used = 0;
  for (std::string_view rest = shown; !rest.empty();) {
    const Glyph glyph = First(rest);
    if (used + glyph.width > width - 1) break;
    cut += rest.substr(0, glyph.bytes);
    used += glyph.width;
    rest.remove_prefix(glyph.bytes);
  }
  return cut.append(width - 1 - used, ' ') + "~";
}

}  // namespace torpor::ctl
