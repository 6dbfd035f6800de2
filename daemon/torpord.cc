#include "daemon/torpord.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/access/gate.h"
#include "daemon/access/last_policy.h"
#include "daemon/access/policy.h"
#include "daemon/access/tls.h"
#include "daemon/access/tls_copies.h"
#include "daemon/control_server.h"
#include "daemon/core/core.h"
#include "daemon/flags.h"
#include "daemon/health/health_monitor.h"
#include "daemon/host_memory.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/remote_keeper.h"
#include "daemon/log.h"
#include "daemon/log_limit.h"
#include "daemon/metrics/http_endpoint.h"
#include "daemon/metrics/metrics.h"
#include "daemon/open_driver.h"
#include "daemon/runtime_dir.h"
#include "daemon/service/memory_service.h"
#include "daemon/stop_signals.h"
#include "daemon/stopping.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/runtime_dir.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cli/version.h"
#include "lib/cuda/driver.h"
#include "lib/cuda/owners.h"
#include "lib/cuda/timed_driver.h"
#include "lib/net/unix_socket.h"

namespace torpor {
namespace {

// Every extent is a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log::Warning("{}", ErrnoStatus(errno, "raise the limit of open files"));
  }
}

Result<Bytes> ChooseHostPool(const Flags& flags) {
  if (flags.host_pool.has_value()) return *flags.host_pool;
  TORPOR_ASSIGN_OR_RETURN(const Bytes available, AvailableHostMemory());
  const Bytes half(available.value() / 2);
  return half - half % MiB(1);
}

Result<Bytes> ChooseSafetyReserve(const Flags& flags, Bytes total) {
  const Bytes reserve =
      flags.safety_reserve.value_or(std::min(Bytes(total.value() / 100), MiB(512)));
  if (reserve < total) return reserve;
  return InvalidArgument("BAD_FLAG",
                         "--safety_reserve leaves nothing of the device's " + FormatBytes(total))
      .With("safety_reserve_bytes", reserve.value())
      .With("total_bytes", total.value());
}

// How the daemon ends.
struct End {
  End(Status why)  // NOLINT(google-explicit-constructor): so that errors are returned as they are
      : status(std::move(why)), exit_status(ExitStatus(status)) {}
  End(Status why, int exit) : status(std::move(why)), exit_status(exit) {}

  static int ExitStatus(const Status& status) {
    if (status.ok()) return 0;
    return status.code() == Code::kInvalidArgument ? 2 : 1;
  }

  Status status;
  int exit_status;
};

// An error that another start may not meet, whatever its code: the keeper takes status 2 as final.
End NotTheCommandLine(const Status& status) { return {status, 1}; }

// Whether what workers have outlives the daemon, and if not, why.
Status ProtectionBy(const RemoteKeeper& keeper) {
  const RemoteKeeper::Protection now = keeper.protection();
  if (now.is_protected) return Status::Ok();
  return Unavailable("KEEPER_GONE", "nothing outlives this daemon for now: its keeper is gone")
      .With("cause", now.reason)
      .With("since_ms",
            std::chrono::duration_cast<milliseconds>(Clock::Real().Now() - now.since).count());
}

// Tells the health service of the keeper, from the time on that there is one.
class KeeperHealth {
 public:
  // Null: from now on nobody is told any more.
  void Serve(ControlServer* server) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    server_ = server;
    if (server != nullptr) server->SetProtected(protected_);
  }
  void Tell(bool is_protected) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    protected_ = is_protected;
    if (server_ != nullptr) server_->SetProtected(protected_);
  }

 private:
  Mutex mutex_;
  ControlServer* server_ GUARDED_BY(mutex_) = nullptr;
  bool protected_ GUARDED_BY(mutex_) = false;
};

// Runs `end` when its scope ends.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> end) : end_(std::move(end)) {}
  ~AtEnd() { end_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  const std::function<void()> end_;
};

// Null where none are asked for.
Result<std::unique_ptr<metrics::HttpEndpoint>> ServeMetrics(const Flags& flags,
                                                            metrics::Metrics& metrics) {
  if (!flags.metrics.has_value()) return std::unique_ptr<metrics::HttpEndpoint>();
  ListenAddress address = *flags.metrics;
  TORPOR_ASSIGN_OR_RETURN(auto endpoint,
                          metrics::HttpEndpoint::Start({address.host, address.port, "/metrics",
                                                        "text/plain; version=0.0.4; charset=utf-8"},
                                                       [&metrics] { return metrics.Scrape(); }));
  address.port = endpoint->port();
  log::Info("metrics at http://{}/metrics", address.ToString());
  return endpoint;
}

