// Memory, NUMA, limits, containers, units and the runtime directory.

#include <gmock/gmock.h>

#include "client/ctl/doctor/cgroup.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/node_fixture.h"
#include "lib/base/units.h"

namespace torpor::ctl::doctor {
namespace {

using testing::HasSubstr;

constexpr char kMeminfo[] =
    "MemTotal:       65536000 kB\nMemFree:        10000000 kB\nMemAvailable:   41943040 kB\n"
    "SwapTotal:       1048576 kB\nSwapFree:        1048576 kB\nShmemHugePages:     2048 kB\n";
constexpr char kThp[] = "/sys/kernel/mm/transparent_hugepage/";

class CheckMemoryTest : public NodeTest {
 protected:
  void SetUp() override {
    Write("/proc/meminfo", kMeminfo);
    Write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    Shmem("advise");
    Write(std::string(kThp) + "enabled", "always [madvise] never\n");
  }
  void Shmem(const std::string& chosen) {
    std::string line = "always within_size advise never deny force";
    const size_t at = line.find(chosen);
    line.insert(at + chosen.size(), "]").insert(at, "[");
    Write(std::string(kThp) + "shmem_enabled", line + "\n");
  }
  void AddDaemon(pid_t pid, Bytes pool, Bytes pinned) {
    DaemonSurvey& daemon = daemons_.emplace_back();
    daemon.device = "GPU-" + std::to_string(pid);
    daemon.pid = pid;
    daemon.usage.emplace();
    daemon.usage->mutable_host_pool()->set_budget_bytes(pool.value());
    daemon.usage->mutable_host_pool()->set_pinned_bytes(pinned.value());
  }
  Finding Check(const std::string& name) {
    Finding finding = Find(CheckMemory(TheNode(), gpus_, daemons_), name);
    EXPECT_EQ(finding.check, name);
    return finding;
  }
  GpuSurvey gpus_;
  std::vector<DaemonSurvey> daemons_;
};

TEST_F(CheckMemoryTest, HugePages) {
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
  EXPECT_THAT(Check("huge-pages").found, HasSubstr("a memfd with huge pages"));
  EXPECT_EQ(Check("huge-pages").numbers.at("shmem_huge_bytes"), MiB(2).value());
  Shmem("never");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("huge-pages").found, HasSubstr("anonymous"));
  EXPECT_THAT(Check("huge-pages").remedy, HasSubstr("$ echo advise > "));
  Shmem("deny");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kWarning);
  Shmem("force");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
}

