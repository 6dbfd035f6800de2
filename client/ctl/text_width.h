#ifndef TORPOR_CLIENT_CTL_TEXT_WIDTH_H_
#define TORPOR_CLIENT_CTL_TEXT_WIDTH_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace torpor::ctl {

// Columns of a terminal that UTF-8 text takes: 2 for East Asian wide characters and emoji, 0 for
// combining ones. What is no UTF-8, or a control character, counts 1, as Printable shows it.
size_t TextWidth(std::string_view text);

// With a '?' for each byte that is no UTF-8 and for each control character.
std::string Printable(std::string_view text);

// Printable text in exactly `width` columns: padded on the right, or cut, with a '~' at the end.
std::string FitText(std::string_view text, size_t width);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_TEXT_WIDTH_H_
