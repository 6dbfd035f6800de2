#include "tests/bench/load_run.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/cuda/nvml.h"
#include "tests/bench/role.h"
#include "tests/bench/stalls.h"

namespace torpor::bench {
namespace {

// Enough for 40 GiB on an H200.
constexpr Duration kSettle = milliseconds(500);

// Of the whole device, without a context; -1: unknown.
Bytes UsedDeviceMemory(const RunOptions& options) {
  return options.daemon.driver == "cuda" ? Nvml(options.device).UsedMemory() : Bytes(-1);
}

// A daemon and a worker that holds the load, filled.
class Scene {
 public:
  static Result<std::unique_ptr<Scene>> Start(const RunOptions& options, const ModelLoad& load,
                                              const std::string& pin_pool, Json& figures);
  const BenchDaemon& daemon() const { return *daemon_; }

  Result<std::string> Ask(const std::string& command) { return worker_->Ask(command); }
  Status Sleep(Row& row) { return Do(&BenchDaemon::Sleep, row); }
  Status WakeUp(Row& row) { return Do(&BenchDaemon::WakeUp, row); }
  // The driver clears what was released, for a while after a sleep, and takes up to half of the
  // link to the device for it. A wake that is not to be measured with that waits.
  Status WakeUpLater(Row& row) {
    std::this_thread::sleep_for(settle_);
    return WakeUp(row);
  }
  // Compares every byte, then ends both.
  Status Finish(const RunOptions& options, Json& figures);

 private:
  Status Do(Result<Operation> (BenchDaemon::*operation)() const, Row& row) {
    TORPOR_ASSIGN_OR_RETURN(Operation done, ((*daemon_).*operation)());
    row.operations.push_back(std::move(done));
    return Status::Ok();
  }

