#ifndef TORPOR_CLIENT_CTL_DOCTOR_CHECK_DAEMON_PROCESS_H_
#define TORPOR_CLIENT_CTL_DOCTOR_CHECK_DAEMON_PROCESS_H_

#include "client/ctl/doctor/daemon_survey.h"
#include "client/ctl/doctor/finding.h"
#include "client/ctl/doctor/gpu_survey.h"
#include "client/ctl/doctor/node.h"

namespace torpor::ctl::doctor {

// What /proc shows of a daemon that listens: descriptors, memory, CPUs, environment.
Findings CheckDaemonProcess(const Node& node, const DaemonSurvey& daemon, const GpuSurvey& gpus);

// A row of /proc/PID/limits; -1: unlimited. Nothing: it cannot be read.
struct ProcessLimit {
  int64_t soft = 0;
  int64_t hard = 0;
};
std::optional<ProcessLimit> LimitOf(const Node& node, const std::string& pid,
                                    const std::string& name);

// Below it a machine with many models runs out of descriptors.
constexpr int64_t kFewDescriptors = 16384;

// The NUMA node of the GPU at a PCI address; -1: unknown.
int NumaNodeOf(const Node& node, const std::string& pci_address);
// Whether two lists of CPUs as "0-3,8" have one in common; true if one of them is empty.
bool ShareCpus(const std::string& a, const std::string& b);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_CHECK_DAEMON_PROCESS_H_
