#include "daemon/access/policy.h"

#include <fcntl.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "access.pb.h"
#include "lib/base/unique_fd.h"
#include "lib/base/utf8.h"

namespace torpor::access {
namespace {

using google::protobuf::TextFormat;

constexpr off_t kLongestFile = 1 << 20;

// `line` from 1; 0: none.
Status BadFile(const std::string& path, int line, const std::string& what) {
  Status bad = InvalidArgument("BAD_ACCESS_FILE",
                               path + (line > 0 ? ":" + std::to_string(line) : "") + ": " + what);
  bad.Add("path", path);
  if (line > 0) bad.Add("line", std::to_string(line));
  return bad;
}

Status CannotOpen(const std::string& path, int error) {
  Status why = ErrnoStatus(error, "open the access file " + path);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
      return InvalidArgument("BAD_ACCESS_FILE", why.message())
          .With("path", path)
          .With("errno", error);
    default:
      return why;
  }
}

// Keeps the first.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int /*column*/, const std::string& message) override {
    if (!message_.empty()) return;
    line_ = line + 1;
    message_ = message;
  }
  Status ToStatus(const std::string& path) const {
    return BadFile(path, line_, message_.empty() ? "cannot be read" : message_);
  }

 private:
  int line_ = 0;
  std::string message_;
};

constexpr std::pair<Roles, Role> kRoles[] = {
    {kOperator, OPERATOR}, {kWorker, WORKER}, {kReader, READER}};

Roles ToRole(int number) {
  for (const auto& [role, name] : kRoles) {
    if (name == number) return role;
  }
  return kNobody;
}

// Calls getpwnam_r or getgrnam_r with room enough. False: there is no such entry.
template <typename Entry, typename Look>
Result<bool> LookUp(const std::string& name, Entry& entry, std::vector<char>& room, Look look) {
  for (room.resize(1024); room.size() <= 1 << 20; room.resize(room.size() * 2)) {
    Entry* found = nullptr;
    const int error = look(name.c_str(), &entry, room.data(), room.size(), &found);
    if (error == ERANGE) continue;
    if (found != nullptr) return true;
    // Some of these mean no more than that there is none.
    if (error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM) {
      return false;
    }
    return ErrnoStatus(error, "look up \"" + name + "\"");
  }
  return false;
}

Result<std::optional<uid_t>> FindUser(const std::string& name) {
  passwd entry{};
  std::vector<char> room;
  TORPOR_ASSIGN_OR_RETURN(const bool found, LookUp(name, entry, room, ::getpwnam_r));
  return found ? std::optional<uid_t>(entry.pw_uid) : std::nullopt;
}

Result<std::optional<gid_t>> FindGroup(const std::string& name) {
  group entry{};
  std::vector<char> room;
  TORPOR_ASSIGN_OR_RETURN(const bool found, LookUp(name, entry, room, ::getgrnam_r));
  return found ? std::optional<gid_t>(entry.gr_gid) : std::nullopt;
}

bool IsCertificateName(const std::string& name) {
  for (const char* const kind : {"dns:", "uri:", "cn:"}) {
    const std::string prefix = kind;
    if (name.size() > prefix.size() && name.compare(0, prefix.size(), prefix) == 0) return true;
  }
  return false;
}

// For messages.
constexpr size_t kLongestList = 256;

std::string Join(const std::vector<gid_t>& groups) {
  std::string text;
  for (const gid_t group : groups) text += (text.empty() ? "" : ", ") + std::to_string(group);
  return Shorten(text, kLongestList);
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + Shorten(name);
  return Shorten(text, kLongestList);
}

}  // namespace

std::string NamesOf(Roles roles, const char* between) {
  std::string names;
  for (const auto& [role, name] : {std::pair<Roles, const char*>{kOperator, "OPERATOR"},
                                   {kWorker, "WORKER"},
                                   {kReader, "READER"}}) {
    if ((roles & role) != 0) names += (names.empty() ? "" : between) + std::string(name);
  }
  return names;
}

