#include "client/ctl/command.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/units.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl {
namespace {

Status BadCommand(std::string message) {
  return InvalidArgument("BAD_COMMAND", std::move(message));
}

Result<std::vector<std::string>> Split(std::string_view list) {
  std::vector<std::string> items;
  while (true) {
    const size_t comma = list.find(',');
    items.emplace_back(list.substr(0, comma));
    if (items.back().empty()) return BadCommand("an empty name in a list");
    if (comma == std::string_view::npos) return items;
    list.remove_prefix(comma + 1);
  }
}

// "key=value"
Result<std::pair<std::string, std::string>> SplitPair(const std::string& item) {
  const size_t equals = item.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == item.size()) {
    return BadCommand("\"" + item + "\" is not of the form NAME=VALUE");
  }
  return std::make_pair(item.substr(0, equals), item.substr(equals + 1));
}

Result<v1::Policy> ParsePolicy(const std::string& name) {
  if (name == "keep") return v1::POLICY_KEEP;
  if (name == "offload") return v1::POLICY_OFFLOAD;
  if (name == "discard") return v1::POLICY_DISCARD;
  return BadCommand("\"" + name + "\" is neither keep, offload nor discard");
}

Result<v1::EventKind> ParseKind(const std::string& name) {
  std::string value = "EVENT_KIND_";
  for (const unsigned char c : name) value += static_cast<char>(std::toupper(c));
  v1::EventKind kind = v1::EVENT_KIND_UNSPECIFIED;
  if (v1::EventKind_Parse(value, &kind) && kind != v1::EVENT_KIND_UNSPECIFIED) return kind;
  return BadCommand("\"" + name + "\" is no kind of event");
}

Result<int32_t> ParseNumber(std::string_view text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return BadCommand("\"" + std::string(text) + "\" is no number");
}

// Everything that can be said, before it is known which of it goes together.
struct Words {
  Command command;
  v1::Selector selector;
  std::string reservation;
  std::string request_id;
  bool help = false;
  bool version = false;
  std::set<std::string> given;
};

FlagSet::Setter AppendTo(std::vector<std::string>& list) {
  return [&list](std::string_view value) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> items, Split(value));
    list.insert(list.end(), items.begin(), items.end());
    return Status::Ok();
  };
}

class Flags {
 public:
  explicit Flags(Words& words) : words_(words) {
    Command& command = words.command;
    Common("target", "ADDRESS,...",
           "the daemon's socket path or address (default: found); several: as --all-devices",
           AppendTo(command.targets));
    Common("device", "UUID,...",
           "the daemon of this device (default: the only one); several: as --all-devices",
           AppendTo(command.devices));
    SpecialSwitch("all-devices", "usage, sleep, wake, watch, health, top: every daemon there",
                  [&] { command.all_devices = true; });
    Common("runtime-dir", "DIR",
           "where to look (default $TORPOR_RUNTIME_DIR, else /run/torpor, for others than root "
           "after $XDG_RUNTIME_DIR/torpor)",
           [&](std::string_view value) {
             command.runtime_dir = std::string(value);
             return Status::Ok();
           });
    set_.AddDuration(
        "timeout",
        "give up after so long (default 5m; usage, health: 10s); watch, top: end after "
        "it; doctor: on each question (default 15s)",
        &command.timeout);
    set_.AddSwitch("json", "print the answer as protobuf JSON", &command.json);
    set_.AddSwitch("help", "print this", &words.help);
    set_.AddSwitch("version", "print the version", &words.version);
    AddTls();
    AddSelection();
    AddSleep();
    AddReserve();
    AddWatch();
    AddViews();
  }

  const FlagSet& set() const { return set_; }
  // Whether only some verbs take it.
  bool IsSpecial(const std::string& flag) const { return special_.count(flag) > 0; }

