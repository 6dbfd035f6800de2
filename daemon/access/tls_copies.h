#ifndef TORPOR_DAEMON_ACCESS_TLS_COPIES_H_
#define TORPOR_DAEMON_ACCESS_TLS_COPIES_H_

#include <memory>
#include <string>
#include <thread>

#include "daemon/access/tls.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::access {

// Copies of certificate, key and authorities in memory, as they were when they were last good
// together, for a server that reads them again and again: what is not good is not taken up, and the
// log says why. Looks for changes every second. Thread-safe.
class TlsCopies {
 public:
  // Errors of ReadTlsFiles; INTERNAL ERRNO_...; RESOURCE_EXHAUSTED THREADS_EXHAUSTED.
  static Result<std::unique_ptr<TlsCopies>> Make(const TlsFiles& files);
  // Whoever reads them must have ended.
  ~TlsCopies();
  TlsCopies(const TlsCopies&) = delete;
  TlsCopies& operator=(const TlsCopies&) = delete;

  // For this process. Key and certificate are in one file, so that they change together.
  TlsFiles files() const;

 private:
  explicit TlsCopies(TlsFiles files) : files_(std::move(files)) {}
  // Equal as long as nothing has changed.
  std::string Look() const;
  Status TakeUp();
  void Watch() EXCLUDES(mutex_);

  const TlsFiles files_;
  UniqueFd identity_;  // these stay; what they are of changes
  UniqueFd authorities_;
  std::string seen_;  // the thread's while it runs
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_TLS_COPIES_H_
