#ifndef TORPOR_DAEMON_CORE_RECOVERY_H_
#define TORPOR_DAEMON_CORE_RECOVERY_H_

#include <map>
#include <memory>

#include "daemon/keeper/ledger.h"
#include "daemon/pool/pool_memory.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"

namespace torpor {

// What a daemon before this one has left with its keeper.
struct Recovery {
  Ledger ledger;
  std::map<ExtentId, UniqueFd> extents;  // those of the ledger's that the keeper has
  std::unique_ptr<PoolMemory> pool;      // the ledger's; null: none is left
  bool pool_kept = false;                // by the keeper
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_CORE_RECOVERY_H_