 private:
  void Common(const std::string& name, const char* value, const char* help,
              FlagSet::Setter setter) {
    set_.Add(name, value, help, std::move(setter));
  }
  // A flag that only some verbs take.
  void Special(const std::string& name, const char* value, const char* help,
               FlagSet::Setter setter) {
    special_.insert(name);
    set_.Add(name, value, help, [this, name, setter = std::move(setter)](std::string_view given) {
      words_.given.insert(name);
      return setter(given);
    });
  }
  void SpecialSwitch(const std::string& name, const char* help, std::function<void()> set) {
    Special(name, "", help, [set = std::move(set)](std::string_view value) {
      if (value != "true") return BadCommand("takes no value");
      set();
      return Status::Ok();
    });
  }
  template <typename Repeated>
  FlagSet::Setter Append(Repeated* field) {
    return [field](std::string_view value) {
      TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> items, Split(value));
      for (const std::string& item : items) *field->Add() = item;
      return Status::Ok();
    };
  }

  void AddTls() {
    Tls& tls = words_.command.tls;
    set_.AddString("tls-ca", "FILE",
                   "PEM certificates of the daemons' authority, for a target that is no socket "
                   "(default $TORPOR_TLS_CA)",
                   &tls.ca);
    set_.AddString("tls-cert", "FILE", "your certificate in PEM (default $TORPOR_TLS_CERT)",
                   &tls.cert);
    set_.AddString("tls-key", "FILE", "its private key in PEM (default $TORPOR_TLS_KEY)", &tls.key);
    set_.AddString("tls-name", "NAME",
                   "the name in the daemon's certificate (default that of the target)", &tls.name);
  }

  void AddSelection() {
    Special("worker", "ID,...", "sleep, wake, watch: workers by id or name; repeatable",
            Append(words_.selector.mutable_workers()));
    Special("tag", "TAG,...", "sleep, wake: only these tags; repeatable",
            Append(words_.selector.mutable_tags()));
    SpecialSwitch("all", "sleep, wake: every worker and tag; elsewhere: as --all-devices",
                  [this] { words_.selector.set_all(true); });
  }

  void AddSleep() {
    Special("level", "1|2", "sleep: 1 keeps the weights in host memory, 2 drops them too",
            [this](std::string_view value) -> Status {
              TORPOR_ASSIGN_OR_RETURN(const int32_t level, ParseNumber(value));
              words_.command.sleep.set_level(level);
              return Status::Ok();
            });
    Special("policy", "TAG=keep|offload|discard,...",
            "sleep: what becomes of each tag, instead of a level; repeatable",
            [this](std::string_view value) {
              TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> items, Split(value));
              for (const std::string& item : items) {
                TORPOR_ASSIGN_OR_RETURN(const auto pair, SplitPair(item));
                TORPOR_ASSIGN_OR_RETURN((*words_.command.sleep.mutable_policies())[pair.first],
                                        ParsePolicy(pair.second));
              }
              return Status::Ok();
            });
    SpecialSwitch("force", "sleep: discard also drops host copies that are there already",
                  [this] { words_.command.sleep.set_force(true); });
    Special("priority", "N", "sleep, wake: copies of a higher number go first (default 0)",
            [this](std::string_view value) -> Status {
              TORPOR_ASSIGN_OR_RETURN(const int32_t priority, ParseNumber(value));
              words_.command.sleep.set_priority(priority);
              words_.command.wake.set_priority(priority);
              return Status::Ok();
            });
    Special("order", "TAG,...", "wake: tags whose bytes come first; repeatable",
            Append(words_.command.wake.mutable_order()));
    Special("request-id", "ID",
            "calls that change something: repeated with the same id, one gets the same answer",
            [this](std::string_view value) {
              words_.request_id = std::string(value);
              return Status::Ok();
            });
    Special("reservation", "ID", "wake: draw on this reservation; renew, release: which one",
            [this](std::string_view value) {
              words_.reservation = std::string(value);
              return Status::Ok();
            });
  }

  void AddReserve() {
    v1::ReserveRequest& reserve = words_.command.reserve;
    Special("name", "NAME", "reserve: a name for people", [&](std::string_view value) {
      reserve.set_name(std::string(value));
      return Status::Ok();
    });
    Special("part", "NAME=SIZE,...",
            "reserve: device memory by purpose, as weights=14GiB; repeatable",
            [&](std::string_view value) {
              TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> items, Split(value));
              for (const std::string& item : items) {
                TORPOR_ASSIGN_OR_RETURN(const auto pair, SplitPair(item));
                TORPOR_ASSIGN_OR_RETURN(const Bytes size, ParseBytes(pair.second));
                v1::ReservationPart& part = *reserve.add_parts();
                part.set_name(pair.first);
                part.set_device_bytes(size.value());
              }
              return Status::Ok();
            });
    Special("host-bytes", "SIZE", "reserve: room in the host pool", [&](std::string_view value) {
      TORPOR_ASSIGN_OR_RETURN(const Bytes size, ParseBytes(value));
      reserve.set_host_bytes(size.value());
      return Status::Ok();
    });
    Special("ttl", "TIME", "reserve, renew: what is not drawn by then is lost",
            [&](std::string_view value) {
              TORPOR_ASSIGN_OR_RETURN(const Duration ttl, ParseDuration(value));
              const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(ttl).count();
              reserve.mutable_ttl()->set_seconds(nanos / 1'000'000'000);
              reserve.mutable_ttl()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
              return Status::Ok();
            });
    SpecialSwitch("wait", "reserve: wait in turn for what is short, until the timeout",
                  [&] { reserve.set_wait(true); });
    SpecialSwitch("hold", "reserve: what a sleep frees stays promised, for the wake",
                  [&] { reserve.set_hold(true); });
    SpecialSwitch("keep", "reserve: outlives the session of its last worker",
                  [&] { reserve.set_keep(true); });
  }

  void AddWatch() {
    v1::WatchRequest& watch = words_.command.watch;
    Special("kind", "KIND,...",
            "watch: only session, operation, progress, segments, reservation, queue or pressure; "
            "repeatable",
            [&](std::string_view value) {
              TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> items, Split(value));
              for (const std::string& item : items) {
                TORPOR_ASSIGN_OR_RETURN(const v1::EventKind kind, ParseKind(item));
                watch.add_kinds(kind);
              }
              return Status::Ok();
            });
    Special("cursor", "CURSOR", "watch: go on where an earlier one ended",
            [&](std::string_view value) {
              watch.set_cursor(std::string(value));
              return Status::Ok();
            });
  }

  void AddViews() {
    Command& command = words_.command;
    Special("service", "NAME",
            "health: of torpor.alive or torpor.keeper instead of the daemon as a whole",
            [&](std::string_view value) {
              command.service = std::string(value);
              return Status::Ok();
            });
    Special("interval", "TIME", "top: ask again after so long if nothing happens (default 1s)",
            [&](std::string_view value) -> Status {
              TORPOR_ASSIGN_OR_RETURN(command.interval, ParseDuration(value));
              if (command.interval >= milliseconds(100)) return Status::Ok();
              return BadCommand("wants 100ms or more");
            });
    SpecialSwitch("once", "top: print one frame as plain text, and end",
                  [&] { command.once = true; });
  }

  Words& words_;
  std::set<std::string> special_;
  FlagSet set_;
};

