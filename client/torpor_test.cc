#include "client/torpor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "client/fake_daemon.h"
#include "client/torpor.hpp"

namespace torpor {
namespace {

using client::FakeDaemon;

std::string Reason() { return torpor_error_reason(torpor_last_error()); }

class TorporTest : public testing::Test {
 protected:
  TorporTest() {
    options_.socket_path = daemon_.socket_path().c_str();
    options_.driver = "host";
  }

  FakeDaemon daemon_;
  torpor_options options_ = TORPOR_OPTIONS_INIT;
};

TEST_F(TorporTest, ASessionsLife) {
  torpor_session* session = nullptr;
  options_.name = "engine";
  ASSERT_EQ(torpor_connect(&options_, &session), TORPOR_OK)
      << torpor_error_text(torpor_last_error());
  EXPECT_EQ(daemon_.hello().name, "engine");

  torpor_session_info about{};
  EXPECT_EQ(torpor_describe(session, &about), TORPOR_INVALID_ARGUMENT);
  about.struct_size = sizeof about;
  ASSERT_EQ(torpor_describe(session, &about), TORPOR_OK);
  EXPECT_EQ(about.worker_id, 1u);
  EXPECT_STREQ(about.device_kind, "host");
  EXPECT_STREQ(about.device_uuid, "fake-device");
  EXPECT_EQ(about.granularity_bytes, FakeDaemon::kGranularity.value());

  void* address = nullptr;
  ASSERT_EQ(torpor_allocate(session, "weights", 100, &address), TORPOR_OK);
  std::memset(address, 1, 100);
  torpor_segment_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(torpor_segment(session, static_cast<char*>(address) + 99, &info), TORPOR_OK);
  EXPECT_EQ(info.address, address);
  EXPECT_EQ(info.size, FakeDaemon::kGranularity.value());
  EXPECT_STREQ(info.tag, "weights");

  EXPECT_EQ(torpor_work_begin(session, 0), TORPOR_OK);
  EXPECT_EQ(torpor_sleep(session, 1, nullptr, 0, TORPOR_NO_TIMEOUT, nullptr),
            TORPOR_FAILED_PRECONDITION);
  EXPECT_EQ(Reason(), "WORK_GUARD_HELD");
  EXPECT_EQ(torpor_work_end(session), TORPOR_OK);
  EXPECT_EQ(torpor_work_end(session), TORPOR_FAILED_PRECONDITION);

  EXPECT_EQ(torpor_free(session, address), TORPOR_OK);
  EXPECT_EQ(torpor_free(session, address), TORPOR_NOT_FOUND);
  EXPECT_NE(torpor_error_detail(torpor_last_error(), "address"), nullptr);
  EXPECT_EQ(torpor_error_detail(torpor_last_error(), "no such detail"), nullptr);
  EXPECT_EQ(torpor_close(session), TORPOR_OK);
}

TEST_F(TorporTest, FindsTheOnlyDaemon) {
  const std::string dir = daemon_.runtime_dir();
  options_.socket_path = nullptr;
  options_.runtime_dir = dir.c_str();
  torpor_session* session = nullptr;
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_OK);
  EXPECT_EQ(torpor_close(session), TORPOR_OK);
}

TEST_F(TorporTest, WrongDevice) {
  options_.device_uuid = "GPU-1";
  torpor_session* session = nullptr;
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_FAILED_PRECONDITION);
  EXPECT_EQ(Reason(), "WRONG_DEVICE");
  EXPECT_STREQ(torpor_error_detail(torpor_last_error(), "worker_device"), "GPU-1");
}

TEST_F(TorporTest, DetailsOfAnErrorAreListed) {
  const char* key = nullptr;
  const char* value = nullptr;
  options_.device_uuid = "GPU-1";
  torpor_session* session = nullptr;
  ASSERT_EQ(torpor_connect(&options_, &session), TORPOR_FAILED_PRECONDITION);
  const torpor_error* error = torpor_last_error();
  ASSERT_EQ(torpor_error_detail_at(error, 0, &key, &value), 1);
  EXPECT_STREQ(key, "daemon_device");
  EXPECT_STREQ(value, "fake-device");
  ASSERT_EQ(torpor_error_detail_at(error, 1, &key, &value), 1);
  EXPECT_STREQ(key, "worker_device");
  EXPECT_STREQ(value, "GPU-1");
  EXPECT_EQ(torpor_error_detail_at(error, 2, &key, &value), 0);
  EXPECT_EQ(torpor_error_detail_at(error, static_cast<size_t>(-1), &key, &value), 0);
  EXPECT_EQ(torpor_error_detail_at(error, 0, nullptr, &value), 0);
  EXPECT_EQ(torpor_error_detail_at(nullptr, 0, &key, &value), 0);
}

