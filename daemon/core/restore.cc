// The books of a daemon that follows another one, from what the keeper has.

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "daemon/log.h"
#include "daemon/operation/recover.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

constexpr Duration kRetry = milliseconds(20);
// How often processes of workers that are awaited are looked at.
constexpr Duration kLookAtProcesses = milliseconds(200);

// Nobody's: of a session of which an older daemon has not recorded whose it is.
constexpr uint32_t kUnknownUser = ~uint32_t{0};

bool Overlap(const ExtentHeld& extent, const SegmentRecorded& segment) {
  return extent.offset < segment.offset + segment.size &&
         segment.offset < extent.offset + extent.size;
}

// Adds `one` to those that overlap neither each other nor it. If there are some that do, it takes
// their place, and they are given.
template <typename Record>
std::vector<const Record*> PutInPlace(std::map<Bytes, const Record*>& by_offset,
                                      const Record& one) {
  std::vector<const Record*> replaced;
  auto at = by_offset.upper_bound(one.offset);
  if (at != by_offset.begin()) --at;
  while (at != by_offset.end() && at->first < one.offset + one.size) {
    if (one.offset < at->first + at->second->size) {
      replaced.push_back(at->second);
      at = by_offset.erase(at);
    } else {
      ++at;
    }
  }
  by_offset[one.offset] = &one;
  return replaced;
}

// What the ledger has of one tag of one worker, by offset.
struct Found {
  std::map<Bytes, const SegmentRecorded*> segments;
  std::map<Bytes, const ExtentHeld*> extents;

  std::vector<const ExtentHeld*> ExtentsOf(const SegmentRecorded& segment) const {
    std::vector<const ExtentHeld*> all;
    auto at = extents.upper_bound(segment.offset);
    if (at != extents.begin()) --at;
    for (; at != extents.end() && at->first < segment.offset + segment.size; ++at) {
      if (Overlap(*at->second, segment)) all.push_back(at->second);
    }
    return all;
  }
};

struct Tally {
  struct Loss {
    Bytes size{};
    int64_t segments = 0;
  };
  int64_t resident = 0;
  int64_t asleep = 0;
  // By what is said before the size, and after it.
  std::map<std::pair<std::string, std::string>, Loss> lost;

  void Lose(const std::string& whose, const std::string& where, const Status& why, Bytes size) {
    Loss& loss = lost[{whose, where + why.ToString()}];
    loss.size += size;
    ++loss.segments;
  }
};

}  // namespace

// Which extents of a tag come back, and which segments with them.
class Core::Restorer {
 public:
  Restorer(Core& core, Recovery& recovery) : core_(core), recovery_(recovery) {}

  Status Run() {
    const Ledger& ledger = recovery_.ledger;
    core_.inventory_.SkipIds(ledger.ids().worker, ledger.ids().segment, ledger.ids().extent);
    core_.admission_.SkipReservations(ledger.ids().reservation);
    std::map<WorkerId, std::map<std::string, Found>> found;
    // Where two have the same addresses, the end of the older one was not recorded any more.
    for (const auto& [id, segment] : ledger.segments()) {
      for (const SegmentRecorded* const older :
           PutInPlace(found[segment.worker][segment.tag].segments, segment)) {
        ended_.emplace_back(SegmentFreed{older->segment});
      }
    }
    for (const auto& [id, extent] : ledger.extents()) {
      for (const ExtentHeld* const older :
           PutInPlace(found[extent.worker][extent.tag].extents, extent)) {
        dropped_.push_back(older->extent);
      }
    }
    RestoreReservations(found);
    for (const auto& [id, session] : ledger.sessions()) {
      TORPOR_RETURN_IF_ERROR(RestoreSession(session, found[id]));
    }
    // Before descriptors are given up: whoever follows a start that ends here finds all as it was.
    if (!ended_.empty()) TORPOR_RETURN_IF_ERROR(core_.keeper_.Record(ended_));
    for (const ExtentId id : dropped_) {
      if (const Status status = core_.keeper_.DropExtent(id); !status.ok()) {
        log::Error("extent {} is still in custody: {}", id.value(), status);
      }
    }
    if (ledger.sessions().empty()) return Status::Ok();
    log::Info("{} sessions of the daemon before are awaited: {} segments on the device, {} asleep",
              ledger.sessions().size(), tally_.resident, tally_.asleep);
    for (const auto& [text, loss] : tally_.lost) {
      log::Error("lost: {}{} ({} segments){}", text.first, FormatBytes(loss.size), loss.segments,
                 text.second);
    }
    return Status::Ok();
  }

