#include "client/ctl/frame.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <set>
#include <utility>

#include "client/ctl/frame_line.h"
#include "client/ctl/print.h"
#include "client/ctl/print_event.h"
#include "client/ctl/text_width.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl {
namespace {

using Lines = std::vector<std::string>;
using SystemTime = std::chrono::system_clock::time_point;

std::string LocalTime(SystemTime time) {
  const std::time_t whole = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  ::localtime_r(&whole, &local);
  char text[16];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d", local.tm_hour, local.tm_min, local.tm_sec);
  return text;
}

// From one to the other, at least none.
std::string Between(const google::protobuf::Timestamp& from, SystemTime to) {
  const Duration since = std::chrono::duration_cast<Duration>(to.time_since_epoch()) -
                         seconds(from.seconds()) - std::chrono::nanoseconds(from.nanos());
  return FormatDuration(std::max(since, Duration::zero()));
}

std::string Until(const google::protobuf::Timestamp& time, SystemTime now) {
  const Duration left = seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos()) -
                        std::chrono::duration_cast<Duration>(now.time_since_epoch());
  return FormatDuration(std::max(left, Duration::zero()));
}

// Cut to `most` lines, of which the last one counts what is left out.
Lines Limit(Lines lines, size_t most, const std::string& what) {
  if (lines.size() <= most || most == 0) {
    if (most == 0) lines.clear();
    return lines;
  }
  const size_t left_out = lines.size() - most + 1;
  lines.resize(most - 1);
  lines.push_back("... " + std::to_string(left_out) + " more " + what);
  return lines;
}

// It answers, and not what is asked.
bool Refuses(const google::rpc::Status& status) {
  return status.code() == static_cast<int32_t>(Code::kPermissionDenied) ||
         status.code() == static_cast<int32_t>(Code::kUnimplemented);
}

class Renderer {
 public:
  Renderer(const View& view, FrameSize size, bool colours)
      : view_(view), size_(size), colours_(colours) {}

  Lines Render() {
    Lines lines = view_.daemons.size() == 1 ? One(view_.daemons.front()) : Several();
    if (lines.size() > size_.rows) lines.resize(size_.rows);
    for (std::string& line : lines) {
      // Lines of text that were made without a FrameLine.
      if (line.find('\x1b') == std::string::npos && TextWidth(line) > size_.columns) {
        line = FitText(line, size_.columns);
      }
    }
    return lines;
  }

 private:
  FrameLine New() const { return {size_.columns, colours_}; }

  // What matters most comes first: it may be cut.
  void AddState(const DaemonView& daemon, FrameLine& line) const {
    if (daemon.status.code() != 0) {
      line.Add(Refuses(daemon.status) ? "REFUSES" : "NOT ANSWERING", Look::kBad)
          .Add(" " + ReasonOf(daemon.status));
      if (daemon.usage) line.Add(", as of " + LocalTime(daemon.usage_time));
      return;
    }
    if (!daemon.usage) {
      line.Add("asks ...", Look::kDim);
      return;
    }
    const v1::UsageResponse& usage = *daemon.usage;
    if (usage.health().code() == 0) {
      line.Add("SERVING", Look::kGood);
    } else {
      line.Add("NOT SERVING", Look::kBad).Add(" " + ReasonOf(usage.health()));
    }
    line.Add("  torpord " + usage.version() + "  up " + Between(usage.start_time(), view_.now));
    if (usage.protection().code() == 0) {
      line.Add("  protected");
    } else {
      line.Add("  " + ReasonOf(usage.protection()), Look::kPromised);
    }
  }

  static std::vector<FrameLine::Part> DeviceParts(const v1::DeviceUsage& device) {
    return {{device.resident_bytes(), '#', Look::kResident},
            {device.context_bytes() + device.other_bytes(), ':', Look::kOther},
            {std::min(device.promised_bytes(), device.free_bytes()), '+', Look::kPromised}};
  }
  static std::vector<FrameLine::Part> PoolParts(const v1::HostPoolUsage& pool) {
    return {{pool.used_bytes(), '=', Look::kHost}, {pool.clean_bytes(), '-', Look::kClean}};
  }

