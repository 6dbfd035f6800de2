#include "daemon/service/unary_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "daemon/log_limit.h"
#include "lib/base/clock.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor {
namespace {

// Calls that gRPC has not taken yet: it is the test that says what becomes of them.
class UnaryCallTest : public testing::Test {
 protected:
  grpc::ServerUnaryReactor* Reserve(const std::string& request_id) {
    UnaryCall::Setup setup;
    setup.log = &log_;
    setup.method = "Reserve";
    setup.peer = "uid 7, gid 7";
    setup.caller = "uid 7";
    setup.failures = failures_;
    setup.deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    setup.response = &response_;
    setup.work = [this](const RequestLog::Attempt&,
                        const std::function<void(const Answer&)>& done) { done_ = done; };
    setup.answered = [this](const Status&) { ++answered_; };
    setup.take_back = [this](const google::protobuf::Message& lost) {
      taken_back_ += static_cast<const v1::ReserveResponse&>(lost).reservation_id() + " ";
    };
    return UnaryCall::Begin(request_id, "body", std::move(setup));
  }
  void Grant(const std::string& id) {
    const auto response = std::make_shared<v1::ReserveResponse>();
    response->set_reservation_id(id);
    done_({Status::Ok(), response});
  }

  log::Limit* failures_ = nullptr;
  RequestLog log_{Clock::Real()};
  v1::ReserveResponse response_;
  std::function<void(const Answer&)> done_;
  int answered_ = 0;
  std::string taken_back_;
};

TEST_F(UnaryCallTest, WhatWasSentIsTheCallers) {
  grpc::ServerUnaryReactor* const call = Reserve("");
  Grant("r-1");
  call->OnDone();
  EXPECT_EQ(response_.reservation_id(), "r-1");
  EXPECT_EQ(taken_back_, "");
  EXPECT_EQ(answered_, 1);
}

TEST_F(UnaryCallTest, WhatACancelledCallDidNotGetIsTakenBack) {
  grpc::ServerUnaryReactor* call = Reserve("");
  Grant("r-1");
  call->OnCancel();
  EXPECT_EQ(taken_back_, "");
  call->OnDone();
  EXPECT_EQ(taken_back_, "r-1 ");
  // In the other order, too.
  call = Reserve("");
  call->OnCancel();
  Grant("r-2");
  call->OnDone();
  EXPECT_EQ(taken_back_, "r-1 r-2 ");
  EXPECT_EQ(answered_, 2);
}

TEST_F(UnaryCallTest, WhatFailsAgainAndAgainIsLoggedOnceInAWhile) {
  log::Limit limit;
  failures_ = &limit;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) {
    for (const char* const reason : {"TEST", "OTHER"}) {
      grpc::ServerUnaryReactor* const call = Reserve("");
      done_({Status(Code::kAborted, reason, ""), nullptr});
      call->OnDone();
    }
  }
  const std::string written = testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, testing::HasSubstr("Reserve from uid 7, gid 7 failed: ABORTED TEST"));
  EXPECT_THAT(written, testing::HasSubstr("Reserve from uid 7, gid 7 failed: ABORTED OTHER"));
  // Of each as many as there were intervals.
  EXPECT_LT(std::count(written.begin(), written.end(), '\n'), 100);
  EXPECT_EQ(answered_, 200);
}

TEST_F(UnaryCallTest, AnErrorGivesNothing) {
  grpc::ServerUnaryReactor* const call = Reserve("");
  done_({Status(Code::kAborted, "TEST", ""), nullptr});
  call->OnCancel();
  call->OnDone();
  EXPECT_EQ(taken_back_, "");
}

}  // namespace
}  // namespace torpor
