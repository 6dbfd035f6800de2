#ifndef TORPOR_CLIENT_SESSION_HANDLE_H_
#define TORPOR_CLIENT_SESSION_HANDLE_H_

#include <memory>

#include "client/session.h"
#include "client/torpor.h"
#include "lib/base/status.h"

// What a torpor_session* points at.
struct torpor_session {
  std::unique_ptr<torpor::client::Session> session;
  int device = 0;  // CUDA ordinal, as asked for
};

namespace torpor::client {

// torpor_connect. The caller owns the session.
Result<torpor_session*> OpenSession(const torpor_options* options);

// No allocation of PyTorch's goes to `session` any more, and no free looks there.
void ForgetTorchSession(torpor_session* session);

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_SESSION_HANDLE_H_