std::string Identity::ToString() const {
  switch (kind) {
    case Kind::kUnknown:
      return "somebody unknown";
    case Kind::kLoopback:
      return "a program of this machine (TCP without TLS)";
    case Kind::kSocket: {
      std::string text = "uid " + std::to_string(peer.uid) + ", gid " + std::to_string(peer.gid);
      if (!peer.groups.empty()) text += ", groups " + Join(peer.groups);
      return text + ", pid " + std::to_string(peer.pid);
    }
    case Kind::kCertificate:
      return "the certificate of " + (names.empty() ? "nobody (it has no name)" : Join(names));
  }
  return "";
}

std::string Identity::Name() const {
  if (kind == Kind::kSocket) return "uid " + std::to_string(peer.uid);
  if (kind == Kind::kCertificate && !names.empty()) return Shorten(names.front());
  return ToString();
}

Status Require(const Caller& caller, Roles any_of, const std::string& action) {
  if (caller.Has(any_of)) return Status::Ok();
  const std::string has = NamesOf(caller.roles, ", ");
  const std::string needs = NamesOf(any_of, " or ");
  Status denied = PermissionDenied(
      "ACCESS_DENIED", action + " needs the role " + needs + "; " + caller.identity.ToString() +
                           (has.empty() ? " has none" : " has " + has));
  denied.Add("action", action);
  denied.Add("needs", needs);
  denied.Add("roles", has);
  if (caller.identity.kind == Identity::Kind::kSocket) {
    denied.Add("uid", std::to_string(caller.identity.peer.uid));
    denied.Add("gid", std::to_string(caller.identity.peer.gid));
    denied.Add("groups", Join(caller.identity.peer.groups));
  } else if (caller.identity.kind == Identity::Kind::kCertificate) {
    denied.Add("certificate", Join(caller.identity.names));
  }
  return denied;
}

Result<Policy> Policy::Load(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return CannotOpen(path, errno);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return ErrnoStatus(errno, "look at " + path);
  if (!S_ISREG(about.st_mode) || about.st_size > kLongestFile) {
    return BadFile(path, 0, "is no file of at most 1 MiB");
  }
  if ((about.st_mode & S_IWOTH) != 0) {
    return BadFile(path, 0, "everybody may write to it, and so become an operator: chmod o-w");
  }
  std::string text(static_cast<size_t>(about.st_size), '\0');
  size_t read = 0;
  while (read < text.size()) {
    const ssize_t part = ::read(file.get(), text.data() + read, text.size() - read);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return ErrnoStatus(errno, "read " + path);
    if (part == 0) break;
    read += static_cast<size_t>(part);
  }
  text.resize(read);
  return Parse(text, path);
}

