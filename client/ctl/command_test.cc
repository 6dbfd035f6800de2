#include "client/ctl/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "lib/base/status_matchers.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CommandTest, Usage) {
  const auto command = ParseCommand({"usage", "--json", "--device=host-0", "--timeout=3s"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kUsage);
  EXPECT_TRUE(command->json);
  EXPECT_THAT(command->devices, ElementsAre("host-0"));
  EXPECT_EQ(command->timeout, seconds(3));
}

TEST(CommandTest, Doctor) {
  const auto command = ParseCommand({"doctor", "--json", "--device=GPU-1", "--runtime-dir=/r"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kDoctor);
  EXPECT_EQ(command->timeout, seconds(15));
  EXPECT_EQ(ParseCommand({"doctor", "--timeout=2s"})->timeout, seconds(2));
  for (const char* flag : {"--target=/a", "--all-devices", "--level=1"}) {
    EXPECT_THAT(ParseCommand({"doctor", flag}), HasReason("BAD_COMMAND")) << flag;
  }
}

TEST(CommandTest, APathIsASocket) {
  EXPECT_THAT(ParseCommand({"usage", "--target=/tmp/x.sock"})->targets,
              ElementsAre("unix:/tmp/x.sock"));
  EXPECT_THAT(ParseCommand({"usage", "--target=run/x:1.sock"})->targets,
              ElementsAre("unix:run/x:1.sock"));
  for (const char* name :
       {"127.0.0.1:7070", "unix:x.sock", "unix:///x.sock", "dns:///localhost:1"}) {
    EXPECT_THAT(ParseCommand({"--target", name, "usage"})->targets, ElementsAre(name));
  }
  EXPECT_THAT(ParseCommand({"usage"})->targets, IsEmpty());
}

TEST(CommandTest, SeveralDaemons) {
  auto command = ParseCommand({"sleep", "--all", "--level=1", "--target=/a", "--target=b:1"});
  ASSERT_THAT(command, IsOk());
  EXPECT_THAT(command->targets, ElementsAre("unix:/a", "b:1"));
  EXPECT_TRUE(AsksSeveral(*command));
  command = ParseCommand({"wake", "--all", "--device=GPU-1", "--device=GPU-2"});
  ASSERT_THAT(command, IsOk());
  EXPECT_THAT(command->devices, ElementsAre("GPU-1", "GPU-2"));
  EXPECT_TRUE(AsksSeveral(*command));
  EXPECT_TRUE(AsksSeveral(*ParseCommand({"usage", "--all-devices"})));
  EXPECT_TRUE(AsksSeveral(*ParseCommand({"usage", "--all"})));
  EXPECT_TRUE(AsksSeveral(*ParseCommand({"watch", "--all"})));
  EXPECT_FALSE(AsksSeveral(*ParseCommand({"sleep", "--all", "--level=1"})));
  EXPECT_THAT(ParseCommand({"usage", "--device=GPU-1,GPU-2", "--device=GPU-3"})->devices,
              ElementsAre("GPU-1", "GPU-2", "GPU-3"));
  EXPECT_THAT(ParseCommand({"usage", "--target=/a,b:1"})->targets, ElementsAre("unix:/a", "b:1"));
  EXPECT_FALSE(AsksSeveral(*ParseCommand({"usage", "--device=GPU-1"})));
  EXPECT_FALSE(AsksSeveral(*ParseCommand({"usage", "--target=/a"})));
}

TEST(CommandTest, ASocketOfTheWorkingDirectory) {
  const std::string name = "command_test." + std::to_string(::getpid());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::chdir(testing::TempDir().c_str()), 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(ParseCommand({"usage", "--target", name})->targets, ElementsAre("unix:" + name));
  ::unlink(name.c_str());
  ::close(fd);
  EXPECT_THAT(ParseCommand({"usage", "--target", name})->targets, ElementsAre(name));
}

TEST(CommandTest, SleepByLevel) {
  const auto command =
      ParseCommand({"sleep", "--level", "1", "w-1", "--worker=w-2,w-3", "w-4", "--tag=weights",
                    "--tag=kv_cache", "--force", "--priority=-3"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kSleep);
  EXPECT_EQ(command->sleep.level(), 1);
  EXPECT_TRUE(command->sleep.force());
  EXPECT_EQ(command->sleep.priority(), -3);
  EXPECT_EQ(ParseCommand({"wake", "--all", "--priority=7"})->wake.priority(), 7);
  EXPECT_THAT(ParseCommand({"wake", "--all", "--priority=high"}), HasReason("BAD_COMMAND"));
  EXPECT_THAT(ParseCommand({"usage", "--priority=7"}), HasReason("BAD_COMMAND"));
  EXPECT_THAT(command->sleep.selector().workers(), ElementsAre("w-2", "w-3", "w-1", "w-4"));
  EXPECT_THAT(command->sleep.selector().tags(), ElementsAre("weights", "kv_cache"));
  EXPECT_FALSE(command->sleep.selector().all());
}

TEST(CommandTest, SleepByPolicy) {
  const auto command = ParseCommand(
      {"sleep", "--all", "--policy", "weights=offload,kv_cache=discard", "--policy=runtime=keep"});
  ASSERT_THAT(command, IsOk());
  EXPECT_TRUE(command->sleep.selector().all());
  EXPECT_EQ(command->sleep.policies().at("weights"), v1::POLICY_OFFLOAD);
  EXPECT_EQ(command->sleep.policies().at("kv_cache"), v1::POLICY_DISCARD);
  EXPECT_EQ(command->sleep.policies().at("runtime"), v1::POLICY_KEEP);
}

TEST(CommandTest, Wake) {
  const auto command =
      ParseCommand({"wake", "model", "--order=weights,kv_cache", "--reservation=r-1"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kWake);
  EXPECT_THAT(command->wake.selector().workers(), ElementsAre("model"));
  EXPECT_THAT(command->wake.order(), ElementsAre("weights", "kv_cache"));
  EXPECT_EQ(command->wake.reservation_id(), "r-1");
}

TEST(CommandTest, Reserve) {
  const auto command =
      ParseCommand({"reserve", "--name=llama", "--part=weights=14GiB", "--part",
                    "kv_cache=2GiB,workspace=1MiB", "--host-bytes=14GiB", "--ttl=1500ms"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kReserve);
  const v1::ReserveRequest& reserve = command->reserve;
  EXPECT_EQ(reserve.name(), "llama");
  ASSERT_EQ(reserve.parts_size(), 3);
  EXPECT_EQ(reserve.parts(0).name(), "weights");
  EXPECT_EQ(reserve.parts(0).device_bytes(), GiB(14).value());
  EXPECT_EQ(reserve.parts(2).device_bytes(), MiB(1).value());
  EXPECT_EQ(reserve.host_bytes(), GiB(14).value());
  EXPECT_EQ(reserve.ttl().seconds(), 1);
  EXPECT_EQ(reserve.ttl().nanos(), 500'000'000);
}

TEST(CommandTest, ReserveInTurn) {
  const auto command =
      ParseCommand({"reserve", "--name=a", "--part=b=1", "--ttl=1s", "--wait", "--hold", "--keep"});
  ASSERT_THAT(command, IsOk());
  EXPECT_TRUE(command->reserve.wait());
  EXPECT_TRUE(command->reserve.hold());
  EXPECT_TRUE(command->reserve.keep());
  EXPECT_FALSE(ParseCommand({"reserve", "--name=a"})->reserve.wait());
}

TEST(CommandTest, Renew) {
  const auto command = ParseCommand({"renew", "r-3", "--ttl=2m"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kRenew);
  EXPECT_EQ(command->renew.reservation_id(), "r-3");
  EXPECT_EQ(command->renew.ttl().seconds(), 120);
  EXPECT_FALSE(ParseCommand({"renew", "r-3"})->renew.has_ttl());
}

TEST(CommandTest, RequestId) {
  EXPECT_EQ(ParseCommand({"sleep", "--all", "--request-id=a/1"})->sleep.request_id(), "a/1");
  EXPECT_EQ(ParseCommand({"wake", "--all", "--request-id", "b"})->wake.request_id(), "b");
  EXPECT_EQ(ParseCommand({"reserve", "--request-id=c"})->reserve.request_id(), "c");
  EXPECT_EQ(ParseCommand({"renew", "r-1", "--request-id=d"})->renew.request_id(), "d");
  EXPECT_EQ(ParseCommand({"release", "r-1", "--request-id=e"})->release.request_id(), "e");
  EXPECT_FALSE(ParseCommand({"usage", "--request-id=f"}).ok());
}

TEST(CommandTest, Release) {
  EXPECT_EQ(ParseCommand({"release", "r-1"})->release.reservation_id(), "r-1");
  EXPECT_EQ(ParseCommand({"release", "--reservation=r-2"})->release.reservation_id(), "r-2");
}

TEST(CommandTest, HelpAndVersionWinOverTheRest) {
  EXPECT_EQ(ParseCommand({"--help"})->verb, Verb::kHelp);
  EXPECT_EQ(ParseCommand({"sleep", "--help"})->verb, Verb::kHelp);
  EXPECT_EQ(ParseCommand({"--version"})->verb, Verb::kVersion);
  EXPECT_THAT(CommandHelp(), HasSubstr("--host-bytes=SIZE"));
  EXPECT_THAT(CommandHelp(), HasSubstr("Exit status"));
  EXPECT_THAT(CommandHelp(), HasSubstr("doctor found a problem"));
}

TEST(CommandTest, Watch) {
  auto command = ParseCommand(
      {"watch", "w-1", "--worker=model", "--kind=session,queue", "--cursor=0123456789abcdef:7"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->verb, Verb::kWatch);
  EXPECT_EQ(command->timeout, kNoTimeout);
  EXPECT_THAT(command->watch.workers(), testing::UnorderedElementsAre("w-1", "model"));
  EXPECT_THAT(command->watch.kinds(),
              testing::ElementsAre(v1::EVENT_KIND_SESSION, v1::EVENT_KIND_QUEUE));
  EXPECT_EQ(command->watch.cursor(), "0123456789abcdef:7");
  command = ParseCommand({"watch", "--timeout=5s"});
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->timeout, seconds(5));
  EXPECT_EQ(ParseCommand({"upgrade"})->timeout, std::chrono::minutes(5));
  EXPECT_EQ(ParseCommand({"usage"})->timeout, seconds(10));
}

TEST(CommandTest, RefusesWhatMakesNoSense) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "what to do?"},
      {{"dance"}, "\"dance\" is no command"},
      {{"usage", "w-1"}, "unexpected argument \"w-1\""},
      {{"usage", "--level=1"}, "--level does not go with usage"},
      {{"wake", "--force"}, "--force does not go with wake"},
      {{"sleep", "--ttl=1s"}, "--ttl does not go with sleep"},
      {{"sleep", "--level=one"}, "--level: \"one\" is no number"},
      {{"sleep", "--policy=weights"}, "--policy: \"weights\" is not of the form"},
      {{"sleep", "--policy=weights=burn"}, "\"burn\" is neither keep, offload nor discard"},
      {{"sleep", "--worker=a,,b"}, "an empty name"},
      {{"sleep", "--worker="}, "an empty name"},
      {{"sleep", "--force=perhaps"}, "--force: takes no value"},
      {{"reserve", "--part=weights=lots"}, "--part: "},
      {{"reserve", "--part==1"}, "--part: "},
      {{"reserve", "--ttl=soon"}, "--ttl: "},
      {{"release"}, "release which reservation?"},
      {{"renew", "--ttl=1s"}, "renew which reservation?"},
      {{"renew", "r-1", "--wait"}, "--wait does not go with renew"},
      {{"release", "r-1", "r-2"}, "unexpected argument \"r-2\""},
      {{"usage", "--timeout=0s"}, "--timeout: "},
      {{"watch", "--kind=dreams"}, "\"dreams\" is no kind of event"},
      {{"watch", "--kind=unspecified"}, "is no kind of event"},
      {{"watch", "--all-devices", "--cursor=1:2"}, "a cursor is one daemon's"},
      {{"top", "--json"}, "top --json wants --once"},
      {{"top", "--interval=1ms"}, "wants 100ms or more"},
      {{"completion", "tcsh"}, "completion for bash, zsh or fish?"},
      {{"renew", "r-1", "--ttl=1s", "--all-devices"}, "--all-devices does not go with renew"},
      {{"upgrade", "--device=a", "--device=b"}, "upgrade asks one daemon"},
      {{"reserve", "--target=/a", "--target=/b"}, "reserve asks one daemon"},
      {{"usage", "--target=/a", "--device=b"}, "exclude each other"},
      {{"usage", "--all-devices", "--device=b"}, "exclude each other"},
      {{"wake", "--all", "--all-devices", "--reservation=r-1"}, "a reservation is one daemon's"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto command = ParseCommand(arguments);
    ASSERT_FALSE(command.ok()) << message;
    EXPECT_THAT(command.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace torpor::ctl
