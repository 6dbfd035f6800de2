#include <gmock/gmock.h>

#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/node_fixture.h"

namespace torpor::ctl::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class CheckDriverTest : public NodeTest {
 protected:
  CheckDriverTest() { gpus_.limit = seconds(15); }
  // A node with one GPU, and what its driver answers.
  void AddAnsweringGpu() {
    AddGpu();
    gpus_.asked = true;
    gpus_.cuda.library = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06";
    gpus_.cuda.version = 13000;
    gpus_.cuda.status = Status::Ok();
    gpus_.cuda.devices = {
        {kGpu, "NVIDIA H200", "0000:19:00.0", 150'122'594'304, 0, 90, true, true}};
    gpus_.nvml.gpus = {{kGpu, 0, 0, 150'000, 600}};
  }
  Finding Check(const std::string& name) {
    Finding finding = Find(CheckDriver(TheNode(), gpus_), name);
    EXPECT_EQ(finding.check, name);
    return finding;
  }
  void ExpectProblem(const std::string& name, const std::string& found, const std::string& remedy) {
    const Finding finding = Check(name);
    EXPECT_EQ(finding.verdict, Verdict::kProblem) << finding;
    EXPECT_THAT(finding.found, HasSubstr(found));
    EXPECT_THAT(finding.remedy, HasSubstr(remedy));
  }
  GpuSurvey gpus_;
};

TEST_F(CheckDriverTest, AGoodGpuIsFine) {
  AddAnsweringGpu();
  for (const Finding& finding : CheckDriver(TheNode(), gpus_)) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding;
    EXPECT_THAT(finding.remedy, IsEmpty());
  }
  EXPECT_EQ(Check("kernel-driver").found, "NVIDIA's module 580.65.06, 1 GPU");
  EXPECT_THAT(Check("cuda-library").found, HasSubstr("CUDA 13.0"));
  EXPECT_EQ(Check("cuda-devices").found, "1 device: " + std::string(kGpu));
  EXPECT_EQ(Check("gpu-features").subject, kGpu);
  EXPECT_THAT(Check("gpu-features").found, HasSubstr("139.81 GiB, compute capability 9.0"));
}

TEST_F(CheckDriverTest, WithoutAGpuThereIsOneWarning) {
  gpus_.cuda.status = Unavailable("CUDA_LIBRARY_MISSING", "libcuda.so.1: cannot open");
  int warnings = 0;
  for (const Finding& finding : CheckDriver(TheNode(), gpus_)) {
    EXPECT_NE(finding.verdict, Verdict::kProblem) << finding;
    warnings += finding.verdict == Verdict::kWarning ? 1 : 0;
  }
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(Check("kernel-driver").verdict, Verdict::kWarning);
}

TEST_F(CheckDriverTest, AGpuWithoutAModule) {
  Write("/sys/bus/pci/devices/0000:19:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:19:00.0/class", "0x030200\n");
  Link("/sys/bus/pci/devices/0000:19:00.0/driver", "../drivers/vfio-pci");
  ExpectProblem("kernel-driver", "1 NVIDIA GPU on the PCI bus (0000:19:00.0, driver: vfio-pci)",
                "$ modprobe nvidia");
}

TEST_F(CheckDriverTest, AModuleWithoutItsGpu) {
  AddGpu();
  std::filesystem::remove_all(root_.path() + "/proc/driver/nvidia/gpus");
  ExpectProblem("kernel-driver", "has none of the 1 GPU", "dmesg");
}

TEST_F(CheckDriverTest, ALibraryThatIsMissing) {
  AddGpu();
  gpus_.asked = true;
  gpus_.cuda.status = Unavailable("CUDA_LIBRARY_MISSING", "libcuda.so.1: cannot open");
  ExpectProblem("cuda-library", "libcuda.so.1: cannot open", "libcuda1");
  Write("/.dockerenv", "");
  ExpectProblem("cuda-library", "libcuda.so.1: cannot open", "NVIDIA_DRIVER_CAPABILITIES");
}

TEST_F(CheckDriverTest, ALibraryThatIsTooOld) {
  AddAnsweringGpu();
  gpus_.cuda.version = 11020;
  gpus_.cuda.devices.clear();
  gpus_.cuda.status = Status(Code::kUnimplemented, "CUDA_DRIVER_TOO_OLD", "has no cuInit");
  ExpectProblem("cuda-library", "CUDA 11.2, too old", "470");
}

TEST_F(CheckDriverTest, AModuleAndALibraryThatDoNotGoTogether) {
  AddAnsweringGpu();
  gpus_.cuda.library = "/usr/lib/libcuda.so.570.10";
  gpus_.cuda.devices.clear();
  gpus_.cuda.status = Internal("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cuInit: mismatch");
  ExpectProblem("cuda-library", "library 570.10 and module 580.65.06", "reboot");
  ExpectProblem("cuda-devices", "cuInit: mismatch", "cuda-library");
}

TEST_F(CheckDriverTest, ADriverThatHangs) {
  AddAnsweringGpu();
  gpus_.cuda_end = Answer::End::kSilent;
  gpus_.nvml_end = Answer::End::kSilent;
  gpus_.cuda = {};
  ExpectProblem("cuda-devices", "did not answer in 15.0s", "dmesg");
  ExpectProblem("mig", "did not answer in 15.0s", "dmesg");
  EXPECT_EQ(Check("cuda-library").verdict, Verdict::kWarning);
}

TEST_F(CheckDriverTest, ALibraryThatCrashes) {
  AddAnsweringGpu();
  gpus_.cuda_end = Answer::End::kDied;
  gpus_.cuda_signal = 11;
  gpus_.cuda = {};
  ExpectProblem("cuda-devices", "signal 11", "anew");
}

TEST_F(CheckDriverTest, ErrorsOfCudaHaveTheirRemedies) {
  AddAnsweringGpu();
  gpus_.cuda.devices.clear();
  gpus_.cuda.status = Internal("CUDA_ERROR_SYSTEM_NOT_READY", "cuInit: not ready");
  ExpectProblem("cuda-devices", "not ready", "$ systemctl enable --now nvidia-fabricmanager");
  gpus_.cuda.status = Internal("CUDA_ERROR_NO_DEVICE", "cuInit: no device");
  environment_["CUDA_VISIBLE_DEVICES"] = "-1";
  ExpectProblem("cuda-devices", "no device", "CUDA_VISIBLE_DEVICES is \"-1\"");
  gpus_.cuda.status = Internal("CUDA_ERROR_UNKNOWN", "cuInit: unknown");
  ExpectProblem("cuda-devices", "unknown", "Xid");
}

TEST_F(CheckDriverTest, NobodyIsAskedWithoutNodes) {
  AddGpu();
  gpus_.cuda.library = "/usr/lib/libcuda.so.580.65.06";
  EXPECT_EQ(Check("cuda-devices").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("cuda-devices").remedy, HasSubstr("device-nodes"));
}

TEST_F(CheckDriverTest, WhatADeviceHasToDo) {
  AddAnsweringGpu();
  gpus_.cuda.devices[0].descriptors = false;
  ExpectProblem("gpu-features", "no descriptors", "pass the whole GPU");
  gpus_.cuda.devices[0].virtual_memory = false;
  ExpectProblem("gpu-features", "no virtual memory management", "vGPU");
  gpus_.cuda.devices[0].virtual_memory = gpus_.cuda.devices[0].descriptors = true;
  gpus_.cuda.devices[0].capability = 61;
  EXPECT_EQ(Check("gpu-features").verdict, Verdict::kWarning);
}

TEST_F(CheckDriverTest, ModesThatKeepWorkersOut) {
  AddAnsweringGpu();
  gpus_.cuda.devices[0].compute_mode = 3;
  ExpectProblem("compute-mode", "no worker gets one",
                "$ nvidia-smi -i " + std::string(kGpu) + " -c DEFAULT");
  gpus_.cuda.devices[0].compute_mode = 2;
  ExpectProblem("compute-mode", "prohibited", "DEFAULT");
}

TEST_F(CheckDriverTest, Mig) {
  AddAnsweringGpu();
  gpus_.nvml.gpus[0].mig_mode = gpus_.nvml.gpus[0].pending_mig_mode = 1;
  gpus_.cuda.devices.clear();
  Finding mig = Check("mig");
  EXPECT_EQ(mig.verdict, Verdict::kWarning);
  EXPECT_EQ(mig.subject, kGpu);
  EXPECT_THAT(mig.remedy, HasSubstr("nvidia-smi mig"));
  gpus_.cuda.devices = {
      {"MIG-1", "NVIDIA H200 MIG 1g.18gb", "0000:19:00.0", 18, 0, 90, true, true}};
  mig = Check("mig");
  EXPECT_EQ(mig.verdict, Verdict::kOk) << mig;
  EXPECT_EQ(mig.numbers["instances"], 1);
  gpus_.nvml.gpus[0].pending_mig_mode = 0;
  EXPECT_THAT(Check("mig").remedy, HasSubstr(" -r"));
  gpus_.nvml = {};
  gpus_.nvml.error = "libnvidia-ml.so.1: cannot open";
  EXPECT_THAT(Check("mig").found, HasSubstr("not known: libnvidia-ml.so.1"));
}

TEST_F(CheckDriverTest, VisibleDevices) {
  AddAnsweringGpu();
  environment_["CUDA_VISIBLE_DEVICES"] = "0";
  EXPECT_EQ(Check("visible-devices").verdict, Verdict::kOk);
  gpus_.nvml.gpus.push_back({"GPU-2", 0, 0, 1, 1});
  const Finding finding = Check("visible-devices");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("is \"0\" and hides GPU-2"));
  EXPECT_EQ(finding.numbers.at("hidden"), 1);
}

TEST_F(CheckDriverTest, Mps) {
  AddAnsweringGpu();
  Write("/proc/77/comm", "nvidia-cuda-mps\n");
  EXPECT_EQ(Check("mps").verdict, Verdict::kWarning);
  MakeFolder("/tmp/nvidia-mps");
  ExpectProblem("mps", "runs (pid 77)", "quit | nvidia-cuda-mps-control");
  environment_["CUDA_MPS_PIPE_DIRECTORY"] = "/elsewhere";
  EXPECT_EQ(Check("mps").verdict, Verdict::kWarning);
  std::filesystem::remove_all(root_.path() + "/proc/77");
  EXPECT_EQ(Check("mps").verdict, Verdict::kOk);
  environment_.clear();
  EXPECT_EQ(Check("mps").verdict, Verdict::kWarning);
}

class CheckDeviceNodesTest : public NodeTest {
 protected:
  Finding Check(const std::string& name) { return Find(CheckDeviceNodes(TheNode()), name); }
};

TEST_F(CheckDeviceNodesTest, AllThere) {
  AddGpu();
  EXPECT_EQ(Check("device-nodes").verdict, Verdict::kOk);
  EXPECT_EQ(Check("device-nodes").found, "nvidiactl, nvidia-uvm, and those of 1 of 1 GPU");
  EXPECT_EQ(Check("device-permissions").verdict, Verdict::kOk);
}

TEST_F(CheckDeviceNodesTest, Missing) {
  AddGpu();
  std::filesystem::remove(root_.path() + "/dev/nvidia-uvm");
  EXPECT_EQ(Check("device-nodes").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("device-nodes").found, HasSubstr("/dev/nvidia-uvm"));
  EXPECT_THAT(Check("device-nodes").remedy, HasSubstr("$ nvidia-modprobe -c 0 -u"));
  Write("/.dockerenv", "");
  EXPECT_THAT(Check("device-nodes").remedy, HasSubstr("--gpus all"));
}

TEST_F(CheckDeviceNodesTest, AContainerHasSome) {
  AddGpu();
  Write("/proc/driver/nvidia/gpus/0000:1a:00.0/information", "Device Minor: \t 1\n");
  EXPECT_EQ(Check("device-nodes").verdict, Verdict::kWarning);
  Write("/.dockerenv", "");
  EXPECT_EQ(Check("device-nodes").verdict, Verdict::kOk);
  std::filesystem::remove(root_.path() + "/dev/nvidia0");
  EXPECT_EQ(Check("device-nodes").verdict, Verdict::kProblem);
}

TEST_F(CheckDeviceNodesTest, Permissions) {
  AddGpu(0660);
  user_ = {12345, 12345, {}};
  const Finding refused = Check("device-permissions");
  EXPECT_EQ(refused.verdict, Verdict::kProblem);
  EXPECT_THAT(refused.found, HasSubstr("mode 0660"));
  EXPECT_THAT(refused.remedy, HasSubstr("$ adduser 12345 "));
  EXPECT_EQ(refused.numbers.at("refused_nodes"), 3);
  user_.groups = {::getegid()};
  EXPECT_EQ(Check("device-permissions").verdict, Verdict::kOk);
  user_.groups = {};
  ::chmod((root_.path() + "/dev/nvidia0").c_str(), 0600);
  ::chmod((root_.path() + "/dev/nvidiactl").c_str(), 0600);
  EXPECT_THAT(Check("device-permissions").remedy, HasSubstr("NVreg_DeviceFileMode=0666"));
}

}  // namespace
}  // namespace torpor::ctl::doctor
