#include "client/ctl/table.h"

#include <algorithm>

#include "client/ctl/text_width.h"

namespace torpor::ctl {

Table::Table(const std::vector<std::string>& headings) {
  std::vector<std::string> row;
  for (const std::string& heading : headings) {
    right_.push_back(heading[0] == '>');
    row.push_back(heading.substr(right_.back() ? 1 : 0));
  }
  rows_.push_back(std::move(row));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(right_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], TextWidth(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - TextWidth(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right_[i] ? padding + row[i] : row[i] + padding);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace torpor::ctl
