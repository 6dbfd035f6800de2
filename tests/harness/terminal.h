#ifndef TORPOR_TESTS_HARNESS_TERMINAL_H_
#define TORPOR_TESTS_HARNESS_TERMINAL_H_

#include <termios.h>

#include <string>

#include "lib/base/unique_fd.h"

namespace torpor {

// A terminal of 80 by 24 for a program that the test runs. What the program has written to it takes
// its time to get here. Not thread-safe.
class Terminal {
 public:
  Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // For the program to open.
  const std::string& path() const { return path_; }
  // In a child, after fork: it becomes the controlling terminal, and standard input, output and
  // error. False if it cannot.
  bool Enter() const;

  void Type(const std::string& keys) const;
  void Resize(unsigned short columns, unsigned short rows) const;
  // Whether keys come at once and are not shown.
  bool IsRaw() const;
  // Whether its settings are those that it began with.
  bool IsAsBefore() const;

  // All that was read.
  const std::string& written() const { return written_; }
  // Reads what is there, or comes within 100 ms; whether there was something.
  bool Read();

 private:
  UniqueFd terminal_;
  UniqueFd program_;  // the program's end, so that it stays when the program ends
  std::string path_;
  termios before_{};
  std::string written_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_TERMINAL_H_
