#include "tests/bench/load.h"

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/base/units.h"

namespace torpor::bench {
namespace {

constexpr auto kCallDeadline = std::chrono::seconds(30);
constexpr Bytes kReserved = KiB(256);

// One call, alive until its answer.
template <typename Request, typename Response>
struct Call {
  Call() { context.set_deadline(std::chrono::system_clock::now() + kCallDeadline); }
  grpc::ClientContext context;
  Request request;
  Response response;
};

class Load {
 public:
  Load(const DaemonProcess& daemon, const LoadOptions& options, LoadFigures& figures)
      : stub_(daemon.stub()), options_(options), figures_(figures) {}

  void Run() {
    const TimePoint start = std::chrono::steady_clock::now();
    end_ = start + options_.duration;
    std::vector<std::thread> threads;
    threads.emplace_back(
        [&] { Send(start, options_.usage_rate, [this](TimePoint t) { Usage(t); }); });
    threads.emplace_back(
        [&] { Send(start, options_.reserve_rate, [this](TimePoint t) { Reserve(t); }); });
    for (int i = 0; i < options_.movers; ++i) threads.emplace_back([this, i] { Move(i); });
    for (std::thread& thread : threads) thread.join();
    figures_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    MutexLock lock(mutex_);
    while (outstanding_ != 0) answered_.Wait(mutex_);
    figures_.copied_bytes = copied_;
  }

 private:
  void Send(TimePoint start, int rate, const std::function<void(TimePoint)>& call) {
    for (int64_t i = 0; rate > 0; ++i) {
      const TimePoint due = start + Duration(std::chrono::seconds(i)) / rate;
      if (due >= end_) return;
      std::this_thread::sleep_until(due);
      figures_.lag.Add(std::chrono::steady_clock::now() - due);
      call(due);
    }
  }

  // Notes the outcome of a call that was due at `due`.
  static void Note(Samples& samples, const grpc::Status& status, TimePoint due) {
    if (status.ok()) {
      samples.Add(std::chrono::steady_clock::now() - due);
    } else {
      const std::string reason = ReasonOf(status);
      samples.AddError(reason.empty() ? std::to_string(status.error_code()) : reason);
    }
  }

  void Begin() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++outstanding_;
  }
  void End() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (--outstanding_ == 0) answered_.NotifyAll();
  }

  void Usage(TimePoint due) {
    auto call = std::make_shared<Call<v1::UsageRequest, v1::UsageResponse>>();
    Begin();
    stub_.async()->Usage(&call->context, &call->request, &call->response,
                         [this, call, due](const grpc::Status& status) {
                           Note(figures_.usage, status, due);
                           End();
                         });
  }

  void Reserve(TimePoint due) {
    auto call = std::make_shared<Call<v1::ReserveRequest, v1::ReserveResponse>>();
    call->request.set_name("load");
    v1::ReservationPart& part = *call->request.add_parts();
    part.set_name("weights");
    part.set_device_bytes(kReserved.value());
    call->request.mutable_ttl()->set_seconds(60);
    Begin();
    stub_.async()->Reserve(&call->context, &call->request, &call->response,
                           [this, call, due](const grpc::Status& status) {
                             Note(figures_.reserve, status, due);
                             if (status.ok()) Release(call->response.reservation_id());
                             End();
                           });
  }

  void Release(const std::string& id) {
    auto call = std::make_shared<Call<v1::ReleaseRequest, v1::ReleaseResponse>>();
    call->request.set_reservation_id(id);
    Begin();
    stub_.async()->Release(
        &call->context, &call->request, &call->response,
        [this, call, sent = std::chrono::steady_clock::now()](const grpc::Status& status) {
          Note(figures_.release, status, sent);
          End();
        });
  }

  void Move(int mover) {
    std::mt19937_64 random(static_cast<uint64_t>(mover) + 1);
    while (std::chrono::steady_clock::now() < end_) {
      const std::string worker = Borrow(random);
      Call<v1::SleepRequest, v1::SleepResponse> sleep;
      sleep.request.mutable_selector()->add_workers(worker);
      sleep.request.set_level(1);
      TimePoint sent = std::chrono::steady_clock::now();
      Note(figures_.sleep, stub_.Sleep(&sleep.context, sleep.request, &sleep.response), sent);
      Call<v1::WakeUpRequest, v1::WakeUpResponse> wake;
      wake.request.mutable_selector()->add_workers(worker);
      sent = std::chrono::steady_clock::now();
      Note(figures_.wake, stub_.WakeUp(&wake.context, wake.request, &wake.response), sent);
      copied_ += sleep.response.copied_bytes() + wake.response.copied_bytes();
      MutexLock lock(mutex_);
      borrowed_.erase(worker);
    }
  }

  // A worker that no other mover has.
  std::string Borrow(std::mt19937_64& random) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (;;) {
      const std::string& worker = options_.workers[random() % options_.workers.size()];
      if (borrowed_.insert(worker).second) return worker;
    }
  }

  v1::MemoryService::Stub& stub_;
  const LoadOptions& options_;
  LoadFigures& figures_;
  TimePoint end_;
  std::atomic<int64_t> copied_ = 0;
  Mutex mutex_;
  CondVar answered_;
  int64_t outstanding_ GUARDED_BY(mutex_) = 0;
  std::set<std::string> borrowed_ GUARDED_BY(mutex_);
};

}  // namespace

void RunLoad(const DaemonProcess& daemon, const LoadOptions& options, LoadFigures& figures) {
  Load(daemon, options, figures).Run();
}

}  // namespace torpor::bench
