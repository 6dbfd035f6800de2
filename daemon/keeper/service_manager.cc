#include "daemon/keeper/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace torpor::keeper {
namespace {

// Taken out of the environment; empty if it is not there.
std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(name);
  return taken;
}

std::optional<int64_t> Number(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  std::string address = Take("NOTIFY_SOCKET");
  const std::optional<int64_t> usec = Number(Take("WATCHDOG_USEC"));
  const std::string pid = Take("WATCHDOG_PID");
  if (address.size() < 2 || address.size() >= sizeof(sockaddr_un::sun_path)) return manager;
  if (address[0] != '/' && address[0] != '@') return manager;
  if (address[0] == '@') address[0] = '\0';
  manager.socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!manager.socket_.valid()) return manager;
  manager.address_ = std::move(address);
  if (usec.value_or(0) > 0 && (pid.empty() || Number(pid) == ::getpid())) {
    manager.interval_ = std::chrono::microseconds(*usec) / 2;
    manager.due_ = Clock::Real().Now();
  }
  return manager;
}

void ServiceManager::Tell(const std::string& lines) const {
  if (address_.empty()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  // Whatever is at the other end, the keeper does not wait for it.
  (void)::sendto(socket_.get(), lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to), length);
}

void ServiceManager::TellStatus(const std::string& status) {
  if (status == status_) return;
  status_ = status;
  Tell("STATUS=" + status);
}

void ServiceManager::TellAlive(TimePoint now) {
  if (!due_.has_value() || now < *due_) return;
  Tell("WATCHDOG=1");
  due_ = now + *interval_;
}

}  // namespace torpor::keeper
