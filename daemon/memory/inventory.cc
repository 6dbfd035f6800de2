#include "daemon/memory/inventory.h"

#include <algorithm>
#include <utility>

namespace torpor {
namespace {

Status WorkerGone(WorkerId id) {
  return Unavailable("WORKER_GONE", "worker " + WorkerName(id) + " is gone")
      .With("worker", WorkerName(id));
}

Status UnknownSegment(WorkerId worker, SegmentId segment) {
  return NotFound("UNKNOWN_SEGMENT", "worker " + WorkerName(worker) + " has no such segment")
      .With("worker", WorkerName(worker))
      .With("segment", segment.value());
}

}  // namespace

std::string WorkerName(WorkerId id) { return "w-" + std::to_string(id.value()); }
std::string OperationName(OperationId id) { return "op-" + std::to_string(id.value()); }

int64_t Plan::segments() const {
  int64_t count = 0;
  for (const PlannedArena& arena : arenas) count += static_cast<int64_t>(arena.segments.size());
  return count;
}

Bytes Plan::Sum(SegmentState from, SegmentState to) const {
  Bytes sum{};
  for (const PlannedArena& arena : arenas) {
    for (const PlannedSegment& segment : arena.segments) {
      if (segment.from == from && segment.to == to) sum += segment.size;
    }
  }
  return sum;
}

Inventory::Worker* Inventory::Find(WorkerId id) {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

const Inventory::Worker* Inventory::Find(WorkerId id) const {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

Result<Inventory::Worker*> Inventory::FindOpen(WorkerId id) {
  Worker* const worker = Find(id);
  if (worker == nullptr || worker->closing) return WorkerGone(id);
  return worker;
}

Segment* Inventory::FindSegment(Worker& worker, SegmentId id) {
  const auto it = worker.segments.find(id);
  return it == worker.segments.end() ? nullptr : it->second->Find(id);
}

std::vector<ExtentPtr> Inventory::DropSegment(Worker& worker, SegmentId id) {
  const auto it = worker.segments.find(id);
  Arena& arena = *it->second;
  worker.segments.erase(it);
  return arena.Drop(id);
}

// --- workers

WorkerId Inventory::AddWorker(WorkerInfo info) {
  MutexLock lock(mutex_);
  info.id = WorkerId(next_worker_++);
  if (info.name.empty()) info.name = "pid-" + std::to_string(info.peer.pid);
  const WorkerId id = info.id;
  workers_[id].info = std::move(info);
  return id;
}

std::optional<WorkerInfo> Inventory::FindWorker(WorkerId id) const {
  MutexLock lock(mutex_);
  const Worker* const worker = Find(id);
  if (worker == nullptr || worker->closing) return std::nullopt;
  return worker->info;
}

void Inventory::UpdateWorker(WorkerId id, const std::function<void(WorkerInfo&)>& change) {
  MutexLock lock(mutex_);
  if (Worker* const worker = Find(id)) change(worker->info);
}

std::vector<ExtentPtr> Inventory::Close(WorkerId id) {
  std::vector<ExtentPtr> extents;
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return extents;
  worker->closing = true;  // from here it stays where it is until Remove
  while (worker->operation.has_value()) operation_ended_.Wait(mutex_);
  for (const auto& [tag, arena] : worker->arenas) {
    std::vector<ExtentPtr> of_tag;
    for (const auto& [offset, extent] : arena->extents()) of_tag.push_back(extent);
    arena->DropExtents(of_tag);
    extents.insert(extents.end(), of_tag.begin(), of_tag.end());
  }
  for (const auto& [segment, freeing] : worker->freeing) {
    extents.insert(extents.end(), freeing.extents.begin(), freeing.extents.end());
  }
  worker->freeing.clear();
  return extents;
}

void Inventory::Clear() {
  std::map<WorkerId, Worker> workers;
  MutexLock lock(mutex_);
  workers_.swap(workers);
}

void Inventory::Remove(WorkerId id) {
  // Its images end outside the lock, and before it is gone: then its room is free.
  decltype(Worker::arenas) arenas;
  {
    MutexLock lock(mutex_);
    Worker* const worker = Find(id);
    if (worker == nullptr) return;
    worker->segments.clear();
    worker->arenas.swap(arenas);
  }
  arenas.clear();
  MutexLock lock(mutex_);
  workers_.erase(id);
}

bool Inventory::HasUnknownAttachment(const Worker& worker) {
  for (const auto& [tag, arena] : worker.arenas) {
    for (const auto& [offset, segment] : arena->segments()) {
      for (const Attachment& attachment : segment->attachments()) {
        if (attachment.state == AttachmentState::kUnknown) return true;
      }
    }
  }
  return false;
}

std::vector<WorkerStats> Inventory::Snapshot() const {
  MutexLock lock(mutex_);
  std::vector<WorkerStats> all;
  for (const auto& [id, worker] : workers_) {
    WorkerStats& stats = all.emplace_back();
    stats.info = worker.info;
    stats.operation = worker.operation;
    stats.unknown_attachment = HasUnknownAttachment(worker);
    for (const auto& [tag, arena] : worker.arenas) {
      TagStats& of_tag = stats.tags.emplace_back();
      of_tag.tag = tag;
      of_tag.addresses = arena->size();
      of_tag.stranded = arena->stranded();
      of_tag.extents = static_cast<int64_t>(arena->extents().size());
      for (const auto& [segment, lost] : worker.lost_segments) {
        if (lost.first == tag) of_tag.lost += lost.second;
      }
      for (const auto& [offset, segment] : arena->segments()) {
        ++of_tag.segments;
        if (!segment->at_rest() && segment->state() != SegmentState::kPending) ++of_tag.moving;
        if (const auto& image = segment->image(); image != nullptr) {
          (image->held() ? of_tag.host : of_tag.clean) += image->stored();
        }
        switch (segment->state()) {
          case SegmentState::kPending:
          case SegmentState::kResident:
          case SegmentState::kSleeping:
            of_tag.resident += segment->size();
            break;
          case SegmentState::kOffloaded:
            of_tag.offloaded += segment->size();
            break;
          case SegmentState::kDiscarded:
            of_tag.discarded += segment->size();
            break;
          case SegmentState::kWaking:
            (segment->image() != nullptr ? of_tag.offloaded : of_tag.discarded) += segment->size();
            break;
        }
      }
    }
  }
  return all;
}

std::vector<MemoryHolder> Inventory::Holders() const {
  MutexLock lock(mutex_);
  std::vector<MemoryHolder> holders;
  for (const auto& [id, worker] : workers_) {
    Bytes sum{};
    for (const auto& [tag, arena] : worker.arenas) {
      for (const auto& [offset, extent] : arena->extents()) sum += extent->size();
    }
    holders.push_back({WorkerName(id), worker.info.name, sum});
  }
  return holders;
}

wire::AsleepTags Inventory::AsleepTags(WorkerId id) {
  MutexLock lock(mutex_);
  wire::AsleepTags asleep;
  asleep.revision = ++asleep_revision_;
  const Worker* const worker = Find(id);
  if (worker == nullptr) return asleep;
  for (const auto& [tag, arena] : worker->arenas) {
    const auto& segments = arena->segments();
    if (std::any_of(segments.begin(), segments.end(), [](const auto& entry) {
          const SegmentState state = entry.second->state();
          return state == SegmentState::kOffloaded || state == SegmentState::kDiscarded ||
                 state == SegmentState::kWaking;
        })) {
      asleep.tags.push_back(tag);
    }
  }
  return asleep;
}

bool Inventory::HasTag(WorkerId id, const std::string& tag) const {
  MutexLock lock(mutex_);
  const Worker* const worker = Find(id);
  if (worker == nullptr) return false;
  const auto arena = worker->arenas.find(tag);
  if (arena != worker->arenas.end() && !arena->second->segments().empty()) return true;
  return std::any_of(worker->lost_segments.begin(), worker->lost_segments.end(),
                     [&](const auto& lost) { return lost.second.first == tag; });
}

// --- after a restart

void Inventory::Restore(WorkerInfo info, std::vector<RestoredArena> arenas) {
  MutexLock lock(mutex_);
  const WorkerId id = info.id;
  Worker& worker = workers_[id];
  worker.info = std::move(info);
  worker.info.awaited = true;
  worker.returning = true;
  worker.operation = OperationId(next_operation_++);
  for (RestoredArena& from : arenas) {
    auto arena = std::make_unique<Arena>(from.tag, arena_size_);
    std::vector<std::unique_ptr<Segment>> segments;
    for (RestoredSegment& one : from.segments) {
      auto segment = std::make_unique<Segment>(one.id, id, from.tag, one.offset, one.size);
      segment->Move(SegmentState::kResident);
      if (one.state != SegmentState::kResident) {
        segment->Move(SegmentState::kSleeping);
        segment->Move(one.state);
      }
      segment->SetAttachment(id, one.state == SegmentState::kResident ? AttachmentState::kMapped
                                                                      : AttachmentState::kUnmapped);
      segment->set_image(std::move(one.image));
      worker.segments[one.id] = arena.get();
      segments.push_back(std::move(segment));
    }
    worker.lost.insert(from.lost_extents.begin(), from.lost_extents.end());
    arena->Restore(std::move(segments), from.extents, from.lost);
    arena->Leave(from.leaving);
    for (const auto& [segment, size] : from.lost_segments) {
      worker.lost_segments[segment] = {from.tag, size};
    }
    worker.arenas[from.tag] = std::move(arena);
  }
}

void Inventory::SkipIds(WorkerId worker, SegmentId segment, ExtentId extent) {
  MutexLock lock(mutex_);
  next_worker_ = std::max(next_worker_, worker.value() + 1);
  next_segment_ = std::max(next_segment_, segment.value() + 1);
  next_extent_ = std::max(next_extent_, extent.value() + 1);
}

Result<Inventory::Returned> Inventory::Return(const WorkerInfo& now) {
  MutexLock lock(mutex_);
  const WorkerId id = now.id;
  Worker* const worker = Find(id);
  if (worker == nullptr || worker->closing || !worker->info.awaited) {
    return NotFound("UNKNOWN_SESSION",
                    "this daemon waits for no session " + WorkerName(id) + " to come back")
        .With("worker", WorkerName(id));
  }
  if (worker->info.secret != now.secret) {
    return Status(Code::kPermissionDenied, "WRONG_SECRET",
                  "session " + WorkerName(id) + " is another worker's")
        .With("worker", WorkerName(id));
  }
  worker->info.peer = now.peer;
  worker->info.owner = now.owner;
  worker->info.process = now.process;
  worker->info.quiesce = now.quiesce;
  worker->info.awaited = false;
  return Returned{*worker->operation, ExtentId(next_extent_), worker->lost};
}

std::vector<ExtentPtr> Inventory::SettleReturned(WorkerId id, const std::vector<SegmentId>& freed) {
  std::vector<ExtentPtr> extents;
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return extents;
  for (const SegmentId segment : freed) {
    const auto found = worker->freeing.find(segment);
    if (found == worker->freeing.end()) continue;
    worker->arenas.at(found->second.tag)->Reclaim(found->second.extents);
    extents.insert(extents.end(), found->second.extents.begin(), found->second.extents.end());
    worker->freeing.erase(found);
  }
  for (const auto& [tag, arena] : worker->arenas) arena->ReclaimLeaving();
  return extents;
}

bool Inventory::AwaitReturn(WorkerId id, TimePoint until) {
  MutexLock lock(mutex_);
  for (;;) {
    const Worker* const worker = Find(id);
    if (worker == nullptr || worker->closing || !worker->returning) return true;
    if (!operation_ended_.WaitUntil(mutex_, until)) return false;
  }
}

bool Inventory::GiveUp(WorkerId id) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr || !worker->info.awaited) return false;
  worker->info.awaited = false;
  worker->returning = false;
  worker->operation.reset();
  operation_ended_.NotifyAll();
  return true;
}

std::vector<WorkerInfo> Inventory::Awaited() const {
  MutexLock lock(mutex_);
  std::vector<WorkerInfo> awaited;
  for (const auto& [id, worker] : workers_) {
    if (worker.info.awaited) awaited.push_back(worker.info);
  }
  return awaited;
}

std::vector<SegmentId> Inventory::Segments(WorkerId id) const {
  MutexLock lock(mutex_);
  std::vector<SegmentId> segments;
  if (const Worker* const worker = Find(id)) {
    for (const auto& [segment, arena] : worker->segments) segments.push_back(segment);
  }
  return segments;
}

std::vector<Inventory::TagExtents> Inventory::Extents(WorkerId id) const {
  MutexLock lock(mutex_);
  std::vector<TagExtents> all;
  const Worker* const worker = Find(id);
  if (worker == nullptr) return all;
  for (const auto& [tag, arena] : worker->arenas) {
    TagExtents& of_tag = all.emplace_back();
    of_tag.tag = tag;
    for (const auto& [offset, extent] : arena->extents()) of_tag.extents.push_back(extent);
  }
  return all;
}

std::map<std::string, Bytes> Inventory::Lost(WorkerId id) const {
  MutexLock lock(mutex_);
  std::map<std::string, Bytes> by_tag;
  if (const Worker* const worker = Find(id)) {
    for (const auto& [segment, lost] : worker->lost_segments) by_tag[lost.first] += lost.second;
  }
  return by_tag;
}

bool Inventory::ForgetLost(WorkerId id, SegmentId segment) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  return worker != nullptr && worker->lost_segments.erase(segment) > 0;
}

