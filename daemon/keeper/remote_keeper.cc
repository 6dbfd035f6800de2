#include "daemon/keeper/remote_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/keeper/protocol.h"
#include "daemon/log.h"

namespace torpor {
namespace {

using keeper::Channel;
using keeper::Type;

constexpr Duration kLongestRetry = seconds(5);

Result<UniqueFd> Duplicate(int fd, const char* what) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, what);
  return copy;
}

Status KeeperLost(const Status& why) {
  return Unavailable("KEEPER_LOST", "the keeper is lost, and its descriptors: " + why.message());
}

int64_t MillisecondsSince(TimePoint begun) {
  return std::chrono::duration_cast<milliseconds>(Clock::Real().Now() - begun).count();
}

// Waits until the other end of `fd` is closed; false if `stop` is readable before.
bool AwaitEnd(int fd, int stop) {
  pollfd polled[] = {{fd, POLLRDHUP, 0}, {stop, POLLIN, 0}};
  for (;;) {
    ::poll(polled, 2, -1);
    if (polled[1].revents != 0) return false;
    if (polled[0].revents != 0) return true;
  }
}

}  // namespace

RemoteKeeper::RemoteKeeper(const std::string& socket, const std::string& device,
                           const Options& options, UniqueFd stop)
    : socket_(socket), device_(device), options_(options), stop_(std::move(stop)) {
  MutexLock lock(state_mutex_);
  protection_.since = Clock::Real().Now();
}

RemoteKeeper::~RemoteKeeper() {
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) != sizeof one) log::Error("the keeper's watch is on");
  if (watch_.joinable()) watch_.join();
}

Result<std::unique_ptr<RemoteKeeper>> RemoteKeeper::Attach(const std::string& socket,
                                                           const std::string& device_uuid,
                                                           const Options& options) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return ErrnoStatus(errno, "watch the keeper");
  std::unique_ptr<RemoteKeeper> keeper(
      new RemoteKeeper(socket, device_uuid, options, std::move(stop)));
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Channel> channel,
                          Channel::Connect(socket, options.answer_timeout, keeper->stop_.get()));
  TORPOR_ASSIGN_OR_RETURN(const keeper::AttachReply reply,
                          keeper->Introduce(*channel, &keeper->recovered_));
  keeper->starts_ = reply.starts;
  {
    MutexLock lock(keeper->mutex_);
    keeper->channel_ = std::move(channel);
  }
  TORPOR_RETURN_IF_ERROR(keeper->TakeOwnJournal());
  keeper->watch_ =
      std::thread([&keeper = *keeper, told = keeper->protection().since] { keeper.Watch(told); });
  return keeper;
}

Result<keeper::AttachReply> RemoteKeeper::Introduce(Channel& channel, Ledger* ledger) const {
  keeper::Attach attach{keeper::kProtocol, device_};
  for (;;) {
    TORPOR_ASSIGN_OR_RETURN(const keeper::AttachReply page,
                            channel.Ask<keeper::AttachReply>(Type::kAttach, attach));
    if (ledger == nullptr) return page;
    TORPOR_ASSIGN_OR_RETURN(const std::vector<JournalRecord> records,
                            keeper::DecodeAll(page.records));
    ledger->Apply(records);
    attach.skip += records.size();
    if (!page.more) return page;
  }
}

Status RemoteKeeper::TakeOwnJournal() {
  MutexLock lock(mutex_);
  if (!options_.own_journal.empty() && ::access(options_.own_journal.c_str(), F_OK) == 0) {
    TORPOR_ASSIGN_OR_RETURN(own_journal_, Journal::Open(options_.own_journal));
    log::Warning("the daemon before this one went on without its keeper: its own journal counts");
    recovered_ = own_journal_->ledger();
    ledger_ = recovered_;
    TORPOR_RETURN_IF_ERROR(ReplaceAll(*channel_));
    EndOwnJournal();
  }
  ledger_ = recovered_;
  return Status::Ok();
}

