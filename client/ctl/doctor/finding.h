#ifndef TORPOR_CLIENT_CTL_DOCTOR_FINDING_H_
#define TORPOR_CLIENT_CTL_DOCTOR_FINDING_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torpor::ctl::doctor {

enum class Verdict { kOk, kWarning, kProblem };

// What one check says of the node, or of one of its devices or daemons.
struct Finding {
  std::string check;  // a name of the catalog
  Verdict verdict = Verdict::kOk;
  std::string found;
  // What to do: sentences, then commands, each on a line that begins with "$ ". Empty if there is
  // nothing to do.
  std::string remedy;
  // Those that `found` mentions; bytes have names in "_bytes".
  std::map<std::string, int64_t> numbers;
  std::string subject;  // device or daemon; empty: the node

  Finding&& With(const std::string& key, int64_t value) && {
    numbers[key] = value;
    return std::move(*this);
  }
};

using Findings = std::vector<Finding>;

inline Finding Fine(std::string check, std::string found) {
  return {std::move(check), Verdict::kOk, std::move(found), "", {}, ""};
}
inline Finding Warning(std::string check, std::string found, std::string remedy) {
  return {std::move(check), Verdict::kWarning, std::move(found), std::move(remedy), {}, ""};
}
inline Finding Problem(std::string check, std::string found, std::string remedy) {
  return {std::move(check), Verdict::kProblem, std::move(found), std::move(remedy), {}, ""};
}

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_FINDING_H_