// --- allocation

Result<Inventory::Placement> Inventory::Place(WorkerId id, const std::string& tag, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckName(tag, "tag", "BAD_TAG"));
  if (size <= Bytes(0)) {
    return InvalidArgument("BAD_ALLOCATION_SIZE", "an allocation wants more than 0 bytes")
        .With("requested_bytes", size.value());
  }
  if (size > device_total_) {
    return ResourceExhausted(
               "LARGER_THAN_DEVICE",
               FormatBytes(size) + " are asked of a device of " + FormatBytes(device_total_))
        .With("requested_bytes", size.value())
        .With("total_bytes", device_total_.value());
  }
  size = RoundUp(size, granularity_);
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  std::unique_ptr<Arena>& arena = worker->arenas[tag];
  if (arena == nullptr) arena = std::make_unique<Arena>(tag, arena_size_);
  TORPOR_ASSIGN_OR_RETURN(const Arena::Place place, arena->Take(size));
  const SegmentId segment_id(next_segment_++);
  Segment& segment = arena->Add(std::make_unique<Segment>(segment_id, id, tag, place.offset, size));
  worker->segments[segment_id] = arena.get();
  if (place.mapped) {
    segment.SetAttachment(id, AttachmentState::kMapped);
    segment.Move(SegmentState::kResident);
  }
  return Placement{segment_id, place.offset, size, place.mapped};
}

