#ifndef TORPOR_DAEMON_CORE_CORE_H_
#define TORPOR_DAEMON_CORE_CORE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/access/owner.h"
#include "daemon/admission/admission.h"
#include "daemon/core/recovery.h"
#include "daemon/events/answer_observer.h"
#include "daemon/events/event_log.h"
#include "daemon/keeper/keeper.h"
#include "daemon/log_limit.h"
#include "daemon/memory/device_memory.h"
#include "daemon/memory/inventory.h"
#include "daemon/operation/operation.h"
#include "daemon/operation/recover.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/tasks.h"
#include "daemon/pool/host_pool.h"
#include "daemon/pool/image.h"
#include "daemon/pool/pinner.h"
#include "daemon/pool/pool_memory.h"
#include "daemon/session/worker_link.h"
#include "daemon/session/worker_server.h"
#include "daemon/transfer/transfer.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/process.h"
#include "lib/base/status.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Which segments: of `workers` (ids as "w-7", or names) and `tags`, empty meaning every one; or
// all.
struct Selector {
  std::vector<std::string> workers;
  std::vector<std::string> tags;
  bool all = false;
};

struct SleepCommand {
  Selector selector;
  int32_t level = 0;                             // 1 or 2, or
  std::map<std::string, wire::Policy> policies;  // by tag; a selected tag not named is kept
  bool force = false;
  int32_t priority = 0;  // of its copies; the highest first
  TimePoint deadline;
  const CancelToken* cancel = nullptr;  // before the commit; none: only the deadline ends it
  bool again = false;                   // waits for the roll back of what another caller gave up
  std::optional<Owner> owner;           // of all that may be selected; none: everything may
};

struct WakeCommand {
  Selector selector;
  std::vector<std::string> order;
  std::string reservation;
  int32_t priority = 0;
  TimePoint deadline;
  const CancelToken* cancel = nullptr;  // likewise
  bool again = false;                   // likewise
  std::optional<Owner> owner;           // likewise
};

struct UsageReport {
  DeviceInfo device;
  BudgetStats budget;
  HostPool::Stats pool;  // `used` without clean images
  Bytes pool_clean{};    // what they take, and leave to whoever needs it
  Bytes pool_promised{};
  Status protection;  // not OK: what would not survive the daemon's end, and why
  Status health;      // not OK: why the daemon does not serve as it should
  std::vector<WorkerStats> workers;
  std::vector<ReservationStats> reservations;
  std::vector<WaiterStats> queue;  // in its order
};

// One daemon's worth of everything, without flags and without gRPC: owns the books, the pool and
// the worker socket; borrows driver, keeper and clock, which must outlive it. Thread-safe; Sleep
// and WakeUp block for as long as they take.
class Core final : public WorkerServer::Handler {
 public:
  // Sleeps and wakes that a worker has asked for itself, at a time: each has a thread.
  static constexpr int kMaxOwnOperations = 16;

  struct Options {
    std::string worker_socket;  // path
    mode_t socket_mode = 0660;
    std::optional<gid_t> socket_group;  // of the worker socket; none: the process's
    // Whether the peer may have a session, and if all it may draw on is its own, whose; none: all
    // may, on everything.
    std::function<Result<std::optional<Owner>>(const net::PeerCredentials&)> admit;
    Bytes host_pool{};
    Bytes pool_slab = HostPool::kSlab;  // what is pinned by one call
    PoolMemoryKind pool_memory = PoolMemoryKind::kAnonymous;
    std::string pool_dir;  // a folder, where the pool is a file with a name; empty: pool_memory
    // Of the host; asked before more of the pool is pinned. None: not asked.
    std::function<Result<Bytes>()> available_memory;
    Bytes safety_reserve{};
    bool require_reservation = false;
    bool verify_images = false;             // trust no digest
    Duration worker_deadline = seconds(5);  // for each answer of a worker
    size_t event_capacity = EventLog::kCapacity;
    // How long sessions are awaited after a restart; 0: nothing outlives this daemon.
    Duration reconnect_grace{};
    // Whether everything outlives it now, and if not, why; none: nothing does.
    std::function<Status()> protection;
    std::function<Status()> health;      // for Usage; none: OK
    AnswerObserver* observer = nullptr;  // of what workers ask; outlives the core
  };

  // `recovery`: what a daemon before this one has left.
  static Result<std::unique_ptr<Core>> Create(Driver& driver, Keeper& keeper, const Clock& clock,
                                              const Options& options, Recovery recovery = {});
  // Stops, and waits for operations and rollbacks.
  ~Core() override;

