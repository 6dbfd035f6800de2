#include "tests/harness/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utmp.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace torpor {
namespace {

// There is no test without it.
void Check(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  std::abort();
}

}  // namespace

Terminal::Terminal() {
  const winsize size{24, 80, 0, 0};
  int terminal = -1;
  int program = -1;
  char path[64];
  Check(::openpty(&terminal, &program, path, nullptr, &size) == 0, "openpty");
  terminal_ = UniqueFd(terminal);
  program_ = UniqueFd(program);
  path_ = path;
  for (const int fd : {terminal, program}) {
    Check(::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0, "fcntl");
  }
  Check(::tcgetattr(program, &before_) == 0, "tcgetattr");
}

bool Terminal::Enter() const { return ::login_tty(program_.get()) == 0; }

void Terminal::Type(const std::string& keys) const {
  Check(::write(terminal_.get(), keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()),
        "write to a terminal");
}

void Terminal::Resize(unsigned short columns, unsigned short rows) const {
  const winsize size{rows, columns, 0, 0};
  Check(::ioctl(terminal_.get(), TIOCSWINSZ, &size) == 0, "TIOCSWINSZ");
}

bool Terminal::IsRaw() const {
  termios now{};
  Check(::tcgetattr(program_.get(), &now) == 0, "tcgetattr");
  return (now.c_lflag & (ICANON | ECHO)) == 0;
}

bool Terminal::IsAsBefore() const {
  termios now{};
  Check(::tcgetattr(program_.get(), &now) == 0, "tcgetattr");
  return now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag &&
         now.c_oflag == before_.c_oflag && now.c_cflag == before_.c_cflag &&
         std::memcmp(now.c_cc, before_.c_cc, sizeof now.c_cc) == 0;
}

bool Terminal::Read() {
  pollfd readable{terminal_.get(), POLLIN, 0};
  if (::poll(&readable, 1, 100) <= 0) return false;
  char text[65536];
  const ssize_t size = ::read(terminal_.get(), text, sizeof text);
  if (size > 0) written_.append(text, static_cast<size_t>(size));
  return size > 0;
}

}  // namespace torpor
