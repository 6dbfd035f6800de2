#include "client/ctl/doctor/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace torpor::ctl::doctor {
namespace {

TimePoint In(Duration time) { return Clock::Real().Now() + time; }
constexpr Duration kPatience = seconds(60);

TEST(ChildTest, Answers) {
  const std::string large(300'000, 'x');  // more than a pipe holds
  Child child = Child::Start([&large] { return std::string(large); });
  const Answer answer = child.Await(In(kPatience));
  EXPECT_EQ(answer.end, Answer::End::kAnswered);
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.text, large);
}

TEST(ChildTest, IsGivenUp) {
  Child child = Child::Start([] {
    while (true) ::pause();
    return std::string();
  });
  EXPECT_EQ(child.Await(In(milliseconds(50))).end, Answer::End::kSilent);
}

TEST(ChildTest, AStoppedOneIsGivenUp) {
  Child child = Child::Start([] {
    ::raise(SIGSTOP);
    return std::string("never");
  });
  EXPECT_EQ(child.Await(In(milliseconds(50))).end, Answer::End::kSilent);
}

TEST(ChildTest, MayDie) {
  Child child = Child::Start([]() -> std::string { ::raise(SIGKILL), ::_exit(0); });
  const Answer answer = child.Await(In(kPatience));
  EXPECT_EQ(answer.end, Answer::End::kDied);
  EXPECT_EQ(answer.status, SIGKILL);
}

TEST(ChildTest, AnswersThatCameInTimeAreReadLate) {
  Child child = Child::Start([] { return std::string("here"); });
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0) break;
  }
  EXPECT_EQ(child.Await(In(-seconds(1))).text, "here");
}

TEST(ChildTest, RunsPrograms) {
  Child child = Child::StartProgram({"sh", "-c", "echo out; echo err >&2; exit 3"});
  const Answer answer = child.Await(In(kPatience));
  EXPECT_EQ(answer.end, Answer::End::kAnswered);
  EXPECT_EQ(answer.status, 3);
  EXPECT_EQ(answer.text, "out\n");
  Child none = Child::StartProgram({"/no/such/program"});
  EXPECT_EQ(none.Await(In(kPatience)).status, 127);
}

}  // namespace
}  // namespace torpor::ctl::doctor
