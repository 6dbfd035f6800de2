#include "daemon/keeper/keeper_server.h"

#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <thread>
#include <utility>

#include "lib/base/process.h"
#include "lib/base/runtime_dir.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"

namespace torpor::keeper {
namespace {

// A daemon that asks and does not take the answer keeps nobody else waiting for longer.
constexpr Duration kSendTimeout = seconds(10);
// Of connections that have asked nothing; the oldest one makes room.
constexpr size_t kMostWaiting = 16;

// A line that begins as the daemon's do.
__attribute__((format(printf, 1, 2))) void Log(const char* format, ...) {
  char text[4096];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char second[32];
  std::strftime(second, sizeof second, "%FT%T", &utc);
  std::fprintf(stderr, "%s.%03ld+00:00 torpor-keeper: %s\n", second, now.tv_nsec / 1'000'000, text);
}

// A keeper that was killed while it started its daemon has left the lock to a process that is about
// to let go of it.
Result<std::unique_ptr<Journal>> OpenJournal(const std::string& path) {
  const TimePoint until = Clock::Real().Now() + seconds(2);
  for (;;) {
    Result<std::unique_ptr<Journal>> journal = Journal::Open(path);
    const bool in_use = journal.status().reason() == "JOURNAL_IN_USE";
    if (!in_use || Clock::Real().Now() > until) return journal;
    std::this_thread::sleep_for(milliseconds(10));
  }
}

bool OutlivesTheMachine(const std::string& path) {
  struct statfs about {};
  if (::statfs(path.c_str(), &about) != 0) return false;
  return about.f_type != TMPFS_MAGIC && about.f_type != RAMFS_MAGIC;
}

int TimeoutMs(const std::optional<TimePoint>& until) {
  if (!until.has_value()) return -1;
  const auto left =
      std::chrono::duration_cast<milliseconds>(*until - Clock::Real().Now()).count() + 1;
  return static_cast<int>(std::max<int64_t>(0, left));
}

std::string HowEnded(const std::optional<int>& status) {
  if (!status.has_value()) return "has ended";
  if (WIFSIGNALED(*status)) return "was killed by signal " + std::to_string(WTERMSIG(*status));
  return "has ended with status " + std::to_string(WEXITSTATUS(*status));
}

}  // namespace

Result<std::unique_ptr<KeeperServer>> KeeperServer::Create(const Options& options,
                                                           ServiceManager manager) {
  TORPOR_RETURN_IF_ERROR(MakeFoldersOf(options.journal));
  TORPOR_RETURN_IF_ERROR(MakeFoldersOf(options.socket));
  // Whoever has the journal has the socket.
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, OpenJournal(options.journal));
  if (journal->torn() > Bytes(0)) {
    Log("the journal's last record was not written to its end: %s cut off",
        FormatBytes(journal->torn()).c_str());
  }
  if (!journal->not_rewritten().ok()) {
    Log("the journal goes on as it is: %s", journal->not_rewritten().ToString().c_str());
  }
  if (OutlivesTheMachine(options.journal)) {
    Log("the journal %s does not lie on a tmpfs: after a boot it says what is no longer true",
        options.journal.c_str());
  }
  TORPOR_ASSIGN_OR_RETURN(UniqueFd listener, net::ListenUnix(options.socket, 0600));
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&taken, signal);
  if (::sigprocmask(SIG_BLOCK, &taken, nullptr) != 0) return ErrnoStatus(errno, "block signals");
  UniqueFd signals(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return ErrnoStatus(errno, "take signals");
  return std::unique_ptr<KeeperServer>(new KeeperServer(
      options, std::move(journal), std::move(listener), std::move(signals), std::move(manager)));
}

KeeperServer::KeeperServer(const Options& options, std::unique_ptr<Journal> journal,
                           UniqueFd listener, UniqueFd signals, ServiceManager manager)
    : options_(options),
      custody_(std::move(journal)),
      supervisor_(options.command),
      manager_(std::move(manager)),
      listener_(std::move(listener)),
      signals_(std::move(signals)) {}

