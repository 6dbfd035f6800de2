#ifndef TORPOR_LIB_CUDA_CONTRACT_WORKER_H_
#define TORPOR_LIB_CUDA_CONTRACT_WORKER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Sends `text` and, unless -1, a descriptor over a Unix socket; false when the peer is gone.
bool SendText(int socket, const std::string& text, int fd);
// Empty when the peer is gone.
std::string ReceiveText(int socket, UniqueFd* fd);

// Another process, in the middle of using device memory, for the contract suite. It runs this
// program again and does what it is told. Not thread-safe.
//
// Commands, each answered by "ok", another word, or a status in words:
//   import-ro, import-rw (with a descriptor)   import it, map it, set access; the descriptor goes
//   keep (with a descriptor)                   hold only the descriptor
//   create                                     create, map, fill with 0x5a; answers a descriptor
//   read                                       the byte that all of the memory has, or "mixed"
//   fill <byte>                                by a copy
//   poke                                       a store, where addresses are pointers
//   export                                     export what was imported
class ContractWorker {
 public:
  // `device` is the name of a ContractDevice; `size` that of the memory all commands are about.
  ContractWorker(const std::string& device, const DeviceInfo& info, Bytes size);
  // Kills it.
  ~ContractWorker();
  ContractWorker(const ContractWorker&) = delete;
  ContractWorker& operator=(const ContractWorker&) = delete;

  // Empty when the worker has died.
  std::string Ask(const std::string& command, int fd = -1, UniqueFd* answer = nullptr);
  // SIGKILL, and waits until it is gone.
  void Kill();
  // Waits until it has died by itself: the signal, or 0.
  int WaitForDeath();

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

// The other side: if the program was started by ContractWorker, works until told no more, and
// returns true. The factories make the driver that `device` names, as an owner or as a user.
using ContractDriverFactory = std::function<Result<std::unique_ptr<Driver>>(
    const std::string& device, const DeviceInfo& info, bool owner)>;
bool RunAsContractWorker(int argc, char** argv, const ContractDriverFactory& factory);

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CONTRACT_WORKER_H_
