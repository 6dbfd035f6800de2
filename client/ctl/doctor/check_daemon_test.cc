#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "client/ctl/doctor/check_daemon_process.h"
#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/node_fixture.h"
#include "google/rpc/error_details.pb.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"

namespace torpor::ctl::doctor {
namespace {

using State = SocketState::State;
using testing::HasSubstr;

class CheckDaemonTest : public NodeTest {
 protected:
  void SetUp() override {
    daemon_.device = kGpu;
    daemon_.folder = "/run/torpor/" + std::string(kGpu);
    daemon_.control = daemon_.worker = {State::kListens, "", 0, 0, 0660};
    daemon_.pid = 812;
    daemon_.usage.emplace();
    v1::UsageResponse& usage = *daemon_.usage;
    usage.set_version("0.1.0");
    usage.mutable_device()->set_uuid(kGpu);
    usage.mutable_device()->set_driver("cuda");
    usage.mutable_device()->set_total_bytes(GiB(140).value());
    usage.mutable_host_pool()->set_budget_bytes(GiB(64).value());
    usage.mutable_host_pool()->set_pinned_bytes(GiB(32).value());
    usage.mutable_host_pool()->set_kind("memfd, huge pages");
    Write("/proc/812/limits", "Max open files            1048576              1048576  files\n");
    for (const char* fd : {"0", "1", "2"}) Write(std::string("/proc/812/fd/") + fd, "");
    Write("/proc/812/cgroup", "0::/system.slice/torpor\n");
    Write("/proc/812/environ", std::string("PATH=/bin") + '\0');
    Write("/proc/812/status", "Cpus_allowed_list:\t0-47\nMems_allowed_list:\t0-1\n");
  }
  Finding Check(const std::string& name) {
    Finding finding = Find(CheckDaemon(TheNode(), daemon_, gpus_, "0.1.0", seconds(5)), name, kGpu);
    EXPECT_EQ(finding.check, name);
    return finding;
  }
  void SetStatus(google::rpc::Status& status, const std::string& reason) {
    status.set_code(14);
    status.set_message("its message");
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    status.mutable_details()->Clear();
    status.add_details()->PackFrom(info);
  }
  v1::WorkerUsage& AddWorker(int pid) {
    v1::WorkerUsage& worker = *daemon_.usage->add_workers();
    worker.set_pid(pid);
    return worker;
  }
  DaemonSurvey daemon_;
  GpuSurvey gpus_;
};

TEST_F(CheckDaemonTest, AGoodOneIsFine) {
  for (const Finding& finding : CheckDaemon(TheNode(), daemon_, gpus_, "0.1.0", seconds(5))) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding;
    EXPECT_EQ(finding.subject, kGpu);
  }
}

TEST_F(CheckDaemonTest, StaleSockets) {
  daemon_.control.state = daemon_.worker.state = State::kStale;
  daemon_.lock_pid = 811;
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("daemon-socket").found, HasSubstr("was killed (the last one was pid 811)"));
  EXPECT_THAT(Check("daemon-socket").remedy,
              HasSubstr("$ systemctl start torpor@" + std::string(kGpu)));
  Write("/proc/90/comm", "torpor-keeper\n");
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("A torpor-keeper runs (pid 90)"));
  EXPECT_EQ(CheckDaemon(TheNode(), daemon_, gpus_, "0.1.0", seconds(5)).size(), 1u);
}

TEST_F(CheckDaemonTest, KeepersThatAreNotItsOwn) {
  daemon_.control.state = daemon_.worker.state = State::kStale;
  const auto add = [&](const std::string& pid, std::string line, const std::string& state = "S") {
    std::replace(line.begin(), line.end(), ' ', '\0');
    Write("/proc/" + pid + "/comm", "torpor-keeper\n");
    Write("/proc/" + pid + "/status", "Name:\ttorpor-keeper\nState:\t" + state + " (x)\n");
    Write("/proc/" + pid + "/cmdline", line + '\0');
  };
  const std::string own = "torpor-keeper -- torpord --device=" + std::string(kGpu);
  add("91", own, "Z");
  add("92", "torpor-keeper -- torpord --device=GPU-2");
  add("93", own + " --runtime_dir=/run/user/7/torpor");
  add("94", "torpor-keeper -- torpord");
  Write("/proc/94/environ", std::string("A=1") + '\0' + "TORPOR_RUNTIME_DIR=/tmp/x" + '\0');
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("Start it again"));
  add("95", "torpor-keeper -- torpord");
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("A torpor-keeper runs (pid 95)"));
  add("96", own);
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("A torpor-keeper runs (pid 96)"));
  add("97", own + " --runtime-dir /run/torpor/");
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("A torpor-keeper runs (pid 96, 97)"));
}

