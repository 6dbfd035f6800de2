#include "daemon/keeper/custody.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "lib/wire/codec.h"

namespace torpor::keeper {
namespace {

template <typename Message>
Status Answer(int socket, const net::Frame& question, const Message& message,
              const std::vector<int>& fds = {}) {
  return net::SendFrame(socket, AnswerTo(question.type), question.id, wire::Encode(message), fds);
}

Status CheckDescriptors(const net::Frame& question, size_t wanted) {
  if (question.fds_missing) return net::DescriptorsMissing();
  if (question.fds.size() == wanted) return Status::Ok();
  return InvalidArgument("BAD_FRAME", "another number of descriptors than the question needs")
      .With("fd_count", question.fds.size())
      .With("wanted", wanted);
}

}  // namespace

Status Custody::Serve(int socket, net::Frame question) {
  Reply reply;
  if (question.payload_missing) {
    reply.status = net::DescriptorsMissing();
    return Answer(socket, question, reply);
  }
  switch (static_cast<Type>(question.type)) {
    case Type::kAttach:
      return Admit(socket, question);
    case Type::kFetch:
      return AnswerFetch(socket, question);
    case Type::kPool:
      return Answer(socket, question, PoolReply{Status::Ok(), pool_},
                    pool_fd_.valid() ? std::vector<int>{pool_fd_.get()} : std::vector<int>());
    case Type::kHold:
      reply.status = Hold(question);
      break;
    case Type::kDrop:
      reply.status = Drop(question);
      break;
    case Type::kRecord:
      reply.status = Note(question);
      break;
    case Type::kHoldPool:
      reply.status = HoldPool(question);
      break;
    case Type::kReplace:
      reply.status = ReplaceAll(question);
      break;
    default:
      return InvalidArgument("BAD_FRAME", "the keeper is asked what it does not know")
          .With("type", question.type);
  }
  if (reply.status.reason() == "BAD_FRAME") return reply.status;
  question.fds.clear();  // before the answer: it says that nothing is held that should not be
  return Answer(socket, question, reply);
}

Status Custody::Admit(int socket, const net::Frame& question, const Status& may) {
  AttachReply reply;
  uint32_t protocol = 0;
  wire::Reader first(question.payload);
  first(protocol);
  if (question.type != static_cast<uint16_t>(Type::kAttach) || !first.ok()) {
    return InvalidArgument("BAD_FRAME", "a connection begins with Attach")
        .With("type", question.type);
  }
  if (protocol != kProtocol) {
    reply.status = FailedPrecondition("KEEPER_PROTOCOL", "the keeper speaks another protocol")
                       .With("protocol", protocol)
                       .With("keeper_protocol", kProtocol);
  } else {
    TORPOR_ASSIGN_OR_RETURN(const Attach attach, wire::Decode<Attach>(question.payload));
    reply.status = may;
    if (may.ok() && !device_.empty() && attach.device != device_) {
      reply.status =
          FailedPrecondition("KEEPER_DEVICE", "the keeper keeps what is of another device")
              .With("device", attach.device)
              .With("keeper_device", device_);
    }
    if (reply.status.ok()) {
      device_ = attach.device;
      replacing_.clear();
      reply.starts = starts_;
      const std::vector<JournalRecord> records = ledger().Snapshot();
      size_t next = attach.skip;
      reply.records = TakePage(records, next);
      reply.more = next < records.size();
    }
  }
  TORPOR_RETURN_IF_ERROR(Answer(socket, question, reply));
  return reply.status;
}

Status Custody::AnswerFetch(int socket, const net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(const Fetch fetch, wire::Decode<Fetch>(question.payload));
  FetchReply reply;
  std::vector<int> fds;
  for (const ExtentId id : fetch.extents) {
    const auto found = extents_.find(id);
    if (found == extents_.end() || fds.size() == net::kMaxFrameFds) continue;
    reply.extents.push_back(id);
    fds.push_back(found->second.get());
  }
  return Answer(socket, question, reply, fds);
}

Status Custody::Hold(net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(const ExtentHeld held, wire::Decode<ExtentHeld>(question.payload));
  TORPOR_RETURN_IF_ERROR(CheckDescriptors(question, 1));
  TORPOR_RETURN_IF_ERROR(ledger().CheckExtent(held));
  // After a Replace it is recorded already.
  if (ledger().extents().count(held.extent) == 0) TORPOR_RETURN_IF_ERROR(journal_->Record({held}));
  extents_[held.extent] = std::move(question.fds[0]);
  return Status::Ok();
}

Status Custody::Drop(const net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(const ExtentDropped drop, wire::Decode<ExtentDropped>(question.payload));
  // Its memory is given back even if there is no room to record that: no segment needs it any more,
  // so nobody will look for it.
  extents_.erase(drop.extent);
  if (ledger().extents().count(drop.extent) == 0) return Status::Ok();
  return journal_->Record({drop});
}

Status Custody::Note(const net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(const Record note, wire::Decode<Record>(question.payload));
  TORPOR_ASSIGN_OR_RETURN(const std::vector<JournalRecord> records, DecodeAll(note.records));
  TORPOR_RETURN_IF_ERROR(journal_->Record(records));
  const auto ends_extents = [](const JournalRecord& record) {
    return std::holds_alternative<SessionClosed>(record) ||
           std::holds_alternative<ExtentDropped>(record) ||
           std::holds_alternative<ExtentLost>(record);
  };
  if (std::any_of(records.begin(), records.end(), ends_extents)) CloseOthers();
  return Status::Ok();
}

Status Custody::HoldPool(net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(PoolHeld pool, wire::Decode<PoolHeld>(question.payload));
  TORPOR_RETURN_IF_ERROR(CheckDescriptors(question, 1));
  TORPOR_RETURN_IF_ERROR(journal_->Record({pool}));
  pool_ = std::move(pool);
  pool_fd_ = std::move(question.fds[0]);
  return Status::Ok();
}

Status Custody::ReplaceAll(const net::Frame& question) {
  TORPOR_ASSIGN_OR_RETURN(const Replace replace, wire::Decode<Replace>(question.payload));
  TORPOR_ASSIGN_OR_RETURN(std::vector<JournalRecord> page, DecodeAll(replace.records));
  std::move(page.begin(), page.end(), std::back_inserter(replacing_));
  if (replace.more) return Status::Ok();
  std::vector<JournalRecord> records;
  records.swap(replacing_);
  if (const auto& daemon = ledger().daemon(); daemon.has_value()) records.emplace_back(*daemon);
  TORPOR_RETURN_IF_ERROR(journal_->Replace(records));
  CloseOthers();
  return Status::Ok();
}

void Custody::CloseOthers() {
  for (auto entry = extents_.begin(); entry != extents_.end();) {
    const ExtentId id = entry->first;
    const bool kept = ledger().extents().count(id) > 0 && ledger().lost().count(id) == 0;
    entry = kept ? std::next(entry) : extents_.erase(entry);
  }
}

}  // namespace torpor::keeper
