#include "lib/base/units.h"

#include <cmath>
#include <cstdio>

#include "lib/base/utf8.h"

namespace torpor {
namespace {

struct Unit {
  std::string_view name;
  int64_t factor;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"B", 1},
                           {"KiB", int64_t{1} << 10},
                           {"MiB", int64_t{1} << 20},
                           {"GiB", int64_t{1} << 30},
                           {"TiB", int64_t{1} << 40},
                           {"kB", 1000},
                           {"MB", 1000000},
                           {"GB", 1000000000},
                           {"TB", 1000000000000}};
constexpr int64_t kLimit = int64_t{1} << 62;

// As in the C locale, whatever the process has set.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlphanumeric(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

// By hand: strtod follows the process's locale, and a double rounds large integers.
Result<Bytes> ParseBytes(std::string_view text) {
  const auto bad = [&](const char* why) {
    return InvalidArgument("BAD_SIZE", "size \"" + std::string(text.substr(0, 80)) + "\" " + why)
        .With("size", std::string(text.substr(0, 80)));
  };
  const char* const kTooLarge = "is 2^62 bytes or more";
  size_t at = 0;
  int64_t whole = 0;
  for (; at < text.size() && IsDigit(text[at]); ++at) {
    if (whole > kLimit / 10) return bad(kTooLarge);
    whole = whole * 10 + (text[at] - '0');
  }
  size_t digits = at;
  double fraction = 0;
  if (at < text.size() && text[at] == '.') {
    double place = 0.1;
    for (++at; at < text.size() && IsDigit(text[at]); ++at, place /= 10, ++digits) {
      fraction += place * (text[at] - '0');
    }
  }
  if (digits == 0) return bad("does not start with a number");
  std::string_view unit = text.substr(at);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    if (whole >= kLimit / known.factor) return bad(kTooLarge);
    return Bytes(whole * known.factor + std::llround(fraction * static_cast<double>(known.factor)));
  }
  return bad("has an unknown unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)");
}

std::string FormatBytes(Bytes bytes) {
  const double value = static_cast<double>(bytes.value());
  const double size = std::fabs(value);
  char text[40];
  if (size >= 0x1p40) {
    std::snprintf(text, sizeof text, "%.2f TiB", value / 0x1p40);
  } else if (size >= 0x1p30) {
    std::snprintf(text, sizeof text, "%.2f GiB", value / 0x1p30);
  } else if (size >= 0x1p20) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / 0x1p20);
  } else if (size >= 0x1p10) {
    std::snprintf(text, sizeof text, "%.2f KiB", value / 0x1p10);
  } else {
    std::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes.value()));
  }
  return text;
}

Status CheckName(std::string_view name, const char* what, const char* reason) {
  bool good = !name.empty() && name.size() <= 63 && IsAlphanumeric(name.front());
  for (const char c : name) good = good && (IsAlphanumeric(c) || c == '_' || c == '.' || c == '-');
  if (good) return Status::Ok();
  return InvalidArgument(reason, std::string(what) + " \"" + Shorten(name) +
                                     "\" is not 1 to 63 characters of [A-Za-z0-9_.-] that start "
                                     "with a letter or digit")
      .With("length", name.size());
}

}  // namespace torpor
