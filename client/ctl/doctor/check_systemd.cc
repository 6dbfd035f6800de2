// Units of the package.

#include <sstream>

#include "client/ctl/doctor/checks.h"

namespace torpor::ctl::doctor {
namespace {

constexpr char kName[] = "systemd";

}  // namespace

std::vector<std::string> SystemctlCommand() {
  return {"systemctl",   "list-units", "--all",   "--plain",
          "--no-legend", "--no-pager", "torpor*", "run-torpor*"};
}

Findings CheckSystemd(const Node& node, const Answer& units) {
  if (!node.Exists("/run/systemd/system")) return {Fine(kName, "does not run here")};
  if (units.end == Answer::End::kSilent) {
    return {Warning(kName, "systemctl did not answer", "Look whether systemd itself is well.")};
  }
  if (units.end == Answer::End::kDied || units.status != 0) {
    return {Fine(kName, "systemctl cannot be asked").With("status", units.status)};
  }
  Findings findings;
  int64_t active = 0;
  std::istringstream lines(units.text);
  for (std::string line; std::getline(lines, line);) {
    // "torpor@GPU-8932.service loaded failed failed Torpor: GPU memory of device GPU-8932"
    const std::vector<std::string> words = SplitWords(line);
    if (words.size() < 4) continue;
    const std::string& unit = words[0];
    const bool daemon = unit.rfind("torpor@", 0) == 0;
    std::string remedy = "Its log says why.\n$ journalctl --unit '";
    remedy.append(unit).append("' --lines 50");
    if (words[2] == "failed") {
      remedy.append("\n$ systemctl restart '").append(unit).append("'");
      findings.push_back(Problem(kName, unit + " has failed", remedy));
    } else if (words[2] == "activating" && daemon) {
      findings.push_back(
          Warning(kName, unit + " is activating: no daemon has come up yet", remedy));
    } else if (words[2] == "active" && daemon) {
      ++active;
    }
  }
  if (findings.empty() || active > 0) {
    findings.insert(findings.begin(), Fine(kName, active == 0 ? "no instance of torpor@.service"
                                                              : Count(active, "instance") +
                                                                    " of torpor@.service active")
                                          .With("active", active));
  }
  return findings;
}

}  // namespace torpor::ctl::doctor
