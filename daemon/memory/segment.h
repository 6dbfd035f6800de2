#ifndef TORPOR_DAEMON_MEMORY_SEGMENT_H_
#define TORPOR_DAEMON_MEMORY_SEGMENT_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/pool/image.h"
#include "lib/base/units.h"

namespace torpor {

// What is already true of a segment, and where it may go from there:
//   kPending    placed, memory not yet mapped by its worker; unknown to others  -> kResident
//   kResident   mapped by its worker, bytes on the device                       -> kSleeping
//   kSleeping   belongs to one sleep, which may still roll back                 -> kOffloaded,
//                                                                     kDiscarded, kResident
//   kOffloaded  no device memory; the image has every byte                      -> kWaking,
//                                                                     kDiscarded (forced)
//   kDiscarded  no device memory, no bytes                                      -> kWaking
//   kWaking     belongs to one wake, which may still roll back                  -> kResident,
//                                                                     kOffloaded, kDiscarded
// A segment ends in kPending or in a rest state (kResident, kOffloaded, kDiscarded).
enum class SegmentState { kPending, kResident, kSleeping, kOffloaded, kDiscarded, kWaking };

std::string_view SegmentStateName(SegmentState state);
bool IsLegalMove(SegmentState from, SegmentState to);

// One worker's mapping of a segment. kUnknown: the worker did not answer in time.
enum class AttachmentState { kMapped, kQuiesced, kUnmapped, kUnknown };

struct Attachment {
  WorkerId worker;
  AttachmentState state = AttachmentState::kUnmapped;
};

// A range of an arena that a worker asked for. The only writer of its state. Not thread-safe: the
// Inventory that owns it guards it.
class Segment {
 public:
  Segment(SegmentId id, WorkerId owner, std::string tag, Bytes offset, Bytes size)
      : id_(id), owner_(owner), tag_(std::move(tag)), offset_(offset), size_(size) {
    attachments_.push_back({owner, AttachmentState::kUnmapped});
  }
  // Ends the process in a state where a segment cannot end.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  SegmentId id() const { return id_; }
  WorkerId owner() const { return owner_; }
  const std::string& tag() const { return tag_; }
  Bytes offset() const { return offset_; }
  Bytes size() const { return size_; }
  Bytes end() const { return offset_ + size_; }

  SegmentState state() const { return state_; }
  bool at_rest() const;
  // Ends the process if the enum's comment does not list the edge: the books are wrong.
  void Move(SegmentState to);

  // Every worker that maps the segment; for now only its owner.
  const std::vector<Attachment>& attachments() const { return attachments_; }
  void SetAttachment(WorkerId worker, AttachmentState state);

  // The host copy; null without one.
  const std::shared_ptr<Image>& image() const { return image_; }
  void set_image(std::shared_ptr<Image> image) { image_ = std::move(image); }

  // Freed by its worker during an operation: goes when the operation ends.
  bool doomed() const { return doomed_; }
  void Doom() { doomed_ = true; }

 private:
  const SegmentId id_;
  const WorkerId owner_;
  const std::string tag_;
  const Bytes offset_;
  const Bytes size_;
  SegmentState state_ = SegmentState::kPending;
  std::vector<Attachment> attachments_;
  std::shared_ptr<Image> image_;
  bool doomed_ = false;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_SEGMENT_H_
