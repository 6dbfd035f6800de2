#ifndef TORPOR_CLIENT_CTL_DOCTOR_DAEMON_SURVEY_H_
#define TORPOR_CLIENT_CTL_DOCTOR_DAEMON_SURVEY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/doctor/node.h"
#include "lib/base/clock.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl::doctor {

// One socket file, and what came of connecting to it.
struct SocketState {
  enum class State { kMissing, kListens, kStale, kForbidden, kSilent, kFailed };
  State state = State::kMissing;
  std::string error;  // of the last one
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t mode = 0;
};

// What a folder of the runtime directory has, or had.
struct DaemonSurvey {
  std::string device;
  std::string folder;  // "/run/torpor/GPU-..."
  SocketState control;
  SocketState worker;
  // Who listens, by the kernel's word; 0: nobody, or one that this pid namespace does not see.
  pid_t pid = 0;
  pid_t lock_pid = 0;   // as the lock file says: the last one that served
  bool locked = false;  // by the kernel's list of locks
  // If the control socket listens.
  std::optional<v1::UsageResponse> usage;
  bool usage_silent = false;
  std::string usage_error;  // of one that answered otherwise
  Duration usage_time{};
};

// The daemons of `runtime_dir`, of `device` alone if that is not empty; connects to their sockets
// and asks for Usage, all at once, each for at most `limit`.
std::vector<DaemonSurvey> SurveyDaemons(const Node& node, const std::string& runtime_dir,
                                        const std::string& device, Duration limit);

// "NO_KEEPER"; empty: OK.
std::string ReasonOf(const google::rpc::Status& status);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_DAEMON_SURVEY_H_
