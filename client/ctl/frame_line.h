#ifndef TORPOR_CLIENT_CTL_FRAME_LINE_H_
#define TORPOR_CLIENT_CTL_FRAME_LINE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torpor::ctl {

// How text looks on a terminal.
enum class Look { kPlain, kBold, kDim, kGood, kBad, kResident, kPromised, kOther, kHost, kClean };

// A line of a terminal that grows to the right and never beyond its width.
class FrameLine {
 public:
  FrameLine(size_t columns, bool colours) : left_(columns), colours_(colours) {}

  // How many columns are free.
  size_t left() const { return left_; }
  // As much as there is room for; a text that is cut ends with a '~'.
  FrameLine& Add(std::string_view text, Look look = Look::kPlain);
  // In a column of `width`, to its left or right, and a blank.
  FrameLine& Cell(std::string_view text, size_t width, Look look = Look::kPlain);
  FrameLine& RightCell(std::string_view text, size_t width, Look look = Look::kPlain);

  struct Part {
    int64_t amount;
    char mark;
    Look look;
  };
  // "[####++..]", `width` columns with its brackets.
  FrameLine& Bar(size_t width, const std::vector<Part>& parts, int64_t total);
  // Text that ends with the line; nothing where there is no room for it.
  FrameLine& AddAtRight(std::string_view text, Look look = Look::kPlain);

  // Without blanks at its end.
  std::string Text() const;

 private:
  std::string text_;
  size_t left_;
  bool colours_;
};

// 1.5G is 1.5 GiB: at most 5 columns.
std::string ShortSize(int64_t bytes);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_FRAME_LINE_H_