// What a daemon before this one has left.
Result<Recovery> Recover(RemoteKeeper& keeper) {
  Recovery recovery;
  recovery.ledger = keeper.recovered();
  std::vector<ExtentId> extents;
  for (const auto& [id, extent] : recovery.ledger.extents()) extents.push_back(id);
  TORPOR_ASSIGN_OR_RETURN(recovery.extents, keeper.Fetch(extents));
  TORPOR_ASSIGN_OR_RETURN(auto kept, keeper.FetchPool());
  if (!recovery.ledger.pool().has_value()) return recovery;
  const PoolHeld& pool = *recovery.ledger.pool();
  if (!kept.has_value() && pool.path.empty()) return recovery;
  auto adopted = kept.has_value() ? PoolMemory::Adopt(std::move(kept->second), pool.path, pool.kind,
                                                      pool.size, pool.slab)
                                  : PoolMemory::Open(pool.path, pool.kind, pool.size, pool.slab);
  const bool removed = adopted.ok() && (*adopted)->path() != pool.path;
  if (removed && recovery.ledger.images().empty()) return recovery;  // nothing to lose: a new one
  if (removed) {
    log::Error("the host pool {} was removed: what sleeps ends with this daemon and its keeper",
               pool.path);
  }
  if (adopted.ok()) {
    recovery.pool = *std::move(adopted);
    recovery.pool_kept = kept.has_value();
  } else if (!recovery.ledger.images().empty()) {
    const std::string& reason = adopted.status().reason();
    // Anything else may pass: the next start shall find it.
    if (reason != "POOL_MISSING" && reason != "POOL_CHANGED") return adopted.status();
    log::Error("the host pool of the daemon before cannot be used: {}", adopted.status());
  }
  return recovery;
}

std::optional<access::TlsFiles> TlsOf(const Flags& flags) {
  if (flags.tls_cert.empty()) return std::nullopt;
  return access::TlsFiles{flags.tls_cert, flags.tls_key, flags.tls_client_ca};
}

Result<std::optional<access::Policy>> LoadPolicy(const Flags& flags) {
  if (flags.access.empty()) return std::optional<access::Policy>();
  TORPOR_ASSIGN_OR_RETURN(access::Policy policy, access::Policy::Load(flags.access));
  return std::optional<access::Policy>(std::move(policy));
}

// What the command line only names, and what may be otherwise at the next start.
struct Named {
  Result<std::optional<access::Policy>> policy;  // none where no file is given
  std::optional<access::TlsFiles> tls;
  std::optional<gid_t> socket_group;
  std::optional<gid_t> worker_socket_group;
};
Result<Named> LookUp(const Flags& flags) {
  Named named{LoadPolicy(flags), {}, {}, {}};
  named.tls = TlsOf(flags);
  if (named.tls.has_value()) TORPOR_RETURN_IF_ERROR(access::ReadTlsFiles(*named.tls).status());
  TORPOR_ASSIGN_OR_RETURN(named.socket_group, FindGroup(flags.socket_group));
  TORPOR_ASSIGN_OR_RETURN(named.worker_socket_group, FindGroup(flags.worker_socket_group));
  if (flags.worker_socket_group.empty()) named.worker_socket_group = named.socket_group;
  return named;
}

