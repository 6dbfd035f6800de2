#include "daemon/memory/segment.h"

#include <cstdio>
#include <cstdlib>

namespace torpor {
namespace {

[[noreturn]] void Die(const Segment& segment, std::string_view what, SegmentState to) {
  std::fprintf(stderr, "segment %llu: %s: %s -> %s\n",
               static_cast<unsigned long long>(segment.id().value()), std::string(what).c_str(),
               std::string(SegmentStateName(segment.state())).c_str(),
               std::string(SegmentStateName(to)).c_str());
  std::abort();
}

}  // namespace

std::string_view SegmentStateName(SegmentState state) {
  switch (state) {
    case SegmentState::kPending:
      return "PENDING";
    case SegmentState::kResident:
      return "RESIDENT";
    case SegmentState::kSleeping:
      return "SLEEPING";
    case SegmentState::kOffloaded:
      return "OFFLOADED";
    case SegmentState::kDiscarded:
      return "DISCARDED";
    case SegmentState::kWaking:
      return "WAKING";
  }
  return "?";
}

bool IsLegalMove(SegmentState from, SegmentState to) {
  switch (from) {
    case SegmentState::kPending:
      return to == SegmentState::kResident;
    case SegmentState::kResident:
      return to == SegmentState::kSleeping;
    case SegmentState::kSleeping:
      return to == SegmentState::kOffloaded || to == SegmentState::kDiscarded ||
             to == SegmentState::kResident;
    case SegmentState::kOffloaded:
      return to == SegmentState::kWaking || to == SegmentState::kDiscarded;
    case SegmentState::kDiscarded:
      return to == SegmentState::kWaking;
    case SegmentState::kWaking:
      return to == SegmentState::kResident || to == SegmentState::kOffloaded ||
             to == SegmentState::kDiscarded;
  }
  return false;
}

Segment::~Segment() {
  if (!at_rest() && state_ != SegmentState::kPending) Die(*this, "destroyed", state_);
}

bool Segment::at_rest() const {
  return state_ == SegmentState::kResident || state_ == SegmentState::kOffloaded ||
         state_ == SegmentState::kDiscarded;
}

void Segment::Move(SegmentState to) {
  if (!IsLegalMove(state_, to)) Die(*this, "illegal move", to);
  state_ = to;
}

void Segment::SetAttachment(WorkerId worker, AttachmentState state) {
  for (Attachment& attachment : attachments_) {
    if (attachment.worker == worker) attachment.state = state;
  }
}

}  // namespace torpor
