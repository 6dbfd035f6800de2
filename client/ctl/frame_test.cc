#include "client/ctl/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "client/ctl/text_width.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

const auto kNow = std::chrono::system_clock::from_time_t(1'700'000'000);

void AddWorker(v1::UsageResponse& usage, const std::string& name, int64_t resident,
               int64_t offloaded, int64_t discarded) {
  v1::WorkerUsage& worker = *usage.add_workers();
  worker.set_id("w-" + std::to_string(usage.workers_size()));
  worker.set_name(name);
  for (const char* tag : {"weights", "kv_cache"}) {
    v1::TagUsage& memory = *worker.add_tags();
    memory.set_tag(tag);
    memory.set_resident_bytes(resident);
    memory.set_offloaded_bytes(offloaded);
    memory.set_discarded_bytes(discarded);
  }
}

DaemonView SomeDaemon(const std::string& name) {
  DaemonView daemon;
  daemon.name = name;
  daemon.usage.emplace();
  daemon.usage_time = kNow;
  v1::UsageResponse& usage = *daemon.usage;
  usage.set_version("0.1.0");
  usage.mutable_start_time()->set_seconds(1'700'000'000 - 60 * 75);
  v1::DeviceUsage& device = *usage.mutable_device();
  device.set_uuid(name);
  device.set_name("NVIDIA H200");
  device.set_driver("cuda");
  device.set_total_bytes(GiB(100).value());
  device.set_resident_bytes(GiB(50).value());
  device.set_other_bytes(GiB(10).value());
  device.set_free_bytes(GiB(40).value());
  device.set_promised_bytes(GiB(20).value());
  device.set_available_bytes(GiB(19).value());
  usage.mutable_host_pool()->set_kind("memfd, huge pages");
  usage.mutable_host_pool()->set_budget_bytes(GiB(64).value());
  usage.mutable_host_pool()->set_used_bytes(GiB(16).value());
  usage.mutable_host_pool()->set_clean_bytes(GiB(8).value());
  return daemon;
}

void AddEvents(DaemonView& daemon, int count) {
  for (int i = 0; i < count; ++i) {
    v1::WatchResponse event;
    event.mutable_time()->set_seconds(1'699'999'000 + i);
    event.mutable_session()->set_change(v1::SESSION_CHANGE_OPENED);
    event.mutable_session()->set_worker_id("w-" + std::to_string(i));
    event.mutable_session()->set_worker_name("event-" + std::to_string(i));
    daemon.events.push_back(event);
  }
}

v1::ProgressEvent Copying() {
  v1::ProgressEvent progress;
  progress.set_phase(v1::OPERATION_PHASE_COPY);
  progress.set_kind(v1::OPERATION_KIND_SLEEP);
  progress.set_operation_id("op-7");
  progress.set_worker_id("w-1");
  progress.set_tag("weights");
  progress.set_done_bytes(GiB(1).value());
  progress.set_total_bytes(GiB(4).value());
  return progress;
}

std::string Plain(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else {
      text += line[i];
    }
  }
  return text;
}

std::string Join(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST(FrameTest, OneDaemon) {
  View view{{SomeDaemon("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")}, kNow};
  DaemonView& daemon = view.daemons.front();
  AddWorker(*daemon.usage, "model-a", GiB(20).value(), 0, 0);
  AddWorker(*daemon.usage, "model-b", 0, GiB(10).value(), 0);
  AddWorker(*daemon.usage, "model-c", 0, 0, GiB(5).value());
  daemon.usage->mutable_workers(0)->mutable_tags(1)->set_moving_segments(3);
  daemon.moving.push_back({Copying(), 5e10});
  v1::WaiterUsage& waiter = *daemon.usage->add_queue();
  waiter.set_position(1);
  waiter.set_id("q-1");
  waiter.set_name("next");
  waiter.set_device_bytes(GiB(30).value());
  waiter.mutable_since_time()->set_seconds(1'699'999'990);
  waiter.mutable_deadline_time()->set_seconds(1'700'000'020);
  AddEvents(daemon, 3);
  const std::vector<std::string> lines = RenderFrame(view, {80, 24}, false);
  ASSERT_EQ(lines.size(), 17u) << Join(lines);
  EXPECT_THAT(lines[0], MatchesRegex("torporctl top  SERVING  torpord 0.1.0  up 75m  protected "
                                     " +[0-9:]+"));
  EXPECT_EQ(TextWidth(lines[0]), 80u);
  EXPECT_EQ(lines[1],
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 (NVIDIA H200, cuda)  pool: memfd, huge~");
  EXPECT_THAT(lines[2], MatchesRegex("Device \\[#{32,33}:{6,7}\\+{13}\\.{13}\\] 100G"));
  EXPECT_EQ(lines[3],
            "# resident 50.0G  : other 10.0G  + promised 20.0G  . free 40.0G  available 19.0G");
  EXPECT_THAT(lines[4], MatchesRegex("Pool   \\[=+-+\\.+\\]  = used 16.0G  - clean 8.0G  "
                                     ". free 40.0G"));
  EXPECT_THAT(lines[5], MatchesRegex("sleep w-1 copies weights  \\[#+\\.+\\] +25%  1.00 of 4.00 "
                                     "GiB, 50.0 GB/s"));
  EXPECT_EQ(lines[6],
            "waits 1 q-1 (next) for 30.0G device, 0 host, since 10.0s, gives up in 20.0s");
  EXPECT_THAT(lines[7], MatchesRegex("WORKER NAME +TAG +STATE .*RESIDENT ASLEEP"));
  EXPECT_THAT(lines[8], MatchesRegex("w-1 +model-a weights +resident +\\[#+\\] +20.0G +0"));
  EXPECT_THAT(lines[9], MatchesRegex(" +kv_cache +moving +\\[#+\\] +20.0G +0"));
  EXPECT_THAT(lines[10], MatchesRegex("w-2 +model-b weights +offloaded +\\[=+\\.+\\] +0 +10.0G"));
  EXPECT_THAT(lines[12], MatchesRegex("w-3 +model-c weights +discarded +\\[_+\\.+\\] +0 +5.0G"));
  EXPECT_THAT(lines[16], HasSubstr("w-2 (event-2) session opened"));
}

TEST(FrameTest, CountsWhatDoesNotFit) {
  View view{{SomeDaemon("host-0")}, kNow};
  DaemonView& daemon = view.daemons.front();
  for (int i = 0; i < 100; ++i) {
    AddWorker(*daemon.usage, "model-" + std::to_string(i), MiB(i).value(), MiB(1).value(), 0);
    daemon.moving.push_back({Copying(), 0});
  }
  AddEvents(daemon, 50);
  const std::vector<std::string> lines = RenderFrame(view, {80, 24}, false);
  EXPECT_EQ(lines.size(), 24u);
  const std::string all = Join(lines);
  EXPECT_THAT(all, HasSubstr("... 97 more operations\n"));
  EXPECT_THAT(all, HasSubstr("more rows of tags\n"));
  EXPECT_THAT(lines.back(), HasSubstr("(event-49)"));
  EXPECT_THAT(all, Not(HasSubstr("(event-45)")));
}

TEST(FrameTest, SaysThatADaemonIsGone) {
  View view{{SomeDaemon("host-0")}, kNow};
  view.daemons.front().status.set_code(14);
  view.daemons.front().status.set_message("no daemon listens at /x");
  EXPECT_THAT(RenderFrame(view, {80, 24}, false).front(),
              MatchesRegex("torporctl top  NOT ANSWERING UNAVAILABLE, as of [0-9:]+ .*"));
  view.daemons.front().usage.reset();
  EXPECT_THAT(RenderFrame(view, {80, 24}, false)[1], HasSubstr("no daemon listens at /x"));
  view.daemons.front() = SomeDaemon("host-0");
  view.daemons.front().usage->mutable_health()->set_code(14);
  EXPECT_THAT(RenderFrame(view, {80, 24}, false).front(), HasSubstr("NOT SERVING UNAVAILABLE"));
}

TEST(FrameTest, SaysWhyThereAreNoEvents) {
  View view;
  view.now = kNow;
  view.daemons = {SomeDaemon("host-0")};
  view.daemons[0].no_events.set_code(static_cast<int32_t>(Code::kPermissionDenied));
  view.daemons[0].no_events.set_message("Watch needs the role OPERATOR or READER");
  const std::string why = "no events: PERMISSION_DENIED: Watch needs the role OPERATOR or READER";
  EXPECT_EQ(RenderFrame(view, {80, 24}, false).back(), why);
  // Those of before stay.
  AddEvents(view.daemons[0], 2);
  const std::vector<std::string> lines = RenderFrame(view, {80, 24}, false);
  EXPECT_THAT(lines.back(), HasSubstr("(event-1) session opened"));
  EXPECT_EQ(lines[lines.size() - 3], why);
  view.daemons.push_back(SomeDaemon("host-1"));
  view.daemons[1].status = view.daemons[0].no_events;
  EXPECT_THAT(RenderFrame(view, {100, 24}, false),
              AllOf(testing::Contains("host-0 " + why),
                    testing::Contains(HasSubstr("REFUSES PERMISSION_DENIED"))));
}

TEST(FrameTest, SeveralDaemons) {
  View view{{SomeDaemon("host-0"), SomeDaemon("host-1"), SomeDaemon("host-2")}, kNow};
  view.daemons[1].status.set_code(14);
  for (DaemonView& daemon : view.daemons) {
    for (int i = 0; i < 4; ++i) AddWorker(*daemon.usage, "model", GiB(1).value(), 0, 0);
    AddEvents(daemon, 2);
  }
  std::vector<std::string> lines = RenderFrame(view, {80, 24}, false);
  EXPECT_EQ(lines.size(), 24u);
  std::string all = Join(lines);
  EXPECT_THAT(lines[0], HasSubstr("3 daemons, 2 serve"));
  EXPECT_THAT(lines[1], MatchesRegex("host-0 \\[#+:+\\+*\\.+\\] +50.0G/100G .* SERVING.*"));
  EXPECT_THAT(all, AllOf(HasSubstr("NOT ANSWERING"), HasSubstr("more rows"), HasSubstr("host-2 "),
                         HasSubstr("(event-1)")));
  for (int i = 3; i < 64; ++i) view.daemons.push_back(SomeDaemon("host-" + std::to_string(i)));
  lines = RenderFrame(view, {80, 24}, false);
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_THAT(Join(lines), HasSubstr("... 46 more daemons\n"));
}

TEST(FrameTest, NeverExceedsTheTerminal) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  View view;
  for (const char* name : {"模型模型模型模型模型模型模型模型模型模型模型模型", "größe\x1b[2J\n"}) {
    DaemonView daemon = SomeDaemon(name);
    daemon.usage->mutable_device()->set_total_bytes(kHuge);
    daemon.usage->mutable_device()->set_resident_bytes(kHuge);
    daemon.usage->mutable_device()->set_name(std::string(300, 'x'));
    daemon.usage->mutable_device()->set_overcommitted_bytes(kHuge);
    AddWorker(*daemon.usage, std::string(63, 'n'), kHuge / 4, kHuge / 4, kHuge / 4);
    AddWorker(*daemon.usage, "e\xcc\x81tude \xff\x07 模型", -5, 0, 0);
    daemon.usage->add_workers()->set_id("w-18446744073709551615");
    daemon.usage->mutable_workers(1)->set_operation_id("op-18446744073709551615");
    daemon.usage->add_queue()->set_name(std::string(63, 'q'));
    daemon.moving.push_back({Copying(), 1e300});
    daemon.moving.back().latest.set_tag("模型模型模型模型模型模型模型模型模型模型模型");
    AddEvents(daemon, 9);
    daemon.events.back().mutable_session()->set_worker_name(
        "模型\n\x1b[31m模型模型模型模型模型模型模型模型");
    view.daemons.push_back(daemon);
  }
  for (const bool several : {true, false}) {
    if (!several) view.daemons.pop_back();
    for (size_t columns = 0; columns <= 200; columns += columns < 90 ? 1 : 11) {
      for (const size_t rows : {0u, 1u, 2u, 3u, 5u, 6u, 7u, 8u, 12u, 24u, 60u}) {
        const auto plain = RenderFrame(view, {columns, rows}, false);
        const auto coloured = RenderFrame(view, {columns, rows}, true);
        ASSERT_LE(plain.size(), rows);
        ASSERT_EQ(plain.size(), coloured.size());
        for (size_t i = 0; i < plain.size(); ++i) {
          ASSERT_LE(TextWidth(plain[i]), columns) << rows << ": " << plain[i];
          ASSERT_EQ(plain[i].find('\x1b'), std::string::npos);
          const std::string shown = Plain(coloured[i]);
          ASSERT_LE(TextWidth(shown), columns);
          ASSERT_EQ(shown.find('\n'), std::string::npos);
        }
      }
    }
  }
}

}  // namespace
}  // namespace torpor::ctl