  Duration settle_{};
  Bytes used_before_{-1};  // device memory
  std::unique_ptr<BenchDaemon> daemon_;
  std::unique_ptr<RoleProcess> worker_;
};

Result<std::unique_ptr<Scene>> Scene::Start(const RunOptions& options, const ModelLoad& load,
                                            const std::string& pin_pool, Json& figures) {
  auto scene = std::make_unique<Scene>();
  if (options.daemon.driver == "cuda") scene->settle_ = kSettle;
  scene->used_before_ = UsedDeviceMemory(options);
  TORPOR_ASSIGN_OR_RETURN(
      scene->daemon_,
      BenchDaemon::Start(options.daemon, PoolFor(load),
                         load.weight_bytes() + load.kv_cache_bytes() + MiB(64), pin_pool));
  if (pin_pool == "background" && options.daemon.knows_pin_pool) {
    TORPOR_ASSIGN_OR_RETURN(const BenchDaemon::Pinned pinned,
                            scene->daemon_->WaitUntilPinned(load.weight_bytes()));
    figures["pinned_bytes_before"] = pinned.bytes.value();
  }
  TORPOR_ASSIGN_OR_RETURN(
      scene->worker_,
      RoleProcess::Start("worker", {scene->daemon_->worker_socket(), options.daemon.driver,
                                    load.name, std::to_string(options.scale)}));
  TORPOR_RETURN_IF_ERROR(scene->worker_->ReadAnswer().status());
  TORPOR_ASSIGN_OR_RETURN(const std::string allocated, scene->worker_->Ask("allocate"));
  figures["alloc_us"].push_back(Rounded(NumberOf(allocated, "us")));
  figures["alloc_worst_us"].push_back(Rounded(NumberOf(allocated, "worst_us")));
  TORPOR_RETURN_IF_ERROR(scene->worker_->Ask("fill 1").status());
  return scene;
}

Status Scene::Finish(const RunOptions& options, Json& figures) {
  TORPOR_ASSIGN_OR_RETURN(const std::string verified, worker_->Ask("verify"));
  figures["verified_bytes"].push_back(static_cast<int64_t>(NumberOf(verified, "bytes")));
  TORPOR_RETURN_IF_ERROR(worker_->Stop());
  if (used_before_ >= Bytes(0)) {
    // What the worker had is returned a little later.
    Bytes least = UsedDeviceMemory(options);
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      least = std::min(least, UsedDeviceMemory(options));
    }
    figures["daemon"]["device_bytes_after_work"] = (least - used_before_).value();
  }
  return daemon_->Stop();
}

Json DaemonMemory(const BenchDaemon& daemon, const v1::UsageResponse& usage) {
  Json json;
  json["device_bytes"] = usage.device().context_bytes();
  const auto memory = daemon.ResidentMemory();
  for (const auto& [name, bytes] : memory) json["resident"][name] = bytes.value();
  const auto all = memory.find("VmRSS");
  if (all != memory.end()) {
    // Every page of the pool is resident once it is pinned.
    json["rss_beside_pool_bytes"] = all->second.value() - usage.host_pool().pinned_bytes();
  }
  // Whatever Usage says about the pool.
  std::string pool;
  if (google::protobuf::util::MessageToJsonString(usage.host_pool(), &pool).ok()) {
    json["host_pool"] = Json::parse(pool);
  }
  return json;
}

Status MeasureCold(const RunOptions& options, const ModelLoad& load, Json& figures) {
  TORPOR_ASSIGN_OR_RETURN(const auto scene, Scene::Start(options, load, "on_demand", figures));
  Row sleep{"first sleep, cold pool", {}};
  Row wake{"wake after it", {}};
  TORPOR_RETURN_IF_ERROR(scene->Sleep(sleep));
  PrintRow(sleep, load.weight_bytes());
  TORPOR_RETURN_IF_ERROR(scene->WakeUp(wake));
  PrintRow(wake, load.weight_bytes());
  figures["first_sleep_cold_gbps"] = Rounded(MedianGbps(sleep, load.weight_bytes()));
  figures["rows"]["first_sleep_cold"] = RowJson(sleep, load.weight_bytes());
  figures["rows"]["wake_after_cold"] = RowJson(wake, load.weight_bytes());
  return scene->Finish(options, figures);
}

// Another cold sleep, with others that query the device's memory meanwhile.
Status MeasureColdStalls(const RunOptions& options, const ModelLoad& load, Json& figures) {
  Json ignored;
  TORPOR_ASSIGN_OR_RETURN(const auto query, RoleProcess::Start("query", {options.daemon.driver}));
  TORPOR_RETURN_IF_ERROR(query->ReadAnswer().status());
  TORPOR_ASSIGN_OR_RETURN(const auto scene, Scene::Start(options, load, "on_demand", ignored));
  Row sleep{"first sleep, cold pool, beside queries", {}};
  {
    Stalls stalls(scene->daemon(), *query);
    std::this_thread::sleep_for(milliseconds(50));
    const TimePoint start = std::chrono::steady_clock::now();
    TORPOR_RETURN_IF_ERROR(scene->Sleep(sleep));
    TORPOR_ASSIGN_OR_RETURN(const Stalls::Worst worst,
                            stalls.Between(start, std::chrono::steady_clock::now()));
    figures["cold_worst_query_ms_other_process"] = Rounded(worst.other_process_ms);
    figures["cold_worst_query_ms_own_thread"] = Rounded(worst.own_thread_ms);
  }
  PrintRow(sleep, load.weight_bytes());
  figures["rows"]["first_sleep_cold_beside_queries"] = RowJson(sleep, load.weight_bytes());
  Row wake;
  TORPOR_RETURN_IF_ERROR(scene->WakeUp(wake));
  TORPOR_RETURN_IF_ERROR(scene->Finish(options, ignored));
  return query->Stop();
}

Status MeasureNeighbour(const RunOptions& options, const ModelLoad& load, Scene& scene,
                        Json& figures) {
  TORPOR_ASSIGN_OR_RETURN(const auto neighbour,
                          RoleProcess::Start("neighbour", {options.daemon.driver}));
  TORPOR_RETURN_IF_ERROR(neighbour->ReadAnswer().status());
  TORPOR_RETURN_IF_ERROR(neighbour->Ask("count").status());
  std::this_thread::sleep_for(milliseconds(300));
  TORPOR_ASSIGN_OR_RETURN(const std::string alone, neighbour->Ask("count"));
  Row sleep{"clean sleep beside a busy neighbour", {}};
  Row wake{"wake beside a busy neighbour", {}};
  for (int64_t i = 0; i < options.cycles; ++i) {
    TORPOR_RETURN_IF_ERROR(scene.Sleep(sleep));
    TORPOR_RETURN_IF_ERROR(scene.WakeUpLater(wake));
  }
  TORPOR_ASSIGN_OR_RETURN(const std::string beside, neighbour->Ask("count"));
  TORPOR_RETURN_IF_ERROR(neighbour->Stop());
  PrintRow(sleep, load.weight_bytes());
  PrintRow(wake, load.weight_bytes());
  figures["neighbour"] = {
      {"what", options.daemon.driver == "cuda"
                   ? "multiply-adds on all processors, kernels queued ahead on two streams"
                   : "one thread that spins"},
      {"clean_sleep_ms", Rounded(MedianMs(sleep))},
      {"wake_gbps", Rounded(MedianGbps(wake, load.weight_bytes()))},
      {"its_kernel_ms_alone", Rounded(NumberOf(alone, "ms"))},
      {"its_kernel_ms_meanwhile", Rounded(NumberOf(beside, "ms"))}};
  figures["rows"]["clean_sleep_beside_neighbour"] = RowJson(sleep, load.weight_bytes());
  figures["rows"]["wake_beside_neighbour"] = RowJson(wake, load.weight_bytes());
  return Status::Ok();
}

// Sleeps and wakes that copied, without the time that the link takes for the bytes.
double BookkeepingMs(const RunOptions& options, const Row& sleep, const Row& wake) {
  std::vector<double> values;
  for (size_t i = 1; i < std::min(sleep.operations.size(), wake.operations.size()); ++i) {
    const Operation& s = sleep.operations[i];
    const Operation& w = wake.operations[i];
    values.push_back(s.caller_ms + w.caller_ms -
                     static_cast<double>(s.copied_bytes) / options.link_d2h_gbps / 1e6 -
                     static_cast<double>(w.copied_bytes) / options.link_h2d_gbps / 1e6);
  }
  return Median(values);
}

Status MeasurePinned(const RunOptions& options, const ModelLoad& load, Json& figures) {
  TORPOR_ASSIGN_OR_RETURN(const auto scene, Scene::Start(options, load, "background", figures));
  const Bytes bytes = load.weight_bytes();
  Row first{options.daemon.knows_pin_pool ? "first sleep, pinned pool" : "first sleep", {}};
  Row first_wake{"first wake", {}};
  TORPOR_RETURN_IF_ERROR(scene->Sleep(first));
  TORPOR_RETURN_IF_ERROR(scene->WakeUp(first_wake));
  PrintRow(first, bytes);
  PrintRow(first_wake, bytes);

  Row clean{"sleep, nothing changed", {}};
  Row one_percent{"sleep, 1 % changed", {}};
  Row dirty{"sleep, all changed", {}};
  Row wake{"wake", {}};
  Row wake_at_once{"wake at once after a sleep", {}};
  Row dirty_wake;
  for (int64_t cycle = 0; cycle < options.cycles; ++cycle) {
    TORPOR_RETURN_IF_ERROR(scene->Sleep(clean));
    TORPOR_RETURN_IF_ERROR(scene->WakeUpLater(wake));
    TORPOR_RETURN_IF_ERROR(scene->Ask("dirty 100").status());
    TORPOR_RETURN_IF_ERROR(scene->Sleep(one_percent));
    TORPOR_RETURN_IF_ERROR(scene->WakeUp(wake_at_once));
    TORPOR_RETURN_IF_ERROR(scene->Ask("fill " + std::to_string(cycle + 2)).status());
    TORPOR_RETURN_IF_ERROR(scene->Sleep(dirty));
    TORPOR_RETURN_IF_ERROR(scene->WakeUpLater(wake));
    dirty_wake.operations.push_back(wake.operations.back());
  }
  // What is compared at the end has been copied in part, and left out.
  Row untimed;
  TORPOR_RETURN_IF_ERROR(scene->Ask("dirty 100").status());
  for (int i = 0; i < 2; ++i) {
    TORPOR_RETURN_IF_ERROR(scene->Sleep(untimed));
    TORPOR_RETURN_IF_ERROR(scene->WakeUp(untimed));
  }
  for (const Row* const row : {&clean, &one_percent, &dirty, &wake, &wake_at_once})
    PrintRow(*row, bytes);

  if (options.daemon.knows_pin_pool)
    figures["first_sleep_gbps"] = Rounded(MedianGbps(first, bytes));
  figures["dirty_sleep_gbps"] = Rounded(MedianGbps(dirty, bytes));
  figures["clean_sleep_ms"] = Rounded(MedianMs(clean));
  figures["one_percent_sleep_ms"] = Rounded(MedianMs(one_percent));
  figures["wake_gbps"] = Rounded(MedianGbps(wake, bytes));
  figures["wake_at_once_gbps"] = Rounded(MedianGbps(wake_at_once, bytes));
  if (options.link_d2h_gbps > 0 && options.cycles > 1) {
    figures["bookkeeping_ms"] = Rounded(BookkeepingMs(options, dirty, dirty_wake));
  }
  figures["rows"]["first_sleep"] = RowJson(first, bytes);
  figures["rows"]["first_wake"] = RowJson(first_wake, bytes);
  figures["rows"]["clean_sleep"] = RowJson(clean, bytes);
  figures["rows"]["one_percent_sleep"] = RowJson(one_percent, bytes);
  figures["rows"]["dirty_sleep"] = RowJson(dirty, bytes);
  figures["rows"]["wake"] = RowJson(wake, bytes);
  figures["rows"]["wake_at_once"] = RowJson(wake_at_once, bytes);
  if (options.neighbour && load.name == "b14") {
    TORPOR_RETURN_IF_ERROR(MeasureNeighbour(options, load, *scene, figures));
  }
  TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, scene->daemon().Usage());
  figures["daemon"] = DaemonMemory(scene->daemon(), usage);
  return scene->Finish(options, figures);
}

}  // namespace