struct VerbInfo {
  const char* name;
  Verb verb;
  std::vector<std::string> flags;
  const char* about = "";
  Arguments arguments = Arguments::kNone;
};

const std::vector<VerbInfo>& Verbs() {
  static const auto& verbs = *new std::vector<VerbInfo>{
      {"usage", Verb::kUsage, {"all-devices", "all"}, "what memory is used for"},
      {"sleep",
       Verb::kSleep,
       {"all-devices", "worker", "tag", "all", "level", "policy", "force", "priority",
        "request-id"},
       "take device memory away from workers",
       Arguments::kWorkers},
      {"wake",
       Verb::kWake,
       {"all-devices", "worker", "tag", "all", "order", "reservation", "priority", "request-id"},
       "give it back",
       Arguments::kWorkers},
      {"reserve",
       Verb::kReserve,
       {"name", "part", "host-bytes", "ttl", "wait", "hold", "keep", "request-id"},
       "have memory promised"},
      {"renew",
       Verb::kRenew,
       {"reservation", "ttl", "request-id"},
       "count a reservation's time from now on",
       Arguments::kReservation},
      {"release",
       Verb::kRelease,
       {"reservation", "request-id"},
       "give a reservation back",
       Arguments::kReservation},
      {"upgrade", Verb::kUpgrade, {}, "have the keeper start the daemon anew"},
      {"watch",
       Verb::kWatch,
       {"all-devices", "all", "worker", "kind", "cursor"},
       "print what happens",
       Arguments::kWorkers},
      {"top", Verb::kTop, {"all-devices", "all", "interval", "once"}, "a live view"},
      {"health", Verb::kHealth, {"all-devices", "all", "service"}, "whether a daemon serves"},
      {"doctor", Verb::kDoctor, {}, "look for what is wrong with this machine"},
      {"completion", Verb::kCompletion, {}, "print a shell's completion script", Arguments::kShell},
  };
  return verbs;
}

