#include "daemon/pool/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <thread>

namespace torpor {

std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc() && value >= 0 && value < CPU_SETSIZE;
  };
  while (at != end && *at != '\n') {
    int first = 0;
    if (!number(first)) return {};
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(last) || last < first) return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at != end && *at != '\n' && *at++ != ',') return {};
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::vector<int> CpusOfNode(int node, const std::string& root) {
  std::vector<int> allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
    }
  } else {  // more CPUs than a set has
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) allowed.push_back(cpu);
  }
  if (node < 0) return allowed;
  std::string line;
  std::ifstream file(root + "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  std::getline(file, line);
  std::vector<int> here;
  for (const int cpu : ParseCpuList(line)) {
    if (std::binary_search(allowed.begin(), allowed.end(), cpu)) here.push_back(cpu);
  }
  return here.empty() ? allowed : here;
}

void RunOn(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) > 0) (void)::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace torpor
