#include "client/discovery.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr char kSocketName[] = "worker.sock";

bool IsSocket(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

std::vector<std::string> Sockets(const std::string& runtime_dir) {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator entry(runtime_dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string path = (entry->path() / kSocketName).string();
    if (IsSocket(path)) found.push_back(std::move(path));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> Live(const std::vector<std::string>& paths) {
  std::vector<std::string> live;
  for (const std::string& path : paths) {
    if (net::IsSocketInUse(path)) live.push_back(path);
  }
  return live;
}

std::string Join(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& item : items) all.append(all.empty() ? "" : ",").append(item);
  return all;
}

Status NotRunning(const std::string& message, const std::vector<std::string>& candidates) {
  Status status = Unavailable("DAEMON_NOT_RUNNING", message);
  if (!candidates.empty()) status.Add("candidates", Join(candidates));
  return status;
}

}  // namespace

Result<std::string> FindWorkerSocket(const std::string& runtime_dir,
                                     const std::string& device_uuid) {
  const std::vector<std::string> all = Sockets(runtime_dir);
  if (!device_uuid.empty()) {
    std::string path = runtime_dir + "/" + device_uuid + "/" + kSocketName;
    if (IsSocket(path)) return path;
    return NotRunning("no daemon serves device " + device_uuid + " at " + path, all);
  }
  if (all.size() == 1) return all.front();
  const std::vector<std::string> live = Live(all);
  if (live.size() == 1) return live.front();
  if (live.empty()) return NotRunning("no daemon listens under " + runtime_dir, all);
  return FailedPrecondition("AMBIGUOUS_DAEMON", "several daemons listen under " + runtime_dir +
                                                    ": say which by device or socket")
      .With("candidates", Join(live));
}

}  // namespace torpor::client