// "usage, sleep or wake"
std::string VerbNames() {
  std::string names;
  for (size_t i = 0; i < Verbs().size(); ++i) {
    names += i == 0 ? "" : i + 1 == Verbs().size() ? " or " : ", ";
    names += Verbs()[i].name;
  }
  return names;
}

// "/run/x.sock", "run/x.sock" or a socket of the working directory; not "unix:x", "dns:///host",
// "host:7070".
bool IsSocketPath(const std::string& target) {
  const size_t slash = target.find('/');
  if (slash != std::string::npos && target.find(':') > slash) return true;
  struct stat info {};
  return ::stat(target.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

bool Takes(Verb verb, const char* flag) {
  const auto info = std::find_if(Verbs().begin(), Verbs().end(),
                                 [&](const VerbInfo& one) { return one.verb == verb; });
  return std::find(info->flags.begin(), info->flags.end(), flag) != info->flags.end();
}

Result<Command> CheckShell(Command command) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    if (command.shell == shell) return command;
  }
  return BadCommand("completion for bash, zsh or fish?");
}

// That what was said of daemons goes together, and with the verb.
Status CheckDaemons(const Command& command, const std::string& verb,
                    const std::string& reservation) {
  const int ways = (command.targets.empty() ? 0 : 1) + (command.devices.empty() ? 0 : 1) +
                   (command.all_devices ? 1 : 0);
  if (ways > 1) return BadCommand("--target, --device and --all-devices exclude each other");
  if (!AsksSeveral(command)) return Status::Ok();
  if (!Takes(command.verb, "all-devices")) return BadCommand(verb + " asks one daemon");
  if (!reservation.empty()) return BadCommand("a reservation is one daemon's");
  if (!command.watch.cursor().empty()) return BadCommand("a cursor is one daemon's");
  return Status::Ok();
}

// Verbs that only look: whether they take --all as they take --all-devices.
bool Looks(Verb verb) { return Takes(verb, "all") && !Takes(verb, "tag"); }

Duration DefaultTimeout(Verb verb) {
  if (verb == Verb::kWatch || verb == Verb::kTop) return kNoTimeout;
  if (verb == Verb::kDoctor) return seconds(15);
  return verb == Verb::kUsage || verb == Verb::kHealth ? seconds(10) : std::chrono::minutes(5);
}

}  // namespace

bool AsksSeveral(const Command& command) {
  return command.all_devices || command.targets.size() > 1 || command.devices.size() > 1;
}

