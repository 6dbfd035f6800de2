#include "client/copy.h"

#include <functional>
#include <optional>

#include "lib/cuda/driver.h"

namespace torpor::client {
namespace {

using Queue = std::function<Status(Driver& driver, StreamId stream)>;

Status RunQueued(Driver& driver, StreamId stream, const Queue& queue) {
  TORPOR_RETURN_IF_ERROR(queue(driver, stream));
  const Result<EventId> done = driver.RecordEvent(stream);
  if (done.ok()) return driver.WaitEvent(*done);
  (void)driver.Synchronize();  // the copy may still use the caller's memory
  return done.status();
}

Status RunOnStream(Driver& driver, const Queue& queue) {
  TORPOR_ASSIGN_OR_RETURN(const StreamId stream, driver.CreateStream());
  const Status copied = RunQueued(driver, stream, queue);
  const Status destroyed = driver.DestroyStream(stream);
  return copied.ok() ? destroyed : copied;
}

Status Copy(Session& session, DeviceAddress address, Bytes size, const Queue& queue) {
  TORPOR_ASSIGN_OR_RETURN(const SegmentInfo segment, session.Find(address));
  const Bytes room = segment.size - (address - segment.address);
  if (size < Bytes(0) || size > room) {
    return InvalidArgument("BAD_SIZE", "the copy does not lie inside one segment")
        .With("requested_bytes", size.value())
        .With("available_bytes", room.value());
  }
  if (size == Bytes(0)) return Status::Ok();
  TORPOR_RETURN_IF_ERROR(session.WorkBegin({segment.tag}, std::nullopt));
  const Status copied = RunOnStream(session.driver(), queue);
  const Status ended = session.WorkEnd();
  return copied.ok() ? ended : copied;
}

}  // namespace

Status CopyToDevice(Session& session, DeviceAddress to, const void* from, Bytes size) {
  return Copy(session, to, size, [&](Driver& driver, StreamId stream) {
    return driver.CopyToDevice(stream, to, from, size);
  });
}

Status CopyFromDevice(Session& session, void* to, DeviceAddress from, Bytes size) {
  return Copy(session, from, size, [&](Driver& driver, StreamId stream) {
    return driver.CopyToHost(stream, to, from, size);
  });
}

}  // namespace torpor::client