  Lines DeviceLines(const v1::UsageResponse& usage) const {
    const v1::DeviceUsage& device = usage.device();
    FrameLine bar = New();
    const std::string total = " " + ShortSize(device.total_bytes());
    bar.Add("Device ", Look::kBold);
    bar.Bar(bar.left() - std::min(bar.left(), TextWidth(total)), DeviceParts(device),
            device.total_bytes());
    bar.Add(total);
    FrameLine legend = New();
    legend.Add("# resident " + ShortSize(device.resident_bytes()), Look::kResident)
        .Add("  : other " + ShortSize(device.context_bytes() + device.other_bytes()), Look::kOther)
        .Add("  + promised " + ShortSize(device.promised_bytes()), Look::kPromised)
        .Add("  . free " + ShortSize(device.free_bytes()));
    if (device.overcommitted_bytes() > 0) {
      legend.Add("  OVER BY " + ShortSize(device.overcommitted_bytes()), Look::kBad);
    } else {
      legend.Add("  available " + ShortSize(device.available_bytes()));
    }
    const v1::HostPoolUsage& pool = usage.host_pool();
    FrameLine host = New();
    const std::string used = "  = used " + ShortSize(pool.used_bytes());
    const std::string clean = "  - clean " + ShortSize(pool.clean_bytes());
    const std::string free =
        "  . free " + ShortSize(std::max<int64_t>(
                          pool.budget_bytes() - pool.used_bytes() - pool.clean_bytes(), 0));
    host.Add("Pool   ", Look::kBold);
    const size_t words = used.size() + clean.size() + free.size();
    host.Bar(host.left() - std::min(host.left(), words), PoolParts(pool), pool.budget_bytes());
    host.Add(used, Look::kHost).Add(clean, Look::kClean).Add(free);
    return {bar.Text(), legend.Text(), host.Text()};
  }

  struct State {
    const char* word;
    Look look;
  };
  static State StateOf(const v1::WorkerUsage& worker, const v1::TagUsage& tag) {
    if (tag.lost_bytes() > 0) return {"lost", Look::kBad};
    if (worker.awaited()) return {"awaited", Look::kBad};
    if (worker.rollback_pending()) return {"rollback", Look::kBad};
    if (tag.moving_segments() > 0) return {"moving", Look::kBold};
    const bool resident = tag.resident_bytes() > 0;
    const bool offloaded = tag.offloaded_bytes() > 0;
    const bool discarded = tag.discarded_bytes() > 0;
    if (resident + offloaded + discarded > 1) return {"mixed", Look::kPlain};
    if (resident) return {"resident", Look::kResident};
    if (offloaded) return {"offloaded", Look::kHost};
    return discarded ? State{"discarded", Look::kDim} : State{"empty", Look::kDim};
  }

  // The widths of the table of workers.
  struct Columns {
    size_t id = 6;
    size_t name = 4;
    size_t tag = 8;
    size_t bar = 12;
    int64_t largest = 1;  // bytes of a tag
  };
  Columns ColumnsFor(const v1::UsageResponse& usage) const {
    Columns columns;
    for (const v1::WorkerUsage& worker : usage.workers()) {
      columns.id = std::max(columns.id, TextWidth(worker.id()));
      columns.name = std::max(columns.name, TextWidth(worker.name()));
      for (const v1::TagUsage& tag : worker.tags()) {
        columns.tag = std::max(columns.tag, TextWidth(tag.tag()));
        columns.largest = std::max(
            columns.largest, tag.resident_bytes() + tag.offloaded_bytes() + tag.discarded_bytes());
      }
    }
    columns.id = std::min<size_t>(columns.id, 9);
    columns.tag = std::min<size_t>(columns.tag, 12 + size_.columns / 20 - 4);
    // STATE, RESIDENT and ASLEEP with their blanks, and one behind each of the others.
    constexpr size_t kFixed = 10 + 9 + 7 + 4;
    const size_t taken = columns.id + columns.tag + kFixed;
    const size_t rest = size_.columns > taken ? size_.columns - taken : 0;
    columns.bar = std::clamp<size_t>(rest / 2, 8, 40);
    columns.name = std::min(columns.name, rest > columns.bar ? rest - columns.bar : 4);
    columns.bar =
        std::min<size_t>(std::max(columns.bar, rest > columns.name ? rest - columns.name : 0), 60);
    return columns;
  }

  std::string WorkerHeading(const Columns& columns) const {
    FrameLine line = New();
    line.Cell("WORKER", columns.id, Look::kBold)
        .Cell("NAME", columns.name, Look::kBold)
        .Cell("TAG", columns.tag, Look::kBold)
        .Cell("STATE", 9, Look::kBold)
        .Cell("# resident = offloaded", columns.bar, Look::kDim)
        .RightCell("RESIDENT", 8, Look::kBold)
        .RightCell("ASLEEP", 6, Look::kBold);
    return line.Text();
  }