  // Ends the connections of all workers and takes no new ones, so that operations under way fail
  // soon; what workers have mapped stays theirs. Once or more, by one thread.
  void Stop();

  // Pins the host pool in the background from now on, instead of when sleeps need it.
  void StartPinning() { pool_.StartPinning(); }
  // What the host pool is made of, as "tmpfs, huge pages".
  Bytes pool_size() const { return pool_.memory().size(); }
  const std::string& pool_kind() const { return pool_.memory().description(); }
  // At the end, when nothing shall be found again: a pool with a name loses it.
  void RemovePool() const;

  // A result for each selected worker, or the error that all of them share.
  //   INVALID_ARGUMENT EMPTY_SELECTOR, CONTRADICTORY_SELECTOR, BAD_TAG, BAD_LEVEL, POLICY_MISSING,
  //   LEVEL_AND_POLICIES; NOT_FOUND UNKNOWN_WORKER, NOTHING_SELECTED; those of the workers;
  //   with an owner, PERMISSION_DENIED OTHERS_SELECTED, NOT_YOURS
  Result<std::vector<WorkerOutcome>> Sleep(const SleepCommand& command);
  Result<std::vector<WorkerOutcome>> WakeUp(const WakeCommand& command);
  // Where the driver fails or does not answer: why the daemon is not healthy, by Options::health.
  Result<UsageReport> Usage();
  // OK: what workers have outlives the daemon. FAILED_PRECONDITION NO_KEEPER, POOL_NOT_KEPT; what
  // Options::protection says.
  Status Protection() const;
  Result<ReserveResult> Reserve(const ReservationSpec& spec);
  // Waits in the queue until `deadline`, by the core's clock, and holds no thread meanwhile; does
  // not block. Calls `done` once, now or later, on any thread. CancelWait ends the wait of this
  // ticket. `place`: the ticket of an earlier wait in whose place it goes on.
  void ReserveAsync(uint64_t ticket, const ReservationSpec& spec, TimePoint deadline,
                    const std::function<void(Result<ReserveResult>)>& done,
                    std::optional<uint64_t> place = std::nullopt);
  uint64_t NewTicket() { return admission_.NewTicket(); }
  void CancelWait(uint64_t ticket, const Status& why) { admission_.CancelWait(ticket, why); }
  // Ends all waits and takes no new ones.
  void StopWaiting(const Status& why) { admission_.StopWaiting(why); }
  // With an owner, only its own: PERMISSION_DENIED NOT_YOURS.
  Result<TimePoint> Renew(const std::string& reservation, Duration ttl,
                          const std::optional<Owner>& owner = std::nullopt);
  Result<Admission::Released> Release(const std::string& reservation,
                                      const std::optional<Owner>& owner = std::nullopt);
  EventLog& events() { return events_; }
  // The operation that should have been over at `by`, the longest first.
  std::optional<OverdueOperation> MostOverdue(TimePoint by) const {
    return inventory_.MostOverdue(by);
  }

 private:
  Core(Driver& driver, Keeper& keeper, const Clock& clock, const Options& options,
       std::unique_ptr<PoolMemory> pool, bool pool_restored);

  // --- WorkerServer::Handler
  Result<wire::HelloReply> OnHello(const wire::Hello& hello, const net::PeerCredentials& peer,
                                   const std::shared_ptr<wire::Channel>& channel) override;
  void OnRequest(WorkerId worker, const std::shared_ptr<wire::Channel>& channel,
                 net::Frame request) override;
  void OnWelcomed(WorkerId worker) override EXCLUDES(await_mutex_);
  void OnGone(WorkerId worker, const Status& why) override;
  Result<wire::HelloReply> Greet(const wire::Hello& hello, const net::PeerCredentials& peer,
                                 const std::shared_ptr<wire::Channel>& channel);
  void CloseSession(WorkerId worker, const Status& why);
  static ProcessId ProcessOf(const net::PeerCredentials& peer);
  // Of a session, for the journal.
  static std::vector<JournalRecord> WhoseIs(WorkerId worker, const net::PeerCredentials& peer,
                                            const ProcessId& process);
  wire::HelloReply Welcome(WorkerId worker, const std::string& secret) const;

  // After a restart; restore.cc.
  class Restorer;
  // What is gone is recorded and told. Any other error leaves the journal as it is.
  Status Restore(Recovery recovery) EXCLUDES(await_mutex_);
  Result<wire::HelloReply> OnReturn(const wire::Hello& hello, const net::PeerCredentials& peer,
                                    const std::string& owner,
                                    const std::shared_ptr<wire::Channel>& channel)
      EXCLUDES(await_mutex_);
  // The worker did not hear that it is back: it will come again. False if it has come to nothing,
  // or too late.
  bool AwaitAgain(WorkerId worker) EXCLUDES(await_mutex_);
  // Until all are back, have ended, or are late.
  void AwaitSessions() EXCLUDES(await_mutex_);

