"""Requests of the control plane, and how they travel."""

from __future__ import annotations

import dataclasses
import math
import time
import uuid
from typing import Any, Callable, Iterable, Iterator, Mapping, Union

from torpor import errors
from torpor.control import _status, _target
from torpor.control import memory_service_pb2 as messages
from torpor.types import Policy

PolicyLike = Union[Policy, str]

# Seconds: sleeps of large models are waited for, a daemon that hangs is not for ever.
DEFAULT_TIMEOUT = 300.0
# How often a call is repeated whose connection broke.
DEFAULT_RETRIES = 3
# Seconds that a call waits beyond that while others fill the queue of the daemon's socket, and
# between its attempts: gRPC gives up at once there.
_QUEUE_PATIENCE = 8.0
_QUEUE_PAUSE = 0.1
# Seconds, about 30 years: gRPC takes longer ones for none at all.
_FOREVER = 1e9

CHANNEL_OPTIONS = [
    # Usage of a daemon with many workers and reservations.
    ("grpc.max_receive_message_length", 64 << 20),
    # The daemon listens on sockets and on the loopback only.
    ("grpc.enable_http_proxy", 0),
    # Shorter than the pauses between repetitions, all together.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 300),
]


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the service, for the generic calls of a channel."""

    path: str
    request_serializer: Callable[[Any], bytes]
    response_deserializer: Callable[[bytes], Any]


def _method(name: str, request: Any, response: Any) -> Method:
    return Method(
        f"/torpor.v1.MemoryService/{name}", request.SerializeToString, response.FromString
    )


SLEEP = _method("Sleep", messages.SleepRequest, messages.SleepResponse)
WAKE_UP = _method("WakeUp", messages.WakeUpRequest, messages.WakeUpResponse)
USAGE = _method("Usage", messages.UsageRequest, messages.UsageResponse)
RESERVE = _method("Reserve", messages.ReserveRequest, messages.ReserveResponse)
RENEW = _method("Renew", messages.RenewRequest, messages.RenewResponse)
RELEASE = _method("Release", messages.ReleaseRequest, messages.ReleaseResponse)
WATCH = _method("Watch", messages.WatchRequest, messages.WatchResponse)


def new_request_id() -> str:
    """For calls that are repeated by hand: pass the same one each time."""
    return str(uuid.uuid4())


class Patience:
    """How long one call, with its repetitions, may take; None seconds or infinity: for ever.

    Raises ValueError for NaN.
    """

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("a timeout is a number of seconds, not NaN")
        endless = timeout is None or timeout > _FOREVER
        self._end = None if endless or timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds, not below 0, as gRPC takes them."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def over(self) -> bool:
        return self.left() == 0.0


def backoffs(retries: int | None) -> Iterator[float]:
    """Seconds before each repetition; None: without an end."""
    attempt = 0
    while retries is None or attempt < retries:
        yield min(0.2 * 2 ** min(attempt, 10), 1.0)
        attempt += 1


class Repetitions:
    """When a call to `target` is made again that has failed. Without `retries` it is not, also not
    for a full queue, unless `waits`.
    """

    def __init__(
        self, target: str, retries: int, patience: Patience, waits: bool = False
    ) -> None:
        self._target = target
        self._patience = patience
        self._waits = waits or retries > 0
        self._pauses = backoffs(retries)
        self._full = False
        self._queue_end: float | None = None

    def pause(self, error: errors.TorporError) -> float | None:
        """Seconds before the next attempt; None: there is none."""
        if not _status.to_repeat(error) or self._patience.over():
            return None
        unreachable = error.reason == "DAEMON_UNREACHABLE"
        if unreachable and self._waits and self._waits_for_room():
            return _QUEUE_PAUSE
        return next(self._pauses, None)

    def _waits_for_room(self) -> bool:
        full = _target.queue_is_full(self._target)
        # Room at this moment is not yet room for gRPC.
        self._full = full is not None and (full or self._full)
        if not self._full:
            return False
        if self._queue_end is None:
            self._queue_end = time.monotonic() + _QUEUE_PATIENCE
        return time.monotonic() < self._queue_end


def names(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def selector(
    workers: Iterable[str], tags: Iterable[str] | str, everything: bool
) -> messages.Selector:
    return messages.Selector(workers=list(workers), tags=names(tags), all=everything)


def policy(given: PolicyLike) -> Any:
    """A number of messages.Policy. Raises InvalidArgument BAD_POLICY."""
    name = given.name if isinstance(given, Policy) else str(given).upper()
    if name not in Policy.__members__:
        raise errors.InvalidArgument(
            "BAD_POLICY", f"{given!r} is neither keep, offload nor discard", {"policy": given}
        )
    return messages.Policy.Value("POLICY_" + name)


def sleep(
    chosen: messages.Selector,
    level: int | None,
    policies: Mapping[str, PolicyLike] | None,
    force: bool,
    priority: int,
    request_id: str | None,
) -> messages.SleepRequest:
    return messages.SleepRequest(
        selector=chosen,
        level=level or 0,
        policies={tag: policy(given) for tag, given in (policies or {}).items()},
        force=force,
        priority=priority,
        request_id=request_id or new_request_id(),
    )


def wake_up(
    chosen: messages.Selector,
    order: Iterable[str] | str,
    reservation: str | None,
    priority: int,
    request_id: str | None,
) -> messages.WakeUpRequest:
    return messages.WakeUpRequest(
        selector=chosen,
        order=names(order),
        reservation_id=reservation or "",
        priority=priority,
        request_id=request_id or new_request_id(),
    )


def reserve(
    name: str,
    parts: Mapping[str, int],
    ttl: float,
    host_bytes: int,
    wait: bool,
    hold: bool,
    keep: bool,
    request_id: str | None,
) -> messages.ReserveRequest:
    request = messages.ReserveRequest(
        name=name,
        parts=[
            messages.ReservationPart(name=part, device_bytes=size) for part, size in parts.items()
        ],
        host_bytes=host_bytes,
        wait=wait,
        hold=hold,
        keep=keep,
        request_id=request_id or new_request_id(),
    )
    _set_ttl(request, ttl)
    return request


def renew(reservation: str, ttl: float, request_id: str | None) -> messages.RenewRequest:
    request = messages.RenewRequest(
        reservation_id=reservation, request_id=request_id or new_request_id()
    )
    _set_ttl(request, ttl)
    return request


def release(reservation: str, request_id: str | None) -> messages.ReleaseRequest:
    return messages.ReleaseRequest(
        reservation_id=reservation, request_id=request_id or new_request_id()
    )


def watch(
    workers: Iterable[str], kinds: Iterable[str] | str, cursor: str
) -> messages.WatchRequest:
    """Raises InvalidArgument BAD_EVENT_KIND."""
    known = messages.EventKind.keys()
    values: list[Any] = []
    for kind in names(kinds):
        name = "EVENT_KIND_" + kind.upper()
        if name not in known or name == "EVENT_KIND_UNSPECIFIED":
            raise errors.InvalidArgument(
                "BAD_EVENT_KIND", f"{kind!r} is no kind of event", {"kind": kind}
            )
        values.append(messages.EventKind.Value(name))
    return messages.WatchRequest(workers=list(workers), kinds=values, cursor=cursor)


def told(request: Any, target: str) -> dict[str, str]:
    """What an error says of the call itself."""
    request_id = getattr(request, "request_id", "")
    return {"target": target, **({"request_id": request_id} if request_id else {})}


def _set_ttl(request: messages.ReserveRequest | messages.RenewRequest, ttl: float) -> None:
    if not math.isfinite(ttl * 1e9):
        raise errors.InvalidArgument("BAD_TTL", f"{ttl} is no time to live", {"ttl": ttl})
    nanos = round(ttl * 1e9)
    # Of one sign, as Duration wants them.
    request.ttl.seconds = int(math.copysign(abs(nanos) // 10**9, nanos))
    request.ttl.nanos = int(math.copysign(abs(nanos) % 10**9, nanos))