TEST_F(CheckDaemonTest, SocketsOfAGroup) {
  user_ = {12345, 12345, {}};
  daemon_.control = daemon_.worker = {State::kForbidden, "", 64200, 64200, 0660};
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kProblem);
  EXPECT_EQ(Check("daemon-socket").found, "12345 may not connect: mode 0660, 64200:64200");
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("$ adduser 12345 64200"));
  daemon_.control.mode = 0600;
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("--socket_mode=0660"));
  daemon_.control.mode = 0660;
  daemon_.control.gid = 0;
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("The group is root's"));
  daemon_.control.error = "Permission denied";
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("$ chmod 0755 /run/torpor/"));
}

TEST_F(CheckDaemonTest, SocketsWithUsersOfTheirOwn) {
  user_ = {12345, 12345, {}};
  daemon_.worker = {State::kForbidden, "", 64200, 64201, 0660};
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("daemon-socket").found, HasSubstr("may operate it, but not have sessions"));
  EXPECT_THAT(Check("daemon-socket").remedy, HasSubstr("$ adduser 12345 64201"));
  EXPECT_EQ(Check("daemon-usage").verdict, Verdict::kOk);
  daemon_.control = daemon_.worker;
  daemon_.worker.state = State::kListens;
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("daemon-socket").found, HasSubstr("may have sessions, but not operate it"));
}

TEST_F(CheckDaemonTest, AUserWithoutARole) {
  daemon_.usage.reset();
  daemon_.usage_error = "PERMISSION_DENIED ACCESS_DENIED: needs READER\n  action: Usage\n";
  EXPECT_EQ(Check("daemon-usage").verdict, Verdict::kWarning);
  EXPECT_EQ(Check("daemon-usage").found, "refused: PERMISSION_DENIED ACCESS_DENIED: needs READER");
  EXPECT_THAT(Check("daemon-usage").remedy, HasSubstr("READER"));
}

TEST_F(CheckDaemonTest, SocketsThatAreNotThere) {
  daemon_.control.state = daemon_.worker.state = State::kMissing;
  EXPECT_EQ(Check("daemon-socket").found, "no sockets: it was stopped");
  daemon_.locked = true;
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kWarning);
  daemon_.control.state = State::kListens;
  EXPECT_EQ(Check("daemon-socket").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("daemon-socket").found, HasSubstr("worker.sock is missing"));
}

TEST_F(CheckDaemonTest, OneThatDoesNotAnswer) {
  daemon_.usage.reset();
  daemon_.usage_silent = true;
  EXPECT_EQ(Check("daemon-usage").found, "did not answer Usage in 5.00s");
  EXPECT_THAT(Check("daemon-usage").remedy, HasSubstr("$ kill -KILL 812"));
  daemon_.usage_silent = false;
  daemon_.usage_error = "UNAVAILABLE DAEMON_STARTING: soon\n  more\n";
  EXPECT_EQ(Check("daemon-usage").found, "answered Usage with UNAVAILABLE DAEMON_STARTING: soon");
  daemon_.control.state = State::kSilent;
  EXPECT_THAT(Check("daemon-socket").found, HasSubstr("in 5.00s"));
}

TEST_F(CheckDaemonTest, WhatItSaysOfItself) {
  v1::UsageResponse& usage = *daemon_.usage;
  usage.set_version("0.0.9");
  EXPECT_EQ(Check("daemon-version").verdict, Verdict::kWarning);
  SetStatus(*usage.mutable_health(), "GPU_LOST");
  EXPECT_EQ(Check("daemon-health").verdict, Verdict::kProblem);
  EXPECT_EQ(Check("daemon-health").found, "GPU_LOST: its message");
  SetStatus(*usage.mutable_protection(), "NO_KEEPER");
  EXPECT_EQ(Check("daemon-keeper").verdict, Verdict::kWarning);
  SetStatus(*usage.mutable_protection(), "KEEPER_GONE");
  EXPECT_EQ(Check("daemon-keeper").verdict, Verdict::kProblem);
}

