// What workers ask for themselves.

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "daemon/core/core.h"
#include "daemon/core/policy.h"
#include "daemon/core/worker_timeout.h"
#include "daemon/log.h"
#include "lib/base/utf8.h"

namespace torpor {
namespace {

// Of a sleep or wake, for which 0 is no time either.
TimePoint DeadlineOf(int64_t timeout_ms) {
  return std::chrono::steady_clock::now() + WorkerTimeout(timeout_ms == 0 ? -1 : timeout_ms);
}

wire::SleepReply ReplyOf(const WorkerOutcome& outcome) {
  return {outcome.status, outcome.device, outcome.copied, outcome.discarded};
}

wire::Extent Describe(const ExtentPtr& extent) {
  return {extent->id(), extent->offset(), extent->size()};
}

const char* NameOf(wire::Type type) {
  switch (type) {
    case wire::Type::kAllocated:
      return "Allocated";
    case wire::Type::kFree:
      return "Free";
    case wire::Type::kFreed:
      return "Freed";
    case wire::Type::kSleep:
      return "Sleep";
    case wire::Type::kWakeUp:
      return "WakeUp";
    case wire::Type::kUsage:
      return "Usage";
    case wire::Type::kSetQuiesce:
      return "SetQuiesce";
    case wire::Type::kSetSleepEndpoint:
      return "SetSleepEndpoint";
    case wire::Type::kReport:
      return "Report";
    default:
      return "other";
  }
}

}  // namespace

void Core::Observe(const char* request, const Status& status) const {
  if (options_.observer == nullptr) return;
  options_.observer->OnAnswer(AnswerObserver::Plane::kWorker, request, status, Duration::zero());
}

template <typename Reply>
void Core::Answer(wire::Channel& channel, wire::Type type, uint64_t id, const Reply& reply) const {
  Observe(NameOf(type), reply.status);
  (void)channel.Answer(static_cast<uint16_t>(type), id, reply);
}

void Core::OnRequest(WorkerId worker, const std::shared_ptr<wire::Channel>& channel,
                     net::Frame request) {
  const uint16_t type = request.type;
  const uint64_t id = request.id;
  const auto decode = [&](auto message) {
    auto decoded = wire::Decode<decltype(message)>(request.payload);
    if (decoded.ok() && !request.fds.empty()) {
      decoded = InvalidArgument("BAD_FRAME", "this request carries no descriptors")
                    .With("fd_count", request.fds.size());
    }
    if (!decoded.ok()) {
      log::Warning("worker {}: {}", WorkerName(worker), decoded.status());
      channel->End(decoded.status());
    }
    return decoded;
  };
  const auto kind = static_cast<wire::Type>(type);
  const auto answer = [&](const auto& reply) { Answer(*channel, kind, id, reply); };
  switch (kind) {
    case wire::Type::kAllocate: {
      const auto message = decode(wire::Allocate());
      if (!message.ok()) return;
      OwnAllocate(worker, channel, id, *message);
      return;
    }
    case wire::Type::kAllocated: {
      const auto message = decode(wire::Allocated());
      if (!message.ok()) return;
      answer(OwnAllocated(worker, *message));
      return;
    }
    case wire::Type::kFree: {
      const auto message = decode(wire::Free());
      if (message.ok()) answer(OwnFree(worker, *message));
      return;
    }
    case wire::Type::kFreed: {
      const auto message = decode(wire::Freed());
      if (!message.ok()) return;
      FinishFree(context_, worker, message->segment);
      answer(wire::StatusReply{});
      return;
    }
    case wire::Type::kSleep: {
      const auto message = decode(wire::Sleep());
      if (!message.ok()) return;
      RunOwn(
          worker, [this, worker, message = *message] { return OwnSleep(worker, message); },
          [this, channel, kind, id](const auto& reply) { Answer(*channel, kind, id, reply); });
      return;
    }
    case wire::Type::kWakeUp: {
      const auto message = decode(wire::WakeUp());
      if (!message.ok()) return;
      RunOwn(
          worker, [this, worker, message = *message] { return OwnWake(worker, message); },
          [this, channel, kind, id](const auto& reply) { Answer(*channel, kind, id, reply); });
      return;
    }
    case wire::Type::kUsage: {
      if (decode(wire::Usage()).ok()) answer(OwnUsage(worker));
      return;
    }
    case wire::Type::kSetQuiesce: {
      const auto message = decode(wire::SetQuiesce());
      if (message.ok()) answer(wire::StatusReply{OwnQuiesce(worker, *message)});
      return;
    }
    case wire::Type::kSetSleepEndpoint: {
      const auto message = decode(wire::SetSleepEndpoint());
      if (message.ok()) answer(wire::StatusReply{OwnSleepEndpoint(worker, *message)});
      return;
    }
    case wire::Type::kReport: {
      const auto message = decode(wire::Report());
      if (!message.ok()) return;
      inventory_.UpdateWorker(worker, [&](WorkerInfo& info) {
        info.reported_live = message->live;
        info.reported_reserved = message->reserved;
      });
      answer(wire::StatusReply{});
      return;
    }
    default:
      break;
  }
  const Status unknown =
      InvalidArgument("BAD_FRAME", "the worker asks what no worker can ask").With("type", type);
  log::Warning("worker {}: {}", WorkerName(worker), unknown);
  channel->End(unknown);
}

void Core::RunOwn(WorkerId worker, std::function<wire::SleepReply()> operation,
                  const std::function<void(const wire::SleepReply&)>& answer) {
  {
    MutexLock lock(own_mutex_);
    if (const auto found = own_operations_.find(worker);
        found != own_operations_.end() && found->second == kMaxOwnOperations) {
      const Status refused =
          ResourceExhausted("TOO_MANY_CALLS",
                            "the worker has as many sleeps and wakes under way as it may ask for")
              .With("calls", kMaxOwnOperations);
      return answer({refused, {}, {}, {}});
    }
    ++own_operations_[worker];
  }
  const auto ended = [this, worker] {
    MutexLock lock(own_mutex_);
    const auto found = own_operations_.find(worker);
    if (--found->second == 0) own_operations_.erase(found);
  };
  const Status started = tasks_.Run([ended, answer, operation = std::move(operation)] {
    const wire::SleepReply reply = operation();
    ended();
    answer(reply);
  });
  if (started.ok()) return;
  ended();
  answer({started, {}, {}, {}});
}

wire::FreeReply Core::OwnFree(WorkerId worker, const wire::Free& request) {
  wire::FreeReply reply;
  const auto extents = FreeSegment(context_, worker, request.segment);
  if (extents.ok()) {
    for (const ExtentPtr& extent : *extents) reply.unmap.push_back(Describe(extent));
  } else {
    reply.status = extents.status();
  }
  if (extents.ok() && extents->empty()) reply.asleep = inventory_.AsleepTags(worker);
  return reply;
}

wire::SleepReply Core::OwnSleep(WorkerId worker, const wire::Sleep& request) {
  std::map<std::string, wire::Policy> policies;
  for (const wire::TagPolicy& one : request.policies) policies[one.tag] = one.policy;
  SleepSpec spec;
  auto policy = PolicyFrom(request.level, policies);
  if (!policy.ok()) return {policy.status(), {}, {}, {}};
  spec.policy = *std::move(policy);
  spec.wish = SleepWish(request.tags, request.level, policies, request.force);
  spec.tags = FilterOf(request.tags);
  spec.force = request.force;
  spec.own = true;
  spec.deadline = DeadlineOf(request.timeout_ms);
  return ReplyOf(RunSleep(context_, worker, spec));
}

wire::SleepReply Core::OwnWake(WorkerId worker, const wire::WakeUp& request) {
  const auto info = inventory_.FindWorker(worker);
  const Status may = info.has_value() ? CheckDraw(request.reservation, info->owner) : Status::Ok();
  if (!may.ok()) return {may, {}, {}, {}};
  WakeSpec spec;
  spec.wish = WakeWish(request.tags, request.reservation);
  spec.tags = FilterOf(request.tags);
  spec.order = request.tags;
  spec.reservation = request.reservation;
  spec.deadline = DeadlineOf(request.timeout_ms);
  return ReplyOf(RunWake(context_, worker, spec));
}

wire::UsageReply Core::OwnUsage(WorkerId worker) {
  wire::UsageReply reply;
  const auto budget = admission_.Budget();
  if (!budget.ok()) {
    reply.status = budget.status();
    return reply;
  }
  reply.device_total = budget->total;
  reply.device_free = budget->free;
  reply.available = budget->available;
  for (const WorkerStats& stats : inventory_.Snapshot()) {
    if (stats.info.id != worker) continue;
    for (const TagStats& tag : stats.tags) {
      reply.tags.push_back({tag.tag, static_cast<uint64_t>(tag.segments), tag.resident,
                            tag.offloaded, tag.discarded});
    }
  }
  return reply;
}

Status Core::OwnQuiesce(WorkerId worker, const wire::SetQuiesce& request) {
  if (request.quiesce > wire::Quiesce::kCallback) {
    return InvalidArgument("BAD_QUIESCE_MODE", "there is no such way to quiet a worker")
        .With("quiesce", static_cast<int>(request.quiesce));
  }
  inventory_.UpdateWorker(worker, [&](WorkerInfo& info) { info.quiesce = request.quiesce; });
  return Status::Ok();
}

Status Core::OwnSleepEndpoint(WorkerId worker, const wire::SetSleepEndpoint& request) {
  const std::string& endpoint = request.endpoint;
  if (endpoint.size() > wire::kLongestEndpoint || !IsPrintableUtf8(endpoint)) {
    return InvalidArgument("BAD_ENDPOINT", "a sleep endpoint is at most " +
                                               std::to_string(wire::kLongestEndpoint) +
                                               " bytes of UTF-8 without control characters")
        .With("length", endpoint.size());
  }
  inventory_.UpdateWorker(worker, [&](WorkerInfo& info) { info.sleep_endpoint = endpoint; });
  return Status::Ok();
}

}  // namespace torpor
