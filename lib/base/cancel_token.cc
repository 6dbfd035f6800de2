#include "lib/base/cancel_token.h"

#include <iterator>
#include <utility>

namespace torpor {

void CancelToken::Cancel(Status why) {
  MutexLock lock(mutex_);
  if (cancelled_) return;
  why_ = std::move(why);
  cancelled_ = true;
  for (const auto& function : callbacks_) function();
}

Status CancelToken::status() const {
  MutexLock lock(mutex_);
  return why_;
}

CancelToken::Callback::Callback(const CancelToken* token, std::function<void()> function)
    : token_(token) {
  if (token_ == nullptr) return;
  MutexLock lock(token_->mutex_);
  token_->callbacks_.push_back(std::move(function));
  position_ = std::prev(token_->callbacks_.end());
  if (token_->cancelled_) token_->callbacks_.back()();
}

CancelToken::Callback::~Callback() {
  if (token_ == nullptr) return;
  MutexLock lock(token_->mutex_);
  token_->callbacks_.erase(position_);
}

}  // namespace torpor
