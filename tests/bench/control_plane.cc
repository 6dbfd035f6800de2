// The control plane under load: how long Usage, Reserve and Release take while workers are put to
// sleep and wake.
//
//   bazel run -c opt //tests/bench:control_plane -- --out FILE
//
// Starts torpord on the host driver and worker processes, 16 with 250 segments each unless told
// otherwise, and calls Usage and Reserve at fixed rates (load.h), in three phases: at rest, with
// every segment in a piece of memory of its own; while workers sleep and wake; and at rest again,
// when what woke together has become one piece. At the end every worker finds its bytes right.
// Needs about 3 GiB of memory; --help lists the flags. Prints a table; --out gets the same as JSON.
//
// `lag` is how late this program sent its calls: on a busy machine it says how much of the rest is
// not the daemon's doing.

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"
#include "tests/bench/load.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor::bench {
namespace {

struct Flags {
  std::string out;
  Duration duration = seconds(20);
  int64_t workers = 16;
  int64_t segments = 250;
  int64_t usage_rate = 200;
  int64_t reserve_rate = 50;
  int64_t movers = 2;
  bool help = false;
};

struct Segment {
  std::string id;
  int seed = 0;  // 0: a tag whose bytes a sleep drops
};
struct Worker {
  std::unique_ptr<WorkerProcess> process;
  std::vector<Segment> segments;
};

// 64 to 256 KiB; every fifth one is a KV cache, which a sleep of level 1 discards.
Status Allocate(Worker& worker, int64_t segments, int seed) {
  static constexpr std::array<const char*, 4> kSizes = {"64KiB", "128KiB", "192KiB", "256KiB"};
  for (int64_t i = 0; i < segments; ++i) {
    const bool weights = i % 5 != 0;
    Segment segment;
    segment.seed = weights ? ++seed : 0;
    TORPOR_ASSIGN_OR_RETURN(segment.id,
                            worker.process->Allocate(weights ? "weights" : "kv_cache",
                                                     kSizes[static_cast<size_t>(i) % 4], seed));
    worker.segments.push_back(segment);
  }
  return Status::Ok();
}

Status CheckBytes(Worker& worker) {
  for (const Segment& segment : worker.segments) {
    if (segment.seed == 0) continue;
    TORPOR_RETURN_IF_ERROR(
        worker.process->Ask("check " + segment.id + " " + std::to_string(segment.seed)).status());
  }
  return Status::Ok();
}

double CpuSeconds(pid_t pid) {
  // The 14th and 15th field; the second one, in parentheses, has no blank here.
  std::istringstream stat(ReadFile("/proc/" + std::to_string(pid) + "/stat"));
  std::string skipped;
  for (int i = 0; i < 13; ++i) stat >> skipped;
  double user = 0;
  double system = 0;
  stat >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string LoadAverage() {
  const std::string text = ReadFile("/proc/loadavg");
  return text.substr(0, text.find(' '));
}

std::string CpuModel() {
  std::istringstream lines(ReadFile("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::tm utc{};
  std::strftime(text, sizeof text, "%Y-%m-%d", ::gmtime_r(&now, &utc));
  return text;
}

// Writes the table to standard output, and collects the same as JSON.
class Report {
 public:
  void Phase(const std::string& name, int64_t extents, double daemon_cpu,
             const std::string& load_average, LoadFigures& figures) {
    std::printf(
        "\n%s: %lld extents, %.1f s, daemon %.0f %% of a core, copied %.2f GB/s, load average "
        "%s\n\n",
        name.c_str(), static_cast<long long>(extents), figures.seconds,
        100 * daemon_cpu / figures.seconds,
        static_cast<double>(figures.copied_bytes) / figures.seconds / 1e9, load_average.c_str());
    std::printf(
        "| call | calls/s | p50 ms | p99 ms | max ms | errors |\n"
        "| --- | ---: | ---: | ---: | ---: | --- |\n");
    char head[256];
    std::snprintf(head, sizeof head,
                  "%s    {\"phase\": \"%s\", \"extents\": %lld, \"seconds\": %.3f, "
                  "\"daemon_cpu_seconds\": %.2f, \"copied_bytes\": %lld, \"load_average\": %s, "
                  "\"calls\": {",
                  phases_.empty() ? "" : ",\n", name.c_str(), static_cast<long long>(extents),
                  figures.seconds, daemon_cpu, static_cast<long long>(figures.copied_bytes),
                  load_average.c_str());
    phases_ += head;
    first_ = true;
    Row("Usage", figures.usage.Take(), figures.seconds);
    Row("Reserve", figures.reserve.Take(), figures.seconds);
    Row("Release", figures.release.Take(), figures.seconds);
    Row("Sleep", figures.sleep.Take(), figures.seconds);
    Row("WakeUp", figures.wake.Take(), figures.seconds);
    Row("lag", figures.lag.Take(), figures.seconds);
    phases_ += "}}";
    std::fflush(stdout);
  }

  std::string Json(const Flags& flags) const {
    std::ostringstream text;
    text << "{\n  \"date\": \"" << Today() << "\",\n  \"cpu\": \"" << CpuModel()
         << "\",\n  \"cores\": " << std::thread::hardware_concurrency()
         << ",\n  \"workers\": " << flags.workers
         << ",\n  \"segments_per_worker\": " << flags.segments
         << ",\n  \"usage_rate\": " << flags.usage_rate
         << ",\n  \"reserve_rate\": " << flags.reserve_rate << ",\n  \"movers\": " << flags.movers
         << ",\n  \"phases\": [\n"
         << phases_ << "\n  ]\n}\n";
    return text.str();
  }

 private:
  void Row(const char* name, const Samples::Summary& summary, double seconds) {
    if (summary.count == 0 && summary.errors.empty()) return;
    const double rate = static_cast<double>(summary.count) / seconds;
    std::string errors;
    std::string json_errors;
    for (const auto& [reason, count] : summary.errors) {
      errors += (errors.empty() ? "" : ", ") + std::to_string(count) + " " + reason;
      json_errors +=
          (json_errors.empty() ? "\"" : ", \"") + reason + "\": " + std::to_string(count);
    }
    std::printf("| %s | %.1f | %.2f | %.2f | %.2f | %s |\n", name, rate, summary.p50_ms,
                summary.p99_ms, summary.max_ms, errors.c_str());
    char json[512];
    std::snprintf(json, sizeof json,
                  "%s\"%s\": {\"count\": %lld, \"rate\": %.2f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
                  "\"max_ms\": %.3f, \"errors\": {%s}}",
                  first_ ? "" : ", ", name, static_cast<long long>(summary.count), rate,
                  summary.p50_ms, summary.p99_ms, summary.max_ms, json_errors.c_str());
    phases_ += json;
    first_ = false;
  }

  std::string phases_;
  bool first_ = true;
};

Result<int64_t> CountExtents(const DaemonProcess& daemon) {
  TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, daemon.Usage());
  int64_t extents = 0;
  for (const auto& worker : usage.workers()) {
    for (const auto& tag : worker.tags()) extents += tag.extents();
  }
  return extents;
}

// A wake that failed under load left its worker asleep.
Status WakeAll(const DaemonProcess& daemon) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::WakeUpRequest request;
  request.mutable_selector()->set_all(true);
  v1::WakeUpResponse response;
  const grpc::Status woken = daemon.stub().WakeUp(&context, request, &response);
  if (woken.ok()) return Status::Ok();
  return Internal("WAKE_FAILED", woken.error_message());
}

Status Measure(const Flags& flags) {
  const TempDir dir;
  const int64_t mib = flags.workers * flags.segments * 256 / 1024 + 64;
  TORPOR_ASSIGN_OR_RETURN(
      const std::unique_ptr<DaemonProcess> daemon,
      DaemonProcess::Start(
          dir.path(),
          {"--host_granularity=64KiB", "--host_device_memory=" + std::to_string(mib) + "MiB",
           "--host_pool=" + std::to_string(mib) + "MiB", "--safety_reserve=0"}));
  LoadOptions options;
  options.duration = flags.duration;
  options.usage_rate = static_cast<int>(flags.usage_rate);
  options.reserve_rate = static_cast<int>(flags.reserve_rate);
  std::vector<Worker> workers(static_cast<size_t>(flags.workers));
  const TimePoint start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < workers.size(); ++i) {
    TORPOR_ASSIGN_OR_RETURN(
        workers[i].process,
        WorkerProcess::Connect(daemon->worker_socket(), "load-" + std::to_string(i)));
    options.workers.push_back(workers[i].process->id());
    TORPOR_RETURN_IF_ERROR(Allocate(workers[i], flags.segments, static_cast<int>(i) * 1000));
  }
  std::printf("%zu workers with %lld segments each, made in %.1f s; %u cores of %s; %s\n",
              workers.size(), static_cast<long long>(flags.segments),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
              std::thread::hardware_concurrency(), CpuModel().c_str(), Today().c_str());

  Report report;
  const auto phase = [&](const char* name, int64_t movers) -> Status {
    TORPOR_ASSIGN_OR_RETURN(const int64_t extents, CountExtents(*daemon));
    options.movers = static_cast<int>(movers);
    const std::string load_average = LoadAverage();
    const double cpu = CpuSeconds(daemon->process().pid());
    LoadFigures figures;
    RunLoad(*daemon, options, figures);
    report.Phase(name, extents, CpuSeconds(daemon->process().pid()) - cpu, load_average, figures);
    return Status::Ok();
  };
  TORPOR_RETURN_IF_ERROR(phase("at rest", 0));
  TORPOR_RETURN_IF_ERROR(phase("sleeps and wakes", flags.movers));
  TORPOR_RETURN_IF_ERROR(phase("at rest again", 0));
  TORPOR_RETURN_IF_ERROR(WakeAll(*daemon));
  for (Worker& worker : workers) TORPOR_RETURN_IF_ERROR(CheckBytes(worker));
  std::printf("\nEvery byte is right.\n");
  if (!flags.out.empty()) {
    std::ofstream(flags.out) << report.Json(flags);
  }
  TORPOR_ASSIGN_OR_RETURN(const int exit_status, daemon->Stop());
  if (exit_status == 0) return Status::Ok();
  return Internal("DAEMON_FAILED", "torpord ended with " + std::to_string(exit_status));
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  FlagSet set;
  const auto number = [&](const char* name, const char* help, int64_t* target) {
    set.Add(name, "N", help, [target](std::string_view value) {
      char* end = nullptr;
      const std::string text(value);
      *target = std::strtoll(text.c_str(), &end, 10);
      if (!text.empty() && *end == '\0' && *target >= 0 && *target <= 100'000) return Status::Ok();
      return InvalidArgument("BAD_FLAG", "not a number of 0 to 100000: " + text);
    });
  };
  set.AddString("out", "FILE", "Write the figures there as JSON", &flags.out);
  set.AddDuration("duration", "How long each phase lasts (20s)", &flags.duration);
  number("workers", "Worker processes (16)", &flags.workers);
  number("segments", "Segments of each (250)", &flags.segments);
  number("usage_rate", "Calls of Usage a second (200)", &flags.usage_rate);
  number("reserve_rate", "Calls of Reserve a second (50)", &flags.reserve_rate);
  number("movers", "Sleeps or wakes at a time (2)", &flags.movers);
  set.AddSwitch("help", "Print all flags", &flags.help);
  const auto rest = set.Parse(arguments);
  if (!rest.ok() || !rest->empty() || flags.workers < flags.movers + 1) {
    std::fprintf(stderr, "control_plane: bad command line (--help lists the flags)\n");
    return 2;
  }
  if (flags.help) {
    std::printf("%s", set.Help().c_str());
    return 0;
  }
  // bazel run changes the directory.
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr && !flags.out.empty() && flags.out[0] != '/') {
    flags.out = std::string(directory) + "/" + flags.out;
  }
  const Status measured = Measure(flags);
  if (!measured.ok()) std::fprintf(stderr, "control_plane: %s\n", measured.ToString().c_str());
  return measured.ok() ? 0 : 1;
}

}  // namespace
}  // namespace torpor::bench

int main(int argc, char** argv) { return torpor::bench::Main({argv + 1, argv + argc}); }
