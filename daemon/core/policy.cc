#include "daemon/core/policy.h"

#include <set>
#include <utility>

namespace torpor {
namespace {

std::string Counted(const std::string& name) {
  return " " + std::to_string(name.size()) + ":" + name;
}

std::string TagList(const std::vector<std::string>& tags) {
  std::string list;
  for (const std::string& tag : std::set<std::string>(tags.begin(), tags.end())) {
    list += Counted(tag);
  }
  return list;
}

}  // namespace

Inventory::PolicyOf LevelPolicy(int32_t level) {
  if (level != 1 && level != 2) return nullptr;
  return [level](const std::string& tag) {
    if (tag == "kv_cache" || tag == "workspace") return wire::Policy::kDiscard;
    if (tag == "weights" && level == 2) return wire::Policy::kDiscard;
    return wire::Policy::kOffload;
  };
}

Inventory::TagFilter FilterOf(const std::vector<std::string>& tags) {
  if (tags.empty()) return [](const std::string&) { return true; };
  return [set = std::set<std::string>(tags.begin(), tags.end())](const std::string& tag) {
    return set.count(tag) != 0;
  };
}

Result<Inventory::PolicyOf> PolicyFrom(int32_t level,
                                       const std::map<std::string, wire::Policy>& policies) {
  if (level != 0 && !policies.empty()) {
    return InvalidArgument("LEVEL_AND_POLICIES", "give a level or policies by tag, not both")
        .With("level", level);
  }
  if (!policies.empty()) {
    for (const auto& [tag, policy] : policies) {
      TORPOR_RETURN_IF_ERROR(CheckName(tag, "tag", "BAD_TAG"));
      if (policy > wire::Policy::kDiscard) {
        return InvalidArgument("BAD_POLICY", "tag " + tag + " has no known policy")
            .With("tag", tag)
            .With("policy", static_cast<int>(policy));
      }
    }
    return Inventory::PolicyOf([policies](const std::string& tag) {
      const auto it = policies.find(tag);
      return it == policies.end() ? wire::Policy::kKeep : it->second;
    });
  }
  if (level == 0) {
    return InvalidArgument("POLICY_MISSING",
                           "say what shall become of the bytes: a level (1 or "
                           "2) or policies by tag");
  }
  Inventory::PolicyOf policy = LevelPolicy(level);
  if (policy != nullptr) return policy;
  return InvalidArgument("BAD_LEVEL", "sleep levels are 1 and 2").With("level", level);
}

std::string SleepWish(const std::vector<std::string>& tags, int32_t level,
                      const std::map<std::string, wire::Policy>& policies, bool force) {
  std::string wish = "sleep" + TagList(tags) + " level " + std::to_string(level);
  for (const auto& [tag, policy] : policies) {
    wish += Counted(tag) + "=" + std::to_string(static_cast<int>(policy));
  }
  return wish + (force ? " force" : "");
}

std::string WakeWish(const std::vector<std::string>& tags, const std::string& reservation) {
  return "wake" + TagList(tags) + " reservation" + Counted(reservation);
}

}  // namespace torpor