int KeeperServer::Run() {
  const auto& last = custody_.ledger().daemon();
  if (last.has_value() && supervisor_.TakeOver({last->pid, last->started})) {
    Log("the daemon %d lives on without its keeper: taken over", last->pid);
  } else {
    StartDaemon();
  }
  while (!exit_.has_value()) {
    manager_.TellAlive(Clock::Real().Now());
    // A negative descriptor is passed over.
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0},
                                  {attached_.socket.get(), POLLIN, 0},
                                  {listener_.get(), POLLIN, 0},
                                  {supervisor_.pidfd(), POLLIN, 0}};
    const size_t first = polled.size();
    for (const Connection& one : waiting_) polled.push_back({one.socket.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), TimeoutMs(NextTime())) < 0 && errno != EINTR) return 1;
    if (polled[0].revents != 0) OnSignal();
    // What the daemon said before its end is still there.
    if (polled[1].revents != 0) {
      OnQuestion();
      continue;
    }
    auto next = waiting_.begin();
    for (size_t i = first; i < polled.size(); ++i) {
      const auto from = next++;
      if (polled[i].revents != 0) OnFirstQuestion(from);
    }
    if (polled[2].revents != 0) OnConnection();
    if (polled[3].revents != 0) OnDaemonEnd();
    if (start_at_.has_value() && Clock::Real().Now() >= *start_at_) StartDaemon();
  }
  return *exit_;
}

std::optional<TimePoint> KeeperServer::NextTime() const {
  const std::optional<TimePoint>& due = manager_.watchdog_due();
  if (!start_at_.has_value() || !due.has_value()) return start_at_.has_value() ? start_at_ : due;
  return std::min(*start_at_, *due);
}

void KeeperServer::TellAttached() {
  manager_.Tell("READY=1");
  manager_.TellStatus("has daemon " + std::to_string(attached_.peer.pid));
}

void KeeperServer::StartDaemon() {
  start_at_.reset();
  daemon_attached_ = false;
  if (const Status started = supervisor_.Start(); !started.ok()) {
    Log("%s", started.ToString().c_str());
    start_at_ = Clock::Real().Now() + seconds(1);
    return;
  }
  const ProcessId& daemon = supervisor_.daemon();
  custody_.NoteStart();
  if (const Status noted = custody_.NoteDaemon({daemon.pid, daemon.started}); !noted.ok()) {
    Log("a keeper after this one will not know the daemon: %s", noted.ToString().c_str());
  }
  Log("daemon %d started", daemon.pid);
  manager_.TellStatus("daemon " + std::to_string(daemon.pid) + " starts");
}

bool KeeperServer::TakeOverAttached() {
  const Result<ProcessId> found = FindProcess(attached_.peer.pid);
  if (!found.ok() || !supervisor_.TakeOver(*found)) return false;
  // The number is that process' for as long as the connection is there.
  char byte = 0;
  if (::recv(attached_.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
    supervisor_.Forget();
    return false;
  }
  start_at_.reset();
  daemon_attached_ = true;
  Log("the daemon %d, which this keeper has not started, is taken over", found->pid);
  if (const Status noted = custody_.NoteDaemon({found->pid, found->started}); !noted.ok()) {
    Log("a keeper after this one will not know the daemon: %s", noted.ToString().c_str());
  }
  if (stopping_) supervisor_.Signal(SIGTERM);
  return true;
}

bool KeeperServer::IsDaemons(const net::PeerCredentials& peer) const {
  return supervisor_.running() && Descends(peer.pid, supervisor_.daemon().pid);
}

bool KeeperServer::Empty() const {
  return custody_.descriptors() == 0 && custody_.ledger().sessions().empty();
}

Status KeeperServer::MayAttach(const net::PeerCredentials& peer) const {
  if (IsDaemons(peer)) return Status::Ok();
  const bool watched = supervisor_.running() && daemon_attached_;
  // One that has come back is the daemon that is there.
  const bool another =
      attached_.socket.valid() && (attached_.peer.pid != peer.pid || peer.pid == 0);
  if (!watched && !another) return Status::Ok();
  return FailedPrecondition("KEEPER_IN_USE", "another daemon has this keeper")
      .With("daemon_pid", watched ? supervisor_.daemon().pid : attached_.peer.pid)
      .With("pid", peer.pid);
}

void KeeperServer::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // its descriptor says so
    if (signal == SIGHUP) {
      supervisor_.Signal(SIGHUP);  // hands over
      continue;
    }
    const bool again = std::exchange(stopping_, true);
    manager_.Tell("STOPPING=1");
    if (!supervisor_.running()) exit_ = 0;
    // One that is only starting could die of it, and leave all that it is to clear up.
    const bool starts = supervisor_.started_here() && !daemon_attached_;
    if (again || !starts || Empty()) supervisor_.Signal(SIGTERM);
  }
}

