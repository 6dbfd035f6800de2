#include "daemon/service/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor {
namespace {

class Client final : public RequestLog::Caller {
 public:
  void Start(const RequestLog::RequestPtr& request, const RequestLog::Attempt& attempt) override {
    started = request;
    token = attempt.token;
    again = attempt.again;
    ++starts;
  }
  void Take(const Answer& answer, bool replayed) override {
    ++answers;
    this->answer = answer;
    this->replayed = replayed;
  }
  int64_t freed() const {
    const auto* const response = dynamic_cast<const v1::ReleaseResponse*>(answer.response.get());
    return response == nullptr ? -1 : response->device_bytes();
  }

  RequestLog::RequestPtr started;
  std::shared_ptr<CancelToken> token;
  bool again = false;
  int starts = 0;
  int answers = 0;
  Answer answer;
  bool replayed = false;
};

Answer Freed(int64_t bytes) {
  const auto response = std::make_shared<v1::ReleaseResponse>();
  response->set_device_bytes(bytes);
  return {Status::Ok(), response};
}

class RequestLogTest : public testing::Test {
 protected:
  // A request that is never finished and its leader keep each other.
  ~RequestLogTest() override {
    for (const auto& client : clients_) client->started.reset();
  }
  std::shared_ptr<Client> Call(const std::string& id, const std::string& body = "body") {
    auto client = clients_.emplace_back(std::make_shared<Client>());
    const auto request = log_.Enter(id, body, client);
    entered_ = request.status();
    if (request.ok()) requests_[client.get()] = *request;
    return client;
  }
  bool Leave(const std::shared_ptr<Client>& client) {
    return log_.Leave(requests_.at(client.get()), client.get());
  }
  void Finish(const std::shared_ptr<Client>& leader, const Answer& answer) {
    log_.Finish(leader->started, answer);
  }
  static Answer Failed(Code code, const char* reason) {
    return {Status(code, reason, ""), nullptr};
  }

  ManualClock clock_;
  RequestLog log_{clock_};
  Status entered_;
  std::map<Client*, RequestLog::RequestPtr> requests_;
  std::vector<std::shared_ptr<Client>> clients_;
};

TEST_F(RequestLogTest, JoinsWhileUnderWayAndAnswersAgainForTenMinutes) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  EXPECT_EQ(leader->starts, 1);
  EXPECT_EQ(joined->starts, 0);
  Finish(leader, Freed(7));
  EXPECT_EQ(leader->freed(), 7);
  EXPECT_FALSE(leader->replayed);
  EXPECT_EQ(joined->freed(), 7);
  EXPECT_TRUE(joined->replayed);

  clock_.Advance(std::chrono::minutes(10) - milliseconds(1));
  const auto late = Call("a");
  EXPECT_EQ(late->freed(), 7);
  EXPECT_TRUE(late->replayed);
  EXPECT_EQ(late->starts, 0);
  EXPECT_EQ(leader->answers + joined->answers + late->answers, 3);

  clock_.Advance(milliseconds(1));
  const auto anew = Call("a");
  EXPECT_EQ(anew->starts, 1);
  EXPECT_EQ(anew->answers, 0);
  Finish(anew, Freed(1));
}

TEST_F(RequestLogTest, AnotherBodyIsRefusedBeforeAndAfterTheAnswer) {
  const auto leader = Call("a");
  (void)Call("a", "another");
  EXPECT_THAT(entered_, HasReason("REQUEST_ID_REUSED"));
  EXPECT_THAT(entered_, HasCode(Code::kInvalidArgument));
  Finish(leader, Freed(7));
  const auto other = Call("a", "another");
  EXPECT_THAT(entered_, HasReason("REQUEST_ID_REUSED"));
  EXPECT_EQ(other->starts + other->answers, 0);
}

TEST_F(RequestLogTest, WithoutAnIdNothingIsSharedOrKept) {
  const auto first = Call("");
  const auto second = Call("");
  EXPECT_EQ(first->starts + second->starts, 2);
  Finish(second, Freed(2));
  Finish(first, Freed(1));
  EXPECT_EQ(first->freed(), 1);
  EXPECT_EQ(second->freed(), 2);
  EXPECT_EQ(log_.memory(), Bytes(0));
}

