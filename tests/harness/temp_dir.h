#ifndef TORPOR_TESTS_HARNESS_TEMP_DIR_H_
#define TORPOR_TESTS_HARNESS_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace torpor {

// A folder with a name short enough for Unix sockets in it; removed with everything in it.
class TempDir {
 public:
  explicit TempDir(const std::string& parent = "/tmp") : path_(parent + "/torpor.XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_TEMP_DIR_H_