 private:
  void RestoreReservations(const std::map<WorkerId, std::map<std::string, Found>>& found) {
    // What slept has given its promise back, unless the reservation holds it.
    std::map<std::string, Bytes> asleep;
    for (const auto& [id, session] : recovery_.ledger.sessions()) {
      const auto of_worker = found.find(id);
      if (of_worker == found.end()) continue;
      for (const auto& [tag, in_tag] : of_worker->second) {
        for (const auto& [offset, segment] : in_tag.segments) {
          if (segment->state != JournalState::kResident) {
            asleep[session.reservation] += segment->size;
          }
        }
      }
    }
    for (const auto& [id, made] : recovery_.ledger.reservations()) {
      ReservationStats stats;
      stats.id = made.id;
      stats.name = made.name;
      stats.device = made.device;
      stats.host = made.host;
      stats.expires = made.expires;
      stats.hold = made.hold;
      stats.keep = made.keep;
      stats.owner = recovery_.ledger.OwnerOf(id);
      for (const RecordedPart& part : recovery_.ledger.Parts(id)) {
        stats.parts.push_back({part.name, part.device});
      }
      const Bytes surrendered = std::max(asleep[id], recovery_.ledger.Surrendered(id));
      core_.admission_.RestoreReservation(stats, made.hold ? Bytes(0) : surrendered);
      if (made.expires <= core_.clock_.Now()) ended_.emplace_back(ReservationReleased{id});
    }
  }

  Status RestoreSession(const SessionOpened& session, const std::map<std::string, Found>& found) {
    WorkerInfo info;
    info.id = session.worker;
    info.name = session.name;
    info.secret = session.secret;
    info.reservation = session.reservation;
    const SessionProcess* const process = recovery_.ledger.FindProcess(session.worker);
    if (process != nullptr && process->pid_namespace == PidNamespace()) {
      info.process = {process->pid, process->started};
      info.peer.pid = process->pid;
    }
    const SessionUser* const user = recovery_.ledger.FindUser(session.worker);
    info.peer.uid = user == nullptr ? kUnknownUser : user->uid;
    info.peer.gid = user == nullptr ? kUnknownUser : user->gid;
    // One that is over remains a cap.
    if (!info.reservation.empty()) (void)core_.admission_.AddHolder(info.reservation);
    std::vector<Inventory::RestoredArena> arenas;
    for (const auto& [tag, in_tag] : found) {
      TORPOR_ASSIGN_OR_RETURN(Inventory::RestoredArena arena, RestoreTag(info, tag, in_tag));
      arenas.push_back(std::move(arena));
    }
    core_.inventory_.Restore(std::move(info), std::move(arenas));
    return Status::Ok();
  }

  // Segments without all of their memory, and with them what shares an extent with one of them.
  std::set<SegmentId> FindLost(const Found& found) const {
    std::set<SegmentId> lost;
    std::set<ExtentId> gone;
    for (bool more = true; more;) {
      more = false;
      for (const auto& [offset, segment] : found.segments) {
        if (segment->state != JournalState::kResident || lost.count(segment->segment) > 0) continue;
        const std::vector<const ExtentHeld*> extents = found.ExtentsOf(*segment);
        Bytes end = segment->offset;
        bool there = true;
        for (const ExtentHeld* const extent : extents) {
          there = there && extent->offset <= end && gone.count(extent->extent) == 0 &&
                  recovery_.extents.count(extent->extent) > 0;
          end = extent->offset + extent->size;
        }
        if (there && end >= segment->offset + segment->size) continue;
        lost.insert(segment->segment);
        for (const ExtentHeld* const extent : extents) gone.insert(extent->extent);
        more = true;
      }
    }
    return lost;
  }