  Lines WorkerRows(const v1::UsageResponse& usage, const Columns& columns) const {
    Lines rows;
    for (const v1::WorkerUsage& worker : usage.workers()) {
      std::string id = worker.id();
      std::string name = worker.name();
      if (worker.tags().empty()) {
        FrameLine line = New();
        line.Cell(id, columns.id).Cell(name, columns.name).Cell("-", columns.tag);
        line.Add(worker.awaited() ? "awaited" : "no memory", Look::kDim);
        rows.push_back(line.Text());
      }
      for (const v1::TagUsage& tag : worker.tags()) {
        const State state = StateOf(worker, tag);
        FrameLine line = New();
        line.Cell(id, columns.id)
            .Cell(name, columns.name)
            .Cell(tag.tag(), columns.tag)
            .Cell(state.word, 9, state.look)
            .Bar(columns.bar,
                 {{tag.resident_bytes(), '#', Look::kResident},
                  {tag.offloaded_bytes(), '=', Look::kHost},
                  {tag.discarded_bytes(), '_', Look::kDim}},
                 columns.largest)
            .Add(" ")
            .RightCell(ShortSize(tag.resident_bytes()), 8)
            .RightCell(ShortSize(tag.offloaded_bytes() + tag.discarded_bytes()), 6);
        rows.push_back(line.Text());
        id.clear();
        name.clear();
      }
    }
    return rows;
  }

  Lines OperationRows(const DaemonView& daemon) const {
    Lines rows;
    std::set<std::string> told;
    for (const Moving& moving : daemon.moving) {
      told.insert(moving.latest.operation_id());
      FrameLine line = New();
      const bool wake = moving.latest.kind() == v1::OPERATION_KIND_WAKE_UP;
      line.Add(wake ? "wake  " : "sleep ", Look::kBold);
      line.Add(ProgressBar(moving, line.left()));
      rows.push_back(line.Text());
    }
    if (!daemon.usage) return rows;
    for (const v1::WorkerUsage& worker : daemon.usage->workers()) {
      if (worker.operation_id().empty() || told.count(worker.operation_id()) > 0) continue;
      FrameLine line = New();
      line.Add(worker.operation_id(), Look::kBold)
          .Add(" of " + worker.id() + " (" + worker.name() + ") is under way");
      rows.push_back(line.Text());
    }
    return rows;
  }

  Lines QueueRows(const v1::UsageResponse& usage) const {
    Lines rows;
    for (const v1::WaiterUsage& waiter : usage.queue()) {
      FrameLine line = New();
      const std::string who = waiter.worker_id().empty() ? waiter.id() : waiter.worker_id();
      line.Add("waits ", Look::kBold)
          .Add(std::to_string(waiter.position()) + " " + who + " (" + waiter.name() + ") for " +
               ShortSize(waiter.device_bytes()) + " device, " + ShortSize(waiter.host_bytes()) +
               " host, since " + Between(waiter.since_time(), view_.now) + ", gives up in " +
               Until(waiter.deadline_time(), view_.now));
      rows.push_back(line.Text());
    }
    return rows;
  }

  // Why there are no events, of a daemon that refuses them.
  Lines NoEventRows() const {
    Lines rows;
    for (const DaemonView& daemon : view_.daemons) {
      if (daemon.no_events.code() == 0) continue;
      const std::string whose = view_.daemons.size() > 1 ? daemon.name + " " : "";
      rows.push_back(New()
                         .Add(whose + "no events: " + ReasonOf(daemon.no_events) + ": " +
                                  daemon.no_events.message(),
                              Look::kDim)
                         .Text());
    }
    return rows;
  }

  // Rows of them, at least, where there is room.
  size_t LeastEventRows() const {
    size_t known = NoEventRows().size();
    for (const DaemonView& daemon : view_.daemons) known += daemon.events.size();
    return std::min<size_t>(known, 4);
  }

