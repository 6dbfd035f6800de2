#include "client/ctl/doctor/node.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace torpor::ctl::doctor {
namespace {

std::string Trim(const std::string& text) {
  constexpr char kBlank[] = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

Node Node::Here() {
  User user{::geteuid(), ::getegid(), {}};
  user.groups.resize(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(user.groups.size()), user.groups.data());
  user.groups.resize(static_cast<size_t>(std::max(0, count)));
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return Node("", std::move(user), std::move(environment));
}

std::optional<std::string> Node::Env(const std::string& name) const {
  const auto found = environment_.find(name);
  if (found == environment_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> Node::Read(const std::string& path) const {
  std::error_code error;
  if (!std::filesystem::is_regular_file(root_ + path, error)) return std::nullopt;
  std::ifstream file(root_ + path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  return text;
}

std::optional<std::string> Node::Line(const std::string& path) const {
  const auto text = Read(path);
  if (!text.has_value()) return std::nullopt;
  return Trim(text->substr(0, text->find('\n')));
}

std::optional<int64_t> Node::Number(const std::string& path) const {
  const auto text = Read(path);
  if (!text.has_value()) return std::nullopt;
  std::istringstream words(*text);
  int64_t number = 0;
  if (words >> number) return number;
  return std::nullopt;
}

std::optional<std::string> Node::Target(const std::string& path) const {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(root_ + path, error);
  if (error) return std::nullopt;
  return target.string();
}

std::optional<struct stat> Node::Stat(const std::string& path) const {
  struct stat info {};
  if (::stat((root_ + path).c_str(), &info) != 0) return std::nullopt;
  return info;
}

std::vector<std::string> Node::List(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> Node::Value(const std::string& path, const std::string& key) const {
  const auto text = Read(path);
  if (!text.has_value()) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) == 0) return Trim(line.substr(key.size()));
  }
  return std::nullopt;
}

bool Node::MayReadWrite(const struct stat& file) const {
  if (user_.uid == 0) return true;
  if (file.st_uid == user_.uid) return (file.st_mode & 0600) == 0600;
  const bool in_group =
      file.st_gid == user_.gid ||
      std::find(user_.groups.begin(), user_.groups.end(), file.st_gid) != user_.groups.end();
  const mode_t needed = in_group ? 0060 : 0006;
  return (file.st_mode & needed) == needed;
}

// The system's own look-up may ask the network, and needs more than a static library has.
static std::string NameIn(const char* path, unsigned id) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = SplitAt(line, ':');
    if (fields.size() > 2 && fields[2] == std::to_string(id)) return fields[0];
  }
  return std::to_string(id);
}

std::string UserName(uid_t uid) { return NameIn("/etc/passwd", uid); }
std::string GroupName(gid_t gid) { return NameIn("/etc/group", gid); }

std::string ModeText(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

std::vector<std::string> SplitWords(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<std::string> SplitAt(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace torpor::ctl::doctor
