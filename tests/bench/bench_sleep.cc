// How fast torpord puts workers to sleep and wakes them.
//
//   bench_sleep --torpord PROGRAM [--out FILE.json]
//
// Starts the daemon and a worker process for each load (model_load.h), sleeps and wakes the worker
// over gRPC as an orchestrator does, and takes the times at the caller; load_run.h says in what
// order. Beside that: the link's own rate with pinned memory, what a pool that is pinned in the
// background does to others, and clean sleeps and wakes beside a process that keeps the GPU busy.
// Every byte is compared after every load. Prints a table; --out gets it all as JSON, also of a run
// that breaks off. docs/measurements/README.md says what the figures mean.
//
// On the host driver (--driver=host --scale=64) it shows that everything works; its times say
// nothing about a GPU.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"
#include "lib/cli/version.h"
#include "tests/bench/load_run.h"
#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

struct Flags {
  RunOptions run;
  std::string loads = "seed,tiny,b14,b32";
  std::string out;
  std::string commit = "unknown";
  std::string driver_version;
  Bytes pinning_pool = GiB(64);
  Bytes link_bytes = GiB(8);
  bool no_link = false;
  bool no_touch = false;
  bool no_cold = false;
  bool no_neighbour = false;
  bool no_pinning = false;
  bool list_loads = false;
  bool help = false;
  bool version = false;
};

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::tm utc{};
  std::strftime(text, sizeof text, "%Y-%m-%d", ::gmtime_r(&now, &utc));
  return text;
}

// Of the kernel module; empty where it does not say.
std::string DriverVersion() {
  const std::string text = ReadFile("/proc/driver/nvidia/version");
  std::smatch match;
  if (std::regex_search(text, match, std::regex("\\b(\\d{3}\\.\\d+(\\.\\d+)?)\\b")))
    return match[1];
  return "";
}

// Of this machine, and of the container where it says so.
Bytes AvailableMemory() {
  Bytes available;
  std::istringstream lines(ReadFile("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) available = KiB(std::atoll(line.c_str() + 13));
  }
  const int64_t most = std::atoll(ReadFile("/sys/fs/cgroup/memory.max").c_str());
  const int64_t used = std::atoll(ReadFile("/sys/fs/cgroup/memory.current").c_str());
  return most > 0 ? std::min(available, Bytes(most - used)) : available;
}

class Benchmark {
 public:
  explicit Benchmark(Flags flags) : flags_(std::move(flags)) {}
  Status Run();

 private:
  Status MeasureLink();
  Status MeasureHandles();
  Status Touch();
  // Records what the daemon says about the device.
  Status Describe();
  void Save() const {
    if (!flags_.out.empty()) std::ofstream(flags_.out) << json_.dump(2) << "\n";
  }

  Flags flags_;
  Json json_;
};

Status Benchmark::MeasureLink() {
  TORPOR_ASSIGN_OR_RETURN(const auto role,
                          RoleProcess::Start("link", {flags_.run.daemon.driver,
                                                      std::to_string(flags_.link_bytes.value())}));
  TORPOR_ASSIGN_OR_RETURN(const std::string answer, role->ReadAnswer());
  TORPOR_RETURN_IF_ERROR(role->Stop());
  const Json link = Json::parse(answer);
  const auto best = [&](const char* name) { return link[name]["best"].get<double>(); };
  flags_.run.link_d2h_gbps = best("d2h");
  flags_.run.link_h2d_gbps = best("h2d");
  json_["link_d2h_gbps"] = Rounded(best("d2h"));
  json_["link_h2d_gbps"] = Rounded(best("h2d"));
  json_["duplex_gbps"] = Rounded(best("duplex"));
  json_["link"] = link;
  std::printf(
      "\nLink, pinned memory: %.2f GB/s to the host, %.2f to the device, %.2f both at once\n",
      best("d2h"), best("h2d"), best("duplex"));
  return Status::Ok();
}

Status Benchmark::MeasureHandles() {
  TORPOR_ASSIGN_OR_RETURN(const auto role,
                          RoleProcess::Start("handles", {flags_.run.daemon.driver}));
  TORPOR_ASSIGN_OR_RETURN(const std::string answer, role->ReadAnswer());
  TORPOR_RETURN_IF_ERROR(role->Stop());
  json_["handles"] = Json::parse(answer);
  return Status::Ok();
}

// All of it: nobody knows which part of it the pool will get.
Status Benchmark::Touch() {
  const Bytes most = AvailableMemory() - GiB(6);
  if (most <= Bytes(0)) return Status::Ok();
  TORPOR_ASSIGN_OR_RETURN(const auto role,
                          RoleProcess::Start("touch", {std::to_string(most.value())}));
  TORPOR_ASSIGN_OR_RETURN(const std::string answer, role->ReadAnswer(std::chrono::minutes(5)));
  TORPOR_RETURN_IF_ERROR(role->Stop());
  json_["host_memory"]["touched_bytes"] = most.value();
  json_["host_memory"]["touch_seconds"] = NumberOf(answer, "seconds");
  std::printf("\nTouched %s of host memory in %.2f s\n", FormatBytes(most).c_str(),
              NumberOf(answer, "seconds"));
  return Status::Ok();
}

Status Benchmark::Describe() {
  TORPOR_ASSIGN_OR_RETURN(const auto daemon,
                          BenchDaemon::Start(flags_.run.daemon, MiB(2), MiB(64), "on_demand"));
  TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, daemon->Usage());
  flags_.run.device = usage.device().uuid();
  json_["gpu"] = usage.device().name();
  json_["driver"] = flags_.driver_version.empty() ? DriverVersion() : flags_.driver_version;
  json_["commit"] = flags_.commit;
  json_["date"] = Today();
  json_["version"] = usage.version();
  json_["device_kind"] = usage.device().driver();
  json_["device_bytes"] = usage.device().total_bytes();
  json_["processors"] = ProcessorCount();
  json_["pins_in_background"] = flags_.run.daemon.knows_pin_pool;
  json_["scale"] = flags_.run.scale;
  json_["cycles"] = flags_.run.cycles;
  json_["daemon_device_bytes"] = usage.device().context_bytes();
  std::printf("# bench_sleep: %s, %s, commit %s, %s\n", usage.device().name().c_str(),
              usage.device().driver().c_str(), flags_.commit.c_str(), Today().c_str());
  return daemon->Stop();
}

