#include "client/ctl/doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "client/ctl/doctor/catalog.h"

namespace torpor::ctl::doctor {
namespace {

using testing::HasSubstr;

Finding Of(Finding finding, std::string subject) {
  finding.subject = std::move(subject);
  return finding;
}

const Findings& Some() {
  static const auto& findings = *new Findings{
      Fine("swap", "none"),
      Of(Warning(
             "daemon-keeper", "none: the daemon's death ends all sessions",
             "Start it behind a keeper, as the package's units do.\n$ torpor-keeper --socket=S"),
         "GPU-2"),
      Of(Fine("daemon-health", "OK"), "GPU-1"),
      Of(Problem("daemon-socket", std::string("a \"name\"\x01 \xff") + std::string(90, 'x'),
                 "Do it."),
         "GPU-2"),
      Fine("kernel-driver", "NVIDIA's module 580.65.06, 1 GPU").With("gpus", 1)};
  return findings;
}

TEST(ReportTest, TextIsGrouped) {
  const std::string text = PrintText(Some(), "1.2.3");
  EXPECT_THAT(text, HasSubstr("torporctl 1.2.3: 1 problem, 1 warning, 3 OK\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\nDriver\n  OK      kernel-driver .*\n"
                                           "\nDaemon GPU-2\n(.*\n)*"
                                           "\nDaemon GPU-1\n  OK      daemon-health .*\n"
                                           "\nMemory\n  OK      swap "));
  EXPECT_THAT(text, HasSubstr("          Do:   Start it behind a keeper, as the package's units do."
                              "\n                $ torpor-keeper --socket=S\n"));
  EXPECT_THAT(text, HasSubstr("a \"name\"?\n                               ?xxx"));
}

TEST(ReportTest, TextFitsEightyColumns) {
  Findings findings;
  for (const Check& check : Catalog()) {
    findings.push_back(Warning(check.name, std::string(200, 'a').replace(100, 1, " "),
                               "Words and words and words, which go on and on and on, and so on, "
                               "until they are more than a line can hold."));
    for (size_t i = 9; i < 200; i += 10) findings.back().found[i] = ' ';
  }
  std::istringstream lines(PrintText(findings, "1.2.3"));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(ReportTest, EachCheckIsOfOneGroupAndToldOnce) {
  constexpr size_t kGroups = 9;  // an empty line and a heading for each
  Findings findings;
  for (const Check& check : Catalog()) findings.push_back(Fine(check.name, "fine"));
  const std::string text = PrintText(findings, "1.2.3");
  for (const Check& check : Catalog()) {
    EXPECT_THAT(text, HasSubstr(" " + check.name + " "));
    EXPECT_THAT(check.why, testing::EndsWith("."));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<long>(1 + Catalog().size() + 2 * kGroups));
}

TEST(ReportTest, Json) {
  const std::string json = PrintJson(Some(), "1.2.3");
  EXPECT_THAT(json, HasSubstr("\"version\": \"1.2.3\""));
  EXPECT_THAT(json, HasSubstr("\"verdict\": \"PROBLEM\",\n  \"problems\": 1"));
  EXPECT_THAT(json, HasSubstr("\"numbers\": {\"gpus\": 1}"));
  EXPECT_THAT(json, HasSubstr("\"subject\": \"GPU-1\""));
  EXPECT_THAT(json, HasSubstr("a \\\"name\\\"\\u0001 \\ufffdxxx"));
  EXPECT_THAT(json, HasSubstr("units do.\\n$ torpor-keeper"));
  EXPECT_THAT(PrintJson({}, "1"), HasSubstr("\"verdict\": \"OK\""));
}

TEST(ReportTest, WarningsAreNoProblems) {
  EXPECT_TRUE(HasProblem(Some()));
  EXPECT_FALSE(HasProblem({Warning("swap", "", ""), Fine("swap", "")}));
}

}  // namespace
}  // namespace torpor::ctl::doctor