Result<Policy> Policy::Parse(const std::string& text, const std::string& path) {
  AccessFile file;
  FirstError error;
  TextFormat::Parser parser;
  TextFormat::ParseInfoTree places;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&places);
  if (!parser.ParseFromString(text, &file)) return error.ToStatus(path);
  if (file.grant().empty()) return BadFile(path, 0, "grants nothing to anybody");

  const auto* const grant_field = AccessFile::descriptor()->FindFieldByName("grant");
  Policy policy;
  for (int i = 0; i < file.grant_size(); ++i) {
    const access::Grant& from = file.grant(i);
    TextFormat::ParseInfoTree* const inside = places.GetTreeForNested(grant_field, i);
    const auto line_of = [&](const char* field, int index) {
      const auto* const descriptor = access::Grant::descriptor()->FindFieldByName(field);
      return inside == nullptr ? 0 : inside->GetLocation(descriptor, index).line + 1;
    };
    const int line = places.GetLocation(grant_field, i).line + 1;
    Policy::Grant grant;
    for (int k = 0; k < from.role_size(); ++k) {
      const Roles role = ToRole(from.role(k));
      if (role == kNobody) {
        return BadFile(path, line_of("role", k), "a role is OPERATOR, WORKER or READER");
      }
      grant.roles |= role;
    }
    if (grant.roles == kNobody) return BadFile(path, line, "a grant of no role");
    grant.users.assign(from.uid().begin(), from.uid().end());
    for (int k = 0; k < from.user_size(); ++k) {
      TORPOR_ASSIGN_OR_RETURN(const auto user, FindUser(from.user(k)));
      if (!user.has_value()) {
        return BadFile(path, line_of("user", k), "there is no user \"" + from.user(k) + "\"");
      }
      grant.users.push_back(*user);
    }
    grant.groups.assign(from.gid().begin(), from.gid().end());
    for (int k = 0; k < from.group_size(); ++k) {
      TORPOR_ASSIGN_OR_RETURN(const auto group, FindGroup(from.group(k)));
      if (!group.has_value()) {
        return BadFile(path, line_of("group", k), "there is no group \"" + from.group(k) + "\"");
      }
      grant.groups.push_back(*group);
    }
    for (int k = 0; k < from.certificate_size(); ++k) {
      if (!IsCertificateName(from.certificate(k))) {
        return BadFile(path, line_of("certificate", k),
                       "\"" + from.certificate(k) +
                           "\" is no name in a certificate: write dns:NAME, uri:NAME or cn:NAME");
      }
      grant.certificates.push_back(from.certificate(k));
    }
    grant.loopback = from.loopback();
    if (grant.users.empty() && grant.groups.empty() && grant.certificates.empty() &&
        !grant.loopback) {
      return BadFile(path, line, "a grant to nobody");
    }
    policy.grants_.push_back(std::move(grant));
  }
  return policy;
}

std::string Policy::ToText() const {
  AccessFile file;
  for (const Grant& grant : grants_) {
    access::Grant& to = *file.add_grant();
    for (const auto& [role, name] : kRoles) {
      if ((grant.roles & role) != 0) to.add_role(name);
    }
    to.mutable_uid()->Add(grant.users.begin(), grant.users.end());
    to.mutable_gid()->Add(grant.groups.begin(), grant.groups.end());
    for (const std::string& name : grant.certificates) to.add_certificate(name);
    to.set_loopback(grant.loopback);
  }
  std::string text;
  TextFormat::PrintToString(file, &text);
  return text;
}

std::optional<std::string> Policy::Grant::Find(const Identity& identity) const {
  const auto has = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  const net::PeerCredentials& peer = identity.peer;
  switch (identity.kind) {
    case Identity::Kind::kUnknown:
      return std::nullopt;
    case Identity::Kind::kLoopback:
      return loopback ? std::optional<std::string>("") : std::nullopt;
    case Identity::Kind::kSocket: {
      const bool found = has(users, peer.uid) || has(groups, peer.gid) ||
                         std::any_of(peer.groups.begin(), peer.groups.end(),
                                     [&](gid_t group) { return has(groups, group); });
      return found ? std::optional<std::string>("") : std::nullopt;
    }
    case Identity::Kind::kCertificate:
      for (const std::string& name : certificates) {
        if (has(identity.names, name)) return name;
      }
      return std::nullopt;
  }
  return std::nullopt;
}

Caller Policy::Judge(Identity identity) const {
  Caller caller;
  for (const Grant& grant : grants_) {
    const std::optional<std::string> found = grant.Find(identity);
    if (!found.has_value()) continue;
    caller.roles |= grant.roles;
    if ((grant.roles & kWorker) != 0 && !caller.owner.has_value()) caller.owner = Owner{*found, {}};
  }
  if (caller.Has(kOperator)) caller.owner.reset();
  if (caller.owner.has_value()) {
    if (identity.kind == Identity::Kind::kSocket) {
      caller.owner->uid = identity.peer.uid;
      caller.owner->name = "uid:" + std::to_string(identity.peer.uid);
    } else if (identity.kind == Identity::Kind::kLoopback) {
      caller.owner->name = "loopback";
    }
  }
  caller.identity = std::move(identity);
  return caller;
}

}  // namespace torpor::access
