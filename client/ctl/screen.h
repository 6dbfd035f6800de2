#ifndef TORPOR_CLIENT_CTL_SCREEN_H_
#define TORPOR_CLIENT_CTL_SCREEN_H_

#include <termios.h>

#include <string>
#include <vector>

#include "client/ctl/frame.h"

namespace torpor::ctl {

// The terminal at standard output, and, where that is one as well, at standard input: an alternate
// screen, without a cursor, and keys that come at once and are not shown. As it was before, when
// this ends. Not thread-safe.
class Screen {
 public:
  Screen();
  ~Screen() { Leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // As it was before, and back.
  void Leave();
  void Enter();

  bool has_keys() const { return has_keys_; }
  // False when nobody reads any more.
  bool Draw(const std::vector<std::string>& lines) const;

 private:
  termios before_{};
  bool has_keys_ = false;
  bool entered_ = false;
};

// Of the terminal at standard output, or, where it is none or does not say, of $COLUMNS and $LINES,
// or 80 by 24.
FrameSize TerminalSize();

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_SCREEN_H_
