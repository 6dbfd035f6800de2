// Containers, and what they may take away.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/ctl/doctor/checks.h"
#include "lib/base/unique_fd.h"

namespace torpor::ctl::doctor {
namespace {

Finding Container(const Node& node) {
  constexpr char kName[] = "container";
  if (!InContainer(node)) return Fine(kName, "none is seen");
  std::string kind = node.Env("container").value_or("");
  if (node.Exists("/.dockerenv")) kind = "Docker";
  if (node.Exists("/run/.containerenv")) kind = "Podman";
  if (node.Env("KUBERNETES_SERVICE_HOST").has_value()) kind = "Kubernetes";
  return Fine(kName, "this is one" + (kind.empty() ? "" : ": " + kind));
}

Finding ProcessView(const Node& node) {
  constexpr char kName[] = "process-view";
  const auto proc = MountOf(node, "self", "/proc");
  const auto hidden =
      proc.has_value() ? proc->options.find("hidepid") : decltype(proc->options.end()){};
  if (proc.has_value() && hidden != proc->options.end() && hidden->second != "0" &&
      hidden->second != "off") {
    return Warning(kName, "/proc is mounted with hidepid=" + hidden->second,
                   "Let the daemon's group see all (gid=), or mount it without.\n"
                   "$ mount -o remount,hidepid=0 /proc");
  }
  const std::string first = node.Line("/proc/1/comm").value_or("");
  const bool own = InContainer(node) && first != "systemd" && first != "init";
  return Fine(kName,
              own ? "processes of this container, it seems: a daemon sees the pids of workers "
                    "in the same one"
                  : "all processes");
}

Finding SystemCalls(const Node& node, const std::map<std::string, int>& calls) {
  constexpr char kName[] = "system-calls";
  const std::string mode = node.Value("/proc/self/status", "Seccomp:").value_or("0");
  std::vector<std::string> work;
  std::vector<std::string> refused;
  for (const auto& [name, error] : calls) {
    if (error == 0) {
      work.push_back(name);
    } else {
      const char* const text = strerrorname_np(error);
      refused.push_back(name + " (" + (text != nullptr ? text : std::to_string(error)) + ")");
    }
  }
  const std::string filter = mode == "2" ? "; a seccomp filter is on" : "";
  Finding finding = Fine(kName, Listing(work) + " work" + filter);
  if (!refused.empty()) {
    finding = Problem(kName, "refused: " + Listing(refused) + filter,
                      "Allow them in the seccomp profile (the runtimes' own do), and use Linux "
                      "5.10 or newer.");
  }
  return std::move(finding)
      .With("refused", static_cast<int64_t>(refused.size()))
      .With("seccomp_mode", std::strtoll(mode.c_str(), nullptr, 10));
}

int PassDescriptor() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
  const UniqueFd left(ends[0]);
  const UniqueFd right(ends[1]);
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = left.get();
  std::memcpy(CMSG_DATA(header), &sent, sizeof sent);
  if (::sendmsg(left.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return errno;
  std::memset(control, 0, sizeof control);
  message.msg_controllen = sizeof control;
  if (::recvmsg(right.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return errno;
  const cmsghdr* const received = CMSG_FIRSTHDR(&message);
  if (received == nullptr || received->cmsg_type != SCM_RIGHTS) return EPERM;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(received), sizeof fd);
  ::close(fd);
  return 0;
}

int TryMincore() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const map =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return errno;
  unsigned char resident = 0;
  const int error = ::mincore(map, page, &resident) == 0 ? 0 : errno;
  ::munmap(map, page);
  return error;
}

}  // namespace

std::map<std::string, int> TrySystemCalls() {
  std::map<std::string, int> calls;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  calls["pidfd_open"] = process.valid() ? 0 : errno;
  const UniqueFd memory(::memfd_create("torporctl-doctor", MFD_CLOEXEC));
  calls["memfd_create"] = memory.valid() ? 0 : errno;
  calls["mincore"] = TryMincore();
  calls["SCM_RIGHTS"] = PassDescriptor();
  return calls;
}

Findings CheckContainer(const Node& node, const std::map<std::string, int>& calls) {
  return {Container(node), ProcessView(node), SystemCalls(node, calls)};
}

}  // namespace torpor::ctl::doctor
