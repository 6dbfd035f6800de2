#include "daemon/core/core.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>
#include <utility>

#include "daemon/core/policy.h"
#include "daemon/log.h"
#include "daemon/stopping.h"
#include "lib/base/utf8.h"

namespace torpor {
namespace {

// Addresses cost nothing: a tag can grow over everything the device has, four times.
Bytes ArenaSize(Bytes total) {
  Bytes size = GiB(1);
  while (size < total * 4) size = size * 2;
  return size;
}

// Not 0.
uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

std::string RandomSecret() {
  std::random_device random;
  std::string secret;
  while (secret.size() < 16) {
    const uint32_t word = random();
    secret.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return secret;
}

// "w-7": a selector would take a worker of that name for another one.
bool LooksLikeId(const std::string& name) {
  return name.size() > 2 && name.compare(0, 2, "w-") == 0 &&
         std::all_of(name.begin() + 2, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The error that all outcomes share; OK if there is none, or they differ.
Status SharedFailure(const std::vector<WorkerOutcome>& outcomes) {
  if (outcomes.empty() || outcomes.front().status.ok()) return Status::Ok();
  const Status& first = outcomes.front().status;
  for (const WorkerOutcome& outcome : outcomes) {
    if (outcome.status.code() != first.code() || outcome.status.reason() != first.reason()) {
      return Status::Ok();
    }
  }
  Status shared = first;
  if (outcomes.size() > 1) shared.Add("failed_workers", std::to_string(outcomes.size()));
  return shared;
}

std::vector<WorkerOutcome> RunOnAll(const std::vector<WorkerId>& workers,
                                    const std::function<WorkerOutcome(WorkerId)>& run) {
  std::vector<WorkerOutcome> outcomes(workers.size());
  std::vector<std::thread> threads;
  std::vector<size_t> here;  // the first, and what there are no threads for
  if (!workers.empty()) here.push_back(0);
  for (size_t i = 1; i < workers.size(); ++i) {
    Result<std::thread> thread = StartThread([&, i] { outcomes[i] = run(workers[i]); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      here.push_back(i);
    }
  }
  for (const size_t i : here) outcomes[i] = run(workers[i]);
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Status NotYours(const std::string& reservation, const std::string& owner) {
  return PermissionDenied("NOT_YOURS", "reservation " + reservation + " is not yours")
      .With("reservation", reservation)
      .With("owner", owner);
}

Admission::Options ForAdmission(const Core::Options& options, EventLog& events) {
  Admission::Options chosen;
  chosen.safety_reserve = options.safety_reserve;
  chosen.host_budget = options.host_pool - options.host_pool % HostPool::kUnit;
  chosen.require_reservation = options.require_reservation;
  chosen.events = &events;
  return chosen;
}

Result<std::unique_ptr<PoolMemory>> MakePool(const Core::Options& options,
                                             const std::string& device) {
  const Bytes size = options.host_pool - options.host_pool % HostPool::kUnit;
  if (options.pool_dir.empty()) {
    return PoolMemory::Reserve(options.pool_memory, size, options.pool_slab);
  }
  return PoolMemory::Create(options.pool_dir, "torpor-" + device, size, options.pool_slab);
}

Pinner::Options ForPinner(const Driver& driver, const Core::Options& options) {
  Pinner::Options chosen;
  chosen.numa_node = driver.device().numa_node;
  chosen.available = options.available_memory;
  return chosen;
}

}  // namespace

Core::Core(Driver& driver, Keeper& keeper, const Clock& clock, const Options& options,
           std::unique_ptr<PoolMemory> pool, bool pool_restored)
    : driver_(driver),
      keeper_(keeper),
      clock_(clock),
      options_(options),
      events_(options.event_capacity),
      memory_(driver),
      inventory_(driver.device().granularity, ArenaSize(driver.device().total),
                 driver.device().total),
      admission_(
          ForAdmission(options, events_),
          [this](auto accuracy) { return memory_.Measure(accuracy); }, clock,
          [this] { return inventory_.Holders(); }),
      pool_restored_(pool_restored),
      pool_(driver, std::move(pool), ForPinner(driver, options)),
      images_(pool_),
      context_{memory_,    inventory_, admission_,
               images_,    nullptr,    keeper,
               directory_, &tasks_,    options.worker_deadline,
               events_,    runs_,      options.verify_images} {}

Result<std::unique_ptr<Core>> Core::Create(Driver& driver, Keeper& keeper, const Clock& clock,
                                           const Options& asked, Recovery recovery) {
  Options options = asked;
  std::unique_ptr<PoolMemory> pool = std::move(recovery.pool);
  const bool restored = pool != nullptr;
  if (restored) {
    options.host_pool = pool->size();
  } else {
    TORPOR_ASSIGN_OR_RETURN(pool, MakePool(options, driver.device().uuid));
  }
  const PoolHeld known = recovery.ledger.pool().value_or(PoolHeld());
  const bool kept = restored && recovery.pool_kept;
  std::unique_ptr<Core> core(new Core(driver, keeper, clock, options, std::move(pool), restored));
  TORPOR_ASSIGN_OR_RETURN(core->transfer_, TransferEngine::Create(driver));
  core->context_.transfer = core->transfer_.get();
  TORPOR_RETURN_IF_ERROR(core->Restore(std::move(recovery)));
  const PoolMemory& memory = core->pool_.memory();
  if (!kept && memory.fd() >= 0) {
    TORPOR_RETURN_IF_ERROR(
        keeper.HoldPool({restored ? known.id : RandomNumber(), memory.description(), memory.size(),
                         memory.slab(), memory.path()},
                        memory.fd()));
  }
  const bool anyone_awaited = !core->inventory_.Awaited().empty();
  TORPOR_ASSIGN_OR_RETURN(core->server_,
                          WorkerServer::Start(options.worker_socket, options.socket_mode, *core,
                                              WorkerServer::Limits(), options.socket_group));
  TORPOR_ASSIGN_OR_RETURN(core->queue_,
                          StartThread([raw = core.get()] { raw->admission_.ServeQueue(); }));
  if (anyone_awaited) {
    TORPOR_ASSIGN_OR_RETURN(core->awaiting_,
                            StartThread([raw = core.get()] { raw->AwaitSessions(); }));
  }
  return core;
}

Core::~Core() {
  Stop();
  tasks_.WaitForAll();
  // While there still is what its images and extents go back to.
  inventory_.Clear();
}

void Core::Stop() {
  {
    MutexLock lock(await_mutex_);
    stopping_ = true;
    await_changed_.NotifyAll();
  }
  if (awaiting_.joinable()) awaiting_.join();
  const Status stopping = DaemonStopping();
  admission_.StopWaiting(stopping);
  directory_.EndAll(stopping);
  // A daemon that has never served leaves them to the next one.
  const bool served = server_ != nullptr;
  server_.reset();
  for (const WorkerInfo& worker : inventory_.Awaited()) {
    if (served && inventory_.GiveUp(worker.id)) CloseSession(worker.id, stopping);
  }
  if (queue_.joinable()) queue_.join();
}

void Core::RemovePool() const {
  const std::string& path = pool_.memory().path();
  if (!path.empty() && ::unlink(path.c_str()) != 0) {
    log::Warning("{}", ErrnoStatus(errno, "remove the host pool " + path));
  }
}

// --- control plane

Result<std::vector<WorkerId>> Core::Select(const Selector& selector,
                                           const std::optional<Owner>& owner) const {
  if (selector.all && (!selector.workers.empty() || !selector.tags.empty())) {
    return InvalidArgument("CONTRADICTORY_SELECTOR", "`all` excludes workers and tags");
  }
  if (!selector.all && selector.workers.empty() && selector.tags.empty()) {
    return InvalidArgument("EMPTY_SELECTOR", "name workers or tags, or say `all` for everything");
  }
  for (const std::string& tag : selector.tags) {
    TORPOR_RETURN_IF_ERROR(CheckName(tag, "tag", "BAD_TAG"));
  }
  if (owner.has_value() && selector.workers.empty()) {
    return PermissionDenied("OTHERS_SELECTED",
                            "`all`, and tags alone, mean everybody's workers, and only yours are "
                            "yours to move: name them")
        .With("owner", owner->name);
  }
  const std::vector<WorkerStats> known = inventory_.Snapshot();
  std::vector<WorkerId> named;
  // Then workers go one by one, and would seem never to have been there.
  TORPOR_RETURN_IF_ERROR(directory_.ended());
  for (const WorkerStats& worker : known) {
    if (selector.workers.empty()) named.push_back(worker.info.id);
  }
  for (const std::string& name : selector.workers) {
    bool found = false;
    for (const WorkerStats& worker : known) {
      const WorkerId id = worker.info.id;
      if (name != WorkerName(id) && name != worker.info.name) continue;
      found = true;
      if (owner.has_value() && owner->uid != worker.info.peer.uid) {
        return PermissionDenied("NOT_YOURS", "worker \"" + name + "\" is of another user")
            .With("worker", WorkerName(id))
            .With("worker_uid", worker.info.peer.uid)
            .With("owner", owner->name);
      }
      if (std::find(named.begin(), named.end(), id) == named.end()) named.push_back(id);
    }
    if (!found) {
      const std::string shown = Shorten(name);
      return NotFound("UNKNOWN_WORKER", "there is no worker \"" + shown + "\"")
          .With("worker", shown);
    }
  }
  if (selector.tags.empty()) return named;
  std::vector<WorkerId> selected;
  for (const WorkerId id : named) {
    if (std::any_of(selector.tags.begin(), selector.tags.end(),
                    [&](const std::string& tag) { return inventory_.HasTag(id, tag); })) {
      selected.push_back(id);
    }
  }
  if (selected.empty()) {
    std::string tags;
    for (const std::string& tag : selector.tags) tags += (tags.empty() ? "" : ",") + tag;
    tags = Shorten(tags, 256);
    return NotFound("NOTHING_SELECTED", "no selected worker has memory under " + tags)
        .With("tags", tags)
        .With("workers", named.size());
  }
  return selected;
}

std::optional<WorkerOutcome> Core::CheckLost(WorkerId worker,
                                             const Inventory::TagFilter& tags) const {
  Bytes lost{};
  std::string lost_tags;
  for (const auto& [tag, size] : inventory_.Lost(worker)) {
    if (!tags(tag)) continue;
    lost += size;
    lost_tags += (lost_tags.empty() ? "" : ",") + tag;
  }
  if (lost == Bytes(0)) return std::nullopt;
  const auto info = inventory_.FindWorker(worker);
  WorkerOutcome outcome;
  outcome.worker = worker;
  if (info.has_value()) outcome.name = info->name;
  outcome.status =
      Status(Code::kDataLoss, "SEGMENTS_LOST",
             "worker " + WorkerName(worker) + " has lost " + FormatBytes(lost) + " under " +
                 lost_tags + " with daemon and keeper: start it anew, or let it free them")
          .With("worker", WorkerName(worker))
          .With("lost_tags", lost_tags)
          .With("lost_bytes", lost.value());
  return outcome;
}

Result<std::vector<WorkerOutcome>> Core::Sleep(const SleepCommand& command) {
  SleepSpec spec;
  TORPOR_ASSIGN_OR_RETURN(spec.policy, PolicyFrom(command.level, command.policies));
  TORPOR_ASSIGN_OR_RETURN(const std::vector<WorkerId> workers,
                          Select(command.selector, command.owner));
  spec.wish = SleepWish(command.selector.tags, command.level, command.policies, command.force);
  spec.tags = FilterOf(command.selector.tags);
  spec.force = command.force;
  spec.priority = command.priority;
  spec.deadline = command.deadline;
  spec.cancel = command.cancel;
  spec.again = command.again;
  std::vector<WorkerOutcome> outcomes = RunOnAll(workers, [&](WorkerId worker) {
    const auto lost = CheckLost(worker, spec.tags);
    return lost.has_value() ? *lost : RunSleep(context_, worker, spec);
  });
  TORPOR_RETURN_IF_ERROR(SharedFailure(outcomes));
  return outcomes;
}

Result<std::vector<WorkerOutcome>> Core::WakeUp(const WakeCommand& command) {
  WakeSpec spec;
  for (const std::string& tag : command.order) {
    TORPOR_RETURN_IF_ERROR(CheckName(tag, "tag", "BAD_TAG"));
  }
  if (!command.reservation.empty()) {
    if (command.owner.has_value()) {
      TORPOR_RETURN_IF_ERROR(CheckDraw(command.reservation, command.owner->name));
    }
    TORPOR_RETURN_IF_ERROR(admission_.Check(command.reservation));
  }
  TORPOR_ASSIGN_OR_RETURN(const std::vector<WorkerId> workers,
                          Select(command.selector, command.owner));
  spec.wish = WakeWish(command.selector.tags, command.reservation);
  spec.tags = FilterOf(command.selector.tags);
  spec.order = command.order;
  spec.reservation = command.reservation;
  spec.priority = command.priority;
  spec.deadline = command.deadline;
  spec.cancel = command.cancel;
  spec.again = command.again;
  std::vector<WorkerOutcome> outcomes = RunOnAll(workers, [&](WorkerId worker) {
    const auto lost = CheckLost(worker, spec.tags);
    return lost.has_value() ? *lost : RunWake(context_, worker, spec);
  });
  TORPOR_RETURN_IF_ERROR(SharedFailure(outcomes));
  return outcomes;
}

Result<UsageReport> Core::Usage() {
  UsageReport report;
  if (options_.health != nullptr) report.health = options_.health();
  // It would not answer this call either.
  if (report.health.reason() == "DRIVER_SILENT") return report.health;
  const Result<BudgetStats> budget = admission_.Budget();
  if (!budget.ok()) return report.health.ok() ? budget.status() : report.health;
  report.budget = *budget;
  report.device = driver_.device();
  const ImageStore::Stats images = images_.stats();
  report.pool = images.pool;
  report.pool_clean = images.clean;
  report.pool_promised = admission_.promised_host();
  report.protection = Protection();
  report.workers = inventory_.Snapshot();
  report.reservations = admission_.Reservations();
  report.queue = admission_.Queue();
  return report;
}

Status Core::Protection() const {
  if (options_.protection == nullptr) {
    return FailedPrecondition("NO_KEEPER", "nothing outlives this daemon: it has no keeper");
  }
  TORPOR_RETURN_IF_ERROR(options_.protection());
  if (options_.host_pool <= Bytes(0) || pool_.memory().fd() >= 0) return Status::Ok();
  return FailedPrecondition("POOL_NOT_KEPT",
                            "the host pool is anonymous memory: what sleeps does not outlive this "
                            "daemon (--pool_memory)")
      .With("pool", pool_kind());
}

Result<ReserveResult> Core::RecordMade(const ReservationSpec& spec, Result<ReserveResult> made) {
  if (!made.ok()) return made;
  std::vector<JournalRecord> records;
  // So that the journal grows with what there is, not with what there was.
  for (std::string& expired : admission_.TakeExpired()) {
    records.emplace_back(ReservationReleased{std::move(expired)});
  }
  records.emplace_back(ReservationMade{made->id, spec.name, spec.device(), spec.host, made->expires,
                                       spec.hold, spec.keep});
  ReservationParts parts{made->id, {}};
  for (const ReservationPart& part : spec.parts) parts.parts.push_back({part.name, part.device});
  records.emplace_back(std::move(parts));
  if (!spec.owner.empty()) records.emplace_back(ReservationOwner{made->id, spec.owner});
  if (const Status recorded = keeper_.Record(records); !recorded.ok()) {
    (void)admission_.Release(made->id);
    return recorded;
  }
  return made;
}

Result<ReserveResult> Core::Reserve(const ReservationSpec& spec) {
  return RecordMade(spec, admission_.Reserve(spec));
}

void Core::ReserveAsync(uint64_t ticket, const ReservationSpec& spec, TimePoint deadline,
                        const std::function<void(Result<ReserveResult>)>& done,
                        std::optional<uint64_t> place) {
  admission_.ReserveAsync(
      ticket, spec, deadline,
      [this, spec, done](Result<ReserveResult> made) { done(RecordMade(spec, std::move(made))); },
      place);
}

Status Core::CheckDraw(const std::string& reservation, const std::string& owner) const {
  const std::string made_by = admission_.OwnerOf(reservation).value_or("");
  // What operators and certificates reserve is for workers that they start, of whatever user.
  if (owner.empty() || made_by == owner || made_by.compare(0, 4, "uid:") != 0) return Status::Ok();
  return NotYours(reservation, owner);
}

Status Core::CheckOwner(const std::string& reservation, const std::optional<Owner>& owner) const {
  if (!owner.has_value()) return Status::Ok();
  // What is not there is nobody's, and told as such.
  const std::optional<std::string> made_by = admission_.OwnerOf(reservation);
  if (!made_by.has_value() || *made_by == owner->name) return Status::Ok();
  return NotYours(reservation, owner->name);
}

Result<TimePoint> Core::Renew(const std::string& reservation, Duration ttl,
                              const std::optional<Owner>& owner) {
  TORPOR_RETURN_IF_ERROR(CheckOwner(reservation, owner));
  TORPOR_ASSIGN_OR_RETURN(const TimePoint expires, admission_.Renew(reservation, ttl));
  TORPOR_RETURN_IF_ERROR(keeper_.Record({ReservationRenewed{reservation, expires}}));
  return expires;
}

Result<Admission::Released> Core::Release(const std::string& reservation,
                                          const std::optional<Owner>& owner) {
  TORPOR_RETURN_IF_ERROR(CheckOwner(reservation, owner));
  TORPOR_ASSIGN_OR_RETURN(const Admission::Released released, admission_.Release(reservation));
  TORPOR_RETURN_IF_ERROR(keeper_.Record({ReservationReleased{reservation}}));
  return released;
}

// --- workers

Result<wire::HelloReply> Core::OnHello(const wire::Hello& hello, const net::PeerCredentials& peer,
                                       const std::shared_ptr<wire::Channel>& channel) {
  Result<wire::HelloReply> reply = Greet(hello, peer, channel);
  Observe("Hello", reply.status());
  return reply;
}

Result<wire::HelloReply> Core::Greet(const wire::Hello& hello, const net::PeerCredentials& peer,
                                     const std::shared_ptr<wire::Channel>& channel) {
  const DeviceInfo& device = driver_.device();
  std::string owner;
  if (options_.admit != nullptr) {
    TORPOR_ASSIGN_OR_RETURN(const std::optional<Owner> only, options_.admit(peer));
    if (only.has_value()) owner = only->name;
    TORPOR_RETURN_IF_ERROR(CheckDraw(hello.reservation, owner));
  }
  if (!hello.name.empty()) {
    TORPOR_RETURN_IF_ERROR(CheckName(hello.name, "worker name", "BAD_WORKER_NAME"));
    if (LooksLikeId(hello.name)) {
      return InvalidArgument("BAD_WORKER_NAME",
                             "worker name \"" + hello.name + "\" reads as a worker's id")
          .With("length", hello.name.size());
    }
  }
  if (!hello.device_uuid.empty() && hello.device_uuid != device.uuid) {
    const std::string worker_device = Shorten(hello.device_uuid);
    return FailedPrecondition("WRONG_DEVICE", "this daemon serves device " + device.uuid +
                                                  ", the worker uses " + worker_device)
        .With("daemon_device", device.uuid)
        .With("worker_device", worker_device);
  }
  if (hello.quiesce > wire::Quiesce::kCallback) {
    return InvalidArgument("BAD_QUIESCE_MODE", "there is no such way to quiet a worker")
        .With("quiesce", static_cast<int>(hello.quiesce));
  }
  if (hello.session.value() != 0) return OnReturn(hello, peer, owner, channel);
  WorkerInfo info;
  info.name = hello.name;
  info.peer = peer;
  info.process = ProcessOf(peer);
  info.quiesce = hello.quiesce;
  info.reservation = hello.reservation;
  info.owner = owner;
  info.secret = RandomSecret();
  if (!info.reservation.empty()) TORPOR_RETURN_IF_ERROR(admission_.AddHolder(info.reservation));
  wire::HelloReply reply = Welcome(inventory_.AddWorker(info), info.secret);
  const std::optional<WorkerInfo> added = inventory_.FindWorker(reply.worker);
  const std::string name = added.has_value() ? added->name : hello.name;
  std::vector<JournalRecord> records = WhoseIs(reply.worker, peer, info.process);
  records.insert(records.begin(), SessionOpened{reply.worker, name, info.secret, info.reservation});
  if (const Status recorded = keeper_.Record(records); !recorded.ok()) {
    inventory_.Remove(reply.worker);
    LeaveReservation(info);
    return recorded;
  }
  // Before its first operation can tell of itself.
  events_.Publish(
      SessionEvent{SessionEvent::Change::kOpened, reply.worker, name, peer.pid, Status()});
  directory_.Add(std::make_shared<WorkerLink>(reply.worker, channel));
  log::Info("worker {} ({}): pid {}, uid {}, gid {} connected", WorkerName(reply.worker),
            hello.name, peer.pid, peer.uid, peer.gid);
  return reply;
}

ProcessId Core::ProcessOf(const net::PeerCredentials& peer) {
  const Result<ProcessId> process =
      peer.pid > 0 ? FindProcess(peer.pid) : Result<ProcessId>(ProcessId());
  return process.ok() ? *process : ProcessId();
}

std::vector<JournalRecord> Core::WhoseIs(WorkerId worker, const net::PeerCredentials& peer,
                                         const ProcessId& process) {
  std::vector<JournalRecord> records = {SessionUser{worker, peer.uid, peer.gid}};
  if (process.pid > 0) {
    records.emplace_back(SessionProcess{worker, process.pid, process.started, PidNamespace()});
  }
  return records;
}

wire::HelloReply Core::Welcome(WorkerId worker, const std::string& secret) const {
  const DeviceInfo& device = driver_.device();
  wire::HelloReply reply;
  reply.worker = worker;
  reply.secret = secret;
  reply.device_kind = device.kind;
  reply.device_uuid = device.uuid;
  reply.device_total = device.total;
  reply.granularity = device.granularity;
  reply.arena_size = inventory_.arena_size();
  reply.reconnect_grace_ms =
      std::chrono::duration_cast<milliseconds>(options_.reconnect_grace).count();
  return reply;
}

void Core::LeaveReservation(const WorkerInfo& info) {
  if (info.reservation.empty() || !admission_.RemoveHolder(info.reservation)) return;
  log::Info("reservation {} ends with its last worker's session", info.reservation);
  if (const Status recorded = keeper_.Record({ReservationReleased{info.reservation}});
      !recorded.ok()) {
    log::Error("end of reservation {} is not recorded: {}", info.reservation, recorded);
  }
}

void Core::OnGone(WorkerId worker, const Status& why) {
  if (AwaitAgain(worker)) return;
  log::Info("worker {} is gone: {}", WorkerName(worker), why);
  directory_.Remove(worker);
  CloseSession(worker, why);
}

void Core::CloseSession(WorkerId worker, const Status& why) {
  admission_.CancelWaitsOf(WorkerName(worker), why);
  const std::optional<WorkerInfo> info = inventory_.FindWorker(worker);
  EndExtents(context_, inventory_.Close(worker));
  if (info.has_value()) LeaveReservation(*info);
  if (const Status recorded = keeper_.Record({SessionClosed{worker}}); !recorded.ok()) {
    log::Error("worker {}: end of session is not recorded: {}", WorkerName(worker), recorded);
  }
  inventory_.Remove(worker);
  events_.Publish(SessionEvent{SessionEvent::Change::kClosed, worker,
                               info.has_value() ? info->name : std::string(),
                               info.has_value() ? info->peer.pid : 0, why});
}

}  // namespace torpor