TEST_F(TorporTest, BadOptions) {
  torpor_session* session = nullptr;
  EXPECT_EQ(torpor_connect(&options_, nullptr), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "NULL_ARGUMENT");
  options_.driver = "rocm";
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "BAD_DRIVER");
  options_.quiesce = 9;
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "BAD_QUIESCE_MODE");
  options_.struct_size = 0;
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "BAD_STRUCT_SIZE");
}

TEST_F(TorporTest, OptionsOfOtherVersions) {
  struct {
    torpor_options known;
    int64_t unknown;
  } newer{};
  newer.known = options_;
  newer.known.struct_size = sizeof newer;
  torpor_session* session = nullptr;
  EXPECT_EQ(torpor_connect(&newer.known, &session), TORPOR_OK);
  EXPECT_EQ(torpor_close(session), TORPOR_OK);
  newer.unknown = 1;
  EXPECT_EQ(torpor_connect(&newer.known, &session), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "UNKNOWN_OPTION");
  // An older program ends its options earlier; what follows in memory is not read.
  options_.struct_size = offsetof(torpor_options, reservation);
  options_.reservation = reinterpret_cast<const char*>(1);
  options_.driver = reinterpret_cast<const char*>(1);
  options_.device_uuid = "fake-device";
  EXPECT_EQ(torpor_connect(&options_, &session), TORPOR_OK);
  EXPECT_EQ(torpor_close(session), TORPOR_OK);
}

TEST_F(TorporTest, SleepEndpoint) {
  Session session(options_);
  session.SetSleepEndpoint("POST http://localhost:8000/sleep");
  EXPECT_EQ(daemon_.sleep_endpoint(), "POST http://localhost:8000/sleep");
  EXPECT_EQ(torpor_set_sleep_endpoint(session.get(), nullptr), TORPOR_OK);
  EXPECT_EQ(daemon_.sleep_endpoint(), "");
  EXPECT_EQ(torpor_set_sleep_endpoint(nullptr, "x"), TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "NULL_ARGUMENT");
}

TEST_F(TorporTest, SizesZeroNegativeHuge) {
  Session session(options_);
  for (const int64_t size :
       {int64_t{0}, int64_t{-1}, int64_t{1} << 40, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    void* address = &address;
    EXPECT_NE(torpor_allocate(session.get(), "weights", size, &address), TORPOR_OK) << size;
    EXPECT_EQ(address, nullptr);
  }
  EXPECT_NE(session.Allocate("weights", 1), nullptr);
}

TEST_F(TorporTest, SleepAndWakeRequests) {
  Session session(options_);
  const torpor_sleep_result slept = session.Sleep(2, {"weights"}, std::chrono::seconds(3));
  EXPECT_EQ(slept.device_bytes, 1 << 20);
  EXPECT_EQ(slept.copied_bytes, 2 << 20);
  EXPECT_EQ(slept.discarded_bytes, 3 << 20);
  EXPECT_EQ(daemon_.last_sleep().level, 2);
  EXPECT_EQ(daemon_.last_sleep().timeout_ms, 3000);
  EXPECT_EQ(daemon_.last_sleep().tags, std::vector<std::string>{"weights"});

  session.Sleep({{"kv_cache", TORPOR_DISCARD}}, true);
  EXPECT_EQ(daemon_.last_sleep().level, 0);
  EXPECT_TRUE(daemon_.last_sleep().force);
  EXPECT_EQ(daemon_.last_sleep().timeout_ms, 0);
  ASSERT_EQ(daemon_.last_sleep().policies.size(), 1u);
  EXPECT_EQ(daemon_.last_sleep().policies[0].policy, wire::Policy::kDiscard);
  EXPECT_EQ(torpor_sleep_policies(session.get(), nullptr, 0, 0, 0, nullptr),
            TORPOR_INVALID_ARGUMENT);
  EXPECT_EQ(Reason(), "EMPTY_SELECTION");

  session.WakeUp({}, "r1");
  EXPECT_EQ(daemon_.last_wake_up().reservation, "r1");
}

TEST_F(TorporTest, Usage) {
  Session session(options_);
  std::vector<torpor_tag_usage> tags;
  const torpor_usage_info usage = session.Usage(&tags);
  EXPECT_EQ(usage.device_total_bytes, FakeDaemon::kTotal.value());
  ASSERT_EQ(tags.size(), 2u);
  EXPECT_STREQ(tags[0].tag, "weights");
  EXPECT_STREQ(tags[1].tag, "kv_cache");
  EXPECT_EQ(tags[1].segments, 2u);
  EXPECT_EQ(tags[1].resident_bytes, 2 << 20);
  EXPECT_EQ(tags[1].struct_size, sizeof(torpor_tag_usage));
  session.ReportUsage(1, 2);
  EXPECT_EQ(torpor_report_usage(session.get(), -1, 2), TORPOR_INVALID_ARGUMENT);
}

TEST_F(TorporTest, CallbacksThroughTheCppHeader) {
  Session session(options_);
  std::atomic<int> paused{0};
  std::atomic<int> resumed{0};
  session.OnPause([&] { return ++paused < 2; }, [&] { ++resumed; });
  EXPECT_TRUE(daemon_.Quiesce(OperationId(1)).ok());
  EXPECT_TRUE(daemon_.Resume(OperationId(1), {}).ok());
  EXPECT_EQ(daemon_.Quiesce(OperationId(2)).reason(), "PAUSE_REFUSED");
  EXPECT_EQ(paused, 2);
  EXPECT_EQ(resumed, 1);
}

TEST_F(TorporTest, CppErrors) {
  Session session(options_);
  { const WorkGuard guard(session, {"weights"}, std::chrono::milliseconds(0)); }
  try {
    session.Free(&session);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), TORPOR_NOT_FOUND);
    EXPECT_EQ(error.reason(), "UNKNOWN_ADDRESS");
    EXPECT_EQ(std::string(error.what()).rfind("NOT_FOUND UNKNOWN_ADDRESS: ", 0), 0u);
  }
}

