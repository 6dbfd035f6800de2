#include "lib/base/cancel_token.h"

#include <utility>

namespace torpor {

void CancelToken::Cancel(Status why) {
  mutex_.Lock();
  if (cancelled_) return mutex_.Unlock();
  why_ = std::move(why);
  cancelled_ = true;
  caller_ = std::this_thread::get_id();
  while (!callbacks_.empty()) {
    calling_ = callbacks_.front();
    callbacks_.pop_front();
    std::function<void()> function = std::move(calling_->function_);
    mutex_.Unlock();
    function();
    function = nullptr;
    mutex_.Lock();
    calling_ = nullptr;
    called_.NotifyAll();
  }
  mutex_.Unlock();
}

Status CancelToken::status() const {
  MutexLock lock(mutex_);
  return why_;
}

void CancelToken::Add(Callback* callback) const {
  {
    MutexLock lock(mutex_);
    if (!cancelled_) return callbacks_.push_back(callback);
  }
  callback->function_();
}

void CancelToken::Remove(Callback* callback) const {
  MutexLock lock(mutex_);
  callbacks_.remove(callback);
  while (calling_ == callback && caller_ != std::this_thread::get_id()) called_.Wait(mutex_);
}

CancelToken::Callback::Callback(const CancelToken* token, std::function<void()> function)
    : token_(token), function_(std::move(function)) {
  if (token_ != nullptr) token_->Add(this);
}

CancelToken::Callback::~Callback() {
  if (token_ != nullptr) token_->Remove(this);
}

}  // namespace torpor
