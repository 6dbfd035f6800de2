#ifndef TORPOR_LIB_CLI_FLAG_SET_H_
#define TORPOR_LIB_CLI_FLAG_SET_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// "5s", "300ms", "1.5m", "2h"; units us, ms, s, m, h. INVALID_ARGUMENT BAD_DURATION for anything
// else, for a negative one and for more than a year.
Result<Duration> ParseDuration(std::string_view text);
// For people, with three digits: "412us", "41.2ms", "4.12s", "41.2s", "3m20s".
std::string FormatDuration(Duration duration);

// The flags of one program. A flag is written --name=value or --name value; a switch --name,
// --name=true, --name=false. In names '-' and '_' are the same. "--" ends the flags. Not
// thread-safe; what a flag writes to must outlive the set.
class FlagSet {
 public:
  // Called with the value for each time that the flag is given. Not OK: INVALID_ARGUMENT.
  using Setter = std::function<Status(std::string_view value)>;

  // `value` names the value in the help, as in --listen=ADDRESS; `help` is one sentence without a
  // full stop, its default included.
  void Add(std::string name, std::string value, std::string help, Setter setter);
  void AddSwitch(std::string name, std::string help, bool* target);
  void AddString(std::string name, std::string value, std::string help, std::string* target);
  void AddBytes(std::string name, std::string help, Bytes* target);
  // A duration above zero.
  void AddDuration(std::string name, std::string help, Duration* target);

  // Gives the arguments that are no flags, in order. INVALID_ARGUMENT BAD_FLAG, or what the flag's
  // setter says, with the flag's name in the message.
  Result<std::vector<std::string>> Parse(const std::vector<std::string>& arguments) const;

  struct Description {
    std::string name;
    std::string value;  // empty: a switch
    std::string help;
  };
  // In the order of Add.
  std::vector<Description> Describe() const;

  // A line or more for each flag, in the order of Add.
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string value;  // empty: a switch
    std::string help;
    Setter setter;
  };
  const Flag* Find(std::string_view name) const;

  std::vector<Flag> flags_;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CLI_FLAG_SET_H_