  Result<Inventory::RestoredArena> RestoreTag(const WorkerInfo& info, const std::string& tag,
                                              const Found& found) {
    const std::set<SegmentId> lost = FindLost(found);
    Inventory::RestoredArena arena;
    arena.tag = tag;
    std::map<ExtentId, ExtentPtr> imported;
    std::set<ExtentId> of_lost;
    for (const auto& [segment_offset, segment] : found.segments) {
      Inventory::RestoredSegment restored{segment->segment, segment->offset, segment->size,
                                          SegmentState::kDiscarded, nullptr};
      Status status;
      if (segment->state == JournalState::kResident) {
        restored.state = SegmentState::kResident;
        if (lost.count(segment->segment) > 0) {
          status = Status(Code::kDataLoss, "EXTENT_MISSING", "the keeper does not have its memory");
        } else {
          TORPOR_RETURN_IF_ERROR(ImportExtents(info, found.ExtentsOf(*segment), imported));
        }
      } else if (segment->state == JournalState::kOffloaded) {
        restored.state = SegmentState::kOffloaded;
        status = RestoreImage(info, *segment, restored);
      }
      if (status.ok()) {
        ++(segment->state == JournalState::kResident ? tally_.resident : tally_.asleep);
        arena.segments.push_back(std::move(restored));
        continue;
      }
      tally_.Lose(info.name + ", tag " + tag + ": ",
                  segment->state == JournalState::kResident
                      ? " on the device, which only the worker has now: "
                      : " asleep: ",
                  status, segment->size);
      // It stays in the journal: its worker keeps the addresses, also from the next daemon.
      arena.lost.push_back({segment->offset, segment->size});
      arena.lost_segments[segment->segment] = segment->size;
      if (segment->state != JournalState::kResident) continue;
      for (const ExtentHeld* const extent : found.ExtentsOf(*segment)) {
        of_lost.insert(extent->extent);
        arena.lost.push_back({extent->offset, extent->size});
      }
    }
    for (const auto& [offset, extent] : found.extents) {
      const auto import = imported.find(extent->extent);
      if (import != imported.end()) {
        arena.extents.push_back(import->second);
        continue;
      }
      arena.leaving.push_back({extent->offset, extent->size});
      if (of_lost.count(extent->extent) > 0) {
        arena.lost_extents.push_back(extent->extent);
        ended_.emplace_back(ExtentLost{extent->extent});
        continue;
      }
      // No segment needs it: an operation was under way. Its worker lets go of it when it is back.
      dropped_.push_back(extent->extent);
    }
    return arena;
  }

  // Those that are not there yet.
  Status ImportExtents(const WorkerInfo& info, const std::vector<const ExtentHeld*>& extents,
                       std::map<ExtentId, ExtentPtr>& imported) {
    for (const ExtentHeld* const held : extents) {
      if (imported.count(held->extent) > 0) continue;
      TORPOR_ASSIGN_OR_RETURN(
          imported[held->extent],
          Extent::Import(core_.memory_, held->extent, held->offset, held->size,
                         core_.admission_.RestoreDevice(held->size, info.reservation),
                         std::move(recovery_.extents.at(held->extent))));
    }
    return Status::Ok();
  }

  Status RestoreImage(const WorkerInfo& info, const SegmentRecorded& segment,
                      Inventory::RestoredSegment& restored) {
    const auto found = recovery_.ledger.images().find(segment.segment);
    if (found == recovery_.ledger.images().end() || !core_.pool_restored_) {
      return Status(Code::kDataLoss, "IMAGE_MISSING", "the host pool that had it is gone");
    }
    std::vector<std::pair<Bytes, Bytes>> places;
    for (const RecordedBlock& block : found->second.blocks) {
      places.emplace_back(block.place, block.size);
    }
    TORPOR_ASSIGN_OR_RETURN(std::vector<HostPool::Block> blocks, core_.pool_.TakeAt(places));
    Result<Draw> draw =
        core_.admission_.RestoreHost(RoundUp(segment.size, HostPool::kUnit), info.reservation);
    if (!draw.ok()) {
      core_.pool_.Free(blocks);
      return draw.status();
    }
    TORPOR_ASSIGN_OR_RETURN(
        restored.image, core_.images_.Restore(segment.size, std::move(blocks), *std::move(draw)));
    return Status::Ok();
  }

  Core& core_;
  Recovery& recovery_;
  std::vector<ExtentId> dropped_;
  std::vector<JournalRecord> ended_;
  Tally tally_;
};

Status Core::Restore(Recovery recovery) {
  TORPOR_RETURN_IF_ERROR(Restorer(*this, recovery).Run());
  MutexLock lock(await_mutex_);
  await_until_ = std::chrono::steady_clock::now() + options_.reconnect_grace;
  return Status::Ok();
}

// --- sessions that come back