Bytes PoolFor(const ModelLoad& load) {
  return RoundUp(load.weight_bytes() + std::min(load.weight_bytes(), MiB(512)), MiB(2));
}

Status MeasureLoad(const RunOptions& options, const ModelLoad& load, Json& figures) {
  char title[128];
  std::snprintf(title, sizeof title, "%s: %zu segments of %s, %s of KV cache", load.name.c_str(),
                load.weights.size(), FormatBytes(load.weight_bytes()).c_str(),
                FormatBytes(load.kv_cache_bytes()).c_str());
  PrintHead(title);
  figures["segments"] = load.weights.size();
  figures["weight_bytes"] = load.weight_bytes().value();
  figures["kv_cache_bytes"] = load.kv_cache_bytes().value();
  if (options.cold) {
    TORPOR_RETURN_IF_ERROR(MeasureCold(options, load, figures));
    if (load.name == "b14") TORPOR_RETURN_IF_ERROR(MeasureColdStalls(options, load, figures));
  }
  TORPOR_RETURN_IF_ERROR(MeasurePinned(options, load, figures));
  double sum = 0;
  for (const Json& us : figures["alloc_us"]) sum += us.get<double>();
  figures["alloc_us_per_segment"] = Rounded(sum / static_cast<double>(figures["alloc_us"].size()));
  std::printf("\nAllocation: %.1f us a segment. Every byte is right.\n",
              figures["alloc_us_per_segment"].get<double>());
  return Status::Ok();
}