Status Benchmark::Run() {
  std::vector<ModelLoad> loads;
  for (const std::string& name : Split(flags_.loads)) {
    TORPOR_ASSIGN_OR_RETURN(ModelLoad load, MakeModelLoad(name, flags_.run.scale));
    loads.push_back(std::move(load));
  }
  TORPOR_RETURN_IF_ERROR(LookAtTorpord(flags_.run.daemon));
  TORPOR_RETURN_IF_ERROR(Describe());
  // A part that fails does not keep the others from being measured.
  Status first;
  const auto part = [&](const std::string& name, Status status) {
    if (!status.ok()) {
      std::fprintf(stderr, "bench_sleep: %s: %s\n", name.c_str(), status.ToString().c_str());
      json_["errors"][name] = status.ToString();
      if (first.ok()) first = std::move(status);
    }
    Save();
    std::fflush(stdout);
  };
  if (!flags_.no_link) part("link", MeasureLink());
  part("handles", MeasureHandles());
  if (!flags_.no_touch) part("touch", Touch());
  if (!flags_.no_pinning) {
    part("pinning", MeasurePinning(flags_.run, flags_.pinning_pool, json_["pinning"]));
  }
  for (const ModelLoad& load : loads) {
    const TimePoint start = std::chrono::steady_clock::now();
    Status measured = MeasureLoad(flags_.run, load, json_[load.name]);
    json_[load.name]["seconds"] = Rounded(MillisecondsSince(start) / 1000);
    part(load.name, std::move(measured));
  }
  json_["complete"] = first.ok();
  Save();
  return first;
}

int RunRole(const std::string& role, const std::vector<std::string>& arguments) {
  static const std::map<std::string, int (*)(const std::vector<std::string>&)> kRoles = {
      {"worker", RunWorker}, {"link", RunLink},   {"handles", RunHandles},
      {"query", RunQuery},   {"touch", RunTouch}, {"neighbour", RunNeighbour}};
  const auto found = kRoles.find(role);
  return found == kRoles.end() ? 2 : found->second(arguments);
}

