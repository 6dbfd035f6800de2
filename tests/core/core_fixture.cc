#include "tests/core/core_fixture.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr Duration kPoll = milliseconds(2);

uint64_t Word(uint64_t seed, int64_t index) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(index);
  x ^= x >> 31;
  return x * 0xBF58476D1CE4E5B9u | 1;
}

uint64_t* Words(const TestWorker::Segment& segment) {
  return reinterpret_cast<uint64_t*>(segment.address.value());
}

}  // namespace

Status TestWorker::Allocate(const std::string& tag, Bytes size, uint64_t seed) {
  TORPOR_ASSIGN_OR_RETURN(const DeviceAddress address, session->Allocate(tag, size));
  segments.push_back({address, size, seed, tag});
  Fill(segments.back());
  return Status::Ok();
}

Status TestWorker::Free(size_t index) {
  Status status = session->Free(segments[index].address);
  segments.erase(segments.begin() + static_cast<ptrdiff_t>(index));
  return status;
}

void TestWorker::Fill(const Segment& segment) {
  for (int64_t i = 0; i < segment.size.value() / 8; ++i) Words(segment)[i] = Word(segment.seed, i);
}

bool TestWorker::HasPattern(const Segment& segment) {
  for (int64_t i = 0; i < segment.size.value() / 8; ++i) {
    if (Words(segment)[i] != Word(segment.seed, i)) return false;
  }
  return true;
}

bool TestWorker::IsZero(const Segment& segment) {
  return std::all_of(Words(segment), Words(segment) + segment.size.value() / 8,
                     [](uint64_t word) { return word == 0; });
}

bool TestWorker::AllHavePattern(const std::string& tag) const {
  return std::all_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    return (!tag.empty() && segment.tag != tag) || HasPattern(segment);
  });
}

CoreFixture::~CoreFixture() {
  core_.reset();
  if (!directory_.empty()) {
    ::unlink((directory_ + "/worker.sock").c_str());
    ::rmdir(directory_.c_str());
  }
}

void CoreFixture::Start(const Setup& setup) {
  char name[] = "/tmp/torpor-core-XXXXXX";
  directory_ = ::mkdtemp(name);
  auto device = HostDriver::CreateDevice({"host-test", setup.device, setup.granularity});
  ASSERT_THAT(device, IsOk());
  device_ = *std::move(device);
  driver_ = std::make_unique<FaultDriver>(*device_);
  Core::Options options;
  options.worker_socket = directory_ + "/worker.sock";
  options.host_pool = setup.host_pool;
  options.pool_slab = setup.pool_slab;
  options.verify_images = setup.verify_images;
  options.safety_reserve = setup.safety_reserve;
  options.require_reservation = setup.require_reservation;
  options.worker_deadline = setup.worker_deadline;
  auto core = Core::Create(*driver_, keeper_, clock_, options);
  ASSERT_THAT(core, IsOk());
  core_ = *std::move(core);
}

Result<std::unique_ptr<TestWorker>> CoreFixture::TryConnect(
    const client::Session::Options& options) {
  auto worker = std::make_unique<TestWorker>();
  client::Session::Options with_socket = options;
  with_socket.socket_path = directory_ + "/worker.sock";
  auto session = client::Session::Connect(
      with_socket, [&](const wire::HelloReply& hello) -> Result<std::shared_ptr<Driver>> {
        DeviceInfo info;
        info.kind = "host";
        info.uuid = hello.device_uuid;
        info.total = hello.device_total;
        info.granularity = hello.granularity;
        TORPOR_ASSIGN_OR_RETURN(auto driver, HostDriver::OpenDevice(info));
        worker->faults = std::make_shared<FaultDriver>(std::unique_ptr<Driver>(std::move(driver)));
        return std::shared_ptr<Driver>(worker->faults);
      });
  if (!session.ok()) return session.status();
  worker->session = *std::move(session);
  worker->id = worker->session->hello().worker;
  return worker;
}

std::unique_ptr<TestWorker> CoreFixture::Connect(const std::string& name, wire::Quiesce quiesce,
                                                 const std::string& reservation) {
  client::Session::Options options;
  options.name = name;
  options.quiesce = quiesce;
  options.reservation = reservation;
  auto worker = TryConnect(options);
  EXPECT_THAT(worker, IsOk());
  return worker.ok() ? *std::move(worker) : nullptr;
}

Result<std::vector<WorkerOutcome>> CoreFixture::Sleep(const Selector& selector, int32_t level,
                                                      Duration timeout) {
  SleepCommand command;
  command.selector = selector;
  command.level = level;
  command.deadline = In(timeout);
  return core_->Sleep(command);
}

Result<std::vector<WorkerOutcome>> CoreFixture::Wake(const Selector& selector, Duration timeout) {
  WakeCommand command;
  command.selector = selector;
  command.deadline = In(timeout);
  return core_->WakeUp(command);
}

Selector CoreFixture::All() {
  Selector selector;
  selector.all = true;
  return selector;
}

Selector CoreFixture::Only(const TestWorker& worker, std::vector<std::string> tags) {
  Selector selector;
  selector.workers = {WorkerName(worker.id)};
  selector.tags = std::move(tags);
  return selector;
}

UsageReport CoreFixture::Usage() {
  auto usage = core_->Usage();
  EXPECT_THAT(usage, IsOk());
  return usage.ok() ? *usage : UsageReport();
}

TagStats CoreFixture::Stats(const TestWorker& worker, const std::string& tag) {
  for (const WorkerStats& stats : Usage().workers) {
    if (stats.info.id != worker.id) continue;
    for (const TagStats& of_tag : stats.tags) {
      if (of_tag.tag == tag) return of_tag;
    }
  }
  return TagStats();
}

void CoreFixture::ExpectBooksAgree() {
  const UsageReport usage = Usage();
  Bytes resident{};
  Bytes host{};
  int64_t extents = 0;
  for (const WorkerStats& worker : usage.workers) {
    for (const TagStats& tag : worker.tags) {
      resident += tag.resident + tag.stranded;
      host += tag.host;
      extents += tag.extents;
    }
  }
  EXPECT_EQ(resident, usage.budget.resident);
  EXPECT_EQ(host, usage.pool.used);
  EXPECT_EQ(static_cast<size_t>(extents), keeper_.extents());
  EXPECT_EQ(usage.budget.total,
            usage.budget.free + usage.budget.resident + usage.budget.context + usage.budget.other);
  EXPECT_GE(usage.budget.other, Bytes(0));
  EXPECT_EQ(usage.budget.pending, Bytes(0));
  const auto measured = device_->GetMemoryInfo();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(measured->free, usage.budget.free);
}

void CoreFixture::WaitForRest() {
  const TimePoint until = In(seconds(20));
  for (;;) {
    const auto workers = Usage().workers;
    if (std::none_of(workers.begin(), workers.end(),
                     [](const WorkerStats& stats) { return stats.operation.has_value(); })) {
      return;
    }
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "an operation does not end";
    std::this_thread::sleep_for(kPoll);
  }
}

void CoreFixture::WaitForWorkers(size_t count) {
  const TimePoint until = In(seconds(20));
  while (Usage().workers.size() != count) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace torpor
