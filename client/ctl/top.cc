#include "client/ctl/top.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

#include "client/ctl/follower.h"
#include "client/ctl/frame.h"
#include "client/ctl/screen.h"
#include "client/ctl/several.h"
#include "client/ctl/stop_signal.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/unique_fd.h"

namespace torpor::ctl {
namespace {

// Frames are drawn no faster.
constexpr Duration kLeastPause = milliseconds(50);
// In the environment: no colours, see no-color.org.
constexpr char kNoColor[] = "NO_COLOR";
// So that the clock goes on.
constexpr Duration kMostPause = seconds(1);

TimePoint Now() { return std::chrono::steady_clock::now(); }

View Snapshot(const std::deque<Follower>& followers) {
  View view;
  view.now = std::chrono::system_clock::now();
  for (const Follower& follower : followers) view.daemons.push_back(follower.Snapshot());
  return view;
}

bool WantsColours() {
  const char* no_color = std::getenv(kNoColor);
  return no_color == nullptr || *no_color == '\0';
}

// The live view.
class Top {
 public:
  Top(const Command& command, const std::vector<Daemon>& daemons) : command_(command) {
    ::sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP}) {
      ::sigaddset(&signals_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    signal_fd_ = UniqueFd(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
    changed_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const int fd = changed_fd_.get();
    for (const Daemon& daemon : daemons) {
      followers_.emplace_back(daemon, command.interval, [fd] {
        const uint64_t one = 1;
        (void)!::write(fd, &one, sizeof one);
      });
    }
  }

  ExitStatus Run() {
    const bool colours = WantsColours();
    Screen screen;
    bool keys = screen.has_keys();
    const bool bounded = command_.timeout != kNoTimeout;
    const TimePoint end = bounded ? Now() + command_.timeout : TimePoint::max();
    while (Now() < end) {
      if (!screen.Draw(RenderFrame(Snapshot(followers_), TerminalSize(), colours))) return kFailed;
      const TimePoint drawn = Now();
      bool redraw = false;
      while (!redraw) {
        const TimePoint wanted = std::min(end, drawn + (changed_ ? kLeastPause : kMostPause));
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(wanted - Now()).count();
        pollfd fds[] = {{signal_fd_.get(), POLLIN, 0},
                        {changed_fd_.get(), POLLIN, 0},
                        {keys ? STDIN_FILENO : -1, POLLIN, 0}};
        ::poll(fds, 3, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
        uint64_t count = 0;
        if (::read(changed_fd_.get(), &count, sizeof count) > 0) changed_ = true;
        signalfd_siginfo signal{};
        while (::read(signal_fd_.get(), &signal, sizeof signal) == sizeof signal) {
          if (signal.ssi_signo == SIGWINCH) {
            redraw = true;
          } else if (signal.ssi_signo == SIGTSTP) {
            screen.Leave();
            ::raise(SIGSTOP);
            screen.Enter();
            redraw = true;
          } else {
            return kDone;
          }
        }
        if (fds[2].revents != 0 && EndsByKey(keys)) return kDone;
        redraw = redraw || Now() >= wanted;
      }
      changed_ = false;
    }
    return kDone;
  }

 private:
  // `open` is false when no more keys can come.
  static bool EndsByKey(bool& open) {
    char keys[64];
    const ssize_t size = ::read(STDIN_FILENO, keys, sizeof keys);
    open = size > 0;
    return std::any_of(keys, keys + std::max<ssize_t>(size, 0),
                       [](char key) { return key == 'q' || key == 'Q' || key == '\x03'; });
  }

  const Command& command_;
  sigset_t signals_{};
  UniqueFd signal_fd_;
  UniqueFd changed_fd_;
  bool changed_ = false;
  std::deque<Follower> followers_;
};

ExitStatus PrintOneFrame(const Command& command, const std::vector<Daemon>& daemons) {
  Mutex mutex;
  CondVar changed;
  std::deque<Follower> followers;
  for (const Daemon& daemon : daemons) {
    followers.emplace_back(daemon, command.interval, [&] {
      MutexLock lock(mutex);
      changed.NotifyAll();
    });
  }
  const TimePoint until =
      Now() + (command.timeout == kNoTimeout ? Duration(seconds(10)) : command.timeout);
  const auto answered = [](const DaemonView& view) { return view.usage.has_value(); };
  const auto done = [&](const DaemonView& view) {
    return answered(view) || view.status.code() != 0;
  };
  View view;
  for (;;) {
    view = Snapshot(followers);
    if (std::all_of(view.daemons.begin(), view.daemons.end(), done) || Now() >= until) break;
    MutexLock lock(mutex);
    changed.WaitUntil(mutex, std::min(until, Now() + TimePoint::duration(milliseconds(20))));
  }
  for (const std::string& line : RenderFrame(view, TerminalSize(), false)) {
    std::printf("%s\n", line.c_str());
  }
  const auto count = std::count_if(view.daemons.begin(), view.daemons.end(), answered);
  if (count == 0) return kFailed;
  return static_cast<size_t>(count) == view.daemons.size() ? kDone : kPartlyDone;
}

}  // namespace

ExitStatus RunTop(const Command& command, const std::vector<Daemon>& daemons) {
  if (command.json) return RunOnSeveral(command, daemons);
  if (command.once || ::isatty(STDOUT_FILENO) == 0) {
    // Nothing has to be put back.
    UnblockStopSignals();
    return PrintOneFrame(command, daemons);
  }
  return Top(command, daemons).Run();
}

}  // namespace torpor::ctl