TEST_F(TorporTest, EachThreadHasItsOwnError) {
  EXPECT_NE(torpor_free(nullptr, &options_), TORPOR_OK);
  std::thread([] {
    EXPECT_EQ(torpor_error_code(torpor_last_error()), TORPOR_OK);
    EXPECT_NE(torpor_work_end(nullptr), TORPOR_OK);
    EXPECT_EQ(Reason(), "NULL_ARGUMENT");
  }).join();
  EXPECT_EQ(torpor_error_code(torpor_last_error()), TORPOR_INVALID_ARGUMENT);
}

TEST_F(TorporTest, CodeNames) {
  EXPECT_STREQ(torpor_code_name(TORPOR_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  EXPECT_STREQ(torpor_code_name(12345), "UNKNOWN");
}

TEST_F(TorporTest, TorchAllocatesFromTheSessionInUse) {
  Session session(options_);
  ASSERT_EQ(torpor_torch_use(session.get()), TORPOR_OK);
  torpor_session* used = nullptr;
  EXPECT_EQ(torpor_torch_session(0, &used), TORPOR_OK);
  EXPECT_EQ(used, session.get());

  EXPECT_EQ(torpor_torch_malloc(0, 0, nullptr), nullptr);
  EXPECT_EQ(Reason(), "EMPTY_ALLOCATION");
  void* first = torpor_torch_malloc(1000, 0, nullptr);
  ASSERT_NE(first, nullptr);
  EXPECT_STREQ(session.Segment(first).tag, "default");
  ASSERT_EQ(torpor_torch_set_tag("kv_cache"), TORPOR_OK);
  EXPECT_EQ(torpor_torch_set_tag("no good tag"), TORPOR_INVALID_ARGUMENT);
  void* second = torpor_torch_malloc(1000, 0, nullptr);
  EXPECT_STREQ(session.Segment(second).tag, "kv_cache");
  std::thread([&] {
    void* third = torpor_torch_malloc(1000, 0, nullptr);
    EXPECT_STREQ(session.Segment(third).tag, "default");
    torpor_torch_free(first, 1000, 0, nullptr);
    torpor_torch_free(second, 1000, 1, nullptr);  // whatever the device is said to be
    torpor_torch_free(third, 1000, 0, nullptr);
    torpor_torch_free(third, 1000, 0, nullptr);
  }).join();
  EXPECT_EQ(daemon_.ExtentCount(), 0u);
  EXPECT_EQ(torpor_torch_set_tag(nullptr), TORPOR_OK);
}

// In a process of its own: such a session is never closed, and its memory freed at the very end.
using TorporDeathTest = TorporTest;

FakeDaemon* daemon_at_exit = nullptr;
void* memory_at_exit = nullptr;

void FreeAtExit() {
  torpor_torch_free(memory_at_exit, 1000, 0, nullptr);
  ::_exit(daemon_at_exit->hello().name == "torch" && daemon_at_exit->ExtentCount() == 0 ? 0 : 3);
}

TEST_F(TorporDeathTest, TorchOpensASessionByTheEnvironmentAndFreesAtExit) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("TORPOR_SOCKET", options_.socket_path, 1);
        ::setenv("TORPOR_DRIVER", "host", 1);
        ::setenv("TORPOR_WORKER_NAME", "torch", 1);
        daemon_at_exit = &daemon_;
        std::atexit(&FreeAtExit);
        memory_at_exit = torpor_torch_malloc(1000, 0, nullptr);
        std::exit(memory_at_exit == nullptr ? 2 : 4);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace torpor
