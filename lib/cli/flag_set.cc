#include "lib/cli/flag_set.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace torpor {
namespace {

constexpr double kYear = 365.0 * 86400;

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr Unit kUnits[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                           {"m", 60},    {"h", 3600},  {"d", 86400}};

Status BadDuration(std::string_view text) {
  return InvalidArgument("BAD_DURATION",
                         "\"" + std::string(text) +
                             "\" is no duration: write it as 500ms, 5s, 2m, 1h or 30d, "
                             "up to a year");
}

Status BadFlag(std::string message) { return InvalidArgument("BAD_FLAG", std::move(message)); }

}  // namespace

Result<Duration> ParseDuration(std::string_view text) {
  const std::string copy(text);
  if (copy.empty() || std::isdigit(static_cast<unsigned char>(copy[0])) == 0) {
    return BadDuration(text);
  }
  const size_t unit_at = copy.find_first_not_of("0123456789.");
  if (unit_at == std::string::npos) return BadDuration(text);
  const std::string number = copy.substr(0, unit_at);
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (*end != '\0') return BadDuration(text);
  for (const Unit& unit : kUnits) {
    if (unit.name != std::string_view(copy).substr(unit_at)) continue;
    if (value * unit.seconds > kYear) return BadDuration(text);
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(value * unit.seconds));
  }
  return BadDuration(text);
}

std::string FormatDuration(Duration duration) {
  const double value = std::chrono::duration<double>(duration).count();
  const auto print = [](double number, const char* unit) {
    char text[32];
    const int digits = number < 10 ? 2 : number < 100 ? 1 : 0;
    std::snprintf(text, sizeof text, "%.*f%s", digits, number, unit);
    return std::string(text);
  };
  if (value < 0) return "-" + FormatDuration(-duration);
  if (value < 999.5e-6) return std::to_string(std::lround(value * 1e6)) + "us";
  if (value < 999.5e-3) return print(value * 1e3, "ms");
  if (value < 119.95) return print(value, "s");
  const int64_t whole = std::llround(value);
  const auto two = [](int64_t large, const char* unit, int64_t small, const char* small_unit) {
    return std::to_string(large) + unit + (small == 0 ? "" : std::to_string(small) + small_unit);
  };
  if (whole < 7200) return two(whole / 60, "m", whole % 60, "s");
  if (whole < 172800) return two(whole / 3600, "h", whole % 3600 / 60, "m");
  return two(whole / 86400, "d", whole % 86400 / 3600, "h");
}

void FlagSet::Add(std::string name, std::string value, std::string help, Setter setter) {
  flags_.push_back({std::move(name), std::move(value), std::move(help), std::move(setter)});
}

void FlagSet::AddSwitch(std::string name, std::string help, bool* target) {
  Add(std::move(name), "", std::move(help), [target](std::string_view value) {
    if (value != "true" && value != "false") {
      return BadFlag("\"" + std::string(value) + "\" is neither true nor false");
    }
    *target = value == "true";
    return Status::Ok();
  });
}

void FlagSet::AddString(std::string name, std::string value, std::string help,
                        std::string* target) {
  Add(std::move(name), std::move(value), std::move(help), [target](std::string_view given) {
    *target = std::string(given);
    return Status::Ok();
  });
}

void FlagSet::AddBytes(std::string name, std::string help, Bytes* target) {
  Add(std::move(name), "SIZE", std::move(help), [target](std::string_view given) {
    TORPOR_ASSIGN_OR_RETURN(*target, ParseBytes(given));
    return Status::Ok();
  });
}

void FlagSet::AddDuration(std::string name, std::string help, Duration* target) {
  Add(std::move(name), "TIME", std::move(help), [target](std::string_view given) {
    TORPOR_ASSIGN_OR_RETURN(const Duration parsed, ParseDuration(given));
    if (parsed <= Duration::zero()) return BadFlag("wants more than no time at all");
    *target = parsed;
    return Status::Ok();
  });
}

const FlagSet::Flag* FlagSet::Find(std::string_view name) const {
  const auto same = [](char a, char b) { return a == b || (a == '-' && b == '_'); };
  for (const Flag& flag : flags_) {
    const std::string_view own = flag.name;
    if (std::equal(own.begin(), own.end(), name.begin(), name.end(),
                   [&](char a, char b) { return same(a, b) || same(b, a); })) {
      return &flag;
    }
  }
  return nullptr;
}

Result<std::vector<std::string>> FlagSet::Parse(const std::vector<std::string>& arguments) const {
  std::vector<std::string> others;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                    arguments.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      others.emplace_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    const Flag* flag = argument.substr(0, 2) == "--" ? Find(name.substr(2)) : nullptr;
    if (flag == nullptr) return BadFlag("there is no flag " + name);
    std::string_view value = "true";
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (!flag->value.empty()) {
      if (++i == arguments.size()) return BadFlag(name + " wants a value: " + flag->value);
      value = arguments[i];
    }
    if (const Status set = flag->setter(value); !set.ok()) {
      return Status(set.code(), set.reason(), name + ": " + set.message());
    }
  }
  return others;
}

std::vector<FlagSet::Description> FlagSet::Describe() const {
  std::vector<Description> all;
  for (const Flag& flag : flags_) all.push_back({flag.name, flag.value, flag.help});
  return all;
}

std::string FlagSet::Help() const {
  constexpr size_t kColumn = 30;
  std::string text;
  for (const Flag& flag : flags_) {
    std::string line = "  --" + flag.name + (flag.value.empty() ? "" : "=" + flag.value);
    line += line.size() + 2 > kColumn ? "\n" + std::string(kColumn, ' ')
                                      : std::string(kColumn - line.size(), ' ');
    text += line + flag.help + "\n";
  }
  return text;
}

}  // namespace torpor
