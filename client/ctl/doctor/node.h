#ifndef TORPOR_CLIENT_CTL_DOCTOR_NODE_H_
#define TORPOR_CLIENT_CTL_DOCTOR_NODE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torpor::ctl::doctor {

// The machine as its files tell it: /proc, /sys, /dev. Only reads. Immutable; thread-safe.
class Node {
 public:
  struct User {
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups;
  };
  // The one that this process runs on, as its user.
  static Node Here();
  // Made-up files below `root`, a made-up user and environment.
  Node(std::string root, User user, std::map<std::string, std::string> environment)
      : root_(std::move(root)), user_(std::move(user)), environment_(std::move(environment)) {}

  const std::string& root() const { return root_; }
  const User& user() const { return user_; }
  std::optional<std::string> Env(const std::string& name) const;
  const std::map<std::string, std::string>& environment() const { return environment_; }

  // Paths are absolute. Nothing: there is no such file, or it cannot be read.
  std::optional<std::string> Read(const std::string& path) const;
  std::optional<std::string> Line(const std::string& path) const;    // the first one
  std::optional<int64_t> Number(const std::string& path) const;      // that the file begins with
  std::optional<std::string> Target(const std::string& path) const;  // of a symbolic link
  std::optional<struct stat> Stat(const std::string& path) const;
  bool Exists(const std::string& path) const { return Stat(path).has_value(); }
  std::vector<std::string> List(const std::string& path) const;  // in order; names only
  // The rest of the line that begins with `key`, without the blanks around it: "MemTotal:",
  // "Max open files".
  std::optional<std::string> Value(const std::string& path, const std::string& key) const;

  // Whether the user may, by owner and mode, read and write a file like that.
  bool MayReadWrite(const struct stat& file) const;

 private:
  std::string root_;
  User user_;
  std::map<std::string, std::string> environment_;
};

// "root", "torpor"; the number of one without a name.
std::string UserName(uid_t uid);
std::string GroupName(gid_t gid);

// "0660"
std::string ModeText(mode_t mode);

std::vector<std::string> SplitWords(const std::string& text);
std::vector<std::string> SplitAt(const std::string& text, char separator);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_NODE_H_
