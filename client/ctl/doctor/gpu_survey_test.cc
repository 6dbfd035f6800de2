#include "client/ctl/doctor/gpu_survey.h"

#include "client/ctl/doctor/node_fixture.h"
#include "lib/base/status_matchers.h"

namespace torpor::ctl::doctor {
namespace {

using GpuSurveyTest = NodeTest;

TEST_F(GpuSurveyTest, WhatCudaSaysComesThrough) {
  CudaProbe probe;
  probe.library = "/usr/lib/libcuda.so.580.65.06";
  probe.version = 13000;
  probe.status = Internal("CUDA_ERROR_UNKNOWN", "cuInit:\tunknown\nerror");
  probe.devices.push_back(
      {kGpu, "NVIDIA H200", "0000:19:00.0", 150'000'000'000, 3, 90, true, false});
  const CudaProbe read = DecodeCuda(Encode(probe));
  EXPECT_EQ(read.library, probe.library);
  EXPECT_EQ(read.version, 13000);
  EXPECT_THAT(read.status, HasReason("CUDA_ERROR_UNKNOWN"));
  EXPECT_EQ(read.status.message(), "cuInit: unknown error");
  ASSERT_EQ(read.devices.size(), 1u);
  EXPECT_EQ(read.devices[0].uuid, kGpu);
  EXPECT_EQ(read.devices[0].name, "NVIDIA H200");
  EXPECT_EQ(read.devices[0].pci_address, "0000:19:00.0");
  EXPECT_EQ(read.devices[0].total_bytes, 150'000'000'000);
  EXPECT_EQ(read.devices[0].compute_mode, 3);
  EXPECT_EQ(read.devices[0].capability, 90);
  EXPECT_TRUE(read.devices[0].virtual_memory);
  EXPECT_FALSE(read.devices[0].descriptors);
}

TEST_F(GpuSurveyTest, WhatNvmlSaysComesThrough) {
  NvmlProbe probe;
  probe.driver_version = "580.65.06";
  probe.gpus.push_back({kGpu, 1, 0, 150, 70});
  const NvmlProbe read = DecodeNvml(Encode(probe));
  EXPECT_EQ(read.driver_version, "580.65.06");
  EXPECT_EQ(read.error, "");
  ASSERT_EQ(read.gpus.size(), 1u);
  EXPECT_EQ(read.gpus[0].mig_mode, 1);
  EXPECT_EQ(read.gpus[0].pending_mig_mode, 0);
  EXPECT_EQ(read.gpus[0].total_bytes, 150);
  EXPECT_EQ(read.gpus[0].used_bytes, 70);
}

TEST_F(GpuSurveyTest, ReadsTheKernelsFiles) {
  EXPECT_FALSE(HasNvidia(TheNode()));
  EXPECT_EQ(ModuleVersion(TheNode()), "");
  AddGpu();
  // A sound device of NVIDIA's, and another one's display.
  Write("/sys/bus/pci/devices/0000:19:00.1/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:19:00.1/class", "0x040300\n");
  Write("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x1a03\n");
  Write("/sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n");
  EXPECT_TRUE(HasNvidia(TheNode()));
  EXPECT_EQ(ModuleVersion(TheNode()), "580.65.06");
  EXPECT_EQ(DeviceMinors(TheNode()), std::vector<int>{0});
  ASSERT_EQ(PciGpus(TheNode()).size(), 1u);
  EXPECT_EQ(PciGpus(TheNode())[0].address, "0000:19:00.0");
  EXPECT_EQ(PciGpus(TheNode())[0].driver, "nvidia");
}

TEST_F(GpuSurveyTest, AsksNobodyWhereThereAreNoNodes) {
  GpuQuestions questions(TheNode());
  const GpuSurvey survey = questions.Await(Clock::Real().Now() + seconds(60), seconds(60));
  EXPECT_FALSE(survey.asked);
  EXPECT_EQ(survey.cuda_end, Answer::End::kAnswered);
  EXPECT_TRUE(survey.cuda.devices.empty());
}

}  // namespace
}  // namespace torpor::ctl::doctor
