#include "client/ctl/doctor/doctor.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/report.h"
#include "lib/base/runtime_dir.h"
#include "lib/cli/version.h"

namespace torpor::ctl::doctor {
namespace {

Result<std::string> RuntimeDir(const Options& options) {
  std::string dir = options.runtime_dir;
  if (dir.empty()) {
    TORPOR_ASSIGN_OR_RETURN(dir, DefaultRuntimeDir());
  }
  std::error_code error;
  const auto path = std::filesystem::absolute(dir, error).lexically_normal();
  if (error) return dir;
  // Without the slash at the end.
  return path.has_filename() ? path.string() : path.parent_path().string();
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

  const Result<std::string> dir = RuntimeDir(options);
  std::vector<DaemonSurvey> daemons;
  if (dir.ok()) daemons = SurveyDaemons(node, *dir, options.device, options.limit);
  const GpuSurvey gpus = questions.Await(deadline, options.limit);

  Findings findings = CheckDriver(node, gpus);
  Append(CheckDeviceNodes(node), findings);
  Append(CheckRuntimeDir(node, dir, daemons, options.device), findings);
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