  // The worker's own requests; worker_requests.cc, and own_allocate.cc.
  struct Allocation;
  void OwnAllocate(WorkerId worker, const std::shared_ptr<wire::Channel>& channel, uint64_t request,
                   const wire::Allocate& message);
  void WaitInQueue(const std::shared_ptr<Allocation>& allocation);
  void RetryAllocation(const std::shared_ptr<Allocation>& allocation);
  void AnswerAllocation(const Allocation& allocation, Result<NewSegment> segment)
      EXCLUDES(handover_mutex_);
  wire::StatusReply OwnAllocated(WorkerId worker, const wire::Allocated& request)
      EXCLUDES(handover_mutex_);
  wire::FreeReply OwnFree(WorkerId worker, const wire::Free& request);
  // On a thread; `answer` gets RESOURCE_EXHAUSTED TOO_MANY_CALLS if the worker has
  // kMaxOwnOperations under way, or THREADS_EXHAUSTED.
  void RunOwn(WorkerId worker, std::function<wire::SleepReply()> operation,
              const std::function<void(const wire::SleepReply&)>& answer) EXCLUDES(own_mutex_);
  wire::SleepReply OwnSleep(WorkerId worker, const wire::Sleep& request);
  wire::SleepReply OwnWake(WorkerId worker, const wire::WakeUp& request);
  wire::UsageReply OwnUsage(WorkerId worker);
  Status OwnQuiesce(WorkerId worker, const wire::SetQuiesce& request);
  Status OwnSleepEndpoint(WorkerId worker, const wire::SetSleepEndpoint& request);

  void Observe(const char* request, const Status& status) const;
  // Tells the observer, too.
  template <typename Reply>
  void Answer(wire::Channel& channel, wire::Type type, uint64_t id, const Reply& reply) const;

  Result<std::vector<WorkerId>> Select(const Selector& selector,
                                       const std::optional<Owner>& owner) const;
  // PERMISSION_DENIED NOT_YOURS where `owner` may not draw on the reservation.
  Status CheckDraw(const std::string& reservation, const std::string& owner) const;
  // Likewise where it is not the owner's.
  Status CheckOwner(const std::string& reservation, const std::optional<Owner>& owner) const;
  // An outcome for a worker that has lost something under `tags`: no OK could be right.
  std::optional<WorkerOutcome> CheckLost(WorkerId worker, const Inventory::TagFilter& tags) const;
  void LeaveReservation(const WorkerInfo& info);
  Result<ReserveResult> RecordMade(const ReservationSpec& spec, Result<ReserveResult> made);

  Driver& driver_;
  Keeper& keeper_;
  const Clock& clock_;
  const Options options_;
  EventLog events_;
  DeviceMemory memory_;
  Inventory inventory_;
  Admission admission_;
  const bool pool_restored_;
  HostPool pool_;
  ImageStore images_;
  std::unique_ptr<TransferEngine> transfer_;
  WorkerDirectory directory_;
  SharedRuns runs_;
  OperationContext context_;
  Mutex own_mutex_;
  std::map<WorkerId, int> own_operations_ GUARDED_BY(own_mutex_);  // under way
  Tasks tasks_;  // operations and rollbacks under way
  std::unique_ptr<WorkerServer> server_;
  log::Limit refusals_;  // of what is written of allocations
  Mutex handover_mutex_;
  CondVar handed_over_;
  std::set<SegmentId> handovers_ GUARDED_BY(handover_mutex_);  // answers being sent
  std::thread queue_;                                          // serves those that wait for memory
  Mutex await_mutex_;
  CondVar await_changed_;
  bool stopping_ GUARDED_BY(await_mutex_) = false;
  TimePoint await_until_ GUARDED_BY(await_mutex_);
  // Those that are back, and have not been told yet.
  std::map<WorkerId, std::pair<std::shared_ptr<WorkerLink>, Recovering>> returned_
      GUARDED_BY(await_mutex_);
  // Of those that came back and left before they were told: what was freed for them.
  std::map<WorkerId, std::vector<SegmentId>> unsettled_ GUARDED_BY(await_mutex_);
  std::thread awaiting_;  // closes sessions that do not come back
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_CORE_CORE_H_