TEST_F(RequestLogTest, ErrorsOfTheRequestAreKeptThoseOfTheMomentAreNot) {
  const std::pair<Code, bool> cases[] = {
      {Code::kInvalidArgument, false},   {Code::kNotFound, true},
      {Code::kFailedPrecondition, true}, {Code::kResourceExhausted, true},
      {Code::kPermissionDenied, true},   {Code::kUnimplemented, true},
      {Code::kInternal, true},           {Code::kDataLoss, true},
      {Code::kCancelled, false},         {Code::kDeadlineExceeded, false},
      {Code::kAborted, false},           {Code::kUnavailable, false},
  };
  for (const auto& [code, kept] : cases) {
    SCOPED_TRACE(CodeName(code));
    const std::string id(CodeName(code));
    const auto first = Call(id);
    Finish(first, Failed(code, "TEST"));
    EXPECT_THAT(first->answer.status, HasCode(code));
    const auto again = Call(id);
    EXPECT_EQ(again->starts, kept ? 0 : 1);
    EXPECT_EQ(again->answers, kept ? 1 : 0);
    EXPECT_EQ(again->replayed, kept);
    if (!kept) Finish(again, Freed(1));
  }
}

TEST_F(RequestLogTest, OfAnErrorIsKeptWhatItsCallersAreTold) {
  const auto first = Call("a");
  Finish(first,
         {NotFound("TEST", std::string(1 << 20, 'x')).With("name", std::string(1 << 20, 'y')),
          nullptr});
  EXPECT_LT(log_.memory(), KiB(4));
  const auto again = Call("a");
  EXPECT_THAT(again->answer.status, HasReason("TEST"));
  EXPECT_THAT(again->answer.status.message(), testing::EndsWith("x [truncated]"));
}

TEST_F(RequestLogTest, ThatTheDaemonIsBusyIsNotKept) {
  for (const char* const reason :
       {"TOO_MANY_CALLS", "TOO_MANY_RESERVATIONS", "QUEUE_FULL", "THREADS_EXHAUSTED"}) {
    Finish(Call(reason), Failed(Code::kResourceExhausted, reason));
    EXPECT_EQ(Call(reason)->starts, 1) << reason;
  }
}

TEST_F(RequestLogTest, AnswersThatArePartlyOfTheMomentAreNotKept) {
  Answer partly = Freed(7);
  partly.of_the_moment = true;
  Finish(Call("a"), partly);
  EXPECT_EQ(Call("a")->starts, 1);
}

TEST_F(RequestLogTest, IdsHaveASyntax) {
  for (const std::string& id : {std::string(129, 'x'), std::string("a b"), std::string("\x7f"),
                                std::string("\xc3\xa4"), std::string("a\0", 2)}) {
    (void)Call(id);
    EXPECT_THAT(entered_, HasReason("BAD_REQUEST_ID"));
  }
  EXPECT_EQ(Call(std::string(128, 'x'))->starts, 1);
  EXPECT_EQ(Call("pod/7:attempt-1#~")->starts, 1);
}

TEST_F(RequestLogTest, TheLastCallerThatLeavesCancels) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  EXPECT_FALSE(Leave(leader));
  EXPECT_FALSE(leader->token->cancelled());
  EXPECT_TRUE(Leave(joined));
  EXPECT_TRUE(leader->token->cancelled());
  EXPECT_THAT(leader->token->status(), HasReason("OPERATION_CANCELLED"));
  EXPECT_FALSE(Leave(joined));
  Finish(leader, {leader->token->status(), nullptr});
  EXPECT_EQ(leader->answers, 1);
  EXPECT_EQ(joined->answers, 0);
}

TEST_F(RequestLogTest, ALeaderThatLeavesStopsNobodyElse) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  (void)Leave(leader);
  Finish(leader, Freed(7));
  EXPECT_EQ(joined->freed(), 7);
  EXPECT_EQ(Call("a")->freed(), 7);
}

TEST_F(RequestLogTest, WhoJoinsACancelledRequestStartsItAgain) {
  const auto leader = Call("a");
  (void)Leave(leader);
  ASSERT_TRUE(leader->token->cancelled());
  const auto second = Call("a");
  const auto third = Call("a");
  EXPECT_EQ(second->starts + third->starts, 0);
  Finish(leader, {leader->token->status(), nullptr});
  EXPECT_EQ(second->starts, 1);
  EXPECT_FALSE(second->token->cancelled());
  EXPECT_EQ(second->answers + third->answers, 0);
  Finish(second, Freed(7));
  EXPECT_FALSE(second->replayed);
  EXPECT_TRUE(third->replayed);
  EXPECT_EQ(third->freed(), 7);
}