std::vector<ExtentId> Inventory::NewExtentIds(size_t count) {
  MutexLock lock(mutex_);
  std::vector<ExtentId> ids;
  for (size_t i = 0; i < count; ++i) ids.emplace_back(next_extent_++);
  return ids;
}

Status Inventory::AddExtents(WorkerId id, const std::string& tag,
                             const std::vector<ExtentPtr>& extents) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  worker->arenas.at(tag)->AddExtents(extents);
  return Status::Ok();
}

Result<Inventory::SegmentInfo> Inventory::Describe(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  const Segment* const segment = FindSegment(*worker, segment_id);
  if (segment == nullptr) return UnknownSegment(id, segment_id);
  return SegmentInfo{segment->tag(), segment->offset(), segment->size(),
                     segment->state() == SegmentState::kPending};
}

Status Inventory::Publish(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  Segment* const segment = FindSegment(*worker, segment_id);
  if (segment == nullptr) return UnknownSegment(id, segment_id);
  if (segment->state() == SegmentState::kPending) {
    segment->SetAttachment(id, AttachmentState::kMapped);
    segment->Move(SegmentState::kResident);
  }
  return Status::Ok();
}

Result<std::vector<ExtentPtr>> Inventory::Abandon(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return WorkerGone(id);
  const Segment* const segment = FindSegment(*worker, segment_id);
  if (segment == nullptr || segment->state() != SegmentState::kPending) {
    return UnknownSegment(id, segment_id);
  }
  Arena& arena = *worker->segments.at(segment_id);
  std::vector<ExtentPtr> extents = DropSegment(*worker, segment_id);
  arena.Reclaim(extents);
  return extents;
}