FlagSet MakeFlagSet(Flags& flags) {
  FlagSet set;
  const auto number = [&set](const char* name, const char* help, int64_t* target) {
    set.Add(name, "N", help, [target](std::string_view value) {
      char* end = nullptr;
      const std::string text(value);
      *target = std::strtoll(text.c_str(), &end, 10);
      if (!text.empty() && *end == '\0' && *target >= 1 && *target <= 5000) return Status::Ok();
      return InvalidArgument("BAD_FLAG", "not a number of 1 to 5000: " + text);
    });
  };
  set.AddString("torpord", "PROGRAM", "The daemon (torpord beside this program)",
                &flags.run.daemon.torpord);
  set.AddString("driver", "cuda|host", "The daemon's driver (cuda)", &flags.run.daemon.driver);
  set.Add("torpord_flag", "FLAG", "One more flag for the daemon; repeatable",
          [&flags](std::string_view value) {
            flags.run.daemon.more_flags.emplace_back(value);
            return Status::Ok();
          });
  set.AddString("torpord_log", "FILE", "Where the daemons' logs go", &flags.run.daemon.log);
  set.AddString("loads", "LOAD,...", "seed, tiny, b14, b32 (all)", &flags.loads);
  number("cycles", "Sleeps and wakes of each kind (5)", &flags.run.cycles);
  number("scale", "Makes the loads so many times smaller (1)", &flags.run.scale);
  set.AddString("out", "FILE", "Write the figures there as JSON", &flags.out);
  set.AddString("commit", "COMMIT", "What was built, for the JSON", &flags.commit);
  set.AddString("driver_version", "VERSION", "Of the GPU's driver, for the JSON",
                &flags.driver_version);
  set.AddBytes("pinning_pool", "The pool that is pinned while others query (64GiB)",
               &flags.pinning_pool);
  set.AddBytes("link_bytes", "What is copied for each figure of the link (8GiB)",
               &flags.link_bytes);
  set.AddSwitch("no_link", "Leave out the link's rate", &flags.no_link);
  set.AddSwitch("no_touch", "Do not touch host memory first", &flags.no_touch);
  set.AddSwitch("no_cold", "Leave out first sleeps with a cold pool", &flags.no_cold);
  set.AddSwitch("no_neighbour", "Leave out the rows beside a busy neighbour", &flags.no_neighbour);
  set.AddSwitch("no_pinning", "Leave out the pool that is pinned while others query",
                &flags.no_pinning);
  set.AddSwitch("list_loads", "Print the loads: name, segments, bytes of the weights",
                &flags.list_loads);
  set.AddSwitch("version", "Print the version", &flags.version);
  set.AddSwitch("help", "Print all flags", &flags.help);
  return set;
}

int ListLoads(const Flags& flags) {
  for (const std::string& name : Split(flags.loads)) {
    const Result<ModelLoad> load = MakeModelLoad(name, flags.run.scale);
    if (!load.ok()) return 2;
    std::printf("%s %zu %lld\n", name.c_str(), load->weights.size(),
                static_cast<long long>(load->weight_bytes().value()));
  }
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && arguments[0] == "role") {
    return RunRole(arguments[1], {arguments.begin() + 2, arguments.end()});
  }
  Flags flags;
  flags.run.daemon.driver = "cuda";
  const FlagSet set = MakeFlagSet(flags);
  const auto rest = set.Parse(arguments);
  if (!rest.ok() || !rest->empty()) {
    std::fprintf(stderr, "bench_sleep: %s (--help lists the flags)\n",
                 rest.ok() ? "too many arguments" : rest.status().message().c_str());
    return 2;
  }
  if (flags.help) {
    std::printf("bench_sleep: measures sleeps and wakes.\n\n%s", set.Help().c_str());
    return 0;
  }
  if (flags.version) {
    std::printf("bench_sleep %s\n", Version());
    return 0;
  }
  if (flags.list_loads) return ListLoads(flags);
  flags.run.cold = !flags.no_cold;
  flags.run.neighbour = !flags.no_neighbour;
  if (flags.run.daemon.torpord.empty()) {
    std::error_code ignored;
    flags.run.daemon.torpord =
        std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "torpord";
  }
  Benchmark benchmark(std::move(flags));
  const Status measured = benchmark.Run();
  if (!measured.ok()) std::fprintf(stderr, "bench_sleep: %s\n", measured.ToString().c_str());
  return measured.ok() ? 0 : 1;
}

}  // namespace
}  // namespace torpor::bench

int main(int argc, char** argv) {
  try {
    return torpor::bench::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {  // of JSON and of numbers
    std::fprintf(stderr, "bench_sleep: %s\n", error.what());
    return 1;
  }
}
