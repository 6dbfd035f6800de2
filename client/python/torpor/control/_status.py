"""The translator from gRPC's errors to torpor.errors."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

from torpor import errors
from torpor.control import memory_service_pb2 as messages
from torpor.control.google_rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"
_DOMAIN = "torpor"


class RpcFailure(Protocol):
    """What is common to errors of grpc and grpc.aio."""

    def code(self) -> Any: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


class _HasWorkers(Protocol):
    @property
    def workers(self) -> Sequence[messages.WorkerResult]: ...


def error_of(status: status_pb2.Status) -> errors.TorporError | None:
    """A google.rpc.Status of an answer (of a worker's result, of an event) as an exception; None
    if it is OK.
    """
    if status.code == 0:
        return None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return errors.make(status.code, info.reason, status.message, dict(info.metadata))
    return errors.make(status.code, "CALL_FAILED", status.message)


def failures(
    response: messages.SleepResponse | messages.WakeUpResponse | _HasWorkers,
) -> dict[str, errors.TorporError]:
    """The workers, by id, whose part of a Sleep or WakeUp failed while others' did not. (If all
    have failed alike, the call has raised.)
    """
    found = {result.worker_id: error_of(result.status) for result in response.workers}
    return {worker: error for worker, error in found.items() if error is not None}


def from_rpc(failure: RpcFailure, more: Mapping[str, str]) -> errors.TorporError:
    """What a call failed with. `more`: details to add, unless the daemon gave them."""
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS:
            status = status_pb2.Status()
            status.ParseFromString(value)
            error = error_of(status)
            if error is not None:
                error.details = {**more, **error.details}
                return error
    return without_details(failure.code().value[0], failure.details() or "", more)


def without_details(code: int, message: str, more: Mapping[str, str]) -> errors.TorporError:
    """An error of gRPC's own: the daemon has not answered."""
    if code == errors.Unavailable.code:
        return errors.Unavailable("DAEMON_UNREACHABLE", message, more)
    if code == errors.DeadlineExceeded.code:
        return errors.DeadlineExceeded("CALL_DEADLINE", message, more)
    if code == errors.Cancelled.code:
        return errors.Cancelled("CALL_CANCELLED", message, more)
    return errors.make(code, "CALL_FAILED", message, more)


def closed(target: str) -> errors.TorporError:
    return errors.FailedPrecondition("CLIENT_CLOSED", "the client is closed", {"target": target})


def to_repeat(error: errors.TorporError) -> bool:
    """Whether it is not known if the daemon has done what it was asked for, or it is about to serve."""
    return error.reason in ("DAEMON_UNREACHABLE", "DAEMON_STARTING")
