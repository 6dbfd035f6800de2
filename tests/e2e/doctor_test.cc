// torporctl doctor on this machine, with real daemons.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class DoctorTest : public testing::Test {
 protected:
  Finished Doctor(std::vector<std::string> arguments = {}) {
    std::vector<std::string> command = {std::filesystem::absolute("client/ctl/torporctl"),
                                        "doctor"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const auto finished = RunProgram(command, {{"TORPOR_RUNTIME_DIR", dir_.path()}});
    EXPECT_THAT(finished, IsOk());
    EXPECT_THAT(finished->errors, IsEmpty());
    return *finished;
  }
  // Everything below the runtime directory, with its time of change.
  std::map<std::string, std::string> Files() {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (entry.path().extension() == ".log") continue;  // the daemon's own
      struct stat info {};
      EXPECT_EQ(::lstat(entry.path().c_str(), &info), 0);
      files[entry.path()] = std::to_string(info.st_mode) + " " + std::to_string(info.st_ino) + " " +
                            std::to_string(info.st_mtim.tv_sec) + "." +
                            std::to_string(info.st_mtim.tv_nsec);
    }
    return files;
  }
  TempDir dir_;
};

TEST_F(DoctorTest, WithoutADaemon) {
  const Finished finished = Doctor();
  EXPECT_THAT(finished.output, ContainsRegex("WARNING daemons +none under /tmp/torpor"));
  std::istringstream lines(finished.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("$ ") != std::string::npos) continue;
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST_F(DoctorTest, ADaemonThatServes) {
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  const auto before = Files();
  const Finished finished = Doctor();
  EXPECT_THAT(finished.output, HasSubstr("\nDaemon host-0\n"));
  EXPECT_THAT(finished.output, ContainsRegex("OK +daemons +1 of 1 answers"));
  EXPECT_THAT(finished.output, ContainsRegex("OK +daemon-socket +both listen, mode 0660"));
  EXPECT_THAT(finished.output, ContainsRegex("OK +daemon-usage +answered in "));
  EXPECT_THAT(finished.output, ContainsRegex("OK +daemon-health +OK"));
  EXPECT_THAT(finished.output, ContainsRegex("WARNING daemon-keeper +none"));
  EXPECT_THAT(finished.output, ContainsRegex("OK +daemon-descriptors +[0-9]+ of [0-9]+ in use"));
  EXPECT_EQ(Files(), before);
  // The daemon does not mind, and says nothing.
  EXPECT_EQ((*daemon)->Usage()->workers_size(), 0);
  EXPECT_THAT((*daemon)->log(), Not(HasSubstr("error")));
  EXPECT_THAT(Doctor({"--device=host-1"}).output,
              AllOf(Not(HasSubstr("Daemon host-0")), HasSubstr("none of device host-1")));
}

TEST_F(DoctorTest, Json) {
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  const std::string json = Doctor({"--json"}).output;
  EXPECT_THAT(json, ContainsRegex("\"name\": \"daemon-keeper\", \"subject\": \"host-0\", "
                                  "\"verdict\": \"WARNING\""));
  // Any reader of JSON.
  const std::string file = dir_.path() + "/report.json";
  const auto parsed = RunProgram(
      {"/usr/bin/python3", "-c",
       "import json,subprocess,sys\n"
       "r = json.loads(subprocess.run(sys.argv[1:], capture_output=True).stdout)\n"
       "assert r['verdict'] in ('OK', 'WARNING', 'PROBLEM'), r\n"
       "for c in r['checks']:\n"
       "  assert set(c) == {'group', 'name', 'subject', 'verdict', 'found', 'why', 'remedy', "
       "'numbers'}, c\n"
       "  assert c['found'] and c['why'], c\n"
       "  assert (c['verdict'] == 'OK') == (not c['remedy']), c\n"
       "print([c['numbers']['budget_bytes'] for c in r['checks'] if c['name'] == 'daemon-pool'])",
       std::filesystem::absolute("client/ctl/torporctl"), "doctor", "--json"},
      {{"TORPOR_RUNTIME_DIR", dir_.path()}});
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->output, "[33554432]\n") << parsed->errors;
}

TEST_F(DoctorTest, BehindAKeeper) {
  KeeperProcess keeper(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(keeper.Start(), IsOk());
  EXPECT_THAT(Doctor().output, ContainsRegex("OK +daemon-keeper +there"));
  keeper.KillKeeper();
  ASSERT_THAT(keeper.AwaitUsage(
                  [](const v1::UsageResponse& usage) { return usage.protection().code() != 0; }),
              IsOk());
  const Finished finished = Doctor();
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.output, ContainsRegex("PROBLEM daemon-keeper +KEEPER_GONE"));
}

TEST_F(DoctorTest, ADaemonThatWasKilled) {
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  const std::string pid = std::to_string((*daemon)->process().pid());
  (*daemon)->process().Signal(SIGKILL);
  ASSERT_THAT((*daemon)->process().Wait(), IsOk());
  const auto before = Files();
  const Finished finished = Doctor();
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.output, ContainsRegex("PROBLEM daemon-socket +sockets at which nobody"));
  EXPECT_THAT(finished.output, ContainsRegex("pid +" + pid));
  EXPECT_THAT(finished.output, ContainsRegex("WARNING daemons +none of 1 under"));
  EXPECT_EQ(Files(), before);
}