Result<Command> ParseCommand(const std::vector<std::string>& arguments) {
  Words words;
  const Flags flags(words);
  TORPOR_ASSIGN_OR_RETURN(std::vector<std::string> rest, flags.set().Parse(arguments));
  Command& command = words.command;
  if (words.help || words.version) {
    command.verb = words.help ? Verb::kHelp : Verb::kVersion;
    return command;
  }
  if (rest.empty()) {
    return BadCommand("what to do? " + VerbNames());
  }
  const std::string name = rest.front();
  rest.erase(rest.begin());
  const auto verb = std::find_if(Verbs().begin(), Verbs().end(),
                                 [&](const VerbInfo& info) { return info.name == name; });
  if (verb == Verbs().end()) {
    return BadCommand("\"" + name + "\" is no command: " + VerbNames());
  }
  command.verb = verb->verb;
  for (const std::string& flag : words.given) {
    if (std::find(verb->flags.begin(), verb->flags.end(), flag) == verb->flags.end()) {
      std::string message = "--";
      return BadCommand(message.append(flag).append(" does not go with ").append(name));
    }
  }
  const bool names_one = command.verb == Verb::kRelease || command.verb == Verb::kRenew;
  if (verb->arguments == Arguments::kWorkers) {
    for (std::string& worker : rest) words.selector.add_workers(std::move(worker));
    rest.clear();
  } else if (names_one && words.reservation.empty() && !rest.empty()) {
    words.reservation = rest.front();
    rest.erase(rest.begin());
  } else if (command.verb == Verb::kCompletion && !rest.empty()) {
    command.shell = rest.front();
    rest.erase(rest.begin());
  }
  if (!rest.empty()) return BadCommand("unexpected argument \"" + rest.front() + "\"");
  if (names_one && words.reservation.empty()) return BadCommand(name + " which reservation?");
  if (command.verb == Verb::kCompletion) return CheckShell(std::move(command));
  if (Looks(command.verb) && words.selector.all()) command.all_devices = true;
  if (command.verb == Verb::kTop && command.targets.empty() && command.devices.empty()) {
    command.all_devices = true;
  }
  if (command.verb == Verb::kTop && command.json && !command.once) {
    return BadCommand("top --json wants --once");
  }
  for (std::string& target : command.targets) {
    if (IsSocketPath(target)) target.insert(0, "unix:");
  }
  TORPOR_RETURN_IF_ERROR(CheckDaemons(command, name, words.reservation));
  if (command.verb == Verb::kDoctor && !command.targets.empty()) {
    return BadCommand("doctor looks at this machine: it takes no --target");
  }
  if (command.timeout == kNoTimeout) command.timeout = DefaultTimeout(command.verb);
  if (command.once && command.timeout == kNoTimeout) command.timeout = seconds(10);
  *command.watch.mutable_workers() = words.selector.workers();
  *command.sleep.mutable_selector() = words.selector;
  *command.wake.mutable_selector() = words.selector;
  command.wake.set_reservation_id(words.reservation);
  command.release.set_reservation_id(words.reservation);
  command.sleep.set_request_id(words.request_id);
  command.wake.set_request_id(words.request_id);
  command.reserve.set_request_id(words.request_id);
  command.renew.set_request_id(words.request_id);
  command.release.set_request_id(words.request_id);
  command.renew.set_reservation_id(words.reservation);
  if (command.reserve.has_ttl()) *command.renew.mutable_ttl() = command.reserve.ttl();
  return command;
}

std::vector<VerbDescription> DescribeVerbs() {
  Words words;
  const Flags flags(words);
  std::vector<VerbDescription> all;
  for (const VerbInfo& verb : Verbs()) {
    VerbDescription& described =
        all.emplace_back(VerbDescription{verb.name, verb.about, verb.arguments, {}});
    for (FlagSet::Description& flag : flags.set().Describe()) {
      const bool goes =
          !flags.IsSpecial(flag.name) ||
          std::find(verb.flags.begin(), verb.flags.end(), flag.name) != verb.flags.end();
      if (goes) described.flags.push_back(std::move(flag));
    }
  }
  return all;
}

std::string CommandHelp() {
  Words words;
  return "torporctl: asks a torpord about the memory of its GPU, or to move it.\n"
         "\n"
         "  torporctl usage\n"
         "  torporctl top\n"
         "  torporctl sleep --level 1 WORKER...      or --all, --tag TAG\n"
         "  torporctl wake WORKER...                 or --all, --tag TAG\n"
         "  torporctl reserve --name NAME --part weights=14GiB --ttl 30s\n"
         "  torporctl renew RESERVATION --ttl 30s\n"
         "  torporctl release RESERVATION\n"
         "  torporctl upgrade\n"
         "  torporctl watch [WORKER...]\n"
         "  torporctl health\n"
         "  torporctl doctor                         what is wrong with this machine\n"
         "  torporctl completion bash|zsh|fish\n"
         "\n"
         "Several daemons (--target or --device more than once, --all-devices) are asked all at\n"
         "once, and answer in one table.\n"
         "\n" +
         Flags(words).set().Help() +
         "\n"
         "Exit status: 0 done; 1 the call failed, it is not healthy, or doctor found a problem;\n"
         "2 the command line is wrong; 3 done for some of the daemons or selected workers only.\n";
}

}  // namespace torpor::ctl