Result<std::map<ExtentId, UniqueFd>> RemoteKeeper::Fetch(const std::vector<ExtentId>& ids) {
  std::map<ExtentId, UniqueFd> fetched;
  MutexLock lock(mutex_);
  for (size_t next = 0; next < ids.size();) {
    if (channel_ == nullptr) return KeeperLost(Unavailable("", protection().reason));
    const size_t count = std::min(net::kMaxFrameFds, ids.size() - next);
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(next);
    keeper::Fetch fetch{{first, first + static_cast<std::ptrdiff_t>(count)}};
    std::vector<UniqueFd> fds;
    Result<keeper::FetchReply> reply =
        channel_->Ask<keeper::FetchReply>(Type::kFetch, fetch, {}, &fds);
    if (!reply.ok()) {
      if (!channel_->lost()) return reply.status();
      Lose(reply.status());
      return KeeperLost(reply.status());
    }
    for (size_t i = 0; i < std::min(fds.size(), reply->extents.size()); ++i) {
      TORPOR_ASSIGN_OR_RETURN(UniqueFd copy, fds[i].Duplicate());
      if (ledger_.extents().count(reply->extents[i]) > 0) {
        extents_[reply->extents[i]] = std::move(copy);
      }
      fetched[reply->extents[i]] = std::move(fds[i]);
    }
    next += count;
  }
  return fetched;
}

Result<std::optional<std::pair<PoolHeld, UniqueFd>>> RemoteKeeper::FetchPool() {
  MutexLock lock(mutex_);
  if (channel_ == nullptr) return KeeperLost(Unavailable("", protection().reason));
  std::vector<UniqueFd> fds;
  Result<keeper::PoolReply> reply =
      channel_->Ask<keeper::PoolReply>(Type::kPool, keeper::Reply(), {}, &fds);
  if (!reply.ok()) {
    if (!channel_->lost()) return reply.status();
    Lose(reply.status());
    return KeeperLost(reply.status());
  }
  std::optional<std::pair<PoolHeld, UniqueFd>> pool;
  // One that the journal does not name has nothing in it that the journal does.
  if (fds.empty() || !ledger_.pool().has_value() || ledger_.pool()->id != reply->pool.id) {
    return pool;
  }
  TORPOR_ASSIGN_OR_RETURN(pool_fd_, fds[0].Duplicate());
  pool.emplace(reply->pool, std::move(fds[0]));
  return pool;
}

template <typename Question>
Status RemoteKeeper::Tell(Type type, const Question& question, const std::vector<int>& fds) {
  if (channel_ == nullptr) return Status::Ok();
  const Result<keeper::Reply> reply = channel_->Ask<keeper::Reply>(type, question, fds);
  if (reply.ok()) return Status::Ok();
  if (!channel_->lost()) return reply.status();
  Lose(reply.status());
  return Status::Ok();
}

Status RemoteKeeper::Write(const std::vector<JournalRecord>& records) {
  std::vector<JournalRecord> all = owed_;
  all.insert(all.end(), records.begin(), records.end());
  if (all.empty()) return Status::Ok();
  keeper::Record question;
  question.records.reserve(all.size());
  for (const JournalRecord& record : all) question.records.push_back(EncodeRecord(record));
  Status written = Tell(Type::kRecord, question);
  if (written.ok() && own_journal_ != nullptr) written = own_journal_->Record(all);
  if (written.ok()) {
    owed_.clear();
  } else if (!Owe(records, written)) {
    return written;
  }
  ledger_.Apply(records);
  return Status::Ok();
}

bool RemoteKeeper::Owe(const std::vector<JournalRecord>& ends, const Status& why) {
  if (why.code() != Code::kResourceExhausted || !std::all_of(ends.begin(), ends.end(), IsEnd)) {
    return false;
  }
  if (owed_.empty()) log::Error("ends are recorded later, and nothing new until then: {}", why);
  owed_.insert(owed_.end(), ends.begin(), ends.end());
  return true;
}