TEST_F(DoctorTest, ADaemonThatWasStopped) {
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  EXPECT_EQ(*(*daemon)->Stop(), 0);
  EXPECT_THAT(Doctor().output, ContainsRegex("OK +daemon-socket +no sockets: it was stopped"));
}

TEST_F(DoctorTest, ADaemonThatStandsStill) {
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  (*daemon)->process().Signal(SIGSTOP);
  const Finished finished = Doctor({"--timeout=1s"});
  (*daemon)->process().Signal(SIGCONT);
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.output,
              ContainsRegex("PROBLEM daemon-usage +did not answer Usage in 1.00s"));
  EXPECT_THAT(finished.output,
              HasSubstr("$ kill -KILL " + std::to_string((*daemon)->process().pid())));
  EXPECT_THAT(Doctor().output, ContainsRegex("OK +daemon-usage +answered"));
}

TEST_F(DoctorTest, LooksWhereOtherCommandsFindDaemons) {
  // Mounts of its own: /run/torpor may be there, and somebody's.
  const std::vector<std::string> apart = {"/usr/bin/unshare", "--mount"};
  const auto tried = RunProgram({apart[0], apart[1], "/bin/true"});
  if (::geteuid() != 0 || !tried.ok() || tried->exit_status != 0) {
    GTEST_SKIP() << "needs root, and the right to mount";
  }
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  const std::string program = dir_.path() + "/torporctl";
  std::filesystem::copy_file(std::filesystem::absolute("client/ctl/torporctl"), program);
  const std::string folder = dir_.path() + "/run/torpor";
  std::filesystem::create_directories(folder);
  auto daemon = DaemonProcess::Start(folder, {"--device=host-7", "--socket_mode=0666"});
  ASSERT_THAT(daemon, IsOk());
  const std::string mount =
      "mount -t tmpfs none /run && chmod 0755 /run && mkdir /run/torpor && "
      "mount --bind \"$0\" /run/torpor && exec \"$@\"";
  const auto doctor = [&](const std::string& variable) {
    const auto finished =
        RunProgram({apart[0], apart[1], "/bin/sh", "-c", mount, folder, "/usr/bin/setpriv",
                    "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env", "-u",
                    "TORPOR_RUNTIME_DIR", "-u", "XDG_RUNTIME_DIR", variable, program, "doctor"});
    EXPECT_THAT(finished, IsOk());
    EXPECT_THAT(finished->output, HasSubstr("\nDaemon host-7\n")) << finished->errors;
    EXPECT_THAT(finished->output, ContainsRegex("OK +daemons +1 of 1 answers"));
    return finished->output;
  };
  EXPECT_THAT(doctor("XDG_RUNTIME_DIR=" + dir_.path() + "/run"),
              Not(HasSubstr("workers of this user")));
  const std::string elsewhere = doctor("XDG_RUNTIME_DIR=" + dir_.path());
  EXPECT_THAT(elsewhere, ContainsRegex("WARNING runtime-directory +/run/torpor"));
  EXPECT_THAT(elsewhere, ContainsRegex("workers\\s+of\\s+this\\s+user\\s+look\\s+into"));
  const std::string nowhere = doctor("A=1");
  EXPECT_THAT(nowhere, ContainsRegex("WARNING runtime-directory +/run/torpor"));
  EXPECT_THAT(nowhere, ContainsRegex("look\\s+nowhere"));
}

TEST_F(DoctorTest, AsAUserWhoMayNotConnect) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  auto daemon = DaemonProcess::Start(dir_.path(), {"--host_pool=32MiB"});
  ASSERT_THAT(daemon, IsOk());
  // The program where that user can read it.
  TempDir programs;
  for (const std::string& folder : {dir_.path(), programs.path()}) {
    ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  }
  const std::string program = programs.path() + "/torporctl";
  std::filesystem::copy_file(std::filesystem::absolute("client/ctl/torporctl"), program);
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  const auto doctor = [&] {
    return *RunProgram({"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                        "--inh-caps=-all", program, "doctor", "--runtime-dir", dir_.path()});
  };
  const Finished finished = doctor();
  EXPECT_EQ(finished.exit_status, 1) << finished.errors;
  EXPECT_THAT(finished.output,
              ContainsRegex("PROBLEM daemon-socket +nobody may not connect: mode"));
  EXPECT_THAT(finished.output, HasSubstr("The group is root's."));
  EXPECT_THAT(finished.output, Not(HasSubstr("daemon-usage")));

  for (const std::string& socket : {(*daemon)->control_socket(), (*daemon)->worker_socket()}) {
    ASSERT_EQ(::chown(socket.c_str(), 0, 65533), 0);
  }
  EXPECT_THAT(doctor().output, HasSubstr("$ adduser nobody 65533"));
  for (const std::string& socket : {(*daemon)->control_socket(), (*daemon)->worker_socket()}) {
    ASSERT_EQ(::chown(socket.c_str(), 0, 65534), 0);
  }
  const std::string output = doctor().output;
  EXPECT_THAT(output, ContainsRegex("OK +daemon-usage +answered"));
  // What only root may see is not known, and no problem.
  EXPECT_THAT(output, ContainsRegex("OK +daemon-descriptors +not known: that needs root"));
  EXPECT_THAT(output, ContainsRegex("OK +daemon-environment +not known"));

  ASSERT_EQ(::chmod((dir_.path() + "/host-0").c_str(), 0700), 0);
  EXPECT_THAT(doctor().output, ContainsRegex("PROBLEM daemon-socket +nobody may not look into"));
}

}  // namespace
}  // namespace torpor
