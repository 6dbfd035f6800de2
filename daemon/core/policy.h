#ifndef TORPOR_DAEMON_CORE_POLICY_H_
#define TORPOR_DAEMON_CORE_POLICY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/memory/inventory.h"
#include "lib/base/status.h"
#include "lib/wire/messages.h"

namespace torpor {

// The table behind a sleep level; null unless `level` is 1 or 2. A tag that the table does not name
// is offloaded: bytes are dropped only where someone said so.
//   level   weights   kv_cache, workspace   any other tag
//   1       offload   discard               offload
//   2       discard   discard               offload
Inventory::PolicyOf LevelPolicy(int32_t level);

// Either a level or policies by tag, of which a tag that is not named is kept.
// INVALID_ARGUMENT LEVEL_AND_POLICIES, POLICY_MISSING, BAD_LEVEL, BAD_TAG, BAD_POLICY.
Result<Inventory::PolicyOf> PolicyFrom(int32_t level,
                                       const std::map<std::string, wire::Policy>& policies);

// No tag: every tag.
Inventory::TagFilter FilterOf(const std::vector<std::string>& tags);

// Texts that are equal for operations that would do the same to a worker at the same time. The
// order in which a wake copies makes no difference.
std::string SleepWish(const std::vector<std::string>& tags, int32_t level,
                      const std::map<std::string, wire::Policy>& policies, bool force);
std::string WakeWish(const std::vector<std::string>& tags, const std::string& reservation);

}  // namespace torpor

#endif  // TORPOR_DAEMON_CORE_POLICY_H_