End Serve(const Flags& flags, const Decorators& decorators, StopSignals& signals) {
  auto named = LookUp(flags);
  // With a keeper that is not final: it can be mended, and there may be workers that wait.
  if (!named.ok() && !flags.keeper.empty()) return NotTheCommandLine(named.status());
  if (!named.ok()) return named.status();
  if (!named->policy.ok() && flags.keeper.empty()) return named->policy.status();
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, OpenDriver(flags));
  if (decorators.driver != nullptr) driver = decorators.driver(std::move(driver));
  TimedDriver timed(*driver);
  const DeviceInfo& device = timed.device();
  std::string runtime_dir = flags.runtime_dir;
  if (runtime_dir.empty()) {
    TORPOR_ASSIGN_OR_RETURN(runtime_dir, DefaultRuntimeDir());
  }
  TORPOR_ASSIGN_OR_RETURN(const DeviceDir dir, DeviceDir::Claim(runtime_dir, device.uuid));
  const access::LastPolicy last_policy(dir.path() + "/access.last", flags.access);
  auto policy = std::move(named->policy);
  const bool access_file_wrong = !policy.ok();
  if (!flags.keeper.empty()) policy = last_policy.Choose(std::move(policy));
  if (!policy.ok()) return NotTheCommandLine(policy.status());
  access::Gate gate(*std::move(policy));
  UniqueFd device_lock;
  if (device.kind == "cuda") {
    TORPOR_ASSIGN_OR_RETURN(device_lock, LockDevice(device.uuid));
  }

  Core::Options options;
  options.worker_socket = dir.worker_socket();
  options.socket_mode = flags.worker_socket_mode.value_or(flags.socket_mode);
  options.socket_group = named->worker_socket_group;
  if (!flags.access.empty()) {
    options.admit = [&gate](const net::PeerCredentials& peer) { return gate.AdmitWorker(peer); };
  }
  TORPOR_ASSIGN_OR_RETURN(options.host_pool, ChooseHostPool(flags));
  TORPOR_ASSIGN_OR_RETURN(options.safety_reserve, ChooseSafetyReserve(flags, device.total));
  options.pool_memory = flags.pool_memory;
  options.pool_dir = flags.pool_dir;
  options.available_memory = [] { return AvailableHostMemory(); };
  options.require_reservation = flags.require_reservation;
  options.verify_images = flags.verify_images;
  options.worker_deadline = flags.worker_deadline;
  InProcessKeeper own_keeper;
  KeeperHealth keeper_health;
  std::unique_ptr<RemoteKeeper> keeper;
  std::unique_ptr<Keeper> decorated;
  std::unique_ptr<access::TlsCopies> tls;  // outlives the server
  if (named->tls.has_value()) {
    TORPOR_ASSIGN_OR_RETURN(tls, access::TlsCopies::Make(*named->tls));
  }
  std::unique_ptr<ControlServer> server;
  HealthMonitor::Options of_health;
  // After its deadline a committed operation still tells its worker.
  of_health.margin = 2 * flags.worker_deadline;
  HealthMonitor health(of_health, [&server](const Status& now) {
    server->SetHealth(now.ok(), !HealthMonitor::NeedsRestart(now));
  });
  options.health = [&health] { return health.status(); };
  metrics::Metrics metrics(timed, Version(), options.health);
  metrics.SetAccessFileWrong(access_file_wrong);
  if (flags.metrics.has_value()) options.observer = &metrics.observer();
  TORPOR_ASSIGN_OR_RETURN(const auto endpoint, ServeMetrics(flags, metrics));
  std::unique_ptr<Core> core;
  // Whether another daemon would start now, and the keeper can be left alone: it may be stopped,
  // and not be noticed yet.
  const auto may_leave = [&]() -> Status {
    TORPOR_ASSIGN_OR_RETURN(const Named now, LookUp(flags));
    TORPOR_RETURN_IF_ERROR(now.policy.status());
    if (keeper != nullptr) (void)keeper->Answers();
    return core->Protection();
  };
  MemoryServiceImpl service(
      Clock::Real(), flags.default_deadline,
      [&]() -> Status {
        TORPOR_RETURN_IF_ERROR(may_leave());
        ::kill(::getpid(), StopSignals::kHandOver);
        return Status::Ok();
      },
      options.observer, &gate);
  // All that uses core and service.
  const AtEnd end_users([&] {
    keeper_health.Serve(nullptr);
    health.Stop();
    metrics.Stop();
    server.reset();
  });
  // Says that the daemon is starting while it takes over what another one has left.
  TORPOR_ASSIGN_OR_RETURN(
      server, ControlServer::Start(service, gate,
                                   {dir.control_socket(), flags.socket_mode, flags.listen,
                                    tls == nullptr ? std::nullopt : std::optional(tls->files()),
                                    named->socket_group}));
  keeper_health.Serve(server.get());

  Recovery recovery;
  if (!flags.keeper.empty()) {
    RemoteKeeper::Options of_keeper;
    of_keeper.own_journal = dir.path() + "/daemon.journal";
    of_keeper.on_change = [&keeper_health](const RemoteKeeper::Protection& now) {
      keeper_health.Tell(now.is_protected);
    };
    auto attached = RemoteKeeper::Attach(flags.keeper, device.uuid, of_keeper);
    if (!attached.ok()) return NotTheCommandLine(attached.status());
    keeper = *std::move(attached);
    metrics.SetStarts(keeper->starts());
    auto left = Recover(*keeper);
    if (!left.ok()) return NotTheCommandLine(left.status());
    recovery = *std::move(left);
    keeper_health.Tell(keeper->is_protected());
    options.reconnect_grace = flags.reconnect_grace;
    options.protection = [&keeper] { return ProtectionBy(*keeper); };
  }
  Keeper* custody = keeper != nullptr ? static_cast<Keeper*>(keeper.get()) : &own_keeper;
  if (decorators.keeper != nullptr) {
    decorated = decorators.keeper(*custody);
    custody = decorated.get();
  }
  TORPOR_ASSIGN_OR_RETURN(
      core, Core::Create(timed, *custody, Clock::Real(), options, std::move(recovery)));
  if (flags.metrics.has_value()) TORPOR_RETURN_IF_ERROR(metrics.Serve(*core));
  service.Serve(*core);
  TORPOR_RETURN_IF_ERROR(
      health.Start(timed, [&core](TimePoint by) { return core->MostOverdue(by); }));

  log::Info("host pool {} ({}{}), safety reserve {}, device context {}",
            FormatBytes(core->pool_size()), core->pool_kind(),
            device.numa_node < 0 ? "" : ", NUMA node " + std::to_string(device.numa_node),
            FormatBytes(options.safety_reserve),
            device.context < Bytes(0) ? "unknown" : FormatBytes(device.context));
  std::printf("torpord %s serves %s (%s, %s, %s) at %s and %s%s\n", Version(), device.uuid.c_str(),
              device.kind.c_str(), device.name.c_str(), FormatBytes(device.total).c_str(),
              dir.control_socket().c_str(), dir.worker_socket().c_str(),
              server->listen().has_value() ? (", " + server->listen()->ToString()).c_str() : "");
  std::fflush(stdout);
  if (flags.pin_pool == PinChoice::kBackground ||
      (flags.pin_pool == PinChoice::kAuto && device.kind == "cuda")) {
    core->StartPinning();
  }

  int signal = 0;
  for (;;) {
    signal = signals.Wait();
    if (signal != StopSignals::kHandOver) break;
    const Status left = may_leave();
    if (left.ok()) break;
    log::Error("no hand-over: {}", left);
  }
  signals.Watch();
  keeper_health.Serve(nullptr);
  health.End(DaemonStopping());
  log::Info("{}: stopping, {} calls under way", sigabbrev_np(signal), service.calls());
  // Ends as if it were killed now: what is under way is finished or rolled back by who follows. But
  // while there is no keeper, what the workers have would be lost with this process: it waits for
  // the next one, which is given all of it, however long that takes. The workers are served
  // meanwhile. Returns if the daemon is to stop instead.
  const auto hand_over = [&] {
    for (TimePoint told{}; !signals.stops(); std::this_thread::sleep_for(milliseconds(50))) {
      if (keeper->Answers()) {
        log::Limit::TellAll(true);
        ::_exit(keeper::kHandOverStatus);
      }
      if (told != TimePoint() && Clock::Real().Now() < told + seconds(5)) continue;
      told = Clock::Real().Now();
      log::Error("the hand-over waits for a keeper: {}", core->Protection());
    }
    log::Info("stopping, and not handing over");
  };
  const bool hands_over = signal == StopSignals::kHandOver;
  server->Shutdown(flags.shutdown_deadline, [&] {
    if (hands_over) hand_over();
    log::Warning("{} calls still under way: ending the workers' connections", service.calls());
    core->Stop();
  });
  if (hands_over) hand_over();
  core->RemovePool();
  last_policy.Forget();
  return Status::Ok();
}

}  // namespace

