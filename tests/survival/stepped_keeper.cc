#include "tests/survival/stepped_keeper.h"

#include <string>
#include <type_traits>
#include <variant>

namespace torpor::survival {
namespace {

const char* Say(const JournalRecord& record) {
  return std::visit(
      [](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, SegmentRecorded>) {
          if (one.state == JournalState::kResident) return "resident";
          return one.state == JournalState::kOffloaded ? "offloaded" : "discarded";
        }
        if constexpr (std::is_same_v<T, SegmentFreed>) return "segment freed";
        if constexpr (std::is_same_v<T, ImageRecorded>) return "image";
        if constexpr (std::is_same_v<T, ReservationMade>) return "reservation made";
        if constexpr (std::is_same_v<T, ReservationReleased>) return "reservation released";
        if constexpr (std::is_same_v<T, SessionClosed>) return "session closed";
        return "other";
      },
      record);
}

}  // namespace

Status SteppedKeeper::HoldExtent(const ExtentHeld& extent, int fd) {
  TORPOR_RETURN_IF_ERROR(board_.Enter("keeper: hold extent"));
  return keeper_.HoldExtent(extent, fd);
}

Status SteppedKeeper::DropExtent(ExtentId id) {
  TORPOR_RETURN_IF_ERROR(board_.Enter("keeper: drop extent"));
  return keeper_.DropExtent(id);
}

Status SteppedKeeper::Record(const std::vector<JournalRecord>& records) {
  std::string words;
  for (const JournalRecord& record : records) {
    const std::string word = Say(record);
    if (words.find(word) == std::string::npos) words += (words.empty() ? "" : ", ") + word;
  }
  TORPOR_RETURN_IF_ERROR(board_.Enter("journal: " + words));
  return keeper_.Record(records);
}

Status SteppedKeeper::HoldPool(const PoolHeld& pool, int fd) {
  TORPOR_RETURN_IF_ERROR(board_.Enter("keeper: hold pool"));
  return keeper_.HoldPool(pool, fd);
}

}  // namespace torpor::survival
