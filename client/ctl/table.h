#ifndef TORPOR_CLIENT_CTL_TABLE_H_
#define TORPOR_CLIENT_CTL_TABLE_H_

#include <string>
#include <vector>

namespace torpor::ctl {

// Rows of text under headings, aligned for a terminal.
class Table {
 public:
  // A heading that starts with '>' (left out) has its column aligned to the right.
  explicit Table(const std::vector<std::string>& headings);

  // As many cells as there are headings.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.size() == 1; }
  // Ends with a line feed.
  std::string ToString() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_TABLE_H_
