#ifndef TORPOR_CLIENT_FAKE_DAEMON_H_
#define TORPOR_CLIENT_FAKE_DAEMON_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/host_driver.h"
#include "lib/cuda/owners.h"
#include "lib/net/frame.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// The other side of a session, for tests: speaks the real protocol over a real socket about the
// memory of a real host device, but does nothing of its own accord. The test plays the daemon's
// operations step by step. Serves one connection after the other. When it hangs up on a worker and
// that comes back, it acts as a daemon that was started again and has kept its memory. Thread-safe.
class FakeDaemon : private wire::Channel::Handler {
 public:
  static constexpr Bytes kGranularity = KiB(64);
  static constexpr Bytes kTotal = MiB(16);
  static constexpr Bytes kArena = MiB(64);

  FakeDaemon();
  ~FakeDaemon() override;

  const std::string& runtime_dir() const { return dir_; }
  const std::string& socket_path() const { return path_; }
  HostDriver& device() { return *device_; }
  Bytes DeviceFree();

  // Steps of operations; block for the worker's answer.
  Status Quiesce(OperationId operation) { return WaitStatus(StartQuiesce(operation)); }
  Status Unmap(OperationId operation, const std::string& tag);
  Status Map(OperationId operation, const std::string& tag);
  Status Resume(OperationId operation, const std::vector<std::string>& asleep);
  Result<std::vector<ExtentId>> Cancel(OperationId operation);
  // The same without waiting.
  wire::Channel::CallPtr StartQuiesce(OperationId operation);
  wire::Channel::CallPtr StartUnmap(OperationId operation, const std::string& tag);
  Status WaitStatus(const wire::Channel::CallPtr& call);

  // What a sleep and a wake would do with a tag's memory between UNMAP and RESUME.
  void DropMemory(const std::string& tag);
  void RenewMemory(const std::string& tag);

  // How many pieces an allocation's memory comes in, from now on.
  void SetExtentSize(Bytes size) {
    MutexLock lock(mutex_);
    extent_size_ = size;
  }
  // Whether Free's answer names extents, from now on.
  void SetFreeNamesExtents(bool names) {
    MutexLock lock(mutex_);
    free_names_extents_ = names;
  }

  void SetFreeSaysAsleep(wire::AsleepTags asleep) {
    MutexLock lock(mutex_);
    free_says_asleep_ = std::move(asleep);
  }

  std::vector<wire::Extent> Extents(const std::string& tag);
  size_t ExtentCount();
  wire::Hello hello();
  wire::Quiesce quiesce();
  std::string sleep_endpoint();
  wire::Report report();
  Status last_allocated();
  wire::Sleep last_sleep();
  wire::WakeUp last_wake_up();

  // The current connection; blocks until there is one.
  std::shared_ptr<wire::Channel> channel();
  // As when the daemon dies.
  void Hangup();
  // Hangs up, and its socket is not there until Appear.
  void Disappear();
  void Appear();
  // Hangs up and waits until the worker is back.
  void Restart();
  // Dies at the next request of this type: before it has any effect, or instead of answering.
  void DieAt(wire::Type type, bool before);
  // Answers the next request of this type, one that is answered by a status, with DAEMON_STOPPING.
  void StopAt(wire::Type type);

  // From now on: what hellos promise (0, as at first: nothing) and, if not OK, are refused with.
  void SetGrace(milliseconds grace);
  void RefuseHellos(const Status& refusal);
  // From now on hellos wait for their answer.
  void HoldHellos(bool hold);
  // The next allocation comes in an extent of twice its size, the one after it gets the other half.
  void ShareNextExtent();
  // Does not know the tag's segments any more.
  void Lose(const std::string& tag);
  Status UnmapAnywhere(OperationId operation, const std::vector<wire::Extent>& extents);
  // How many workers it has taken in; Await blocks until there were so many.
  size_t hellos();
  void AwaitHellos(size_t count);
  // How many requests of a type have come.
  size_t requests(wire::Type type);

 private:
  struct Memory {
    std::string tag;
    SegmentId segment;
    wire::Extent extent;
    std::shared_ptr<PhysicalAllocation> allocation;  // nothing: asleep
    UniqueFd fd;
  };

  void Accept();
  void Serve(UniqueFd socket);
  Status TakeHello(const wire::Hello& hello, wire::HelloReply& reply) REQUIRES(mutex_);
  // Whether to die now.
  bool Dies(wire::Type type, bool before);
  void Obey(const net::Frame& request);
  void OnRequest(net::Frame request) override;
  void OnAllocate(const net::Frame& request);
  template <typename Message, typename Keep>
  void Take(const net::Frame& request, Keep keep);
  template <typename Reply>
  void Answer(const net::Frame& request, const Reply& reply, const std::vector<int>& fds = {});
  void FillMemory(Memory& memory);
  void DropSegment(SegmentId segment) REQUIRES(mutex_);

  std::string dir_;
  std::string path_;
  std::unique_ptr<HostDriver> device_;
  UniqueFd listener_;
  std::thread acceptor_;

  Mutex mutex_;
  CondVar connected_;
  std::shared_ptr<wire::Channel> channel_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> asleep_revision_{0};
  size_t hellos_ GUARDED_BY(mutex_) = 0;
  std::map<wire::Type, size_t> requests_ GUARDED_BY(mutex_);
  std::optional<std::pair<wire::Type, bool>> die_at_ GUARDED_BY(mutex_);
  std::optional<wire::Type> stop_at_ GUARDED_BY(mutex_);
  std::atomic<bool> mute_{false};
  milliseconds grace_ GUARDED_BY(mutex_){0};
  Status refusal_ GUARDED_BY(mutex_);
  std::set<SegmentId> segments_ GUARDED_BY(mutex_);  // allocated and not freed
  std::map<ExtentId, Memory> memory_ GUARDED_BY(mutex_);
  std::map<std::string, Bytes> arena_ends_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  Bytes extent_size_ GUARDED_BY(mutex_) = kArena;
  bool free_names_extents_ GUARDED_BY(mutex_) = true;
  wire::AsleepTags free_says_asleep_ GUARDED_BY(mutex_);
  bool hold_hellos_ GUARDED_BY(mutex_) = false;
  bool share_next_ GUARDED_BY(mutex_) = false;
  std::optional<Bytes> other_half_ GUARDED_BY(mutex_);
  wire::Hello hello_ GUARDED_BY(mutex_);
  wire::Quiesce quiesce_ GUARDED_BY(mutex_) = wire::Quiesce::kNone;
  std::string sleep_endpoint_ GUARDED_BY(mutex_);
  wire::Report report_ GUARDED_BY(mutex_);
  Status last_allocated_ GUARDED_BY(mutex_);
  wire::Sleep last_sleep_ GUARDED_BY(mutex_);
  wire::WakeUp last_wake_up_ GUARDED_BY(mutex_);
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_FAKE_DAEMON_H_
