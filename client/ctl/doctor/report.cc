#include "client/ctl/doctor/report.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "client/ctl/doctor/catalog.h"
#include "client/ctl/doctor/node.h"
#include "lib/base/utf8.h"

namespace torpor::ctl::doctor {
namespace {

constexpr size_t kColumns = 80;

const char* Word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
    case Verdict::kWarning:
      return "WARNING";
    case Verdict::kProblem:
      return "PROBLEM";
  }
  return "";
}

int64_t CountOf(const Findings& findings, Verdict verdict) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.verdict == verdict; });
}

// What terminals show as it is: anything else, as from a file's name, becomes a question mark.
std::string Printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = std::max<size_t>(Utf8SequenceLength(text), 1);
    const std::string_view character = text.substr(0, length);
    shown += IsPrintableUtf8(character) ? std::string(character) : "?";
    text.remove_prefix(length);
  }
  return shown;
}

size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// `text` behind `first`, in lines that begin with `indent` blanks from the second one on.
std::string Wrap(const std::string& first, const std::string& text, size_t indent) {
  std::string all;
  std::string line = first;
  bool empty = true;
  for (const std::string& word : SplitWords(Printable(text))) {
    if (!empty && Width(line) + 1 + Width(word) > kColumns) {
      all += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return all + line + "\n";
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string PrintFinding(const Finding& finding, const Check& check) {
  constexpr size_t kFound = 31;
  constexpr size_t kMore = 16;
  std::string text = Wrap("  " + Padded(Word(finding.verdict), 8) + Padded(check.name, 19) + "  ",
                          finding.found, kFound);
  if (finding.verdict == Verdict::kOk) return text;
  text += Wrap("          Why:  ", check.why, kMore);
  std::string commands;
  std::string sentences;
  for (const std::string& line : SplitAt(finding.remedy, '\n')) {
    if (line.compare(0, 2, "$ ") == 0) {
      commands += std::string(kMore, ' ') + Printable(line) + "\n";
    } else {
      sentences += line + " ";
    }
  }
  return text + Wrap("          Do:   ", sentences, kMore) + commands;
}

std::string Quoted(std::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      json += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      json += std::string("\\") + text[0];
    } else if (byte == '\n') {
      json += "\\n";
    } else if (byte < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", byte);
      json += code;
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return json + "\"";
}

std::string PrintJson(const Finding& finding, const Check& check) {
  std::string numbers;
  for (const auto& [key, value] : finding.numbers) {
    numbers += (numbers.empty() ? "" : ", ") + Quoted(key) + ": " + std::to_string(value);
  }
  return "    {\"group\": " + Quoted(check.group) + ", \"name\": " + Quoted(check.name) +
         ", \"subject\": " + Quoted(finding.subject) +
         ", \"verdict\": " + Quoted(Word(finding.verdict)) +
         ",\n     \"found\": " + Quoted(finding.found) + ",\n     \"why\": " + Quoted(check.why) +
         ",\n     \"remedy\": " + Quoted(finding.remedy) + ",\n     \"numbers\": {" + numbers +
         "}}";
}

// Calls `use(finding, check)` in the order of the report: that of the catalog by group; within one
// by subject, and only then by check.
template <typename Use>
void ForEach(const Findings& findings, Use use) {
  std::vector<std::string> groups;
  for (const Check& check : Catalog()) {
    if (groups.empty() || groups.back() != check.group) groups.push_back(check.group);
  }
  for (const std::string& group : groups) {
    std::vector<std::string> subjects;
    const auto of_group = [&](const std::string& name) {
      return std::find_if(Catalog().begin(), Catalog().end(), [&](const Check& check) {
        return check.group == group && check.name == name;
      });
    };
    for (const Finding& finding : findings) {
      const bool known =
          std::find(subjects.begin(), subjects.end(), finding.subject) != subjects.end();
      if (!known && of_group(finding.check) != Catalog().end()) subjects.push_back(finding.subject);
    }
    std::stable_sort(subjects.begin(), subjects.end(),
                     [](const auto& a, const auto& b) { return a.empty() && !b.empty(); });
    for (const std::string& subject : subjects) {
      for (const Finding& finding : findings) {
        const auto check = of_group(finding.check);
        if (finding.subject == subject && check != Catalog().end()) use(finding, *check);
      }
    }
  }
}

}  // namespace

bool HasProblem(const Findings& findings) { return CountOf(findings, Verdict::kProblem) > 0; }

std::string PrintText(const Findings& findings, const std::string& version) {
  std::string text = "torporctl " + version + ": ";
  const int64_t problems = CountOf(findings, Verdict::kProblem);
  const int64_t warnings = CountOf(findings, Verdict::kWarning);
  text += std::to_string(problems) + (problems == 1 ? " problem, " : " problems, ") +
          std::to_string(warnings) + (warnings == 1 ? " warning, " : " warnings, ") +
          std::to_string(CountOf(findings, Verdict::kOk)) + " OK\n";
  std::string heading;
  ForEach(findings, [&](const Finding& finding, const Check& check) {
    const std::string wanted =
        check.group + (finding.subject.empty() ? "" : " " + Printable(finding.subject));
    if (wanted != heading) text += "\n" + wanted + "\n";
    heading = wanted;
    text += PrintFinding(finding, check);
  });
  return text;
}

std::string PrintJson(const Findings& findings, const std::string& version) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  std::string checks;
  ForEach(findings, [&](const Finding& finding, const Check& check) {
    checks += (checks.empty() ? "\n" : ",\n") + PrintJson(finding, check);
  });
  return "{\n  \"version\": " + Quoted(version) + ",\n  \"verdict\": " + Quoted(Word(worst)) +
         ",\n  \"problems\": " + std::to_string(CountOf(findings, Verdict::kProblem)) +
         ",\n  \"warnings\": " + std::to_string(CountOf(findings, Verdict::kWarning)) +
         ",\n  \"checks\": [" + checks + "\n  ]\n}\n";
}

}  // namespace torpor::ctl::doctor