// --- freeing

std::shared_ptr<Image> Inventory::ImageOf(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  const Segment* const segment = worker == nullptr ? nullptr : FindSegment(*worker, segment_id);
  return segment == nullptr ? nullptr : segment->image();
}

Result<std::vector<ExtentPtr>> Inventory::Free(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  Segment* const segment = FindSegment(*worker, segment_id);
  if (segment == nullptr || segment->doomed() || segment->state() == SegmentState::kPending) {
    return UnknownSegment(id, segment_id);
  }
  if (!segment->at_rest()) {
    segment->Doom();
    return std::vector<ExtentPtr>();
  }
  const std::string tag = segment->tag();
  std::vector<ExtentPtr> extents = DropSegment(*worker, segment_id);
  if (!extents.empty()) worker->freeing[segment_id] = {tag, {segment_id}, extents};
  return extents;
}

std::vector<ExtentPtr> Inventory::Freed(WorkerId id, SegmentId segment_id) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return {};
  const auto it = worker->freeing.find(segment_id);
  if (it == worker->freeing.end()) return {};
  const Orphans freed = std::move(it->second);
  worker->freeing.erase(it);
  worker->arenas.at(freed.tag)->Reclaim(freed.extents);
  return freed.extents;
}

void Inventory::Reclaim(WorkerId id, const Orphans& orphans) {
  MutexLock lock(mutex_);
  if (Worker* const worker = Find(id)) worker->arenas.at(orphans.tag)->Reclaim(orphans.extents);
}

