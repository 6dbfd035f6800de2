#include "daemon/flags.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FlagsTest, MetricsMayBeReachedFromOtherMachines) {
  EXPECT_FALSE(ParseFlags({})->metrics.has_value());
  const auto flags = ParseFlags({"--metrics=0.0.0.0:9877"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->metrics->ToString(), "0.0.0.0:9877");
  EXPECT_THAT(ParseFlags({"--metrics=[2001:db8::1]:9877"}), IsOk());
  EXPECT_THAT(ParseFlags({"--metrics=localhost:9877"}), HasReason("BAD_LISTEN_ADDRESS"));
  EXPECT_THAT(ParseFlags({"--listen=0.0.0.0:9877"}), HasReason("NOT_LOOPBACK"));
}

TEST(FlagsTest, Defaults) {
  const Result<Flags> flags = ParseFlags({});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->driver, DriverChoice::kAuto);
  EXPECT_EQ(flags->worker_deadline, seconds(5));
  EXPECT_EQ(flags->default_deadline, std::chrono::minutes(5));
  EXPECT_EQ(flags->host_device_memory, GiB(1));
  EXPECT_EQ(flags->socket_mode, 0660U);
  EXPECT_FALSE(flags->host_pool.has_value());
  EXPECT_EQ(flags->pool_memory, PoolMemoryKind::kAuto);
  EXPECT_EQ(flags->pin_pool, PinChoice::kAuto);
  EXPECT_FALSE(flags->listen.has_value());
}

TEST(FlagsTest, TakesAll) {
  const Result<Flags> flags =
      ParseFlags({"--driver=host", "--device", "host-7", "--runtime_dir=/tmp/x", "--listen=[::1]:0",
                  "--host_pool=64GiB", "--pool_memory=tmpfs", "--pin_pool=on_demand",
                  "--safety_reserve=auto", "--require_reservation", "--worker_deadline=250ms",
                  "--default_deadline=1h", "--shutdown_deadline=1s", "--host_device_memory=256MiB",
                  "--host_granularity=64KiB", "--socket_mode=0600", "--log_level=debug"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->driver, DriverChoice::kHost);
  EXPECT_EQ(flags->device, "host-7");
  EXPECT_EQ(flags->runtime_dir, "/tmp/x");
  EXPECT_EQ(flags->listen->ToString(), "[::1]:0");
  EXPECT_EQ(flags->host_pool, GiB(64));
  EXPECT_EQ(flags->pool_memory, PoolMemoryKind::kTmpfs);
  EXPECT_EQ(flags->pin_pool, PinChoice::kOnDemand);
  EXPECT_FALSE(flags->safety_reserve.has_value());
  EXPECT_TRUE(flags->require_reservation);
  EXPECT_EQ(flags->worker_deadline, milliseconds(250));
  EXPECT_EQ(flags->default_deadline, std::chrono::hours(1));
  EXPECT_EQ(flags->shutdown_deadline, seconds(1));
  EXPECT_EQ(flags->host_device_memory, MiB(256));
  EXPECT_EQ(flags->host_granularity, KiB(64));
  EXPECT_EQ(flags->socket_mode, 0600U);
  EXPECT_EQ(flags->log_level, log::Level::kDebug);
}

TEST(FlagsTest, RefusalsAreOneLineThatNamesTheFlag) {
  const std::pair<std::string, const char*> cases[] = {
      {"--driver=gpu", "BAD_FLAG"},
      {"--listen=localhost:1", "BAD_LISTEN_ADDRESS"},
      {"--host_pool=lots", "BAD_SIZE"},
      {"--host_pool=-1", "BAD_SIZE"},
      {"--pool_memory=hugetlb", "BAD_FLAG"},
      {"--pin_pool=never", "BAD_FLAG"},
      {"--safety_reserve=1XB", "BAD_SIZE"},
      {"--worker_deadline=5", "BAD_DURATION"},
      {"--default_deadline=0s", "BAD_FLAG"},
      {"--host_device_memory=", "BAD_SIZE"},
      {"--socket_mode=0990", "BAD_FLAG"},
      {"--socket_mode=0066", "BAD_FLAG"},
      {"--socket_mode=17777", "BAD_FLAG"},
      {"--log_level=loud", "BAD_LOG_LEVEL"},
      {"--require_reservation=maybe", "BAD_FLAG"},
      {"--no_such_flag", "BAD_FLAG"},
  };
  for (const auto& [flag, reason] : cases) {
    const Result<Flags> flags = ParseFlags({flag});
    ASSERT_THAT(flags, HasReason(reason)) << flag;
    EXPECT_THAT(flags.status().message(), HasSubstr(flag.substr(0, flag.find('=')))) << flag;
    EXPECT_THAT(flags.status().message(), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(ParseFlags({"serve"}), HasReason("BAD_FLAG"));
}

TEST(FlagsTest, WhatOtherMachinesReachNeedsTls) {
  const std::vector<std::string> tls = {"--tls_cert=c", "--tls_key=k", "--tls_client_ca=a"};
  for (const std::string text : {"127.0.0.1:7070", "127.3.2.1:0", "[::1]:65535"}) {
    const auto flags = ParseFlags({"--listen=" + text});
    ASSERT_THAT(flags, IsOk()) << text;
    EXPECT_EQ(flags->listen->ToString(), text);
  }
  for (const std::string text : {"0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070", "128.0.0.1:1",
                                 "[::ffff:10.0.0.1]:1", "[fe80::1]:1"}) {
    std::vector<std::string> arguments = {"--listen=" + text};
    const auto refused = ParseFlags(arguments);
    ASSERT_THAT(refused, HasReason("NOT_LOOPBACK")) << text;
    EXPECT_THAT(refused.status().message(), HasSubstr("--tls_client_ca"));
    arguments.insert(arguments.end(), tls.begin(), tls.end());
    EXPECT_THAT(ParseFlags(arguments), HasReason("BAD_FLAG")) << "without --access";
    arguments.push_back("--access=f");
    EXPECT_THAT(ParseFlags(arguments), IsOk()) << text;
  }
  EXPECT_THAT(ParseFlags({"--listen=127.0.0.1:1", "--access=f", tls[0], tls[1]}),
              HasReason("BAD_FLAG"));
  EXPECT_THAT(ParseFlags({"--access=f", tls[0], tls[1], tls[2]}), HasReason("BAD_FLAG"));
  for (const char* text :
       {"", "7070", ":7070", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:x", "::1:7070", "[127.0.0.1]:1", "[]:1", "127.1:7070", "unix:/tmp/x"}) {
    EXPECT_THAT(ParseAddress(text), HasReason("BAD_LISTEN_ADDRESS")) << text;
  }
}

TEST(FlagsTest, SocketsMayDiffer) {
  EXPECT_FALSE(ParseFlags({"--socket_mode=0600"})->worker_socket_mode.has_value());
  const auto flags = ParseFlags({"--socket_mode=0600", "--worker_socket_mode=0666",
                                 "--socket_group=root", "--worker_socket_group=61234"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->socket_mode, 0600U);
  EXPECT_EQ(flags->worker_socket_mode, 0666U);
  EXPECT_EQ(*FindGroup(flags->socket_group), gid_t{0});
  EXPECT_EQ(*FindGroup(flags->worker_socket_group), gid_t{61234});
  EXPECT_EQ(*FindGroup(""), std::nullopt);
  EXPECT_THAT(FindGroup("no-such-group"), HasReason("UNKNOWN_GROUP"));
}

}  // namespace
}  // namespace torpor
