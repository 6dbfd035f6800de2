#include "lib/cuda/contract_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace torpor {
namespace {

constexpr char kFlag[] = "--contract-worker";
constexpr int kSocket = 3;  // in the worker

class Worker {
 public:
  Worker(std::unique_ptr<Driver> driver, Bytes size)
      : driver_(std::move(driver)), size_(size), buffer_(size.size()) {}

  std::string Do(const std::string& command, UniqueFd fd, UniqueFd* answer) {
    if (command == "keep") {
      kept_ = std::move(fd);
      return "ok";
    }
    if (command == "create") return Text(Create(answer));
    if (command == "import-ro") return Text(Import(fd.get(), Access::kReadOnly));
    if (command == "import-rw") return Text(Import(fd.get(), Access::kReadWrite));
    if (command == "export") return Text(driver_->Export(handle_).status());
    if (command == "read") return Read();
    if (command.rfind("fill ", 0) == 0) {
      return Text(Fill(static_cast<uint8_t>(std::atoi(command.c_str() + 5))));
    }
    if (command == "poke") {
      ::signal(SIGSEGV, SIG_DFL);  // sanitizers would make an exit of it
      *reinterpret_cast<volatile uint8_t*>(address_.value()) = 1;
      return "ok";
    }
    return "what?";
  }

 private:
  static std::string Text(const Status& status) { return status.ok() ? "ok" : status.ToString(); }

  Status Map(Access access) {
    TORPOR_ASSIGN_OR_RETURN(address_, driver_->ReserveAddresses(size_, Bytes(0)));
    TORPOR_RETURN_IF_ERROR(driver_->Map(address_, size_, handle_));
    TORPOR_RETURN_IF_ERROR(driver_->SetAccess(address_, size_, access));
    TORPOR_ASSIGN_OR_RETURN(stream_, driver_->CreateStream());
    return Status::Ok();
  }
  Status Create(UniqueFd* answer) {
    TORPOR_ASSIGN_OR_RETURN(handle_, driver_->Create(size_));
    TORPOR_RETURN_IF_ERROR(Map(Access::kReadWrite));
    TORPOR_RETURN_IF_ERROR(Fill(0x5a));
    TORPOR_ASSIGN_OR_RETURN(*answer, driver_->Export(handle_));
    return Status::Ok();
  }
  Status Import(int fd, Access access) {
    TORPOR_ASSIGN_OR_RETURN(handle_, driver_->Import(fd, size_));
    return Map(access);
  }
  Status Wait() {
    TORPOR_ASSIGN_OR_RETURN(const EventId event, driver_->RecordEvent(stream_));
    return driver_->WaitEvent(event);
  }
  Status Fill(uint8_t byte) {
    std::fill(buffer_.begin(), buffer_.end(), byte);
    TORPOR_RETURN_IF_ERROR(driver_->CopyToDevice(stream_, address_, buffer_.data(), size_));
    return Wait();
  }
  std::string Read() {
    Status status = driver_->CopyToHost(stream_, buffer_.data(), address_, size_);
    if (status.ok()) status = Wait();
    if (!status.ok()) return status.ToString();
    const bool same = std::all_of(buffer_.begin(), buffer_.end(),
                                  [this](uint8_t byte) { return byte == buffer_[0]; });
    return same ? std::to_string(buffer_[0]) : "mixed";
  }

  const std::unique_ptr<Driver> driver_;
  const Bytes size_;
  std::vector<uint8_t> buffer_;
  UniqueFd kept_;
  MemoryHandle handle_;
  DeviceAddress address_;
  StreamId stream_;
};

}  // namespace

bool SendText(int socket, const std::string& text, int fd) {
  iovec io{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::string ReceiveText(int socket, UniqueFd* fd) {
  char text[1024];
  iovec io{text, sizeof text};
  int received = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof received)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0) return "";
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) {
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    UniqueFd owned(received);
    if (fd != nullptr) *fd = std::move(owned);
  }
  return std::string(text, size);
}

ContractWorker::ContractWorker(const std::string& device, const DeviceInfo& info, Bytes size) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
  socket_.Reset(pair[0]);
  // Above the number it gets in the worker: a dup2 onto itself would keep close-on-exec.
  const UniqueFd theirs(::fcntl(pair[1], F_DUPFD_CLOEXEC, kSocket + 1));
  ::close(pair[1]);
  std::vector<std::string> words = {"/proc/self/exe",
                                    kFlag,
                                    device,
                                    info.kind,
                                    info.uuid,
                                    std::to_string(info.total.value()),
                                    std::to_string(info.granularity.value()),
                                    std::to_string(size.value())};
  std::vector<char*> args;
  args.reserve(words.size() + 1);
  for (std::string& word : words) args.push_back(word.data());
  args.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kSocket);
  if (::posix_spawn(&pid_, args[0], &actions, nullptr, args.data(), environ) != 0) pid_ = -1;
  ::posix_spawn_file_actions_destroy(&actions);
}

ContractWorker::~ContractWorker() { Kill(); }

std::string ContractWorker::Ask(const std::string& command, int fd, UniqueFd* answer) {
  if (!SendText(socket_.get(), command, fd)) return "";
  return ReceiveText(socket_.get(), answer);
}

void ContractWorker::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  WaitForDeath();
}

int ContractWorker::WaitForDeath() {
  int status = 0;
  if (pid_ >= 0) ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

bool RunAsContractWorker(int argc, char** argv, const ContractDriverFactory& factory) {
  if (argc != 8 || std::strcmp(argv[1], kFlag) != 0) return false;
  DeviceInfo info;
  info.kind = argv[3];
  info.uuid = argv[4];
  info.total = Bytes(std::atoll(argv[5]));
  info.granularity = Bytes(std::atoll(argv[6]));
  std::unique_ptr<Worker> worker;
  for (;;) {
    UniqueFd fd;
    const std::string command = ReceiveText(kSocket, &fd);
    if (command.empty()) return true;
    if (worker == nullptr) {
      auto driver = factory(argv[2], info, /*owner=*/command == "create");
      if (!driver.ok()) {
        SendText(kSocket, driver.status().ToString(), -1);
        continue;
      }
      worker = std::make_unique<Worker>(*std::move(driver), Bytes(std::atoll(argv[7])));
    }
    UniqueFd answer;
    const std::string text = worker->Do(command, std::move(fd), &answer);
    SendText(kSocket, text, answer.get());
  }
}

}  // namespace torpor