// --- operations

Result<OperationId> Inventory::BeginOperation(WorkerId id, TimePoint deadline) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Worker* const worker, FindOpen(id));
  if (worker->operation.has_value()) {
    const bool unknown = HasUnknownAttachment(*worker);
    return Aborted(unknown ? "ROLLBACK_PENDING" : "OPERATION_IN_PROGRESS",
                   "worker " + WorkerName(id) + " is under operation " +
                       OperationName(*worker->operation) +
                       (unknown ? ", whose cancellation it has not acknowledged" : ""))
        .With("worker", WorkerName(id))
        .With("operation", OperationName(*worker->operation));
  }
  worker->operation = OperationId(next_operation_++);
  worker->deadline = deadline;
  return *worker->operation;
}

void Inventory::EndOperation(WorkerId id) {
  MutexLock lock(mutex_);
  if (Worker* const worker = Find(id)) {
    worker->operation.reset();
    worker->deadline = TimePoint::max();
    worker->returning = false;
  }
  operation_ended_.NotifyAll();
}

OperationId Inventory::NewOperationId() {
  MutexLock lock(mutex_);
  return OperationId(next_operation_++);
}

std::optional<OverdueOperation> Inventory::MostOverdue(TimePoint by) const {
  MutexLock lock(mutex_);
  std::optional<OverdueOperation> most;
  for (const auto& [id, worker] : workers_) {
    if (!worker.operation.has_value() || worker.deadline > by) continue;
    if (most.has_value() && most->deadline <= worker.deadline) continue;
    most = OverdueOperation{id, worker.info.name, *worker.operation, worker.deadline};
  }
  return most;
}

Plan Inventory::BeginSleep(WorkerId id, const TagFilter& tags, const PolicyOf& policy_of,
                           bool force) {
  MutexLock lock(mutex_);
  Plan plan;
  Worker* const worker = Find(id);
  if (worker == nullptr) return plan;
  for (const auto& [tag, arena] : worker->arenas) {
    const wire::Policy policy = policy_of(tag);
    if (!tags(tag) || policy == wire::Policy::kKeep) continue;
    const SegmentState to =
        policy == wire::Policy::kOffload ? SegmentState::kOffloaded : SegmentState::kDiscarded;
    PlannedArena part;
    part.tag = tag;
    bool any_resident = false;
    for (const auto& [offset, segment] : arena->segments()) {
      const bool drop_image =
          force && to == SegmentState::kDiscarded && segment->state() == SegmentState::kOffloaded;
      if (segment->state() != SegmentState::kResident && !drop_image) continue;
      part.segments.push_back({segment->id(), offset, segment->size(), segment->state(), to,
                               to == SegmentState::kOffloaded ? segment->image() : nullptr});
      if (drop_image) continue;
      any_resident = true;
      segment->Move(SegmentState::kSleeping);
    }
    if (any_resident) {
      // A segment that is still being allocated lies in extents of its own, which stay.
      std::map<ExtentId, ExtentPtr> pending;
      for (const auto& [offset, segment] : arena->segments()) {
        if (segment->state() != SegmentState::kPending) continue;
        for (const ExtentPtr& extent : arena->ExtentsOf(*segment)) pending[extent->id()] = extent;
      }
      for (const auto& [offset, extent] : arena->extents()) {
        if (pending.count(extent->id()) == 0) part.extents.push_back(extent);
      }
    }
    if (!part.segments.empty()) plan.arenas.push_back(std::move(part));
  }
  return plan;
}