void KeeperServer::OnConnection() {
  Result<UniqueFd> accepted = net::AcceptUnix(listener_.get());
  if (!accepted.ok()) return Log("%s", accepted.status().ToString().c_str());
  const Result<net::PeerCredentials> peer = net::GetPeerCredentials(accepted->get());
  if (!peer.ok() || (peer->uid != ::geteuid() && peer->uid != 0)) {
    return Log("a connection of another user is refused");
  }
  if (const Status set = net::SetSendTimeout(accepted->get(), kSendTimeout); !set.ok()) {
    return Log("%s", set.ToString().c_str());
  }
  if (waiting_.size() >= kMostWaiting) {
    Log("a connection of process %d that asks nothing is closed", waiting_.front().peer.pid);
    waiting_.pop_front();
  }
  waiting_.push_back({*std::move(accepted), *peer});
}

void KeeperServer::OnFirstQuestion(std::list<Connection>::iterator from) {
  Connection connection = std::move(*from);
  waiting_.erase(from);
  const int socket = connection.socket.get();
  const pid_t pid = connection.peer.pid;
  const Result<net::Frame> question = net::ReceiveFrame(socket);
  if (question.status().reason() == "CONNECTION_CLOSED") return;
  // Whatever it asks: a frame of this version tells it which one that is.
  if (question.status().reason() == "WRONG_VERSION") {
    (void)net::SendFrame(socket, AnswerTo(static_cast<uint16_t>(Type::kAttach)), 0, "");
  }
  if (!question.ok()) {
    return Log("process %d is refused: %s", pid, question.status().ToString().c_str());
  }
  const Status admitted = custody_.Admit(socket, *question, MayAttach(connection.peer));
  if (!admitted.ok()) return Log("process %d is refused: %s", pid, admitted.ToString().c_str());
  const bool daemons = IsDaemons(connection.peer);
  // The daemon may have had one before.
  attached_ = std::move(connection);
  TellAttached();
  if (daemons) {
    daemon_attached_ = true;
    supervisor_.NoteAttached();
    if (stopping_) supervisor_.Signal(SIGTERM);
  } else if (supervisor_.running()) {
    Log("the daemon %d has attached, which this keeper has not started", pid);
  } else if (!TakeOverAttached()) {
    start_at_.reset();  // for as long as it is connected
    Log("the daemon that is attached cannot be watched");
  }
}

void KeeperServer::OnQuestion() {
  const int socket = attached_.socket.get();
  Result<net::Frame> question = net::ReceiveFrame(socket);
  const Status served =
      question.ok() ? custody_.Serve(socket, *std::move(question)) : question.status();
  if (served.ok()) return;
  if (served.reason() != "CONNECTION_CLOSED") Log("%s", served.ToString().c_str());
  attached_.socket.Reset();
  if (!supervisor_.running() && !start_at_.has_value()) start_at_ = Clock::Real().Now();
}

void KeeperServer::OnDaemonEnd() {
  const pid_t pid = supervisor_.daemon().pid;
  const Supervisor::End end = supervisor_.Collect();
  const bool by_itself = end.status.has_value() && WIFEXITED(*end.status) &&
                         (WEXITSTATUS(*end.status) == 0 || WEXITSTATUS(*end.status) == 2);
  Log("daemon %d %s", pid, HowEnded(end.status).c_str());
  if (attached_.socket.valid() && attached_.peer.pid != pid) {
    if (TakeOverAttached()) return;
    if (!stopping_) return Log("the daemon that is attached cannot be watched");
  }
  manager_.TellStatus("daemon " + std::to_string(pid) + " " + HowEnded(end.status));
  // 2: its command line is wrong, which another start does not mend. That of a daemon which follows
  // another one may be put right, and until then everything stays here.
  const bool hands_over = end.status.has_value() && WIFEXITED(*end.status) &&
                          WEXITSTATUS(*end.status) == kHandOverStatus;
  // One that hands over just when it is stopped has cleared nothing up: the next one does.
  if ((stopping_ && !hands_over) || (by_itself && (WEXITSTATUS(*end.status) == 0 || Empty()))) {
    exit_ = end.status.has_value() && WIFEXITED(*end.status) ? WEXITSTATUS(*end.status) : 0;
    return;
  }
  start_at_ = Clock::Real().Now() + (hands_over ? Duration() : end.pause);
}

}  // namespace torpor::keeper
