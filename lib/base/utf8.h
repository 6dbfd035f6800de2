#ifndef TORPOR_LIB_BASE_UTF8_H_
#define TORPOR_LIB_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace torpor {

// Length of the UTF-8 sequence that `text`, which is not empty, starts with; 0 if it starts with
// none.
size_t Utf8SequenceLength(std::string_view text);

// Whether `text` is UTF-8 that a terminal shows on one line as it is: without control characters
// (C0, DEL, C1), separators of lines, and marks that turn the direction of writing.
bool IsPrintableUtf8(std::string_view text);

// What somebody else has said, for a message or the log: where it is longer than `limit` bytes, as
// much of it as fits and "...". No UTF-8 sequence is cut in the middle.
std::string Shorten(std::string_view text, size_t limit = 64);

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_UTF8_H_
