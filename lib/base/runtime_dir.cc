#include "lib/base/runtime_dir.h"

#include <unistd.h>

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

}  // namespace torpor
