#include "client/ctl/frame_line.h"

#include <cmath>
#include <cstdio>

#include "client/ctl/progress.h"
#include "client/ctl/text_width.h"

namespace torpor::ctl {
namespace {

const char* Sequence(Look look) {
  switch (look) {
    case Look::kPlain:
      return "";
    case Look::kBold:
      return "\x1b[1m";
    case Look::kDim:
    case Look::kOther:
      return "\x1b[2m";
    case Look::kGood:
    case Look::kResident:
      return "\x1b[32m";
    case Look::kBad:
      return "\x1b[1;31m";
    case Look::kPromised:
      return "\x1b[33m";
    case Look::kHost:
      return "\x1b[36m";
    case Look::kClean:
      return "\x1b[34m";
  }
  return "";
}

}  // namespace

FrameLine& FrameLine::Add(std::string_view text, Look look) {
  const size_t width = TextWidth(text);
  const std::string shown = width <= left_ ? Printable(text) : FitText(text, left_);
  if (shown.empty()) return *this;
  left_ -= TextWidth(shown);
  if (colours_ && look != Look::kPlain) {
    text_.append(Sequence(look)).append(shown).append("\x1b[m");
  } else {
    text_ += shown;
  }
  return *this;
}

FrameLine& FrameLine::Cell(std::string_view text, size_t width, Look look) {
  return Add(FitText(text, width), look).Add(" ");
}

FrameLine& FrameLine::RightCell(std::string_view text, size_t width, Look look) {
  const size_t taken = TextWidth(text);
  if (taken < width) Add(std::string(width - taken, ' '));
  return Add(taken <= width ? Printable(text) : FitText(text, width), look).Add(" ");
}

FrameLine& FrameLine::Bar(size_t width, const std::vector<Part>& parts, int64_t total) {
  if (width > left_) width = left_;
  if (width < 3) return *this;
  std::vector<int64_t> amounts;
  amounts.reserve(parts.size());
  for (const Part& part : parts) amounts.push_back(part.amount);
  const std::vector<size_t> cells = BarCells(width - 2, amounts, total);
  size_t rest = width - 2;
  Add("[");
  for (size_t i = 0; i < parts.size(); ++i) {
    Add(std::string(cells[i], parts[i].mark), parts[i].look);
    rest -= cells[i];
  }
  return Add(std::string(rest, '.'), Look::kDim).Add("]");
}

FrameLine& FrameLine::AddAtRight(std::string_view text, Look look) {
  const size_t width = TextWidth(text);
  if (width + 1 > left_) return *this;
  Add(std::string(left_ - width, ' '));
  return Add(text, look);
}

std::string FrameLine::Text() const {
  const size_t end = text_.find_last_not_of(' ');
  return end == std::string::npos ? "" : text_.substr(0, end + 1);
}

std::string ShortSize(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes < 0 ? 0 : bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "KMGTPE";
  for (value /= 1024; value >= 1023.5 && unit[1] != '\0'; value /= 1024) ++unit;
  char text[16];
  std::snprintf(text, sizeof text, "%.*f%c", value < 99.95 ? 1 : 0, value, *unit);
  return text;
}

}  // namespace torpor::ctl
