#ifndef TORPOR_CLIENT_CTL_DOCTOR_NODE_FIXTURE_H_
#define TORPOR_CLIENT_CTL_DOCTOR_NODE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "client/ctl/doctor/finding.h"
#include "client/ctl/doctor/node.h"
#include "tests/harness/temp_dir.h"

namespace torpor::ctl::doctor {

// A machine of made-up files, which a test writes.
class NodeTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
    const std::string file = root_.path() + path;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << text;
    ::chmod(file.c_str(), mode);
  }
  void MakeFolder(const std::string& path, mode_t mode = 0755) {
    std::filesystem::create_directories(root_.path() + path);
    ::chmod((root_.path() + path).c_str(), mode);
  }
  void Link(const std::string& path, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(root_.path() + path).parent_path());
    std::filesystem::create_symlink(target, root_.path() + path);
  }
  Node TheNode() const { return Node(root_.path(), user_, environment_); }

  // An H200 as its driver shows it; with its device nodes, of mode `mode`.
  void AddGpu(mode_t mode = 0666) {
    Write("/sys/bus/pci/devices/0000:19:00.0/vendor", "0x10de\n");
    Write("/sys/bus/pci/devices/0000:19:00.0/class", "0x030200\n");
    Write("/sys/bus/pci/devices/0000:19:00.0/numa_node", "1\n");
    Link("/sys/bus/pci/devices/0000:19:00.0/driver", "../../../../bus/pci/drivers/nvidia");
    Write("/proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
          "(dvs-builder@U22)  Sun Jul 27 07:09:11 UTC 2025\n"
          "GCC version:  gcc version 12.3.0\n");
    Write("/proc/driver/nvidia/gpus/0000:19:00.0/information",
          "Model: \t\t NVIDIA H200\nIRQ:   \t\t 512\nGPU UUID: \t " + std::string(kGpu) +
              "\nBus Location: \t 0000:19:00.0\nDevice Minor: \t 0\n");
    for (const char* path : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"}) {
      Write(path, "", mode);
    }
  }

  static constexpr char kGpu[] = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
  TempDir root_;
  Node::User user_;
  std::map<std::string, std::string> environment_;
};

// The first finding of a check (of a subject); one without a name if there is none.
inline Finding Find(const Findings& findings, const std::string& check,
                    const std::string& subject = "") {
  for (const Finding& finding : findings) {
    if (finding.check == check && (subject.empty() || finding.subject == subject)) return finding;
  }
  return {};
}

inline std::ostream& operator<<(std::ostream& out, const Finding& finding) {
  return out << finding.check << " " << static_cast<int>(finding.verdict) << ": " << finding.found
             << " | " << finding.remedy;
}

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_NODE_FIXTURE_H_
