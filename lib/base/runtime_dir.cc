#include "lib/base/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace torpor {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<std::string> DefaultRuntimeDir() {
  std::string dir = Environment("TORPOR_RUNTIME_DIR");
  if (!dir.empty()) return dir;
  if (::geteuid() == 0) return std::string("/run/torpor");
  dir = Environment("XDG_RUNTIME_DIR");
  if (!dir.empty()) return dir + "/torpor";
  return FailedPrecondition("NO_RUNTIME_DIR",
                            "neither TORPOR_RUNTIME_DIR nor XDG_RUNTIME_DIR is set, and no runtime "
                            "directory is given");
}

Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) {
    if (::chmod(path.c_str(), 0755) == 0) return Status::Ok();
  } else if (errno == EEXIST) {
    return Status::Ok();
  }
  return ErrnoStatus(errno, "create folder " + path);
}

Status MakeFoldersOf(const std::string& file) {
  // From the second character on: the root is there.
  for (size_t end = file.find('/', 1); end != std::string::npos; end = file.find('/', end + 1)) {
    const std::string folder = file.substr(0, end);
    // A file system that is read-only or guarded does not say that a folder is there.
    struct stat about {};
    if (::stat(folder.c_str(), &about) != 0) TORPOR_RETURN_IF_ERROR(MakeFolder(folder));
  }
  return Status::Ok();
}

}  // namespace torpor
