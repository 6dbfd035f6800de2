#ifndef TORPOR_CLIENT_CTL_DOCTOR_CHECKS_H_
#define TORPOR_CLIENT_CTL_DOCTOR_CHECKS_H_

#include <map>
#include <string>
#include <vector>

#include "client/ctl/doctor/child.h"
#include "client/ctl/doctor/daemon_survey.h"
#include "client/ctl/doctor/finding.h"
#include "client/ctl/doctor/gpu_survey.h"
#include "client/ctl/doctor/node.h"
#include "lib/base/status.h"

namespace torpor::ctl::doctor {

// Each gives the findings of one group of the catalog, from files and from what was asked before.

Findings CheckDriver(const Node& node, const GpuSurvey& gpus);
Findings CheckDeviceNodes(const Node& node);
// `dir`: the one that was looked at. `workers`: where workers of this user look; or why nowhere.
Findings CheckRuntimeDir(const Node& node, const std::string& dir,
                         const Result<std::string>& workers,
                         const std::vector<DaemonSurvey>& daemons, const std::string& device);
// `version`: of this program.
Findings CheckDaemon(const Node& node, const DaemonSurvey& daemon, const GpuSurvey& gpus,
                     const std::string& version, Duration limit);
Findings CheckMemory(const Node& node, const GpuSurvey& gpus,
                     const std::vector<DaemonSurvey>& daemons);
Findings CheckNuma(const Node& node, const GpuSurvey& gpus);
Findings CheckLimits(const Node& node);
// `calls`: those that were tried, and the errno of each; 0: it works.
Findings CheckContainer(const Node& node, const std::map<std::string, int>& calls);
std::map<std::string, int> TrySystemCalls();
// `units`: what systemctl answered to SystemctlCommand.
Findings CheckSystemd(const Node& node, const Answer& units);
std::vector<std::string> SystemctlCommand();

bool InContainer(const Node& node);
// "12 GPUs", "1 GPU"
std::string Count(int64_t count, const std::string& what);
// Names joined with ", ", at most `most` of them and how many more.
std::string Listing(const std::vector<std::string>& names, size_t most = 4);

// A file system as /proc/PID/mountinfo has it.
struct Mount {
  std::string point;
  std::string type;
  std::map<std::string, std::string> options;  // of the file system; without a value: empty
};
// That `path` lies in, for process `pid`.
std::optional<Mount> MountOf(const Node& node, const std::string& pid, const std::string& path);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_CHECKS_H_