TEST_F(CheckMemoryTest, NewerKernelsHaveASettingForEachSize) {
  const std::string own = std::string(kThp) + "hugepages-2048kB/shmem_enabled";
  Write(own, "always [inherit] within_size advise never\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
  Write(own, "always inherit within_size advise [never]\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kWarning);
  Shmem("never");
  Write(own, "always inherit within_size [advise] never\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
}

TEST_F(CheckMemoryTest, HugePagesByRightsOrByAFolder) {
  Shmem("never");
  Write("/proc/self/status", "CapEff:\t000001ffffffffff\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
  EXPECT_THAT(Check("huge-pages").found, HasSubstr("CAP_SYS_ADMIN"));
  Write("/proc/self/status", "CapEff:\t00000000a80425fb\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kWarning);
  Write("/proc/self/mountinfo",
        "40 27 0:40 / /run/torpor-pool rw - tmpfs torpor-pool rw,size=1048576k,huge=always\n");
  EXPECT_EQ(Check("huge-pages").verdict, Verdict::kOk);
  EXPECT_THAT(Check("huge-pages").found, HasSubstr("--pool_dir"));
}

TEST_F(CheckMemoryTest, HostMemory) {
  EXPECT_EQ(Check("host-memory").verdict, Verdict::kOk);
  EXPECT_EQ(Check("host-memory").numbers.at("auto_pool_bytes"), GiB(20).value());
  gpus_.cuda.devices.push_back({kGpu, "", "", GiB(24).value(), 0, 90, true, true});
  EXPECT_EQ(Check("host-memory").verdict, Verdict::kOk);
  gpus_.cuda.devices[0].total_bytes = GiB(80).value();
  EXPECT_EQ(Check("host-memory").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("host-memory").found, HasSubstr("1 device with 80.00 GiB"));
  gpus_.cuda.devices[0].total_bytes = GiB(8).value();
  gpus_.cuda.devices.push_back(gpus_.cuda.devices[0]);
  EXPECT_THAT(Check("host-memory").remedy, HasSubstr("each daemon takes half"));
  Write("/proc/self/cgroup", "0::/pod\n");
  Write("/sys/fs/cgroup/pod/memory.max", "536870912\n");
  Write("/sys/fs/cgroup/pod/memory.current", "0\n");
  EXPECT_EQ(Check("host-memory").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("host-memory").found, HasSubstr("512.00 MiB in this cgroup"));
}

TEST_F(CheckMemoryTest, PoolsTogether) {
  EXPECT_EQ(Check("pools-fit").found, "no daemon answers");
  AddDaemon(7, GiB(30), GiB(10));
  AddDaemon(8, GiB(20), GiB(5));
  EXPECT_EQ(Check("pools-fit").verdict, Verdict::kOk);
  EXPECT_EQ(Check("pools-fit").numbers.at("unpinned_bytes"), GiB(35).value());
  AddDaemon(9, GiB(6), GiB(0));
  EXPECT_EQ(Check("pools-fit").verdict, Verdict::kWarning);
}

TEST_F(CheckMemoryTest, Cgroup) {
  EXPECT_EQ(Check("memory-cgroup").found, "no limit");
  // The least is above; page cache does not count.
  Write("/proc/self/cgroup", "0::/kubepods/pod1/c\n");
  Write("/sys/fs/cgroup/kubepods/pod1/c/memory.max", "max\n");
  Write("/sys/fs/cgroup/kubepods/pod1/memory.max", "10737418240\n");
  Write("/sys/fs/cgroup/kubepods/pod1/memory.current", "10000000000\n");
  Write("/sys/fs/cgroup/kubepods/pod1/memory.stat",
        "anon 1\ninactive_file 4000000000\nactive_file 4000000000\n");
  const Finding fine = Check("memory-cgroup");
  EXPECT_EQ(fine.verdict, Verdict::kOk) << fine;
  EXPECT_EQ(fine.numbers.at("left_bytes"), 10737418240 - 2000000000);
  Write("/sys/fs/cgroup/kubepods/pod1/memory.stat", "anon 1\n");
  const Finding few = Check("memory-cgroup");
  EXPECT_EQ(few.verdict, Verdict::kWarning);
  EXPECT_THAT(few.remedy, HasSubstr("$ cat /sys/fs/cgroup/kubepods/pod1/memory.max"));
}

TEST_F(CheckMemoryTest, CgroupOfVersion1) {
  Write("/proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/c\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes", "8589934592\n");
  Write("/sys/fs/cgroup/memory/docker/c/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Check("memory-cgroup").numbers.at("limit_bytes"), GiB(8).value());
  std::filesystem::remove_all(root_.path() + "/sys/fs/cgroup/memory/docker");
  EXPECT_EQ(Check("memory-cgroup").found, "no limit");
}

TEST_F(CheckMemoryTest, Swap) {
  EXPECT_EQ(Check("swap").verdict, Verdict::kOk);
  Write("/proc/meminfo", "MemAvailable: 41943040 kB\nSwapTotal: 1000 kB\nSwapFree: 100 kB\n");
  EXPECT_EQ(Check("swap").verdict, Verdict::kWarning);
}

TEST_F(CheckMemoryTest, LockedMemory) {
  Write("/proc/self/limits",
        "Max locked memory         65536                unlimited            bytes\n");
  EXPECT_EQ(Check("locked-memory").found, "soft limit 64.00 KiB, hard limit none");
  EXPECT_EQ(Check("locked-memory").numbers.at("hard_bytes"), -1);
}

TEST_F(CheckMemoryTest, PoolFolder) {
  EXPECT_EQ(Check("pool-folder").found, "no daemon has one");
  AddDaemon(7, GiB(30), GiB(10));
  AddDaemon(8, GiB(20), GiB(10));
  const std::string words[] = {"torpord", "--driver=cuda", "--pool-dir=/pool", ""};
  std::string line;
  for (const std::string& word : words) line += word + '\0';
  Write("/proc/7/cmdline", line);
  Write("/proc/8/cmdline", line);
  const std::string before = "1 0 8:1 / / rw - ext4 /dev/sda rw\n40 1 0:40 / /pool rw - ";
  Write("/proc/7/mountinfo", before + "tmpfs pool rw,size=68157440k,huge=always\n");
  EXPECT_EQ(Check("pool-folder").verdict, Verdict::kOk) << Check("pool-folder");
  EXPECT_THAT(Check("pool-folder").found, HasSubstr("65.00 GiB, huge=always, 2 pools"));
  Write("/proc/7/mountinfo", before + "tmpfs pool rw,size=68157440k\n");
  EXPECT_THAT(Check("pool-folder").remedy, HasSubstr("remount,huge=always /pool"));
  Write("/proc/7/mountinfo", before + "tmpfs pool rw,size=33554432k,huge=always\n");
  EXPECT_THAT(Check("pool-folder").remedy, HasSubstr("remount,size=52G /pool"));
  Write("/proc/7/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n");
  EXPECT_EQ(Check("pool-folder").verdict, Verdict::kProblem);
}

using CheckNumaTest = NodeTest;

TEST_F(CheckNumaTest, WhereTheGpuIs) {
  GpuSurvey gpus;
  Write("/sys/devices/system/node/node0/cpulist", "0-23\n");
  Write("/sys/devices/system/node/node1/cpulist", "24-47\n");
  Write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       1048576 kB\n");
  Write("/sys/devices/system/node/has_cpu", "0-1\n");
  Write("/proc/self/status", "Cpus_allowed_list:\t0-47\n");
  EXPECT_EQ(Find(CheckNuma(TheNode(), gpus), "numa").found, "2 nodes");
  AddGpu();
  gpus.cuda.devices.push_back({kGpu, "", "0000:19:00.0", 1, 0, 90, true, true});
  EXPECT_EQ(Find(CheckNuma(TheNode(), gpus), "numa", kGpu).found,
            "node 1 of 2, CPUs 24-47, 1.00 GiB of memory");
  Write("/proc/self/status", "Cpus_allowed_list:\t0-3\n");
  const Finding away = Find(CheckNuma(TheNode(), gpus), "numa");
  EXPECT_EQ(away.verdict, Verdict::kWarning);
  EXPECT_THAT(away.remedy, HasSubstr("$ taskset --cpu-list 24-47"));
  Write("/sys/bus/pci/devices/0000:19:00.0/numa_node", "-1\n");
  EXPECT_THAT(Find(CheckNuma(TheNode(), gpus), "numa").found, HasSubstr("does not say"));
}

class CheckLimitsTest : public NodeTest {
 protected:
  void SetUp() override { Limits("1024", "1048576", "63000"); }
  void Limits(const std::string& soft, const std::string& hard, const std::string& processes) {
    Write("/proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max processes             " +
              processes +
              "                63000     processes \n"
              "Max open files            " +
              soft + "                 " + hard + "   files     \n");
  }
  Finding Check(const std::string& name) { return Find(CheckLimits(TheNode()), name); }
};

TEST_F(CheckLimitsTest, OpenFiles) {
  EXPECT_EQ(Check("open-files").verdict, Verdict::kOk);
  EXPECT_EQ(Check("open-files").found, "soft limit 1024, hard limit 1048576");
  Limits("1024", "4096", "unlimited");
  EXPECT_EQ(Check("open-files").verdict, Verdict::kWarning);
  EXPECT_EQ(Check("open-files").numbers.at("hard"), 4096);
  Limits("unlimited", "unlimited", "unlimited");
  EXPECT_EQ(Check("open-files").verdict, Verdict::kOk);
}

TEST_F(CheckLimitsTest, SystemFiles) {
  EXPECT_EQ(Check("system-files").found, "not known");
  Write("/proc/sys/fs/file-nr", "704\t0\t9223372036854775807\n");
  Write("/proc/sys/fs/nr_open", "1048576\n");
  EXPECT_EQ(Check("system-files").found, "704 in use, fs.file-max no limit, fs.nr_open 1048576");
  Write("/proc/sys/fs/file-nr", "90000\t0\t100000\n");
  EXPECT_EQ(Check("system-files").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("system-files").remedy, HasSubstr("fs.file-max=400000"));
}

TEST_F(CheckLimitsTest, Threads) {
  Write("/proc/sys/kernel/threads-max", "192730\n");
  Write("/proc/sys/kernel/pid_max", "4194304\n");
  EXPECT_EQ(Check("threads").verdict, Verdict::kOk);
  Write("/proc/self/cgroup", "0::/pod\n");
  Write("/sys/fs/cgroup/pod/pids.max", "1024\n");
  Write("/sys/fs/cgroup/pod/pids.current", "1000\n");
  EXPECT_EQ(Check("threads").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("threads").remedy, HasSubstr("TasksMax="));
  EXPECT_EQ(Check("threads").numbers.at("cgroup_used"), 1000);
  Write("/sys/fs/cgroup/pod/pids.max", "max\n");
  Limits("1", "1", "100");
  EXPECT_THAT(Check("threads").remedy, HasSubstr("LimitNPROC="));
}

class CheckContainerTest : public NodeTest {
 protected:
  Finding Check(const std::string& name) { return Find(CheckContainer(TheNode(), calls_), name); }
  std::map<std::string, int> calls_ = {{"mincore", 0}, {"pidfd_open", 0}};
};

TEST_F(CheckContainerTest, IsSeen) {
  EXPECT_EQ(Check("container").found, "none is seen");
  Write("/proc/1/cgroup", "0::/kubepods.slice/pod\n");
  EXPECT_EQ(Check("container").found, "this is one");
  environment_["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  EXPECT_EQ(Check("container").found, "this is one: Kubernetes");
  EXPECT_EQ(Check("container").verdict, Verdict::kOk);
}

TEST_F(CheckContainerTest, HiddenProcesses) {
  EXPECT_EQ(Check("process-view").verdict, Verdict::kOk);
  Write("/proc/self/mountinfo",
        "22 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=invisible\n");
  EXPECT_EQ(Check("process-view").verdict, Verdict::kWarning);
  Write("/proc/self/mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n");
  EXPECT_EQ(Check("process-view").verdict, Verdict::kOk);
}

TEST_F(CheckContainerTest, RefusedCalls) {
  EXPECT_EQ(Check("system-calls").found, "mincore, pidfd_open work");
  calls_["pidfd_open"] = EPERM;
  Write("/proc/self/status", "Seccomp:\t2\n");
  EXPECT_EQ(Check("system-calls").verdict, Verdict::kProblem);
  EXPECT_EQ(Check("system-calls").found, "refused: pidfd_open (EPERM); a seccomp filter is on");
}

TEST_F(CheckContainerTest, CallsAreTried) {
  for (const auto& [name, error] : TrySystemCalls()) EXPECT_EQ(error, 0) << name;
}

using CheckSystemdTest = NodeTest;

TEST_F(CheckSystemdTest, Units) {
  Answer answer;
  answer.end = Answer::End::kAnswered;
  const auto check = [&] { return CheckSystemd(TheNode(), answer); };
  EXPECT_EQ(check().at(0).found, "does not run here");
  MakeFolder("/run/systemd/system");
  EXPECT_EQ(check().at(0).found, "no instance of torpor@.service");
  answer.text =
      "run-torpor\\x2dpool.mount loaded active mounted Torpor: host memory for what sleeps\n"
      "torpor@GPU-1.service loaded active running Torpor: GPU memory of device GPU-1\n"
      "torpor@GPU-2.service loaded failed failed Torpor: GPU memory of device GPU-2\n"
      "torpor@GPU-3.service loaded activating start Torpor: GPU memory of device GPU-3\n";
  const Findings findings = check();
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].found, "1 instance of torpor@.service active");
  EXPECT_EQ(findings[1].verdict, Verdict::kProblem);
  EXPECT_THAT(findings[1].remedy, HasSubstr("$ journalctl --unit 'torpor@GPU-2.service'"));
  EXPECT_EQ(findings[2].verdict, Verdict::kWarning);
  answer.end = Answer::End::kSilent;
  EXPECT_EQ(check().at(0).verdict, Verdict::kWarning);
}

class CheckRuntimeDirTest : public NodeTest {
 protected:
  Finding Check(const std::string& name) {
    return Find(CheckRuntimeDir(TheNode(), dir_, workers_, daemons_, ""), name);
  }
  std::string dir_ = "/run/torpor";
  Result<std::string> workers_ = std::string("/run/torpor");
  std::vector<DaemonSurvey> daemons_;
};

TEST_F(CheckRuntimeDirTest, Folder) {
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("runtime-directory").found, HasSubstr("no daemon has run"));
  MakeFolder("/run/torpor");
  Write("/proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n9 1 0:9 / /run rw - tmpfs tmpfs rw\n");
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kOk) << Check("runtime-directory");
  Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n");
  EXPECT_THAT(Check("runtime-directory").found, HasSubstr("on ext4, which outlives a boot"));
  MakeFolder("/run/torpor", 0777);
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("runtime-directory").remedy, HasSubstr("$ chmod go-w /run/torpor"));
}

TEST_F(CheckRuntimeDirTest, ElsewhereOrNowhere) {
  MakeFolder("/run/torpor");
  dir_ = "/run/user/1000/torpor";
  EXPECT_THAT(Check("runtime-directory").found, HasSubstr("but /run/torpor is"));
  dir_ = "/run/torpor";
  workers_ = std::string("/run/user/1000/torpor");
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("runtime-directory").found,
              HasSubstr("; workers of this user look into /run/user/1000/torpor"));
  workers_ = FailedPrecondition("NO_RUNTIME_DIR", "neither is set");
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("runtime-directory").found, HasSubstr("look nowhere: neither is set"));
  EXPECT_THAT(Check("runtime-directory").remedy, HasSubstr("TORPOR_RUNTIME_DIR=/run/torpor"));
  std::filesystem::remove_all(root_.path() + "/run/torpor");
  EXPECT_EQ(Check("runtime-directory").verdict, Verdict::kProblem);
}

TEST_F(CheckRuntimeDirTest, Daemons) {
  EXPECT_EQ(Check("daemons").found, "none under /run/torpor");
  daemons_.resize(2);
  EXPECT_EQ(Check("daemons").verdict, Verdict::kWarning);
  daemons_[1].usage.emplace();
  EXPECT_EQ(Check("daemons").verdict, Verdict::kOk);
  EXPECT_EQ(Check("daemons").found, "1 of 2 answer");
}

}  // namespace
}  // namespace torpor::ctl::doctor