TEST_F(CheckDaemonTest, Pool) {
  v1::HostPoolUsage& pool = *daemon_.usage->mutable_host_pool();
  pool.set_kind("file, huge pages, removed");
  EXPECT_EQ(Check("daemon-pool").verdict, Verdict::kProblem);
  pool.set_kind("memfd, small pages");
  EXPECT_EQ(Check("daemon-pool").verdict, Verdict::kWarning);
  pool.set_kind("anonymous");
  EXPECT_EQ(Check("daemon-pool").verdict, Verdict::kWarning);
  SetStatus(*daemon_.usage->mutable_protection(), "NO_KEEPER");
  EXPECT_EQ(Check("daemon-pool").verdict, Verdict::kOk);
  SetStatus(*pool.mutable_pinning_error(), "HOST_MEMORY_EXHAUSTED");
  pool.set_refused_bytes(MiB(64).value());
  EXPECT_EQ(Check("daemon-pool").verdict, Verdict::kProblem);
  EXPECT_THAT(Check("daemon-pool").found, HasSubstr("64.00 MiB refused: its message"));
}

TEST_F(CheckDaemonTest, PoolSize) {
  v1::WorkerUsage& worker = AddWorker(5);
  v1::TagUsage& weights = *worker.add_tags();
  weights.set_tag("weights");
  weights.set_resident_bytes(GiB(40).value());
  v1::TagUsage& cache = *worker.add_tags();
  cache.set_tag("kv_cache");
  cache.set_resident_bytes(GiB(80).value());
  EXPECT_EQ(Check("daemon-pool-size").verdict, Verdict::kOk);
  EXPECT_EQ(Check("daemon-pool-size").numbers.at("kept_bytes"), GiB(40).value());
  weights.set_offloaded_bytes(GiB(30).value());
  EXPECT_EQ(Check("daemon-pool-size").verdict, Verdict::kWarning);
  daemon_.usage->mutable_host_pool()->set_budget_bytes(0);
  EXPECT_THAT(Check("daemon-pool-size").found, HasSubstr("empty"));
}

TEST_F(CheckDaemonTest, Workers) {
  AddWorker(5);
  EXPECT_EQ(Check("daemon-workers").found, "1 worker");
  AddWorker(0);
  EXPECT_THAT(Check("daemon-workers").found, HasSubstr("1 in another pid namespace"));
  AddWorker(6).set_rollback_pending(true);
  EXPECT_EQ(Check("daemon-workers").verdict, Verdict::kProblem);
}

TEST_F(CheckDaemonTest, Descriptors) {
  EXPECT_EQ(Check("daemon-descriptors").found, "3 of 1048576 in use");
  Write("/proc/812/limits", "Max open files            4096              4096  files\n");
  EXPECT_EQ(Check("daemon-descriptors").verdict, Verdict::kWarning);
  Write("/proc/812/limits", "Max open files            66              66  files\n");
  EXPECT_EQ(Check("daemon-descriptors").verdict, Verdict::kProblem);
  std::filesystem::remove_all(root_.path() + "/proc/812/fd");
  EXPECT_EQ(Check("daemon-descriptors").found, "not known: that needs root");
}

TEST_F(CheckDaemonTest, MemoryOfItsGroup) {
  EXPECT_EQ(Check("daemon-memory").found, "no limit of its cgroup");
  Write("/sys/fs/cgroup/system.slice/torpor/memory.max", std::to_string(GiB(66).value()));
  Write("/sys/fs/cgroup/system.slice/torpor/memory.current", std::to_string(GiB(33).value()));
  EXPECT_EQ(Check("daemon-memory").verdict, Verdict::kOk);
  Write("/sys/fs/cgroup/system.slice/torpor/memory.current", std::to_string(GiB(40).value()));
  EXPECT_EQ(Check("daemon-memory").verdict, Verdict::kWarning);
}

