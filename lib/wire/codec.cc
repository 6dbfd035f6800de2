#include "lib/wire/codec.h"

namespace torpor::wire {
namespace {

constexpr int32_t kLastCode = 16;

struct Detail {
  std::string key;
  std::string value;
  template <class A>
  void Fields(A& a) {
    a(key, value);
  }
};

struct StatusFields {
  int32_t code = 0;
  std::string reason;
  std::string message;
  std::vector<Detail> details;
  template <class A>
  void Fields(A& a) {
    a(code, reason, message, details);
  }
};

}  // namespace

void Writer::Put(Status& status) {
  StatusFields fields{static_cast<int32_t>(status.code()), status.reason(), status.message(), {}};
  for (const auto& [key, value] : status.details()) fields.details.push_back({key, value});
  fields.Fields(*this);
}

void Reader::Get(Status& status) {
  StatusFields fields;
  fields.Fields(*this);
  // Every google.rpc.Code, also those that this version does not use.
  if (fields.code < 0 || fields.code > kLastCode) ok_ = false;
  if (!ok_) return;
  status = fields.code == 0 ? Status::Ok()
                            : Status(static_cast<Code>(fields.code), std::move(fields.reason),
                                     std::move(fields.message));
  for (Detail& detail : fields.details) status.Add(detail.key, std::move(detail.value));
}

}  // namespace torpor::wire
