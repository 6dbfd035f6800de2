#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <thread>

#include "lib/base/status_matchers.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

class Workers : public CoreFixture {};

TEST_F(Workers, size_zero_negative_huge) {
  Start();
  const auto worker = Connect("a");
  EXPECT_THAT(worker->session->Allocate("weights", Bytes(0)), HasReason("EMPTY_ALLOCATION"));
  EXPECT_THAT(worker->session->Allocate("weights", Bytes(-4096)), HasReason("BAD_ALLOCATION_SIZE"));
  EXPECT_THAT(worker->session->Allocate("weights", MiB(65)), HasReason("LARGER_THAN_DEVICE"));
  EXPECT_THAT(worker->session->Allocate("weights", Bytes(INT64_MAX)),
              HasReason("LARGER_THAN_DEVICE"));
  EXPECT_THAT(worker->session->Allocate("weights", Bytes(INT64_MIN)),
              HasReason("BAD_ALLOCATION_SIZE"));
  EXPECT_THAT(worker->session->Allocate("no tag", MiB(1)), HasReason("BAD_TAG"));
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
  ExpectBooksAgree();
}

TEST_F(Workers, allocation_after_a_failed_one_works) {
  Setup setup;
  setup.device = MiB(8);
  Start(setup);
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(6), 1), IsOk());
  const auto refused = worker->session->Allocate("weights", MiB(4));
  EXPECT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("requested_bytes"), MiB(4).value());
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(2).value());
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 2), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(Workers, free_from_another_thread) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 2), IsOk());
  std::thread([&] { EXPECT_THAT(worker->Free(0), IsOk()); }).join();
  ASSERT_THAT(Sleep(All()), IsOk());
  std::thread([&] { EXPECT_THAT(worker->Free(0), IsOk()); }).join();
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  ExpectBooksAgree();
}

TEST_F(Workers, FreeOfWhatWasNeverAllocated) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  EXPECT_THAT(worker->session->Free(DeviceAddress(4096)), HasReason("UNKNOWN_ADDRESS"));
  const DeviceAddress address = worker->segments[0].address;
  ASSERT_THAT(worker->session->Free(address), IsOk());
  EXPECT_THAT(worker->session->Free(address), HasReason("UNKNOWN_ADDRESS"));
}

TEST_F(Workers, wrong_gpu) {
  Start();
  client::Session::Options options;
  options.device_uuid = "GPU-00000000-0000-0000-0000-000000000001";
  const auto refused = TryConnect(options);
  EXPECT_THAT(refused, HasReason("WRONG_DEVICE"));
  EXPECT_EQ(refused.status().details().at("daemon_device"), "host-test");
  EXPECT_EQ(refused.status().details().at("worker_device"), options.device_uuid);
}

TEST_F(Workers, BadHelloIsRefusedWithItsReason) {
  Start();
  client::Session::Options options;
  for (const char* name : {"no spaces", "w-1"}) {
    options.name = name;
    EXPECT_THAT(TryConnect(options), HasReason("BAD_WORKER_NAME"));
  }
  options.name = "a";
  options.reservation = "r-77";
  EXPECT_THAT(TryConnect(options), HasReason("UNKNOWN_RESERVATION"));
}

TEST_F(Workers, sums_are_exact) {
  Start();
  const auto a = Connect("a");
  const auto b = Connect("b");
  for (int i = 1; i <= 10; ++i) {
    ASSERT_THAT(a->Allocate("weights", KiB(64) * i, i), IsOk());
    ASSERT_THAT(b->Allocate("kv_cache", KiB(100) * i, i), IsOk());
    ExpectBooksAgree();
  }
  // Not of this daemon: shown as the remainder.
  auto foreign = device_->Create(MiB(3));
  ASSERT_THAT(foreign, IsOk());
  EXPECT_EQ(Usage().budget.other, MiB(3));
  ASSERT_THAT(Sleep(Only(*a)), IsOk());
  EXPECT_EQ(Usage().budget.other, MiB(3));
  ExpectBooksAgree();
  ASSERT_THAT(device_->Release(*foreign), IsOk());
  EXPECT_EQ(Usage().budget.other, Bytes(0));
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(b->Free(0), IsOk());
    ExpectBooksAgree();
  }
}

TEST_F(Workers, ReportedNumbersAreShownBesideTheDaemons) {
  Start();
  const auto worker = Connect("a");
  EXPECT_EQ(Usage().workers[0].info.reported_live, Bytes(-1));
  ASSERT_THAT(worker->session->ReportUsage(MiB(3), MiB(4)), IsOk());
  EXPECT_EQ(Usage().workers[0].info.reported_live, MiB(3));
  EXPECT_EQ(Usage().workers[0].info.reported_reserved, MiB(4));
}