Status RemoteKeeper::HoldExtent(const ExtentHeld& extent, int fd) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd copy, Duplicate(fd, "keep an extent's descriptor"));
  MutexLock lock(mutex_);
  if (extents_.count(extent.extent) > 0) return Status::Ok();
  TORPOR_RETURN_IF_ERROR(ledger_.CheckExtent(extent));
  TORPOR_RETURN_IF_ERROR(Write({}));
  TORPOR_RETURN_IF_ERROR(Tell(Type::kHold, extent, {copy.get()}));
  if (own_journal_ != nullptr) TORPOR_RETURN_IF_ERROR(own_journal_->Record({extent}));
  ledger_.Apply(extent);
  extents_[extent.extent] = std::move(copy);
  return Status::Ok();
}

Status RemoteKeeper::DropExtent(ExtentId id) {
  UniqueFd dropped;  // closed without the lock
  MutexLock lock(mutex_);
  if (ledger_.extents().count(id) == 0) return Status::Ok();
  const ExtentDropped drop{id};
  Status told = Tell(Type::kDrop, drop);
  if (told.ok() && own_journal_ != nullptr) told = own_journal_->Record({drop});
  if (!told.ok() && !Owe({drop}, told)) return told;
  ledger_.Apply(drop);
  if (const auto found = extents_.find(id); found != extents_.end()) {
    dropped = std::move(found->second);
    extents_.erase(found);
  }
  return Status::Ok();
}

Status RemoteKeeper::Record(const std::vector<JournalRecord>& records) {
  std::vector<UniqueFd> dropped;
  MutexLock lock(mutex_);
  if (records.empty()) return Status::Ok();
  TORPOR_RETURN_IF_ERROR(Write(records));
  for (auto entry = extents_.begin(); entry != extents_.end();) {
    if (ledger_.extents().count(entry->first) > 0 && ledger_.lost().count(entry->first) == 0) {
      ++entry;
      continue;
    }
    dropped.push_back(std::move(entry->second));
    entry = extents_.erase(entry);
  }
  return Status::Ok();
}

Status RemoteKeeper::HoldPool(const PoolHeld& pool, int fd) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd copy, Duplicate(fd, "keep the pool's descriptor"));
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(Write({}));
  TORPOR_RETURN_IF_ERROR(Tell(Type::kHoldPool, pool, {copy.get()}));
  if (own_journal_ != nullptr) TORPOR_RETURN_IF_ERROR(own_journal_->Record({pool}));
  ledger_.Apply(pool);
  std::swap(pool_fd_, copy);
  return Status::Ok();
}

bool RemoteKeeper::Answers() {
  MutexLock lock(mutex_);
  (void)Tell(Type::kRecord, keeper::Record());
  return channel_ != nullptr;
}

Ledger RemoteKeeper::ledger() const {
  MutexLock lock(mutex_);
  return ledger_;
}

RemoteKeeper::Protection RemoteKeeper::protection() const {
  MutexLock lock(state_mutex_);
  return protection_;
}

void RemoteKeeper::SetProtection(bool is_protected, const std::string& reason) {
  MutexLock lock(state_mutex_);
  if (protection_.is_protected != is_protected) protection_.since = Clock::Real().Now();
  protection_.is_protected = is_protected;
  protection_.reason = reason;
}

void RemoteKeeper::Lose(const Status& why) {
  channel_->Close();  // so that the watch knows
  channel_.reset();
  log::Error("the keeper is lost, what this daemon has does not survive it now: {}", why);
  BeginOwnJournal();
  SetProtection(false, why.message());
}

void RemoteKeeper::BeginOwnJournal() {
  if (options_.own_journal.empty() || own_journal_ != nullptr) return;
  // Whoever finds it believes it: it has to be there as a whole.
  Result<std::unique_ptr<Journal>> journal = Journal::Create(options_.own_journal, ledger_);
  if (journal.ok()) {
    own_journal_ = *std::move(journal);
    owed_.clear();
    return;
  }
  ::unlink(options_.own_journal.c_str());
  log::Error("no journal of the daemon's own meanwhile: {}", journal.status());
}