int RunTorpord(const std::vector<std::string>& arguments, const Decorators& decorators) {
  const auto fail = [](const End& end) {
    std::fprintf(stderr, "torpord: %s\n", end.status.ToString().c_str());
    return end.exit_status;
  };
  const Result<Flags> flags = ParseFlags(arguments);
  if (!flags.ok()) {
    std::fprintf(stderr, "torpord: %s (--help lists the flags)\n",
                 flags.status().ToString().c_str());
    return 2;
  }
  if (flags->help) {
    std::printf("torpord: owns the memory of one GPU.\n\n%s", FlagsHelp().c_str());
    return 0;
  }
  if (flags->version) {
    std::printf("torpord %s\n", Version());
    return 0;
  }
  log::SetLevel(flags->log_level);
  SetDriverErrorSink([](const Status& status) { log::Error("driver: {}", status); });
  RaiseDescriptorLimit();

  std::signal(SIGPIPE, SIG_IGN);
  StopSignals signals;
  if (const Status taken = signals.Take(); !taken.ok()) return fail(taken);
  log::RestTeller rest_teller;
  if (const Status started = rest_teller.Start(); !started.ok()) return fail(started);
  const End end = Serve(*flags, decorators, signals);
  if (!end.status.ok()) return fail(end);
  log::Info("stopped");
  return 0;
}

}  // namespace torpor
