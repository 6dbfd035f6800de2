#ifndef TORPOR_DAEMON_POOL_CPUS_H_
#define TORPOR_DAEMON_POOL_CPUS_H_

#include <string>
#include <vector>

namespace torpor {

// The CPUs of a list as Linux writes it ("0-3,8,10-11"), in ascending order; empty for anything
// else.
std::vector<int> ParseCpuList(const std::string& text);

// The CPUs of NUMA node `node` that this thread may run on; all that it may run on if there is no
// such node (-1) or it has none of them. `root` is put before /sys.
std::vector<int> CpusOfNode(int node, const std::string& root = "");

// Keeps the calling thread on `cpus`, as far as the system lets it.
void RunOn(const std::vector<int>& cpus);

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_CPUS_H_