Result<wire::HelloReply> Core::OnReturn(const wire::Hello& hello, const net::PeerCredentials& peer,
                                        const std::string& owner,
                                        const std::shared_ptr<wire::Channel>& channel) {
  const auto before_it = inventory_.FindWorker(hello.session);
  if (!owner.empty() && before_it.has_value() && before_it->peer.uid != peer.uid) {
    return PermissionDenied("NOT_YOURS",
                            "session " + WorkerName(hello.session) + " is of another user")
        .With("worker", WorkerName(hello.session))
        .With("worker_uid", before_it->peer.uid)
        .With("uid", peer.uid);
  }
  WorkerInfo now;
  now.owner = owner;
  now.id = hello.session;
  now.secret = hello.secret;
  now.peer = peer;
  now.process = ProcessOf(peer);
  now.quiesce = hello.quiesce;
  TORPOR_ASSIGN_OR_RETURN(const Inventory::Returned returned, inventory_.Return(now));
  // Another process may have its secret.
  if (before_it.has_value() &&
      (before_it->peer.uid != peer.uid || before_it->peer.gid != peer.gid ||
       before_it->process.pid != now.process.pid ||
       before_it->process.started != now.process.started)) {
    const Status recorded = keeper_.Record(WhoseIs(hello.session, peer, now.process));
    if (!recorded.ok()) {
      log::Error("worker {}: whose it is now is not recorded: {}", WorkerName(hello.session),
                 recorded);
    }
  }
  const auto info = inventory_.FindWorker(hello.session);
  wire::HelloReply reply = Welcome(hello.session, hello.secret);
  const std::vector<SegmentId> known = inventory_.Segments(hello.session);
  const std::set<SegmentId> ours(known.begin(), known.end());
  const std::set<SegmentId> theirs(hello.segments.begin(), hello.segments.end());
  std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                      std::back_inserter(reply.lost));
  // Allocated, or freed, just when the daemon died: the worker never had the answer.
  std::vector<SegmentId> freed;
  {
    MutexLock lock(await_mutex_);
    const auto before = unsettled_.find(hello.session);
    if (before != unsettled_.end()) {
      freed = std::move(before->second);
      unsettled_.erase(before);
    }
  }
  for (const SegmentId segment : known) {
    if (theirs.count(segment) > 0) continue;
    (void)FreeSegment(context_, hello.session, segment);
    freed.push_back(segment);
  }
  {
    MutexLock lock(await_mutex_);
    returned_[hello.session] = {
        std::make_shared<WorkerLink>(hello.session, channel),
        {returned.operation, returned.first_new, returned.lost, std::move(freed)}};
  }
  const std::string name = info.has_value() ? info->name : hello.name;
  events_.Publish(
      SessionEvent{SessionEvent::Change::kReturned, hello.session, name, peer.pid, Status()});
  log::Info("worker {} ({}): pid {} is back, with {} segments", WorkerName(hello.session), name,
            peer.pid, theirs.size());
  return reply;
}

void Core::OnWelcomed(WorkerId worker) {
  std::shared_ptr<WorkerLink> link;
  Recovering recovering;
  {
    MutexLock lock(await_mutex_);
    const auto found = returned_.find(worker);
    if (found == returned_.end()) return;
    std::tie(link, recovering) = std::move(found->second);
    returned_.erase(found);
  }
  directory_.Add(link);
  // The operation has to come to its end.
  for (;;) {
    const Status started =
        tasks_.Run([this, link, recovering] { Recover(context_, *link, recovering); });
    if (started.ok()) return;
    log::Warning("worker {}: coming back, again: {}", WorkerName(worker), started);
    if (!link->channel().Gone().ok()) return EndOperation(context_, worker);
    std::this_thread::sleep_for(kRetry);
  }
}

bool Core::AwaitAgain(WorkerId worker) {
  MutexLock lock(await_mutex_);
  const auto returned = returned_.find(worker);
  if (returned == returned_.end()) return false;
  unsettled_[worker] = std::move(returned->second.second.freed);
  returned_.erase(returned);
  if (std::chrono::steady_clock::now() < await_until_) {
    inventory_.UpdateWorker(worker, [](WorkerInfo& info) { info.awaited = true; });
    return true;
  }
  EndOperation(context_, worker);
  return false;
}

void Core::AwaitSessions() {
  for (bool late = false; !late;) {
    {
      MutexLock lock(await_mutex_);
      const TimePoint next =
          std::min(await_until_, std::chrono::steady_clock::now() + kLookAtProcesses);
      while (!stopping_ && std::chrono::steady_clock::now() < next) {
        await_changed_.WaitUntil(await_mutex_, next);
      }
      if (stopping_) return;
      late = std::chrono::steady_clock::now() >= await_until_;
    }
    for (const WorkerInfo& worker : inventory_.Awaited()) {
      const bool ended = HasEnded(worker.process);
      if ((!ended && !late) || !inventory_.GiveUp(worker.id)) continue;
      const Status why =
          ended
              ? Unavailable("WORKER_GONE", "its process has ended while no daemon was there")
              : DeadlineExceeded("NOT_BACK_IN_TIME", "the worker has not come back in time")
                    .With(
                        "reconnect_grace_ms",
                        std::chrono::duration_cast<milliseconds>(options_.reconnect_grace).count());
      log::Info("worker {} ({}) is not awaited any more: {}", WorkerName(worker.id), worker.name,
                why);
      CloseSession(worker.id, why);
    }
  }
}

}  // namespace torpor
