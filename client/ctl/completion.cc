#include "client/ctl/completion.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/credentials.h"
#include "client/ctl/daemons.h"
#include "client/ctl/reach.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl {
namespace {

// Nobody waits longer for a completion.
constexpr Duration kPatience = milliseconds(500);

constexpr char kBash[] = R"(# Completion of torporctl in bash.
_torporctl() {
  local i word current previous='' prefix words=() lines=() line
  # Bash has made words of their own of '=' and ':'.
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((${#words[@]})) && [[ $word == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  current=${words[-1]}
  if ((${#words[@]} > 1)); then previous=${words[-2]}; fi
  if [[ $current == --@(target|runtime-dir|tls-ca|tls-cert|tls-key)=* ||
    $previous == --@(target|runtime-dir|tls-ca|tls-cert|tls-key) ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "${current##*[=:]}")
    compopt -o filenames 2> /dev/null
    return 0
  fi
  prefix=${current%"${current##*[=:]}"}
  mapfile -t lines < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2> /dev/null)
  COMPREPLY=()
  for line in "${lines[@]}"; do
    line=${line%%$'\t'*}
    COMPREPLY+=("${line#"$prefix"}")
  done
  if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2> /dev/null
  fi
  return 0
}
complete -F _torporctl torporctl
)";

constexpr char kZsh[] = R"(#compdef torporctl
# Completion of torporctl in zsh.
_torporctl() {
  local -a lines goes_on ends
  local line files='--(target|runtime-dir|tls-ca|tls-cert|tls-key)'
  if [[ ${words[CURRENT]} == ${~files}=* ]]; then
    compset -P '*='
    compset -P 'unix:'
    _files
    return
  elif [[ ${words[CURRENT - 1]} == ${~files} ]]; then
    _files
    return
  fi
  lines=("${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT - 1]}" "$PREFIX" 2> /dev/null)}")
  for line in $lines; do
    line=${line%%$'\t'*}
    if [[ $line == *= ]]; then goes_on+=("$line"); else ends+=("$line"); fi
  done
  (( $#goes_on )) && compadd -S '' -a goes_on
  (( $#ends )) && compadd -a ends
  (( $#goes_on + $#ends ))
}
if [[ ${funcstack[1]} == _torporctl ]]; then
  _torporctl "$@"
else
  compdef _torporctl torporctl
fi
)";

constexpr char kFish[] = R"(# Completion of torporctl in fish.
function __torporctl_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l files '--(?:target|runtime-dir|tls-ca|tls-cert|tls-key)'
  if set -l parts (string match -r -- "^($files=(?:unix:)?)(.*)\$" $words[-1])
    # Behind "--flag=", as fish completes the file of a word of its own.
    string join \n -- $parts[2](complete -C "'' "(string escape -- $parts[3]))
  else if string match -qr -- "^$files\$" $words[-2]
    complete -C "'' "(string escape -- $words[-1])
  else
    $words[1] __complete $words[2..-1] 2> /dev/null
  end
end
complete -c torporctl -f -a '(__torporctl_complete)'
)";

struct Candidate {
  std::string text;
  std::string about;
};
using Candidates = std::vector<Candidate>;

Candidates Plain(const std::vector<std::string>& texts) {
  Candidates all;
  for (const std::string& text : texts) all.push_back({text, ""});
  return all;
}

const FlagSet::Description* FindFlag(const std::vector<FlagSet::Description>& flags,
                                     std::string_view word) {
  if (word.substr(0, 2) != "--") return nullptr;
  word.remove_prefix(2);
  word = word.substr(0, word.find('='));
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const auto& flag) {
    return std::equal(flag.name.begin(), flag.name.end(), word.begin(), word.end(),
                      [](char a, char b) { return a == b || (a == '-' && b == '_'); });
  });
  return found == flags.end() ? nullptr : &*found;
}

// What the words before the last one say.
struct Context {
  std::vector<VerbDescription> verbs = DescribeVerbs();
  const VerbDescription* verb = nullptr;
  std::vector<FlagSet::Description> all_flags;
  const FlagSet::Description* pending = nullptr;  // wants the last word as its value
  std::vector<std::string> where;                 // flags that say which daemons

  explicit Context(const std::vector<std::string>& words) {
    for (const VerbDescription& one : verbs) {
      for (const FlagSet::Description& flag : one.flags) {
        if (FindFlag(all_flags, "--" + flag.name) == nullptr) all_flags.push_back(flag);
      }
    }
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      const std::string& word = words[i];
      if (const FlagSet::Description* flag = FindFlag(all_flags, word); flag != nullptr) {
        const bool next = word.find('=') == std::string::npos && !flag->value.empty();
        if (next && i + 2 == words.size()) pending = flag;
        const bool says_where = flag->name == "target" || flag->name == "device" ||
                                flag->name == "runtime-dir" ||
                                flag->name.compare(0, 4, "tls-") == 0;
        if (next && i + 2 < words.size()) {
          ++i;
          if (says_where) where.push_back("--" + flag->name + "=" + words[i]);
        } else if (says_where && !next) {
          where.push_back(word);
        }
      } else if (verb == nullptr) {
        const auto found = std::find_if(verbs.begin(), verbs.end(),
                                        [&](const auto& one) { return one.name == word; });
        if (found != verbs.end()) verb = &*found;
      }
    }
  }

  // Those of the verb, or those that go with all of them.
  std::vector<FlagSet::Description> Flags() const {
    if (verb != nullptr) return verb->flags;
    std::vector<FlagSet::Description> common;
    for (const FlagSet::Description& flag : all_flags) {
      if (std::all_of(verbs.begin(), verbs.end(), [&](const VerbDescription& one) {
            return FindFlag(one.flags, "--" + flag.name) != nullptr;
          })) {
        common.push_back(flag);
      }
    }
    return common;
  }
};

// For "a,b,c": each candidate behind "a,b,".
Candidates InList(std::string_view value, const Candidates& items) {
  const size_t comma = value.rfind(',');
  const std::string before(comma == std::string_view::npos ? "" : value.substr(0, comma + 1));
  Candidates all;
  for (const Candidate& item : items) all.push_back({before + item.text, item.about});
  return all;
}

// "weights=", and behind it what may become of the tag.
Candidates Policies(std::string_view value, const KnownNames& names) {
  const std::string_view item = value.substr(value.rfind(',') + 1);
  const size_t equals = item.find('=');
  Candidates items;
  if (equals == std::string_view::npos) {
    for (const std::string& tag : names.tags) items.push_back({tag + "=", ""});
  } else {
    for (const char* policy : {"keep", "offload", "discard"}) {
      items.push_back({std::string(item.substr(0, equals + 1)) + policy, ""});
    }
  }
  return InList(value, items);
}

Candidates ValuesOf(const std::string& flag, std::string_view value, const KnownNames& names) {
  if (flag == "device") return InList(value, Plain(names.devices));
  if (flag == "worker") return InList(value, Plain(names.workers));
  if (flag == "tag" || flag == "order") return InList(value, Plain(names.tags));
  if (flag == "policy") return Policies(value, names);
  if (flag == "reservation") return Plain(names.reservations);
  if (flag == "level") {
    return {{"1", "keep the weights in host memory"}, {"2", "drop them too"}};
  }
  if (flag == "service") return Plain({"torpor.alive", "torpor.keeper"});
  if (flag == "kind") {
    return InList(value, Plain({"session", "operation", "progress", "segments", "reservation",
                                "queue", "pressure"}));
  }
  return {};
}

Candidates ArgumentsOf(const VerbDescription& verb, const KnownNames& names) {
  switch (verb.arguments) {
    case Arguments::kNone:
      return {};
    case Arguments::kWorkers:
      return Plain(names.workers);
    case Arguments::kReservation:
      return Plain(names.reservations);
    case Arguments::kShell:
      return Plain({"bash", "zsh", "fish"});
  }
  return {};
}

Candidates AllFor(const std::string& word, const Context& context, const KnownNames& names) {
  if (context.pending != nullptr) return ValuesOf(context.pending->name, word, names);
  Candidates all;
  const size_t equals = word.find('=');
  if (word.substr(0, 1) == "-" && equals == std::string::npos) {
    for (const FlagSet::Description& flag : context.Flags()) {
      all.push_back({"--" + flag.name + (flag.value.empty() ? "" : "="), flag.help});
    }
  } else if (word.substr(0, 1) == "-") {
    const FlagSet::Description* flag = FindFlag(context.all_flags, word);
    if (flag == nullptr) return {};
    const std::string_view value = std::string_view(word).substr(equals + 1);
    for (const Candidate& one : ValuesOf(flag->name, value, names)) {
      all.push_back({word.substr(0, equals + 1) + one.text, one.about});
    }
  } else if (context.verb == nullptr) {
    for (const VerbDescription& verb : context.verbs) all.push_back({verb.name, verb.about});
  } else {
    all = ArgumentsOf(*context.verb, names);
  }
  return all;
}

void Learn(const v1::UsageResponse& usage, KnownNames& names) {
  std::set<std::string> workers;
  std::set<std::string> tags;
  for (const v1::WorkerUsage& worker : usage.workers()) {
    workers.insert(worker.id());
    if (!worker.name().empty()) workers.insert(worker.name());
    for (const v1::TagUsage& tag : worker.tags()) tags.insert(tag.tag());
  }
  names.workers.insert(names.workers.end(), workers.begin(), workers.end());
  names.tags.insert(names.tags.end(), tags.begin(), tags.end());
  for (const v1::ReservationUsage& one : usage.reservations()) {
    names.reservations.push_back(one.id());
  }
}

}  // namespace

std::string CompletionScript(const std::string& shell) {
  return shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish;
}

std::vector<std::string> Complete(const std::vector<std::string>& words, const KnownNames& names) {
  if (words.empty()) return {};
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const Candidate& one : AllFor(words.back(), Context(words), names)) {
    if (one.text.compare(0, words.back().size(), words.back()) != 0) continue;
    if (!seen.insert(one.text).second) continue;
    all.push_back(one.about.empty() ? one.text : one.text + "\t" + one.about);
  }
  return all;
}

KnownNames AskForNames(const std::vector<std::string>& words) {
  KnownNames names;
  const auto find = [](std::vector<std::string> flags) -> Result<std::vector<Daemon>> {
    flags.emplace_back("usage");
    TORPOR_ASSIGN_OR_RETURN(const Command command, ParseCommand(flags));
    TORPOR_RETURN_IF_ERROR(UseTls(command.tls));
    return FindDaemons(command);
  };
  std::vector<std::string> where = Context(words).where;
  std::vector<std::string> everywhere = {"--all-devices"};
  bool one_is_meant = false;
  for (const std::string& flag : where) {
    if (flag.compare(0, 9, "--target=") == 0 || flag.compare(0, 9, "--device=") == 0) {
      one_is_meant = true;
    } else {
      everywhere.push_back(flag);
    }
  }
  if (const auto all = find(everywhere); all.ok()) {
    for (const Daemon& daemon : *all) names.devices.push_back(daemon.device);
  }
  const auto daemons = find(one_is_meant ? where : everywhere);
  if (!daemons.ok()) return names;
  std::deque<std::optional<v1::UsageResponse>> answers;
  std::vector<std::thread> threads;
  for (const Daemon& daemon : *daemons) {
    auto& answer = answers.emplace_back();
    if (!daemon.status.ok()) continue;
    threads.emplace_back([&] {
      grpc::ClientContext context;
      SetTimeout(context, kPatience);
      v1::UsageResponse usage;
      const auto channel = Reach(daemon.target, kPatience, [] { return false; });
      if (!channel.ok()) return;
      v1::MemoryService::Stub stub(*channel);
      if (stub.Usage(&context, {}, &usage).ok()) answer = std::move(usage);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) {
    if (answer) Learn(*answer, names);
  }
  return names;
}

}  // namespace torpor::ctl