Status MeasurePinning(const RunOptions& options, Bytes pool, Json& figures) {
  if (!options.daemon.knows_pin_pool) {
    figures["skipped"] = "this torpord does not pin in the background";
    return Status::Ok();
  }
  TORPOR_ASSIGN_OR_RETURN(const auto query, RoleProcess::Start("query", {options.daemon.driver}));
  TORPOR_RETURN_IF_ERROR(query->ReadAnswer().status());
  const TimePoint start = std::chrono::steady_clock::now();
  TORPOR_ASSIGN_OR_RETURN(const auto daemon,
                          BenchDaemon::Start(options.daemon, pool, MiB(64), "background"));
  TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, daemon->Usage());
  const TimePoint from = std::chrono::steady_clock::now();
  {
    Stalls stalls(*daemon, *query);
    TORPOR_ASSIGN_OR_RETURN(const BenchDaemon::Pinned pinned, daemon->WaitUntilPinned(pool));
    const TimePoint to = std::max(pinned.since, from);
    const double seconds = std::max(std::chrono::duration<double>(to - from).count(), 1e-3);
    const Bytes gained = pinned.bytes - Bytes(usage.host_pool().pinned_bytes());
    TORPOR_ASSIGN_OR_RETURN(const Stalls::Worst worst, stalls.Between(from, to));
    TORPOR_ASSIGN_OR_RETURN(const Stalls::Worst at_start, stalls.Between(start, from));
    // The same with nothing going on.
    const TimePoint quiet = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::min<Duration>(to - from, std::chrono::seconds(1)));
    TORPOR_ASSIGN_OR_RETURN(const Stalls::Worst idle,
                            stalls.Between(quiet, std::chrono::steady_clock::now()));
    figures["gib_per_s"] = Rounded(static_cast<double>(gained.value()) / seconds / (1 << 30));
    figures["worst_query_ms_other_process"] = Rounded(worst.other_process_ms);
    figures["worst_query_ms_own_thread"] = Rounded(worst.own_thread_ms);
    figures["pool_bytes"] = pool.value();
    figures["pinned_bytes_at_first"] = usage.host_pool().pinned_bytes();
    figures["pinned_bytes"] = pinned.bytes.value();
    figures["seconds"] = Rounded(seconds);
    figures["while_the_daemon_starts"]["worst_query_ms_other_process"] =
        Rounded(at_start.other_process_ms);
    figures["afterwards"] = {{"worst_query_ms_other_process", Rounded(idle.other_process_ms)},
                             {"worst_query_ms_own_thread", Rounded(idle.own_thread_ms)}};
    std::printf(
        "\nPinning in the background: %s in %.2f s; worst memory query %.2f ms in another process, "
        "%.2f ms in a thread of the daemon (afterwards %.2f and %.2f ms)\n",
        FormatBytes(gained).c_str(), seconds, worst.other_process_ms, worst.own_thread_ms,
        idle.other_process_ms, idle.own_thread_ms);
  }
  TORPOR_RETURN_IF_ERROR(query->Stop());
  return daemon->Stop();
}

}  // namespace torpor::bench
