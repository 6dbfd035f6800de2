#include "client/ctl/doctor/keepers.h"

#include <algorithm>

namespace torpor::ctl::doctor {
namespace {

// Of "--name=value" or "--name value"; the last one counts. Empty: none.
std::string FlagOf(const std::vector<std::string>& arguments, const std::string& name) {
  std::string value;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string flag = arguments[i].substr(0, arguments[i].find('='));
    std::replace(flag.begin(), flag.end(), '-', '_');
    if (flag != "__" + name && flag != "_" + name) continue;
    if (flag.size() < arguments[i].size()) {
      value = arguments[i].substr(flag.size() + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[i + 1];
    }
  }
  return value;
}

// Those that run, without those that have ended and wait for their parent.
std::vector<std::string> Keepers(const Node& node) {
  std::vector<std::string> pids;
  for (const std::string& pid : node.List("/proc")) {
    if (node.Line("/proc/" + pid + "/comm") != "torpor-keeper") continue;
    const std::string state = node.Value("/proc/" + pid + "/status", "State:").value_or("");
    if (state.empty() || (state[0] != 'Z' && state[0] != 'X')) pids.push_back(pid);
  }
  return pids;
}

std::string RuntimeDirOf(const Node& node, const std::string& pid,
                         const std::vector<std::string>& arguments) {
  std::string dir = FlagOf(arguments, "runtime_dir");
  if (dir.empty()) {
    constexpr char kVariable[] = "TORPOR_RUNTIME_DIR=";
    const std::string text = node.Read("/proc/" + pid + "/environ").value_or("");
    for (const std::string& variable : SplitAt(text, '\0')) {
      if (variable.rfind(kVariable, 0) == 0) dir = variable.substr(sizeof kVariable - 1);
    }
  }
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return dir;
}

}  // namespace

std::vector<std::string> KeepersOf(const Node& node, const std::string& device,
                                   const std::string& runtime_dir) {
  std::vector<std::string> sure;
  std::vector<std::string> unsure;
  for (const std::string& pid : Keepers(node)) {
    const std::vector<std::string> arguments =
        SplitAt(node.Read("/proc/" + pid + "/cmdline").value_or(""), '\0');
    const std::string of_device = FlagOf(arguments, "device");
    const std::string of_dir = RuntimeDirOf(node, pid, arguments);
    if (!of_device.empty() && of_device != device) continue;
    // What is not absolute begins where that process is.
    if (!of_dir.empty() && of_dir[0] == '/' && of_dir != runtime_dir) continue;
    (of_device.empty() && of_dir.empty() ? unsure : sure).push_back(pid);
  }
  return sure.empty() ? unsure : sure;
}

}  // namespace torpor::ctl::doctor
