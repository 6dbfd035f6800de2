#include "client/ctl/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace torpor::ctl {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[m\x1b[?1049l";

bool Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

size_t Number(const char* variable, size_t otherwise) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return otherwise;
  const std::string_view text = value;
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && number > 0 && number < 10'000 ? number : otherwise;
}

}  // namespace

Screen::Screen() {
  has_keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
  Enter();
}

void Screen::Enter() {
  if (entered_) return;
  entered_ = true;
  if (has_keys_) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  Write(kEnter);
}

void Screen::Leave() {
  if (!entered_) return;
  entered_ = false;
  Write(kLeave);
  if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

bool Screen::Draw(const std::vector<std::string>& lines) const {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) {
    text.append(i == 0 ? "" : "\r\n").append(lines[i]).append("\x1b[K");
  }
  return Write(text + "\x1b[J");
}

FrameSize TerminalSize() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    return {size.ws_col, size.ws_row};
  }
  return {Number("COLUMNS", 80), Number("LINES", 24)};
}

}  // namespace torpor::ctl
