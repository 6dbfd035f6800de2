#include "tests/survival/documented.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

namespace torpor::survival {
namespace {

const char* Heading(Operation operation) {
  switch (operation) {
    case Operation::kAllocate:
      return "## Allocate";
    case Operation::kFree:
      return "## Free";
    case Operation::kSleep:
      return "## Sleep";
    case Operation::kWakeUp:
      return "## WakeUp";
    case Operation::kReserve:
      return "## Reserve";
  }
  return "?";
}

// Of a row of a table, without its links.
std::vector<std::string> CellsOf(const std::string& line) {
  static const std::regex links(R"(\[([^\]]*)\]\([^)]*\))");
  std::istringstream text(std::regex_replace(line, links, "$1"));
  std::vector<std::string> cells;
  std::string cell;
  std::getline(text, cell, '|');
  while (std::getline(text, cell, '|')) {
    const size_t begin = cell.find_first_not_of(' ');
    const size_t end = cell.find_last_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

// Without its milliseconds.
std::string OutcomeOf(const std::string& cell) {
  std::string outcome = cell.substr(0, cell.rfind(": "));
  const size_t error = outcome.find(", error");
  return error == std::string::npos ? outcome : outcome.replace(error, 7, ", INJECTED");
}

}  // namespace

Result<std::map<std::string, std::string>> Documented(Operation operation, Event event) {
  std::ifstream file("docs/survival.md");
  std::string line;
  while (std::getline(file, line) && line != Heading(operation)) {
  }
  while (std::getline(file, line) && line.rfind("| before ", 0) != 0) {
  }
  const std::vector<std::string> head = CellsOf(line);
  const auto column = std::find(head.begin(), head.end(), Name(event));
  std::getline(file, line);  // the rule
  std::map<std::string, std::string> outcomes;
  while (std::getline(file, line) && line.rfind("| ", 0) == 0) {
    const std::vector<std::string> cells = CellsOf(line);
    if (column == head.end() || cells.size() != head.size()) {
      return InvalidArgument("BAD_TABLE", "a row has not the cells of its head: " + line);
    }
    outcomes[cells[0]] = OutcomeOf(cells[static_cast<size_t>(column - head.begin())]);
  }
  if (outcomes.empty()) return InvalidArgument("BAD_TABLE", "no rows in docs/survival.md");
  return outcomes;
}

}  // namespace torpor::survival
