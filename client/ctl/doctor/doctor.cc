#include "client/ctl/doctor/doctor.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "client/ctl/daemons.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/report.h"
#include "lib/base/runtime_dir.h"
#include "lib/cli/version.h"

namespace torpor::ctl::doctor {
namespace {

std::string Normal(const std::string& dir) {
  std::error_code error;
  const auto path = std::filesystem::absolute(dir, error).lexically_normal();
  if (error) return dir;
  // Without the slash at the end.
  return path.has_filename() ? path.string() : path.parent_path().string();
}

// Where workers that this user starts look for daemons.
Result<std::string> WorkersDir(const Options& options) {
  if (!options.runtime_dir.empty()) return Normal(options.runtime_dir);
  TORPOR_ASSIGN_OR_RETURN(const std::string dir, DefaultRuntimeDir());
  return Normal(dir);
}

struct Survey {
  std::string dir;
  std::vector<DaemonSurvey> daemons;
};

// Of the folder in which other commands find daemons: the first one with a daemon that runs.
Survey SurveyDirs(const Node& node, const Options& options) {
  using State = SocketState::State;
  const auto runs = [](const DaemonSurvey& daemon) {
    const State state = daemon.control.state;
    return state != State::kMissing && state != State::kStale;
  };
  std::vector<Survey> all;
  for (const std::string& one : RuntimeDirs(options.runtime_dir, node.user().uid == 0)) {
    const std::string dir = Normal(one);
    all.push_back({dir, SurveyDaemons(node, dir, options.device, options.limit)});
    const std::vector<DaemonSurvey>& daemons = all.back().daemons;
    if (std::any_of(daemons.begin(), daemons.end(), runs)) return std::move(all.back());
  }
  const auto some = std::find_if(all.begin(), all.end(),
                                 [](const Survey& survey) { return !survey.daemons.empty(); });
  return std::move(some == all.end() ? all.front() : *some);
}

void Append(Findings more, Findings& findings) {
  for (Finding& finding : more) findings.push_back(std::move(finding));
}

}  // namespace

bool Examine(const Options& options) {
  const Node node = Node::Here();
  // All that is to be given up runs in processes of its own, which are forked before there are
  // threads.
  GpuQuestions questions(node);
  Child systemctl = Child::StartProgram(SystemctlCommand());
  const TimePoint deadline = Clock::Real().Now() + options.limit;

  const auto [dir, daemons] = SurveyDirs(node, options);
  const GpuSurvey gpus = questions.Await(deadline, options.limit);

  Findings findings = CheckDriver(node, gpus);
  Append(CheckDeviceNodes(node), findings);
  Append(CheckRuntimeDir(node, dir, WorkersDir(options), daemons, options.device), findings);
  for (const DaemonSurvey& daemon : daemons) {
    Append(CheckDaemon(node, daemon, gpus, Version(), options.limit), findings);
  }
  Append(CheckMemory(node, gpus, daemons), findings);
  Append(CheckNuma(node, gpus), findings);
  Append(CheckLimits(node), findings);
  Append(CheckContainer(node, TrySystemCalls()), findings);
  Append(CheckSystemd(node, systemctl.Await(deadline)), findings);

  const std::string text =
      options.json ? PrintJson(findings, Version()) : PrintText(findings, Version());
  std::fputs(text.c_str(), stdout);
  return !HasProblem(findings);
}

}  // namespace torpor::ctl::doctor