TEST_F(RequestLogTest, ADeadlineIsTheLeadersOwn) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  // By whatever name: its worker may be the one that was late.
  Answer late = Failed(Code::kDeadlineExceeded, "WORKER_SILENT");
  late.given_up = true;
  Finish(leader, late);
  EXPECT_THAT(leader->answer.status, HasReason("WORKER_SILENT"));
  EXPECT_FALSE(leader->again);
  EXPECT_EQ(joined->starts, 1);
  EXPECT_TRUE(joined->again);
  // A worker that is late is so for all.
  const auto third = Call("a");
  Finish(joined, Failed(Code::kDeadlineExceeded, "WORKER_SILENT"));
  EXPECT_EQ(third->starts, 0);
  EXPECT_THAT(third->answer.status, HasReason("WORKER_SILENT"));
  EXPECT_EQ(Call("a")->starts, 1);
}

TEST_F(RequestLogTest, WhatIsGivenUpInPartStartsAgainToo) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  Answer partly = Freed(7);
  partly.of_the_moment = partly.given_up = true;
  Finish(leader, partly);
  EXPECT_EQ(leader->freed(), 7);
  EXPECT_EQ(joined->starts, 1);
  Finish(joined, Freed(8));
}

TEST_F(RequestLogTest, WhoHasJustBecomeTheLeaderStays) {
  const auto leader = Call("a");
  const auto joined = Call("a");
  const auto third = Call("a");
  const auto leave_if_joined = [&](const std::shared_ptr<Client>& client) {
    return log_.LeaveIfJoined(requests_.at(client.get()), client.get());
  };
  EXPECT_TRUE(leave_if_joined(third));
  Finish(leader, Failed(Code::kCancelled, "TEST"));
  ASSERT_EQ(joined->starts, 1);
  EXPECT_FALSE(leave_if_joined(joined));
  EXPECT_FALSE(joined->token->cancelled());
  Finish(joined, Freed(7));
  EXPECT_EQ(joined->freed(), 7);
  EXPECT_EQ(third->answers, 0);
}

TEST_F(RequestLogTest, FullMeansRefused) {
  RequestLog small(clock_, {KiB(8), std::chrono::minutes(10)});
  int taken = 0;
  Status refused;
  while (refused.ok()) {
    ASSERT_LT(taken, 100);
    const auto client = std::make_shared<Client>();
    refused = small.Enter("id-" + std::to_string(taken), "body", client).status();
    if (!refused.ok()) break;
    small.Finish(client->started, Freed(taken++));
  }
  EXPECT_GT(taken, 5);
  EXPECT_THAT(refused, HasReason("REQUEST_LOG_FULL"));
  EXPECT_THAT(refused, HasCode(Code::kResourceExhausted));
  EXPECT_EQ(refused.Number("budget_bytes"), KiB(8).value());
  // Nothing was forgotten, and requests without an id go on.
  const auto known = std::make_shared<Client>();
  EXPECT_THAT(small.Enter("id-0", "body", known), IsOk());
  EXPECT_EQ(known->freed(), 0);
  const auto nameless = std::make_shared<Client>();
  EXPECT_THAT(small.Enter("", "body", nameless), IsOk());
  small.Finish(nameless->started, Freed(1));

  clock_.Advance(std::chrono::minutes(10));
  const auto next = std::make_shared<Client>();
  EXPECT_THAT(small.Enter("new", "body", next), IsOk());
  EXPECT_EQ(next->starts, 1);
  small.Finish(next->started, Failed(Code::kAborted, "TEST"));
  EXPECT_EQ(small.memory(), Bytes(0));
}

TEST_F(RequestLogTest, EachCallerGetsOneAnswer) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> starts = 0;
    std::vector<std::shared_ptr<Client>> clients;
    std::vector<std::thread> threads;
    clients.reserve(4);
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) clients.push_back(std::make_shared<Client>());
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, client = clients[static_cast<size_t>(i)]] {
        const auto request = log_.Enter("r" + std::to_string(round), "body", client);
        ASSERT_THAT(request, IsOk());
        if (client->started == nullptr) return;
        ++starts;
        log_.Finish(client->started, Freed(round));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(starts, 1);
    for (const auto& client : clients) {
      EXPECT_EQ(client->answers, 1);
      EXPECT_EQ(client->freed(), round);
    }
  }
}

}  // namespace
}  // namespace torpor
