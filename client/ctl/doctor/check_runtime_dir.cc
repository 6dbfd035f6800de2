// The folder in which daemons have their sockets.

#include <algorithm>

#include "client/ctl/doctor/checks.h"

namespace torpor::ctl::doctor {
namespace {

Finding Folder(const Node& node, const std::string& dir, const Result<std::string>& workers) {
  constexpr char kName[] = "runtime-directory";
  // Where the package and root's daemons have it.
  constexpr char kUsual[] = "/run/torpor";
  const auto info = node.Stat(dir);
  if (!workers.ok() && !info.has_value()) {
    return Problem(kName, workers.status().message(),
                   "Say where the daemons are.\n$ export TORPOR_RUNTIME_DIR=/run/torpor");
  }
  if (!info.has_value()) {
    const bool elsewhere = dir != kUsual && node.Exists(kUsual);
    return Warning(kName,
                   dir + " is not there" +
                       (elsewhere ? std::string(", but ") + kUsual + " is" : ": no daemon has run"),
                   elsewhere ? "Say where the daemons are, here and for workers.\n"
                               "$ export TORPOR_RUNTIME_DIR=/run/torpor"
                             : "Start a daemon, or say where the daemons are: --runtime-dir, "
                               "TORPOR_RUNTIME_DIR. In a container, mount it.\n$ torpord");
  }
  const std::string what = dir + ", mode " + ModeText(info->st_mode) + ", " +
                           UserName(info->st_uid) + ":" + GroupName(info->st_gid);
  const int64_t mode = info->st_mode & 07777;
  if (!S_ISDIR(info->st_mode)) {
    return Problem(kName, dir + " is no folder", "Name another one: --runtime-dir.");
  }
  if ((info->st_mode & 0002) != 0) {
    return Problem(kName, what + ": everybody may put sockets there",
                   "Let only its owner write: who has a socket there is taken for a daemon.\n"
                   "$ chmod go-w " +
                       dir)
        .With("mode", mode);
  }
  if (!workers.ok() || *workers != dir) {
    return Warning(
               kName,
               what + "; workers of this user look " +
                   (workers.ok() ? "into " + *workers : "nowhere: " + workers.status().message()),
               "Say it to the workers, too.\n$ export TORPOR_RUNTIME_DIR=" + dir)
        .With("mode", mode);
  }
  const auto mount = MountOf(node, "self", dir);
  const std::string type = mount.has_value() ? mount->type : "unknown";
  if (type != "tmpfs" && type != "ramfs" && type != "unknown") {
    return Warning(kName, what + ", on " + type + ", which outlives a boot",
                   "Use a folder on a tmpfs, as /run is one; or remove the journals at each boot, "
                   "before a keeper starts.\n$ findmnt -T " +
                       dir)
        .With("mode", mode);
  }
  return Fine(kName, what + (type == "unknown" ? "" : ", on " + type)).With("mode", mode);
}

Finding Daemons(const std::string& dir, const std::vector<DaemonSurvey>& daemons,
                const std::string& device) {
  constexpr char kName[] = "daemons";
  const auto answering =
      std::count_if(daemons.begin(), daemons.end(),
                    [](const DaemonSurvey& daemon) { return daemon.usage.has_value(); });
  const auto there = static_cast<int64_t>(daemons.size());
  if (answering > 0) {
    return Fine(kName, std::to_string(answering) + " of " + std::to_string(there) +
                           (there == 1 ? " answers" : " answer"))
        .With("daemons", there)
        .With("answering", answering);
  }
  const std::string where = " under " + dir;
  const std::string found = daemons.empty()
                                ? (device.empty() ? "none" : "none of device " + device) + where
                                : "none of " + std::to_string(there) + where + " answers";
  return Warning(kName, found,
                 "Start one for each GPU, best behind a keeper; where the package is installed "
                 "and there are GPUs:\n$ systemctl enable --now torpor.target torpor-gpus.service")
      .With("daemons", there)
      .With("answering", 0);
}

}  // namespace

Findings CheckRuntimeDir(const Node& node, const std::string& dir,
                         const Result<std::string>& workers,
                         const std::vector<DaemonSurvey>& daemons, const std::string& device) {
  return {Folder(node, dir, workers), Daemons(dir, daemons, device)};
}

}  // namespace torpor::ctl::doctor
