// One daemon: its sockets, and what it says of itself. Its process is looked at elsewhere.

#include <algorithm>
#include <sstream>

#include "client/ctl/doctor/check_daemon_process.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/keepers.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl::doctor {
namespace {

using State = SocketState::State;

std::string Size(int64_t bytes) { return FormatBytes(Bytes(bytes)); }

Finding Forbidden(const Node& node, const DaemonSurvey& daemon) {
  const bool control = daemon.control.state == State::kForbidden;
  const bool both = control && daemon.worker.state == State::kForbidden;
  const SocketState& socket = control ? daemon.control : daemon.worker;
  const std::string user = UserName(node.user().uid);
  const std::string group = GroupName(socket.gid);
  if (!socket.error.empty()) {
    return Problem("daemon-socket", user + " may not look into " + daemon.folder,
                   "Let others in, not to write.\n$ chmod 0755 " + daemon.folder);
  }
  std::string remedy =
      "It is for the daemon's user alone: start the daemon with --socket_mode=0660 and "
      "--socket_group (--worker_socket_mode, --worker_socket_group) for those who may use it.";
  if ((socket.mode & 0060) == 0060) {
    remedy = socket.gid == 0
                 ? "The group is root's. Start the daemon with --socket_group, or as a user of its "
                   "own, as the package does, and join that group; or be root.\n"
                   "$ sudo torporctl doctor"
                 : "Join the group, and log in again. In Kubernetes: supplementalGroups.\n"
                   "$ adduser " +
                       user + " " + group;
  }
  const std::string why =
      ": mode " + ModeText(socket.mode) + ", " + UserName(socket.uid) + ":" + group;
  Finding finding = Problem("daemon-socket", user + " may not connect" + why, remedy);
  // Each socket may have users of its own.
  if (!both && control) {
    finding = Warning("daemon-socket", user + " may have sessions, but not operate it" + why,
                      "If that is not as it is meant: " + remedy);
  } else if (!both) {
    finding = Warning("daemon-socket", user + " may operate it, but not have sessions" + why,
                      "If workers are to run as this user: " + remedy);
  }
  return std::move(finding).With("mode", socket.mode).With("gid", socket.gid);
}

Finding Stale(const Node& node, const DaemonSurvey& daemon) {
  const std::vector<std::string> keepers =
      KeepersOf(node, daemon.device, daemon.folder.substr(0, daemon.folder.rfind('/')));
  const std::string last =
      daemon.lock_pid > 0 ? " (the last one was pid " + std::to_string(daemon.lock_pid) + ")" : "";
  const bool cuda =
      daemon.device.compare(0, 4, "GPU-") == 0 || daemon.device.compare(0, 4, "MIG-") == 0;
  std::string remedy = "Start it again, which replaces the files, or remove " + daemon.folder +
                       ".\n" +
                       (cuda ? "$ systemctl start torpor@" + daemon.device
                             : "$ torpord --driver=host --device=" + daemon.device);
  if (!keepers.empty()) {
    remedy = "A torpor-keeper runs (pid " + Listing(keepers) +
             "). If it is this daemon's, it starts the next one within two seconds; if not so, its "
             "log says why. Else start the daemon again, which replaces the files.";
  }
  return Problem("daemon-socket", "sockets at which nobody listens: the daemon was killed" + last,
                 remedy)
      .With("last_pid", daemon.lock_pid)
      .With("keepers", static_cast<int64_t>(keepers.size()));
}

Finding Socket(const Node& node, const DaemonSurvey& daemon, Duration limit) {
  constexpr char kName[] = "daemon-socket";
  const auto any = [&](State state) {
    return daemon.control.state == state || daemon.worker.state == state;
  };
  if (any(State::kForbidden)) return Forbidden(node, daemon);
  if (any(State::kStale)) return Stale(node, daemon);
  if (any(State::kSilent)) {
    return Problem(kName, "does not let anybody connect, in " + FormatDuration(limit),
                   "The daemon is stopped or stuck. A keeper does not restart such a one: kill it, "
                   "and it starts the next.\n$ kill -KILL " +
                       std::to_string(daemon.lock_pid));
  }
  if (any(State::kFailed)) {
    return Problem(kName, "cannot be connected to: " + daemon.control.error + daemon.worker.error,
                   "Name a shorter runtime directory if its path is too long.");
  }
  const bool control = daemon.control.state == State::kListens;
  const bool worker = daemon.worker.state == State::kListens;
  if (!control && !worker) {
    if (daemon.locked) {
      return Warning(kName, "no sockets, but a process holds the lock: it starts, or ends",
                     "Wait; if that does not help, its log says what it waits for.")
          .With("last_pid", daemon.lock_pid);
    }
    return Fine(kName, "no sockets: it was stopped").With("last_pid", daemon.lock_pid);
  }
  if (!control || !worker) {
    return Problem(kName,
                   std::string(control ? "worker.sock" : "control.sock") +
                       " is missing: it was removed, or the daemon is starting",
                   "If that stays, restart the daemon, with a keeper by an upgrade.\n"
                   "$ torporctl upgrade --device " +
                       daemon.device);
  }
  return Fine(kName, "both listen, mode " + ModeText(daemon.control.mode) + ", " +
                         UserName(daemon.control.uid) + ":" + GroupName(daemon.control.gid))
      .With("mode", daemon.control.mode)
      .With("gid", daemon.control.gid)
      .With("pid", daemon.pid);
}

Finding Answering(const DaemonSurvey& daemon, Duration limit) {
  constexpr char kName[] = "daemon-usage";
  if (daemon.usage_silent) {
    return Problem(kName, "did not answer Usage in " + FormatDuration(limit),
                   "The daemon is stopped or stuck. A keeper does not restart such a one: kill it, "
                   "and it starts the next; workers come back.\n$ kill -KILL " +
                       std::to_string(daemon.pid > 0 ? daemon.pid : daemon.lock_pid));
  }
  const std::string error = daemon.usage_error.substr(0, daemon.usage_error.find('\n'));
  if (error.rfind("PERMISSION_DENIED", 0) == 0) {
    return Warning(kName, "refused: " + error,
                   "Be a user with a role, or give this one a role in the file of --access: READER "
                   "sees everything and changes nothing (docs/security.md).");
  }
  if (!daemon.usage.has_value()) {
    return Problem(kName, "answered Usage with " + error,
                   "docs/errors.md has each reason. One that is starting serves in a moment.");
  }
  const v1::DeviceUsage& device = daemon.usage->device();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(daemon.usage_time).count();
  return Fine(kName, "answered in " + FormatDuration(daemon.usage_time) + ": " + device.name() +
                         ", " + Size(device.total_bytes()) + ", " + Size(device.resident_bytes()) +
                         " resident, " + Size(device.available_bytes()) + " available")
      .With("microseconds", micros)
      .With("total_bytes", device.total_bytes())
      .With("resident_bytes", device.resident_bytes())
      .With("available_bytes", device.available_bytes());
}

Finding VersionOf(const v1::UsageResponse& usage, const std::string& version) {
  constexpr char kName[] = "daemon-version";
  if (usage.version() == version) return Fine(kName, usage.version() + ", as torporctl");
  return Warning(kName, usage.version() + ", and torporctl is " + version,
                 "Install one release; then have the daemon hand over to the new program.\n"
                 "$ torporctl upgrade --device " +
                     usage.device().uuid());
}

Finding Health(const v1::UsageResponse& usage) {
  constexpr char kName[] = "daemon-health";
  const std::string reason = ReasonOf(usage.health());
  if (reason.empty()) return Fine(kName, "OK");
  return Problem(kName, reason + ": " + usage.health().message(),
                 reason == "GPU_LOST" ? "Reset the GPU or the machine, then restart the daemon.\n"
                                        "$ dmesg | grep -i -e nvrm -e xid"
                                      : "docs/errors.md says what to do about " + reason + ".");
}

Finding KeeperOf(const v1::UsageResponse& usage) {
  constexpr char kName[] = "daemon-keeper";
  const std::string reason = ReasonOf(usage.protection());
  if (reason.empty()) return Fine(kName, "there: the daemon may be killed or upgraded");
  if (reason == "NO_KEEPER") {
    return Warning(kName, "none: the daemon's death ends all sessions",
                   "Start it behind a keeper, as the package's units do.\n"
                   "$ torpor-keeper --socket=S --journal=J -- torpord ...");
  }
  return Problem(kName, reason + ": " + usage.protection().message(),
                 "Start a keeper with the same --socket and --journal (systemd does it by "
                 "itself); the daemon goes on meanwhile.\n"
                 "$ systemctl restart torpor@" +
                     usage.device().uuid());
}

Finding Pool(const v1::UsageResponse& usage) {
  constexpr char kName[] = "daemon-pool";
  const v1::HostPoolUsage& pool = usage.host_pool();
  const std::string what = pool.kind() + ", " + Size(pool.pinned_bytes()) + " of " +
                           Size(pool.budget_bytes()) + " pinned" +
                           (pool.pinning() ? ", goes on" : "");
  const auto has = [&](const char* word) { return pool.kind().find(word) != std::string::npos; };
  const bool is_protected = usage.protection().code() == 0;
  const bool cuda = usage.device().driver() == "cuda";
  Finding finding = Fine(kName, what);
  if (pool.pinning_error().code() != 0) {
    finding = Problem(
        kName,
        what + "; " + Size(pool.refused_bytes()) + " refused: " + pool.pinning_error().message(),
        "A sleep that needs it tries again. Make room in host memory, or give the "
        "daemon a smaller pool.\n$ torpord --host_pool=SIZE ...");
  } else if (has("removed")) {
    finding = Problem(kName, what + ": its file was removed, and ends with daemon and keeper",
                      "Wake what sleeps, then have the daemon make another pool.\n"
                      "$ torporctl upgrade --device " +
                          usage.device().uuid());
  } else if (has("anonymous") && is_protected && pool.budget_bytes() > 0) {
    finding = Warning(kName, what + ": what sleeps ends with the daemon, though it has a keeper",
                      "See huge-pages; or say --pool_dir, or --pool_memory=memfd.");
  } else if (cuda && has("small pages")) {
    finding = Warning(kName, what + ": pinned slowly", "See huge-pages and pool-folder.");
  }
  return std::move(finding)
      .With("budget_bytes", pool.budget_bytes())
      .With("pinned_bytes", pool.pinned_bytes())
      .With("refused_bytes", pool.refused_bytes());
}

// What a sleep of everything at level 1 would keep on the host: all but what it drops.
int64_t KeptAtLevel1(const v1::UsageResponse& usage) {
  int64_t kept = 0;
  for (const v1::WorkerUsage& worker : usage.workers()) {
    for (const v1::TagUsage& tag : worker.tags()) {
      const bool dropped = tag.tag() == "kv_cache" || tag.tag() == "workspace";
      kept += tag.offloaded_bytes() + (dropped ? 0 : tag.resident_bytes());
    }
  }
  return kept;
}

Finding PoolSize(const v1::UsageResponse& usage) {
  constexpr char kName[] = "daemon-pool-size";
  const int64_t budget = usage.host_pool().budget_bytes();
  const int64_t kept = KeptAtLevel1(usage);
  const std::string what = "all workers asleep at level 1 keep " + Size(kept) + " of " +
                           Size(budget) + ", device: " + Size(usage.device().total_bytes());
  Finding finding = Fine(kName, what);
  if (budget == 0) {
    finding = Warning(kName, "the pool is empty: nothing can be kept while it sleeps",
                      "Give the daemon host memory.\n$ torpord --host_pool=SIZE ...");
  } else if (kept > budget) {
    finding = Warning(kName, what + ": they do not all fit",
                      "Give the daemon a larger pool, or sleep some at level 2.\n"
                      "$ torpord --host_pool=SIZE ...");
  }
  return std::move(finding)
      .With("budget_bytes", budget)
      .With("kept_bytes", kept)
      .With("total_bytes", usage.device().total_bytes());
}

Finding Workers(const v1::UsageResponse& usage) {
  constexpr char kName[] = "daemon-workers";
  const auto& workers = usage.workers();
  const auto count = [&](auto is) {
    return static_cast<int64_t>(std::count_if(workers.begin(), workers.end(), is));
  };
  const int64_t hidden =
      count([](const v1::WorkerUsage& worker) { return worker.pid() == 0 && !worker.awaited(); });
  const int64_t awaited = count([](const v1::WorkerUsage& worker) { return worker.awaited(); });
  const int64_t unsure =
      count([](const v1::WorkerUsage& worker) { return worker.rollback_pending(); });
  const std::string all = Count(workers.size(), "worker");
  Finding finding = Fine(kName, all);
  if (unsure > 0) {
    finding = Problem(kName,
                      all + ", of which " + std::to_string(unsure) +
                          " did not acknowledge that an operation was undone",
                      "A worker is stopped or stuck: let it go on, or end it.\n$ torporctl usage");
  } else if (hidden > 0) {
    finding =
        Warning(kName, all + ", of which " + std::to_string(hidden) + " in another pid namespace",
                "Share the pid namespace (hostPID: true for the daemons), or live with the "
                "wait: --reconnect_grace.");
  } else if (awaited > 0) {
    finding = Warning(kName, all + ", of which " + std::to_string(awaited) + " are not back yet",
                      "The daemon was started again a moment ago: they come back within its "
                      "grace time, or end.");
  }
  return std::move(finding)
      .With("workers", workers.size())
      .With("hidden", hidden)
      .With("awaited", awaited)
      .With("rollback_pending", unsure);
}

}  // namespace

Findings CheckDaemon(const Node& node, const DaemonSurvey& daemon, const GpuSurvey& gpus,
                     const std::string& version, Duration limit) {
  Findings findings = {Socket(node, daemon, limit)};
  if (daemon.control.state == State::kListens) {
    findings.push_back(Answering(daemon, limit));
    if (daemon.usage.has_value()) {
      const v1::UsageResponse& usage = *daemon.usage;
      for (Finding finding : {VersionOf(usage, version), Health(usage), KeeperOf(usage),
                              Pool(usage), PoolSize(usage), Workers(usage)}) {
        findings.push_back(std::move(finding));
      }
    }
    for (Finding& finding : CheckDaemonProcess(node, daemon, gpus)) {
      findings.push_back(std::move(finding));
    }
  }
  for (Finding& finding : findings) finding.subject = daemon.device;
  return findings;
}

}  // namespace torpor::ctl::doctor