TEST_F(CheckDaemonTest, Cpus) {
  AddGpu();
  Write("/sys/devices/system/node/node1/cpulist", "24-47\n");
  EXPECT_THAT(Check("daemon-cpus").found, HasSubstr("no NUMA node"));
  gpus_.cuda.devices.push_back({kGpu, "", "0000:19:00.0", 1, 0, 90, true, true});
  EXPECT_EQ(Check("daemon-cpus").verdict, Verdict::kOk);
  Write("/proc/812/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n");
  EXPECT_EQ(Check("daemon-cpus").verdict, Verdict::kWarning);
  EXPECT_THAT(Check("daemon-cpus").remedy, HasSubstr("24-47 812"));
  Write("/proc/812/status", "Cpus_allowed_list:\t24\nMems_allowed_list:\t0\n");
  EXPECT_EQ(Check("daemon-cpus").verdict, Verdict::kWarning);
}

TEST_F(CheckDaemonTest, Environment) {
  EXPECT_EQ(Check("daemon-environment").found, "nothing of CUDA's");
  Write("/proc/812/environ", std::string("CUDA_CACHE_PATH=/c") + '\0' + "A=1" + '\0');
  EXPECT_EQ(Check("daemon-environment").found, "CUDA_CACHE_PATH=/c");
  Write("/proc/812/environ", std::string("CUDA_MPS_PIPE_DIRECTORY=/x") + '\0');
  EXPECT_EQ(Check("daemon-environment").verdict, Verdict::kWarning);
}

TEST_F(CheckDaemonTest, OneThatIsInAnotherNamespace) {
  daemon_.pid = 0;
  EXPECT_EQ(Check("daemon-descriptors").found, "not known: it is in another pid namespace");
}

// Real sockets, without a daemon.
class SurveyTest : public NodeTest {
 protected:
  UniqueFd Listen(const std::string& path, int type) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string full = root_.path() + path;
    std::memcpy(address.sun_path, full.data(), full.size());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket.get(), 1), 0);
    return socket;
  }
};

TEST_F(SurveyTest, FindsWhatIsThere) {
  MakeFolder("/run/torpor/GPU-1");
  MakeFolder("/run/torpor/keeper/GPU-1");
  MakeFolder("/run/torpor/GPU-2");
  Write("/run/torpor/GPU-2/lock", "4711\n");
  Write("/run/torpor/keeper.journal", "");
  (void)Listen("/run/torpor/GPU-1/control.sock", SOCK_STREAM);  // closed at once: stale
  const UniqueFd worker = Listen("/run/torpor/GPU-1/worker.sock", SOCK_SEQPACKET);
  const auto info = TheNode().Stat("/run/torpor/GPU-2/lock");
  char file[64];
  std::snprintf(file, sizeof file, "%02x:%02x:%llu", major(info->st_dev), minor(info->st_dev),
                static_cast<unsigned long long>(info->st_ino));
  Write("/proc/locks", "1: POSIX  ADVISORY  WRITE 1 00:1:1 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 " +
                           std::string(file) + " 0 EOF\n");
  const auto all = SurveyDaemons(TheNode(), "/run/torpor", "", seconds(5));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].device, "GPU-1");
  EXPECT_EQ(all[0].control.state, State::kStale);
  EXPECT_EQ(all[0].worker.state, State::kListens);
  EXPECT_EQ(all[0].pid, ::getpid());
  EXPECT_FALSE(all[0].locked);
  EXPECT_EQ(all[1].control.state, State::kMissing);
  EXPECT_EQ(all[1].lock_pid, 4711);
  EXPECT_TRUE(all[1].locked);
  EXPECT_EQ(SurveyDaemons(TheNode(), "/run/torpor", "GPU-2", seconds(5)).size(), 1u);
}

TEST_F(SurveyTest, GivesUpWhoDoesNotAnswer) {
  MakeFolder("/run/torpor/GPU-1");
  // It listens, and never takes anyone: one connection fits into its queue, another one waits.
  const UniqueFd control = Listen("/run/torpor/GPU-1/control.sock", SOCK_STREAM);
  const UniqueFd worker = Listen("/run/torpor/GPU-1/worker.sock", SOCK_SEQPACKET);
  const auto first = SurveyDaemons(TheNode(), "/run/torpor", "", milliseconds(200));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].usage_silent) << first[0].usage_error;
  const auto full = SurveyDaemons(TheNode(), "/run/torpor", "", milliseconds(200));
  EXPECT_EQ(full[0].control.state, State::kSilent);
}

}  // namespace
}  // namespace torpor::ctl::doctor