TEST_F(Workers, DrawOnTheirReservation) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto reserved = core_->Reserve(
      {"engine", {{"weights", MiB(8)}, {"kv_cache", MiB(2)}}, Bytes(0), seconds(60)});
  ASSERT_THAT(reserved, IsOk());
  const auto worker = Connect("a", wire::Quiesce::kSynchronize, reserved->id);
  const auto other = Connect("b");
  // The promise keeps others out.
  EXPECT_THAT(other->session->Allocate("weights", MiB(7)), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  ASSERT_THAT(other->Allocate("weights", MiB(6), 1), IsOk());
  ASSERT_THAT(worker->Allocate("weights", MiB(8), 2), IsOk());
  EXPECT_EQ(Usage().budget.promised, MiB(2));
  EXPECT_THAT(worker->session->Allocate("weights", MiB(3)), HasReason("RESERVATION_TOO_SMALL"));
  // What is freed returns to the promise; what sleeps goes to the free budget.
  ASSERT_THAT(worker->Free(0), IsOk());
  EXPECT_EQ(Usage().budget.promised, MiB(10));
  ASSERT_THAT(worker->Allocate("weights", MiB(8), 3), IsOk());
  ASSERT_THAT(Sleep(Only(*worker)), IsOk());
  EXPECT_EQ(Usage().budget.promised, MiB(2));
  EXPECT_EQ(Usage().budget.available, MiB(8));
  ASSERT_THAT(Wake(Only(*worker)), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Workers, AnExpiredReservationLosesWhatWasNotDrawn) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto reserved = core_->Reserve({"engine", {{"weights", MiB(8)}}, Bytes(0), seconds(60)});
  ASSERT_THAT(reserved, IsOk());
  const auto worker = Connect("a", wire::Quiesce::kSynchronize, reserved->id);
  ASSERT_THAT(worker->Allocate("weights", MiB(4), 1), IsOk());
  clock_.Advance(seconds(61));
  EXPECT_EQ(Usage().budget.promised, Bytes(0));
  EXPECT_TRUE(worker->AllHavePattern());
  const auto refused = worker->session->Allocate("weights", MiB(1));
  EXPECT_THAT(refused, HasReason("RESERVATION_EXPIRED"));
  EXPECT_THAT(core_->Release(reserved->id), HasReason("RESERVATION_EXPIRED"));
  // Asleep and awake again without it, from the free budget.
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
  WakeCommand command;
  command.selector = All();
  command.reservation = reserved->id;
  command.deadline = In(seconds(5));
  EXPECT_THAT(core_->WakeUp(command), HasReason("RESERVATION_EXPIRED"));
}

TEST_F(Workers, WithoutAReservationWhereOneIsRequired) {
  Setup setup;
  setup.require_reservation = true;
  Start(setup);
  const auto worker = Connect("a");
  EXPECT_THAT(worker->session->Allocate("weights", MiB(1)), HasReason("RESERVATION_REQUIRED"));
  const auto reserved = core_->Reserve({"engine", {{"weights", MiB(8)}}, Bytes(0), seconds(60)});
  ASSERT_THAT(reserved, IsOk());
  const auto with = Connect("b", wire::Quiesce::kSynchronize, reserved->id);
  ASSERT_THAT(with->Allocate("weights", MiB(1), 1), IsOk());
  // The bytes of a sleeper leave the promise: waking wants what is left of it, or a new one.
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(with->AllHavePattern());
}

// A connection that speaks for itself.
class RawPeer {
 public:
  explicit RawPeer(const std::string& path) : socket_(Connected(path)) {}
  int fd() const { return socket_.get(); }
  void Hello() {
    ASSERT_THAT(net::SendFrame(fd(), static_cast<uint16_t>(wire::Type::kHello), 1,
                               wire::Encode(wire::Hello{"raw", "", {}, "", {}, "", {}})),
                IsOk());
    ASSERT_THAT(net::ReceiveFrame(fd()), IsOk());
  }
  // The daemon says why, if it can, and hangs up.
  void ExpectClosed() {
    for (int i = 0; i < 3; ++i) {
      const auto frame = net::ReceiveFrame(fd());
      if (frame.ok()) continue;
      EXPECT_THAT(frame, HasCode(Code::kUnavailable));
      return;
    }
    ADD_FAILURE() << "still open";
  }

