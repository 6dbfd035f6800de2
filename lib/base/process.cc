#include "lib/base/process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace torpor {
namespace {

struct Stat {
  char state = 0;
  pid_t parent = 0;
  uint64_t started = 0;  // 0: there is no such process
};

Stat ReadStat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Stat stat;
  // Behind the name, which may hold anything, the start is the 20th field.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return stat;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> stat.state >> stat.parent;
  for (int i = 2; i < 19; ++i) fields >> field;
  fields >> stat.started;
  return stat;
}

int64_t CountThreads(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid) + "/task",
                                                    error);
  return error ? 0 : std::distance(begin(threads), end(threads));
}

}  // namespace

Result<ProcessId> FindProcess(pid_t pid) {
  const Stat stat = ReadStat(pid);
  if (stat.started > 0) return ProcessId{pid, stat.started};
  return NotFound("UNKNOWN_PROCESS", "there is no process " + std::to_string(pid)).With("pid", pid);
}

bool HasEnded(const ProcessId& process) {
  if (process.pid <= 0 || process.started == 0 || PidNamespace() == 0) return false;
  const Stat stat = ReadStat(process.pid);
  // Which may also be hidden from this process.
  if (stat.started == 0) return ::kill(process.pid, 0) != 0 && errno == ESRCH;
  if (stat.started != process.started) return true;
  // A first thread that has ended looks like the end of all.
  return (stat.state == 'Z' || stat.state == 'X') && CountThreads(process.pid) <= 1;
}

bool Descends(pid_t pid, pid_t ancestor) {
  while (pid > 1 && pid != ancestor) pid = ReadStat(pid).parent;
  return pid == ancestor;
}

uint64_t PidNamespace() {
  struct stat status {};
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self", error);
  if (self != std::to_string(::getpid())) return 0;  // another one's numbers
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace torpor