  // The last `most` of all daemons, the newest last.
  Lines EventRows(size_t most) const {
    struct Event {
      int64_t seconds;
      int32_t nanos;
      std::string text;
    };
    std::vector<Event> events;
    for (const DaemonView& daemon : view_.daemons) {
      const std::string whose = view_.daemons.size() > 1 ? daemon.name + " " : "";
      for (const v1::WatchResponse& event : daemon.events) {
        events.push_back({event.time().seconds(), event.time().nanos(), whose + PrintEvent(event)});
      }
    }
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return std::pair(a.seconds, a.nanos) < std::pair(b.seconds, b.nanos);
    });
    Lines rows = Limit(NoEventRows(), most, "without events");
    most -= std::min(most, rows.size());
    for (size_t i = events.size() - std::min(most, events.size()); i < events.size(); ++i) {
      rows.push_back(New().Add(events[i].text, Look::kDim).Text());
    }
    return rows;
  }

  static void Append(Lines& lines, const Lines& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  }

  Lines One(const DaemonView& daemon) const {
    FrameLine title = New();
    title.Add("torporctl top  ", Look::kBold);
    AddState(daemon, title);
    title.AddAtRight(LocalTime(view_.now));
    Lines lines = {title.Text()};
    if (!daemon.usage) {
      lines.push_back(New().Add(daemon.name + " " + daemon.status.message()).Text());
      return lines;
    }
    const v1::UsageResponse& usage = *daemon.usage;
    FrameLine name = New();
    name.Add(usage.device().uuid(), Look::kBold)
        .Add(" (" + usage.device().name() + ", " + usage.device().driver() +
             ")  pool: " + usage.host_pool().kind());
    lines.push_back(name.Text());
    Append(lines, DeviceLines(usage));
    size_t room = size_.rows - std::min(size_.rows, lines.size());
    const Lines moving = Limit(OperationRows(daemon), std::max<size_t>(1, room / 4), "operations");
    const Lines waiting = Limit(QueueRows(usage), std::max<size_t>(1, room / 6), "who wait");
    room -= std::min(room, moving.size() + waiting.size());
    const Columns columns = ColumnsFor(usage);
    Lines workers = WorkerRows(usage, columns);
    if (workers.empty()) {
      workers.push_back("No workers.");
    } else {
      workers.insert(workers.begin(), WorkerHeading(columns));
    }
    // Some of the newest events, and more where there is room.
    const size_t least = room >= 8 ? LeastEventRows() : 0;
    workers = Limit(std::move(workers), room - least, "rows of tags");
    Append(lines, moving);
    Append(lines, waiting);
    Append(lines, workers);
    Append(lines, EventRows(room - std::min(room, workers.size())));
    return lines;
  }

  // A daemon in one line.
  std::string Short(const DaemonView& daemon) const {
    FrameLine line = New();
    line.Cell(daemon.name, std::min<size_t>(NameWidth(), size_.columns / 3), Look::kBold);
    if (daemon.usage) {
      const v1::DeviceUsage& device = daemon.usage->device();
      const v1::HostPoolUsage& pool = daemon.usage->host_pool();
      const size_t bar = std::max<size_t>(6, line.left() / 5);
      line.Bar(bar, DeviceParts(device), device.total_bytes()).Add(" ");
      line.RightCell(ShortSize(device.resident_bytes()) + "/" + ShortSize(device.total_bytes()),
                     11);
      line.Bar(bar * 2 / 3, PoolParts(pool), pool.budget_bytes()).Add(" ");
      line.RightCell(ShortSize(pool.used_bytes()) + "/" + ShortSize(pool.budget_bytes()), 11);
    }
    AddState(daemon, line);
    return line.Text();
  }
  size_t NameWidth() const {
    size_t width = 6;
    for (const DaemonView& daemon : view_.daemons) width = std::max(width, TextWidth(daemon.name));
    return width;
  }

  Lines Several() const {
    const size_t serving = static_cast<size_t>(
        std::count_if(view_.daemons.begin(), view_.daemons.end(), [](const DaemonView& daemon) {
          return daemon.status.code() == 0 && daemon.usage && daemon.usage->health().code() == 0;
        }));
    FrameLine title = New();
    title.Add("torporctl top  ", Look::kBold)
        .Add(std::to_string(view_.daemons.size()) + " daemons, " + std::to_string(serving) +
                 " serve",
             serving == view_.daemons.size() ? Look::kGood : Look::kBad)
        .AddAtRight(LocalTime(view_.now));
    Lines lines = {title.Text()};
    const size_t room = size_.rows - std::min<size_t>(size_.rows, 1);
    const size_t events = room >= 8 ? LeastEventRows() : 0;
    Lines blocks;
    for (const DaemonView& daemon : view_.daemons) blocks.push_back(Short(daemon));
    // What a block has below its first line.
    const size_t count = view_.daemons.size();
    const size_t each = count == 0 || room < events ? 0 : (room - events) / count;
    if (each < 2) {
      Append(lines, Limit(std::move(blocks), room - std::min(room, events), "daemons"));
    } else {
      size_t spare = room - events - count;
      for (size_t i = 0; i < count; ++i) {
        lines.push_back(blocks[i]);
        const DaemonView& daemon = view_.daemons[i];
        Lines rows = OperationRows(daemon);
        if (daemon.usage) {
          Append(rows, QueueRows(*daemon.usage));
          Append(rows, WorkerRows(*daemon.usage, ColumnsFor(*daemon.usage)));
        }
        rows = Limit(std::move(rows), std::min(spare / (count - i), spare), "rows");
        spare -= rows.size();
        Append(lines, rows);
      }
    }
    Append(lines, EventRows(size_.rows - std::min(size_.rows, lines.size())));
    return lines;
  }

  const View& view_;
  const FrameSize size_;
  const bool colours_;
};

}  // namespace

std::vector<std::string> RenderFrame(const View& view, FrameSize size, bool colours) {
  if (size.columns == 0 || size.rows == 0) return {};
  return Renderer(view, size, colours).Render();
}

}  // namespace torpor::ctl