 private:
  static UniqueFd Connected(const std::string& path) {
    auto socket = net::ConnectUnix(path);
    EXPECT_THAT(socket, IsOk());
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }
  UniqueFd socket_;
};

TEST_F(Workers, bad_frame_does_not_hurt_others) {
  Start();
  const auto neighbour = Connect("a");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(2), 1), IsOk());
  const auto type = static_cast<uint16_t>(wire::Type::kAllocate);
  const std::string good = wire::Encode(wire::Allocate{"weights", KiB(64)});
  net::FrameHeader header;
  header.type = type;
  header.id = 2;
  header.payload_bytes = static_cast<uint32_t>(good.size());
  const auto packet = [&](net::FrameHeader h, const std::string& payload) {
    std::string bytes(reinterpret_cast<const char*>(&h), sizeof h);
    return bytes + payload;
  };
  const auto send = [](int fd, const std::string& bytes) {
    ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  };
  net::FrameHeader wrong_magic = header;
  wrong_magic.magic = 0x1234;
  net::FrameHeader wrong_version = header;
  wrong_version.version = 77;
  net::FrameHeader absurd_size = header;
  absurd_size.payload_bytes = 0xFFFFFFFF;
  net::FrameHeader missing_fds = header;
  missing_fds.fd_count = 3;
  net::FrameHeader unknown_type = header;
  unknown_type.type = 0x7F0;
  net::FrameHeader unasked_answer = header;
  unasked_answer.type = 0x201;
  unasked_answer.id = 1000;
  const std::vector<std::function<void(int)>> attacks = {
      [&](int fd) { send(fd, "x"); },
      [&](int fd) { send(fd, packet(wrong_magic, good)); },
      [&](int fd) { send(fd, packet(wrong_version, good)); },
      [&](int fd) { send(fd, packet(absurd_size, good)); },
      [&](int fd) { send(fd, packet(header, good.substr(1))); },
      [&](int fd) { send(fd, packet(header, std::string(good.size(), '\xff'))); },
      [&](int fd) { send(fd, packet(missing_fds, good)); },
      [&](int fd) { send(fd, packet(unknown_type, good)); },
      [&](int fd) { send(fd, packet(unasked_answer, good)); },
      [&](int fd) { send(fd, std::string(70000, 'x')); },
      [&](int fd) {
        ASSERT_THAT(net::SendFrame(fd, type, 2, good, {0, 1, 2}), IsOk());
      },
      [&](int fd) { ASSERT_THAT(net::SendFrame(fd, 0x100, 2, good), IsOk()); },
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    SCOPED_TRACE("attack " + std::to_string(i));
    RawPeer before_hello(directory_ + "/worker.sock");
    attacks[i](before_hello.fd());
    before_hello.ExpectClosed();
    RawPeer after_hello(directory_ + "/worker.sock");
    after_hello.Hello();
    attacks[i](after_hello.fd());
    after_hello.ExpectClosed();
    EXPECT_TRUE(neighbour->AllHavePattern());
  }
  WaitForWorkers(1);
  ASSERT_THAT(neighbour->Allocate("weights", MiB(1), 2), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(neighbour->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Workers, AllocatedForSegmentsThatAreNotTheirs) {
  Start();
  const auto neighbour = Connect("a");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(2), 1), IsOk());
  RawPeer peer(directory_ + "/worker.sock");
  peer.Hello();
  for (uint64_t segment = 0; segment < 5; ++segment) {
    ASSERT_THAT(net::SendFrame(peer.fd(), static_cast<uint16_t>(wire::Type::kFree), segment + 2,
                               wire::Encode(wire::Free{SegmentId(segment)})),
                IsOk());
    const auto answer = net::ReceiveFrame(peer.fd());
    ASSERT_THAT(answer, IsOk());
    const auto reply = wire::Decode<wire::FreeReply>(answer->payload);
    ASSERT_THAT(reply, IsOk());
    EXPECT_THAT(reply->status, HasReason("UNKNOWN_SEGMENT"));
  }
  EXPECT_TRUE(neighbour->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Workers, AStoppedDaemonSaysThatItStops) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(1), 1), IsOk());
  const Selector selector = Only(*worker);
  core_->Stop();
  EXPECT_THAT(Sleep(selector), HasReason("DAEMON_STOPPING"));
  EXPECT_THAT(Wake(selector), HasReason("DAEMON_STOPPING"));
}

}  // namespace
}  // namespace torpor
