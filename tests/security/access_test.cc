// Who may do what, by user and group: real daemons, real users.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lib/base/units.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"
#include "tests/harness/child_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/security/access_fixture.h"

namespace torpor {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::SleepRequest SleepOf(const std::string& worker) {
  v1::SleepRequest request;
  request.mutable_selector()->add_workers(worker);
  request.set_level(1);
  return request;
}

v1::ReserveRequest Reservation(const std::string& name) {
  v1::ReserveRequest request;
  request.set_name(name);
  request.add_parts()->set_name("weights");
  request.mutable_parts(0)->set_device_bytes(MiB(4).value());
  request.mutable_ttl()->set_seconds(600);
  return request;
}

// For KeeperProcess, which asks for Usage.
constexpr char kRootToo[] = "grant { role: OPERATOR uid: 0 }\n";

class RolesTest : public AccessTest {
 protected:
  using Stub = v1::MemoryService::Stub;

  grpc::Status Sleep(const User& user, const v1::SleepRequest& request) {
    v1::SleepResponse response;
    return As(user).Sleep(Context().get(), request, &response);
  }
  grpc::Status WakeUp(const User& user, const std::string& worker,
                      const std::string& reservation = "") {
    v1::WakeUpRequest request;
    request.mutable_selector()->add_workers(worker);
    request.set_reservation_id(reservation);
    v1::WakeUpResponse response;
    return As(user).WakeUp(Context().get(), request, &response);
  }
  v1::UsageResponse Usage(const User& user) {
    v1::UsageResponse response;
    const grpc::Status status = As(user).Usage(Context().get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static std::string Reserve(Stub& stub, const v1::ReserveRequest& request) {
    v1::ReserveResponse response;
    const grpc::Status status = stub.Reserve(Context().get(), request, &response);
    return status.ok() ? response.reservation_id() : Outcome(status);
  }
  static std::string Renew(Stub& stub, const std::string& id) {
    v1::RenewRequest request;
    request.set_reservation_id(id);
    request.mutable_ttl()->set_seconds(900);
    v1::RenewResponse response;
    return Outcome(stub.Renew(Context().get(), request, &response));
  }
  static std::string Release(Stub& stub, const std::string& id) {
    v1::ReleaseRequest request;
    request.set_reservation_id(id);
    v1::ReleaseResponse response;
    return Outcome(stub.Release(Context().get(), request, &response));
  }
  // As the first word of a connection that is closed then.
  Status SayHello(const User& user, const wire::Hello& hello) {
    Result<UniqueFd> connected = Internal("TEST", "cannot become this user");
    std::thread([&] {
      if (BecomeInThread(user)) connected = net::ConnectUnix(daemon_->worker_socket());
    }).join();
    TORPOR_ASSIGN_OR_RETURN(const UniqueFd socket, std::move(connected));
    TORPOR_RETURN_IF_ERROR(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kHello),
                                          1, wire::Encode(hello)));
    TORPOR_ASSIGN_OR_RETURN(const net::Frame frame, net::ReceiveFrame(socket.get()));
    TORPOR_ASSIGN_OR_RETURN(const auto reply, wire::Decode<wire::HelloReply>(frame.payload));
    return reply.status;
  }
  static std::string Watch(Stub& stub) {
    const auto context = Context();
    const auto reader = stub.Watch(context.get(), {});
    v1::WatchResponse response;
    const bool read = reader->Read(&response);
    if (read) context->TryCancel();
    const grpc::Status status = reader->Finish();
    return read ? "OK" : Outcome(status);
  }
};

// docs/security.md has this table.
TEST_F(RolesTest, EachRoleMayCallWhatItsTableSays) {
  StartDaemon();
  const auto mine = ConnectWorker(kWorker, daemon_->worker_socket(), "mine");
  ASSERT_THAT(mine, IsOk());
  const auto theirs = ConnectWorker(kOther, daemon_->worker_socket(), "theirs");
  ASSERT_THAT(theirs, IsOk());
  const auto both = ConnectWorker(kBoth, daemon_->worker_socket(), "both");
  ASSERT_THAT(both, IsOk());
  for (const auto* const worker : {&mine, &theirs, &both}) {
    ASSERT_THAT((**worker)->Allocate("weights", "4MiB", 1), IsOk());
  }
  const std::map<uid_t, std::string> own = {{kOperator.uid, "mine"}, {kWorker.uid, "mine"},
                                            {kOther.uid, "theirs"},  {kReader.uid, "mine"},
                                            {kBoth.uid, "both"},     {kNobody.uid, "mine"}};
  const std::string operators = Reserve(As(kOperator), Reservation("operators"));
  const std::string workers = Reserve(As(kWorker), Reservation("workers"));
  const std::string over = Reserve(As(kWorker), Reservation("over"));
  ASSERT_EQ(Release(As(kWorker), over), "OK");

  struct Row {
    const char* call;
    std::function<std::string(const User&)> run;
    // Of: operator, worker, worker by group, reader, reader and worker, nobody.
    std::vector<const char*> outcomes;
  };
  const char* const ok = "OK";
  const char* const denied = "ACCESS_DENIED";
  const std::vector<Row> rows = {
      {"Usage",
       [&](const User& user) {
         v1::UsageResponse response;
         return Outcome(As(user).Usage(Context().get(), {}, &response));
       },
       {ok, ok, ok, ok, ok, denied}},
      {"Watch",
       [&](const User& user) { return Watch(As(user)); },
       {ok, denied, denied, ok, ok, denied}},
      {"Sleep of its own",
       [&](const User& user) { return Outcome(Sleep(user, SleepOf(own.at(user.uid)))); },
       {ok, ok, ok, denied, ok, denied}},
      {"WakeUp of its own",
       [&](const User& user) { return Outcome(WakeUp(user, own.at(user.uid))); },
       {ok, ok, ok, denied, ok, denied}},
      {"Sleep of another's",
       [&](const User& user) {
         return Outcome(Sleep(user, SleepOf(user.uid == kOther.uid ? "mine" : "theirs")));
       },
       {ok, "NOT_YOURS", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Sleep of its own and another's",
       [&](const User& user) {
         v1::SleepRequest request = SleepOf("mine");
         request.mutable_selector()->add_workers("theirs");
         return Outcome(Sleep(user, request));
       },
       {ok, "NOT_YOURS", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"WakeUp of another's",
       [&](const User& user) {
         return Outcome(WakeUp(user, user.uid == kOther.uid ? "mine" : "theirs"));
       },
       {ok, "NOT_YOURS", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Sleep of all",
       [&](const User& user) {
         v1::SleepRequest request;
         request.mutable_selector()->set_all(true);
         request.set_level(1);
         return Outcome(Sleep(user, request));
       },
       {ok, "OTHERS_SELECTED", "OTHERS_SELECTED", denied, "OTHERS_SELECTED", denied}},
      {"Sleep of a tag",
       [&](const User& user) {
         v1::SleepRequest request;
         request.mutable_selector()->add_tags("weights");
         request.set_level(1);
         return Outcome(Sleep(user, request));
       },
       {ok, "OTHERS_SELECTED", "OTHERS_SELECTED", denied, "OTHERS_SELECTED", denied}},
      {"Reserve, Renew and Release of its own",
       [&](const User& user) {
         std::string id = Reserve(As(user), Reservation("own"));
         if (id.compare(0, 2, "r-") != 0) return id;
         const std::string renewed = Renew(As(user), id);
         return renewed == "OK" ? Release(As(user), id) : renewed;
       },
       {ok, ok, ok, denied, ok, denied}},
      {"Release of its own that is over",
       [&](const User& user) {
         std::string id = Reserve(As(user), Reservation("own"));
         if (id.compare(0, 2, "r-") != 0) return id;
         const std::string released = Release(As(user), id);
         return released == "OK" ? Release(As(user), id) : released;
       },
       {"RESERVATION_RELEASED", "RESERVATION_RELEASED", "RESERVATION_RELEASED", denied,
        "RESERVATION_RELEASED", denied}},
      {"Renew of a worker's that is over",
       [&](const User& user) { return Renew(As(user), over); },
       {"RESERVATION_RELEASED", "RESERVATION_RELEASED", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Renew of none",
       [&](const User& user) { return Renew(As(user), "r-4711"); },
       {"UNKNOWN_RESERVATION", "UNKNOWN_RESERVATION", "UNKNOWN_RESERVATION", denied,
        "UNKNOWN_RESERVATION", denied}},
      {"Renew of an operator's",
       [&](const User& user) { return Renew(As(user), operators); },
       {ok, "NOT_YOURS", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Renew of a worker's",
       [&](const User& user) { return Renew(As(user), workers); },
       {ok, ok, "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Release of an operator's",
       [&](const User& user) {
         return user.uid == kOperator.uid ? "OK" : Release(As(user), operators);
       },
       {ok, "NOT_YOURS", "NOT_YOURS", denied, "NOT_YOURS", denied}},
      {"Upgrade",
       [&](const User& user) {
         v1::UpgradeResponse response;
         return Outcome(As(user).Upgrade(Context().get(), {}, &response));
       },
       {"NO_KEEPER", denied, denied, denied, denied, denied}},
      {"a session",
       [&](const User& user) {
         const auto worker = ConnectWorker(user, daemon_->worker_socket(), "new");
         return worker.ok() ? "OK" : worker.status().reason();
       },
       {ok, ok, ok, denied, ok, denied}},
      {"health",
       [&](const User& user) {
         const auto channel = ChannelAs(user, daemon_->control_socket());
         grpc::health::v1::HealthCheckResponse response;
         return Outcome(
             grpc::health::v1::Health::NewStub(channel)->Check(Context().get(), {}, &response));
       },
       {ok, ok, ok, ok, ok, ok}},
  };
  const std::vector<const User*> users = {&kOperator, &kWorker, &kOther,
                                          &kReader,   &kBoth,   &kNobody};
  for (const Row& row : rows) {
    for (size_t i = 0; i < users.size(); ++i) {
      EXPECT_EQ(row.run(*users[i]), row.outcomes[i]) << row.call << " by uid " << users[i]->uid;
    }
  }
}

TEST_F(RolesTest, TheRefusalSaysWhoCalledAndWhatIsMissing) {
  StartDaemon({"--metrics=127.0.0.1:0"});
  v1::UpgradeResponse response;
  const grpc::Status refused = As(kOther).Upgrade(Context().get(), {}, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused.error_message(),
            "Upgrade needs the role OPERATOR; uid 61003, gid 61003, groups 61800, 61900, pid " +
                std::to_string(::getpid()) + " has WORKER");
  EXPECT_EQ(DetailOf(refused, "uid"), "61003");
  EXPECT_EQ(DetailOf(refused, "gid"), "61003");
  EXPECT_EQ(DetailOf(refused, "groups"), "61800, 61900");
  EXPECT_EQ(DetailOf(refused, "roles"), "WORKER");
  EXPECT_EQ(DetailOf(refused, "needs"), "OPERATOR");
  // root has no role by itself.
  EXPECT_THAT(daemon_->Usage().status().message(),
              AllOf(HasSubstr("Usage needs the role OPERATOR or WORKER or READER; uid 0, gid 0"),
                    HasSubstr("has none")));
  EXPECT_EQ(Watch(As(kWorker)), "ACCESS_DENIED");
  EXPECT_THAT(daemon_->log(), HasSubstr("refused for want of a role: "
                                        "PERMISSION_DENIED ACCESS_DENIED: Upgrade needs"));
  // The metrics count them by their reason.
  const std::string log = daemon_->log();
  const size_t at = log.find("http://127.0.0.1:");
  ASSERT_NE(at, std::string::npos);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(log.substr(at + 17))));
  const UniqueFd http(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(http.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string get = "GET /metrics HTTP/1.0\r\n\r\n";
  ASSERT_EQ(::write(http.get(), get.data(), get.size()), static_cast<ssize_t>(get.size()));
  std::string page;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(http.get(), part, sizeof part)) > 0;) page.append(part, n);
  int counted = 0;
  for (size_t begin = 0, end = 0; (end = page.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = page.substr(begin, end - begin);
    if (line.find("ACCESS_DENIED") == std::string::npos || line.find("_errors_") == line.npos) {
      continue;
    }
    counted += std::stoi(line.substr(line.rfind(' ')));
  }
  EXPECT_EQ(counted, 3) << page;
}

TEST_F(RolesTest, NobodyFillsTheLog) {
  StartDaemon();
  const auto theirs = ConnectWorker(kOther, daemon_->worker_socket(), "theirs");
  ASSERT_THAT(theirs, IsOk());
  const size_t before = daemon_->log().size();
  const std::string longest(500'000, 'x');
  v1::SleepRequest all;
  all.mutable_selector()->set_all(true);
  all.set_level(1);
  v1::SleepRequest tag = SleepOf("mine");
  tag.mutable_selector()->add_tags(longest);
  v1::SleepRequest id = SleepOf("theirs");
  id.set_request_id(longest);
  wire::Hello hello;
  hello.name = longest.substr(0, 30'000);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Outcome(Sleep(kWorker, SleepOf("theirs"))), "NOT_YOURS");
    EXPECT_EQ(Outcome(Sleep(kWorker, SleepOf(longest))), "UNKNOWN_WORKER");
    EXPECT_EQ(Outcome(Sleep(kWorker, all)), "OTHERS_SELECTED");
    EXPECT_EQ(Outcome(Sleep(kWorker, tag)), "BAD_TAG");
    EXPECT_EQ(Outcome(Sleep(kWorker, id)), "BAD_REQUEST_ID");
    EXPECT_EQ(Outcome(Sleep(kNobody, SleepOf(longest))), "ACCESS_DENIED");
    EXPECT_EQ(Release(As(kWorker), longest), "UNKNOWN_RESERVATION");
    EXPECT_EQ(SayHello(kNobody, hello).reason(), "ACCESS_DENIED");
    EXPECT_EQ(SayHello(kWorker, hello).reason(), "BAD_WORKER_NAME");
  }
  const std::string written = daemon_->log().substr(before);
  for (const char* const kind :
       {"Sleep from uid 61002, gid 61002, pid ", "PERMISSION_DENIED NOT_YOURS",
        "NOT_FOUND UNKNOWN_WORKER: there is no worker \"xxxxxxxx", "OTHERS_SELECTED", "BAD_TAG",
        "BAD_REQUEST_ID", "refused for want of a role", "NOT_FOUND UNKNOWN_RESERVATION",
        ", uid 61006 refused: ", ", uid 61002 refused: INVALID_ARGUMENT BAD_WORKER_NAME"}) {
    EXPECT_THAT(written, HasSubstr(kind));
  }
  EXPECT_THAT(written, HasSubstr(std::string(64, 'x') + "..."));
  EXPECT_THAT(written, testing::Not(HasSubstr(std::string(65, 'x'))));
  // Of 450 refusals: a line for each kind, and one more of it for each interval.
  EXPECT_LT(std::count(written.begin(), written.end(), '\n'), 225) << written;
  // Another's are told nonetheless.
  EXPECT_EQ(Outcome(Sleep(kOther, SleepOf("mine"))), "UNKNOWN_WORKER");
  EXPECT_EQ(Outcome(Sleep(kOperator, SleepOf("mine"))), "UNKNOWN_WORKER");
  EXPECT_THAT(daemon_->log(), AllOf(HasSubstr("Sleep from uid 61003, gid 61003"),
                                    HasSubstr("Sleep from uid 61001, gid 61001")));
}

TEST_F(RolesTest, WhatIsLeftOutOfTheLogIsToldInTheEnd) {
  StartDaemon();
  v1::UsageResponse usage;
  v1::UpgradeResponse upgraded;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Outcome(As(kNobody).Usage(Context().get(), {}, &usage)), "ACCESS_DENIED");
  }
  EXPECT_EQ(Outcome(Sleep(kNobody, SleepOf("mine"))), "ACCESS_DENIED");
  EXPECT_EQ(Outcome(As(kWorker).Upgrade(Context().get(), {}, &upgraded)), "ACCESS_DENIED");
  const auto complete = [&] {
    return Told(daemon_->log(), "refused for want of a role: ") == 22 &&
           daemon_->log().find("Sleep needs") != std::string::npos;
  };
  // With no more calls.
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (!complete() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(complete()) << daemon_->log();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Outcome(As(kReader).Upgrade(Context().get(), {}, &upgraded)), "ACCESS_DENIED");
  }
  EXPECT_EQ(*daemon_->Stop(), 0);
  EXPECT_EQ(Told(daemon_->log(), "refused for want of a role: "), 27) << daemon_->log();
}

TEST_F(RolesTest, UsageShowsAWorkerItsOwn) {
  StartDaemon({"--host_device_memory=64MiB"});
  const auto mine = ConnectWorker(kWorker, daemon_->worker_socket(), "mine");
  ASSERT_THAT(mine, IsOk());
  const auto theirs = ConnectWorker(kOther, daemon_->worker_socket(), "theirs");
  ASSERT_THAT(theirs, IsOk());
  ASSERT_THAT((*mine)->Allocate("weights", "8MiB", 1), IsOk());
  ASSERT_THAT((*theirs)->Allocate("weights", "16MiB", 1), IsOk());
  const std::string own = Reserve(As(kWorker), Reservation("own"));
  const std::string others = Reserve(As(kOther), Reservation("others"));
  ASSERT_NE(Reserve(As(kOperator), Reservation("operators")), "");
  // Each waits for more than there is.
  std::vector<std::thread> waiting;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (const User* const user : {&kOther, &kWorker}) {
    contexts.push_back(Context());
    waiting.emplace_back([context = contexts.back().get(), stub = &As(*user)] {
      v1::ReserveRequest request = Reservation("waits");
      request.mutable_parts(0)->set_device_bytes(MiB(48).value());
      request.set_wait(true);
      v1::ReserveResponse response;
      (void)stub->Reserve(context, request, &response);
    });
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (static_cast<size_t>(Usage(kOperator).queue_size()) < waiting.size() &&
           Clock::Real().Now() < until) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  const v1::UsageResponse seen = Usage(kWorker);
  ASSERT_EQ(seen.workers_size(), 1);
  EXPECT_EQ(seen.workers(0).name(), "mine");
  EXPECT_EQ(seen.workers(0).uid(), kWorker.uid);
  ASSERT_EQ(seen.reservations_size(), 1);
  EXPECT_EQ(seen.reservations(0).id(), own);
  ASSERT_EQ(seen.queue_size(), 1);
  EXPECT_EQ(seen.queue(0).position(), 2);
  // Sums are of everything.
  EXPECT_GE(seen.device().resident_bytes(), MiB(24).value());
  for (const User* const user : {&kOperator, &kReader, &kBoth}) {
    const v1::UsageResponse all = Usage(*user);
    EXPECT_EQ(all.workers_size(), 2);
    EXPECT_EQ(all.reservations_size(), 3);
    EXPECT_EQ(all.queue_size(), 2);
  }
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& thread : waiting) thread.join();
}

TEST_F(RolesTest, OthersReservationsAreNotDrawnOn) {
  StartDaemon();
  const std::string operators = Reserve(As(kOperator), Reservation("operators"));
  const std::string others = Reserve(As(kOther), Reservation("others"));
  EXPECT_THAT(ConnectWorker(kWorker, daemon_->worker_socket(), "thief", "reservation=" + others),
              HasReason("NOT_YOURS"));
  const auto given =
      ConnectWorker(kWorker, daemon_->worker_socket(), "given", "reservation=" + operators);
  ASSERT_THAT(given, IsOk());
  ASSERT_THAT((*given)->Allocate("weights", "2MiB", 1), IsOk());
  ASSERT_THAT((*given)->Ask("sleep 1"), IsOk());
  EXPECT_THAT((*given)->Ask("wake reservation=" + others), HasReason("NOT_YOURS"));
  EXPECT_EQ(Outcome(WakeUp(kWorker, "given", others)), "NOT_YOURS");
  EXPECT_EQ(Outcome(WakeUp(kOperator, "given", others)), "OK");
  ASSERT_THAT((*given)->Ask("sleep 1"), IsOk());
  EXPECT_EQ(Outcome(WakeUp(kWorker, "given", operators)), "OK");
  EXPECT_EQ(Release(As(kOther), others), "OK");
}

TEST_F(RolesTest, RequestIdsAreEachUsersOwn) {
  StartDaemon();
  v1::ReserveRequest request = Reservation("same");
  request.set_request_id("id-1");
  const std::string first = Reserve(As(kWorker), request);
  const std::string second = Reserve(As(kOther), request);
  EXPECT_EQ(first.substr(0, 2), "r-");
  EXPECT_EQ(second.substr(0, 2), "r-");
  EXPECT_NE(first, second);
  EXPECT_EQ(Reserve(As(kWorker), request), first);
}

TEST_F(RolesTest, WithoutAFileWhoeverGetsInMayDoEverything) {
  auto daemon = DaemonProcess::Start(
      dir_.path(), {"--socket_mode=0660", "--socket_group=61900", "--worker_socket_mode=0666"});
  ASSERT_THAT(daemon, IsOk());
  daemon_ = *std::move(daemon);
  EXPECT_EQ(ChannelAs(kNobody, daemon_->control_socket()), nullptr);
  struct stat about {};
  ASSERT_EQ(::stat(daemon_->control_socket().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0660U);
  EXPECT_EQ(about.st_gid, 61900U);
  ASSERT_EQ(::stat(daemon_->worker_socket().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0666U);
  EXPECT_THAT(ConnectWorker(kNobody, daemon_->worker_socket(), "engine"), IsOk());
  v1::SleepRequest all;
  all.mutable_selector()->set_all(true);
  all.set_level(1);
  EXPECT_EQ(Outcome(Sleep(kOther, all)), "OK");
}

TEST_F(RolesTest, WhatIsOnesOwnOutlivesTheDaemon) {
  WriteFile(std::string(kFile) + kRootToo);
  KeeperProcess keeper(dir_.path(), Flags());
  ASSERT_THAT(keeper.Start(), IsOk());
  const auto stub = [&](const User& user) { return StubAs(user, keeper.control_socket()); };
  const auto mine = ConnectWorker(kWorker, keeper.worker_socket(), "mine");
  ASSERT_THAT(mine, IsOk());
  const std::string own = Reserve(*stub(kWorker), Reservation("own"));
  const auto usage = [&](const User& user) {
    v1::UsageResponse response;
    const auto as = stub(user);
    if (as != nullptr) (void)as->Usage(Context().get(), {}, &response);
    return response;
  };
  (*mine)->process().Signal(SIGSTOP);
  const auto greeting = [&] {
    const std::string log = keeper.log();
    size_t count = 0;
    for (size_t at = 0; (at = log.find("host pool ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const size_t before = greeting();
  keeper.KillDaemon();
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (greeting() == before && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  // It is awaited, and known whose it is.
  v1::UsageResponse seen = usage(kWorker);
  ASSERT_EQ(seen.workers_size(), 1);
  EXPECT_TRUE(seen.workers(0).awaited());
  EXPECT_EQ(seen.workers(0).uid(), kWorker.uid);
  EXPECT_EQ(usage(kOther).workers_size(), 0);
  EXPECT_EQ(Renew(*stub(kOther), own), "NOT_YOURS");
  EXPECT_EQ(Renew(*stub(kWorker), own), "OK");
  (*mine)->process().Signal(SIGCONT);
  EXPECT_THAT((*mine)->Ask("usage"), IsOk());
}

TEST_F(RolesTest, ABrokenFileStopsNoDaemonThatHasAKeeper) {
  const std::string good = std::string(kFile) + kRootToo;
  WriteFile(good + "grant { role: OPERATOR uid: 61001\n  user: \"no-such-user\" }\n");
  const auto refused = RunProgram(DaemonProcess::Command(dir_.path(), Flags()));
  ASSERT_THAT(refused, IsOk());
  EXPECT_EQ(refused->exit_status, 2);
  EXPECT_THAT(refused->errors, HasSubstr("access.conf:12: there is no user \"no-such-user\""));

  WriteFile(good);
  KeeperProcess keeper(dir_.path(), Flags());
  ASSERT_THAT(keeper.Start(), IsOk());
  const auto worker = ConnectWorker(kWorker, keeper.worker_socket(), "mine");
  ASSERT_THAT(worker, IsOk());
  const auto segment = (*worker)->Allocate("weights", "8MiB", 5);
  ASSERT_THAT(segment, IsOk());
  const auto upgrade = [&](v1::UpgradeResponse* response) {
    return StubAs(kOperator, keeper.control_socket())->Upgrade(Context().get(), {}, response);
  };
  v1::UpgradeResponse upgraded;
  // In several ways: the last one gives everybody everything, and may be written by everybody.
  for (const std::string& broken :
       {good + "grant { role: BOSS uid: 1 }\n", std::string(), std::string("none"),
        std::string("grant { role: OPERATOR gid: 61006 }\ngrant { role: OPERATOR uid: 61006 }")}) {
    SCOPED_TRACE(broken);
    WriteFile(broken);
    if (broken == "none") std::filesystem::remove(file());
    if (broken.find("61006") != broken.npos) {
      ASSERT_EQ(::chmod(file().c_str(), 0666), 0);
    }
    const grpc::Status no = upgrade(&upgraded);
    EXPECT_EQ(Outcome(no), "BAD_ACCESS_FILE");
    EXPECT_EQ(no.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    // By the way that does not ask.
    const auto before = keeper.daemon();
    ASSERT_THAT(before, IsOk());
    keeper.KillDaemon();
    ASSERT_THAT(keeper.AwaitDaemon(*before), IsOk());
    // It goes by what was good, and workers come back.
    EXPECT_THAT((*worker)->Ask("check " + *segment + " 5"), IsOk());
    EXPECT_THAT((*worker)->Ask("usage"), IsOk());
    v1::SleepResponse slept;
    const auto sleep = [&](const User& user) {
      return Outcome(
          StubAs(user, keeper.control_socket())->Sleep(Context().get(), SleepOf("mine"), &slept));
    };
    EXPECT_EQ(sleep(kWorker), "OK");
    EXPECT_EQ(sleep(kOther), "NOT_YOURS");
    EXPECT_EQ(sleep(kReader), "ACCESS_DENIED");
    EXPECT_EQ(sleep(kNobody), "ACCESS_DENIED");
    EXPECT_THAT((*worker)->Ask("wake"), IsOk());
    EXPECT_THAT(keeper.log(),
                HasSubstr("error the access file is wrong: INVALID_ARGUMENT BAD_ACCESS_FILE: "));
  }
  // What is good is taken up, and is what is good from then on.
  ASSERT_EQ(::chmod(file().c_str(), 0644), 0);
  WriteFile(std::string(kRootToo) + "grant { role: [WORKER, OPERATOR] uid: 61006 }");
  const auto before = keeper.daemon();
  ASSERT_THAT(before, IsOk());
  EXPECT_EQ(Outcome(upgrade(&upgraded)), "OK");
  const auto after = keeper.AwaitDaemon(*before);
  ASSERT_THAT(after, IsOk());
  WriteFile("grant");
  keeper.KillDaemon();
  ASSERT_THAT(keeper.AwaitDaemon(*after), IsOk());
  v1::UsageResponse usage;
  EXPECT_EQ(Outcome(StubAs(kNobody, keeper.control_socket())->Usage(Context().get(), {}, &usage)),
            "OK");
  EXPECT_EQ(Outcome(StubAs(kOperator, keeper.control_socket())->Usage(Context().get(), {}, &usage)),
            "ACCESS_DENIED");
}

TEST_F(RolesTest, WithoutADaemonBeforeItNoneStartsWithABrokenFile) {
  const std::string last = dir_.path() + "/" + DaemonProcess::kDevice + "/access.last";
  WriteFile(std::string(kFile) + kRootToo);
  {
    KeeperProcess keeper(dir_.path(), Flags());
    ASSERT_THAT(keeper.Start(), IsOk());
    struct stat about {};
    ASSERT_EQ(::stat(last.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, 0600U);
    EXPECT_THAT(keeper.Stop(), IsOk());
    EXPECT_FALSE(std::filesystem::exists(last)) << "all has ended in order";
  }
  WriteFile("grant { role: BOSS uid: 1 }\n");
  KeeperProcess keeper(dir_.path(), Flags());
  Status started;
  std::thread start([&] { started = keeper.Start(); });
  const auto tries = [&] {
    const std::string log = keeper.log();
    size_t count = 0;
    const std::string wrong = "torpord: INVALID_ARGUMENT BAD_ACCESS_FILE: ";
    for (size_t at = 0; (at = log.find(wrong, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const TimePoint until = Clock::Real().Now() + kPatience / 2;
  while (tries() < 3 && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_GE(tries(), 3U) << keeper.log();
  WriteFile(std::string(kFile) + kRootToo);
  start.join();
  EXPECT_THAT(started, IsOk());
}

}  // namespace
}  // namespace torpor
