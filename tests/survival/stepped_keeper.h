#ifndef TORPOR_TESTS_SURVIVAL_STEPPED_KEEPER_H_
#define TORPOR_TESTS_SURVIVAL_STEPPED_KEEPER_H_

#include <vector>

#include "daemon/keeper/keeper.h"
#include "tests/survival/step_board.h"

namespace torpor::survival {

// Every call of another keeper is a step, as "keeper: hold extent" or "journal: offloaded, image".
class SteppedKeeper final : public Keeper {
 public:
  // Both must outlive this.
  SteppedKeeper(Keeper& keeper, StepBoard& board) : keeper_(keeper), board_(board) {}
  Status HoldExtent(const ExtentHeld& extent, int fd) override;
  Status DropExtent(ExtentId id) override;
  Status Record(const std::vector<JournalRecord>& records) override;
  Status HoldPool(const PoolHeld& pool, int fd) override;

 private:
  Keeper& keeper_;
  StepBoard& board_;
};

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_STEPPED_KEEPER_H_