Plan Inventory::BeginWake(WorkerId id, const TagFilter& tags) {
  MutexLock lock(mutex_);
  Plan plan;
  Worker* const worker = Find(id);
  if (worker == nullptr) return plan;
  for (const auto& [tag, arena] : worker->arenas) {
    if (!tags(tag)) continue;
    PlannedArena part;
    part.tag = tag;
    for (const auto& [offset, segment] : arena->segments()) {
      const SegmentState state = segment->state();
      if (state != SegmentState::kOffloaded && state != SegmentState::kDiscarded) continue;
      part.segments.push_back({segment->id(), offset, segment->size(), state,
                               SegmentState::kResident, segment->image()});
      segment->Move(SegmentState::kWaking);
    }
    if (!part.segments.empty()) plan.arenas.push_back(std::move(part));
  }
  return plan;
}

std::vector<Orphans> Inventory::DropDoomed(Worker& worker, const Plan& plan) {
  std::vector<Orphans> orphans;
  for (const PlannedArena& part : plan.arenas) {
    Orphans of_tag{part.tag, {}, {}};
    for (const PlannedSegment& planned : part.segments) {
      const Segment* const segment = FindSegment(worker, planned.id);
      if (segment != nullptr && !segment->doomed()) continue;
      of_tag.segments.push_back(planned.id);
      if (segment == nullptr) continue;  // freed while it slept, before a forced discard
      for (ExtentPtr& extent : DropSegment(worker, planned.id)) {
        of_tag.extents.push_back(std::move(extent));
      }
    }
    if (!of_tag.segments.empty()) orphans.push_back(std::move(of_tag));
  }
  return orphans;
}

void Inventory::TakeExtents(WorkerId id, const Plan& plan) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return;
  for (const PlannedArena& part : plan.arenas) {
    worker->arenas.at(part.tag)->DropExtents(part.extents);
  }
}

std::vector<Orphans> Inventory::Commit(WorkerId id, Plan& plan) {
  std::vector<std::shared_ptr<Image>> ended;  // outside the lock
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return {};
  for (PlannedArena& part : plan.arenas) {
    Arena& arena = *worker->arenas.at(part.tag);
    const bool waking = part.segments.front().to == SegmentState::kResident;
    for (PlannedSegment& planned : part.segments) {
      Segment* const segment = FindSegment(*worker, planned.id);
      if (segment == nullptr) continue;  // freed while it slept, before a forced discard
      segment->Move(planned.to);
      segment->SetAttachment(id, waking ? AttachmentState::kMapped : AttachmentState::kUnmapped);
      ended.push_back(segment->image());
      segment->set_image(planned.to == SegmentState::kDiscarded ? nullptr : planned.image);
    }
    if (waking) arena.AddExtents(part.extents);
  }
  return DropDoomed(*worker, plan);
}

std::vector<Orphans> Inventory::RollBack(WorkerId id, Plan& plan) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return {};
  for (PlannedArena& part : plan.arenas) {
    for (const PlannedSegment& planned : part.segments) {
      Segment* const segment = FindSegment(*worker, planned.id);
      if (segment == nullptr) continue;
      if (!segment->at_rest()) segment->Move(planned.from);  // at rest: a forced discard
      segment->SetAttachment(id, planned.from == SegmentState::kResident
                                     ? AttachmentState::kMapped
                                     : AttachmentState::kUnmapped);
    }
  }
  return DropDoomed(*worker, plan);
}

void Inventory::SetAttachment(WorkerId id, const Plan& plan, AttachmentState state) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr) return;
  for (const PlannedArena& part : plan.arenas) {
    for (const PlannedSegment& planned : part.segments) {
      if (Segment* const segment = FindSegment(*worker, planned.id)) {
        segment->SetAttachment(id, state);
      }
    }
  }
}

void Inventory::MarkUnknown(WorkerId id, OperationId operation) {
  MutexLock lock(mutex_);
  Worker* const worker = Find(id);
  if (worker == nullptr || worker->operation != operation) return;
  for (const auto& [segment_id, arena] : worker->segments) {
    Segment* const segment = arena->Find(segment_id);
    if (!segment->at_rest() && segment->state() != SegmentState::kPending) {
      segment->SetAttachment(id, AttachmentState::kUnknown);
    }
  }
}

}  // namespace torpor