void RemoteKeeper::EndOwnJournal() {
  if (own_journal_ == nullptr) return;
  own_journal_.reset();
  ::unlink(options_.own_journal.c_str());
}

void RemoteKeeper::Watch(TimePoint told) {
  Duration pause = options_.retry;
  std::string failure;
  for (;;) {
    const Protection now = protection();
    if (now.since != told && options_.on_change != nullptr) options_.on_change(now);
    told = now.since;
    std::shared_ptr<Channel> channel;
    {
      MutexLock lock(mutex_);
      channel = channel_;
    }
    if (channel != nullptr) {
      if (!AwaitEnd(channel->fd(), stop_.get())) return;
      MutexLock lock(mutex_);
      if (channel_ == channel) {
        Lose(Unavailable("KEEPER_LOST", "the keeper has closed the connection"));
      }
      continue;
    }
    if (now.is_protected) continue;  // lost since
    const Status back = Reconnect();
    if (back.ok()) {
      pause = options_.retry;
      failure.clear();
      continue;
    }
    const bool absent = back.code() == Code::kUnavailable;
    if (!absent && back.ToString() != failure) {
      failure = back.ToString();
      log::Error("the keeper does not take over: {}", back);
      SetProtection(false, back.message());
    }
    if (!Pause(pause)) return;
    pause = absent ? options_.retry : std::min(pause * 2, kLongestRetry);
  }
}

Status RemoteKeeper::Reconnect() {
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Channel> channel,
                          Channel::Connect(socket_, options_.answer_timeout, stop_.get()));
  // Whoever listens may be stopped, or still busy with the journal; nobody waits for this.
  channel->SetTimeout(std::nullopt);
  TORPOR_ASSIGN_OR_RETURN(const keeper::AttachReply reply, Introduce(*channel, nullptr));
  channel->SetTimeout(options_.answer_timeout);
  const TimePoint begun = Clock::Real().Now();
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(HandOver(*channel));
  channel_ = std::move(channel);
  EndOwnJournal();
  SetProtection(true, "");
  log::Info("a keeper has taken over in {} ms: {} records, {} extents{}", MillisecondsSince(begun),
            ledger_.size(), extents_.size(), pool_fd_.valid() ? " and the pool" : "");
  return Status::Ok();
}

Status RemoteKeeper::HandOver(Channel& channel) {
  TORPOR_RETURN_IF_ERROR(ReplaceAll(channel));
  for (const auto& [id, fd] : extents_) {
    TORPOR_ASSIGN_OR_RETURN(
        const keeper::Reply held,
        channel.Ask<keeper::Reply>(Type::kHold, ledger_.extents().at(id), {fd.get()}));
  }
  if (pool_fd_.valid() && ledger_.pool().has_value()) {
    TORPOR_ASSIGN_OR_RETURN(
        const keeper::Reply held,
        channel.Ask<keeper::Reply>(Type::kHoldPool, *ledger_.pool(), {pool_fd_.get()}));
  }
  owed_.clear();
  return Status::Ok();
}

Status RemoteKeeper::ReplaceAll(Channel& channel) const {
  const std::vector<JournalRecord> records = ledger_.Snapshot();
  size_t next = 0;
  do {
    keeper::Replace page;
    page.records = keeper::TakePage(records, next);
    page.more = next < records.size();
    TORPOR_ASSIGN_OR_RETURN(const keeper::Reply reply,
                            channel.Ask<keeper::Reply>(Type::kReplace, page));
  } while (next < records.size());
  return Status::Ok();
}

bool RemoteKeeper::Pause(Duration duration) const {
  pollfd stop{stop_.get(), POLLIN, 0};
  const auto wait = std::chrono::ceil<milliseconds>(duration).count();
  return ::poll(&stop, 1, static_cast<int>(wait)) <= 0;
}

}  // namespace torpor
