"""Client, which blocks."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Mapping

import grpc

from torpor import errors
from torpor.control import _request, _status, _target, _tls
from torpor.control import memory_service_pb2 as messages
from torpor.control._request import Method, Patience, PolicyLike


class Cancellation:
    """Ends calls that other threads wait for: pass it to them as `cancellation`.

    A call that it ends raises Cancelled. What the daemon has committed by then stays. Thread-safe;
    once cancelled it stays so.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cancelled = False
        self._cancels: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            cancels = list(self._cancels.values())
            self._changed.notify_all()
        for cancel in cancels:
            cancel()

    @property
    def cancelled(self) -> bool:
        with self._changed:
            return self._cancelled

    def _add(self, key: object, cancel: Callable[[], object]) -> None:
        with self._changed:
            self._cancels[key] = cancel
            cancelled = self._cancelled
        if cancelled:
            cancel()

    def _remove(self, key: object) -> None:
        with self._changed:
            self._cancels.pop(key, None)

    def _wait(self, seconds: float) -> bool:
        """Whether it is cancelled, after so long at the latest."""
        with self._changed:
            return self._changed.wait_for(lambda: self._cancelled, seconds)


class Client:
    """The control plane of one daemon.

    Every method takes a `timeout` in seconds: None is the client's own, math.inf none (a daemon
    then takes its --default_deadline for Sleep, WakeUp and a waiting Reserve). Methods that change
    something send a request id, their own or the one given, so that a call whose connection breaks
    is repeated without being done twice; see docs/integration/orchestrators.md.

    Raises subclasses of errors.TorporError: those of docs/errors.md that the daemon answers, with
    its reason and numbers, and
        Unavailable DAEMON_UNREACHABLE: nobody answers at the target, or the connection broke, also
            when tried again
        DeadlineExceeded CALL_DEADLINE, Cancelled CALL_CANCELLED: before the daemon has answered
        FailedPrecondition CLIENT_CLOSED
    Their details have `target` and, where there is one, `request_id`.

    Thread-safe. Does not survive a fork: make it in the process that uses it.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        device: str | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        timeout: float | None = _request.DEFAULT_TIMEOUT,
        retries: int = _request.DEFAULT_RETRIES,
        tls: _tls.Tls | None = None,
    ) -> None:
        """Does not connect yet.

        target: a control socket's path ("unix:PATH" as well) or "host:port". By default that of
            find(device, runtime_dir), with its errors.
        timeout: of each call, in seconds; None: none.
        retries: how often a call whose connection broke is repeated within its timeout; if not 0,
            it also waits up to 8 seconds for room in a full queue of connections.
        tls: for a "host:port" with certificates; by default Tls.from_environment(). With its
            errors.
        """
        found = target if target is not None else _target.find(device, runtime_dir).target
        self.target = _target.grpc_target(found)
        self._timeout = timeout
        self._retries = retries
        self._closed = False
        known = _tls.for_target(self.target, tls)
        if known is None:
            self._channel = grpc.insecure_channel(self.target, _request.CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(
                self.target, known.credentials(), [*_request.CHANNEL_OPTIONS, *known.options()]
            )

    def close(self) -> None:
        """Ends the connection and all calls under way; they raise Cancelled."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def sleep(
        self,
        *workers: str,
        level: int | None = None,
        policies: Mapping[str, PolicyLike] | None = None,
        tags: Iterable[str] | str = (),
        all: bool = False,  # pylint: disable=redefined-builtin
        force: bool = False,
        priority: int = 0,
        request_id: str | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> messages.SleepResponse:
        """Takes device memory away from workers, by id or name, and answers when it is free.

        Selects `workers` and `tags` (where both are given, what both select), or `all`. `level` 1
        keeps weights and drops the KV cache, 2 drops both; or `policies` by tag: torpor.Policy, or
        "keep", "offload", "discard". `force`: discard also drops host copies that are there.
        Copies of a higher `priority` go first.

        Raises if all selected workers fail alike; where they differ, failures() tells.
        FailedPrecondition WORKER_NOT_QUIESCIBLE: the worker only puts itself to sleep; the detail
        `sleep_endpoint`, if it has said so, tells how to ask it for that.
        """
        chosen = _request.selector(workers, tags, all)
        request = _request.sleep(chosen, level, policies, force, priority, request_id)
        answer: messages.SleepResponse = self._call(_request.SLEEP, request, timeout, cancellation)
        return answer

    def wake_up(
        self,
        *workers: str,
        tags: Iterable[str] | str = (),
        all: bool = False,  # pylint: disable=redefined-builtin
        order: Iterable[str] | str = (),
        reservation: str | None = None,
        priority: int = 0,
        request_id: str | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> messages.WakeUpResponse:
        """Gives memory back, at the old addresses, and answers when it can be used.

        Selects as sleep() does. `order`: tags whose bytes arrive first. `reservation`: id of one
        to draw on. Does not wait for memory: ResourceExhausted if the device has no room.
        """
        chosen = _request.selector(workers, tags, all)
        request = _request.wake_up(chosen, order, reservation, priority, request_id)
        answer: messages.WakeUpResponse = self._call(
            _request.WAKE_UP, request, timeout, cancellation
        )
        return answer

    def usage(
        self, *, timeout: float | None = None, cancellation: Cancellation | None = None
    ) -> messages.UsageResponse:
        """What the memory of the device and of the host pool is used for, and by whom."""
        answer: messages.UsageResponse = self._call(
            _request.USAGE, messages.UsageRequest(), timeout, cancellation
        )
        return answer

    def reserve(
        self,
        name: str,
        parts: Mapping[str, int],
        *,
        ttl: float,
        host_bytes: int = 0,
        wait: bool = False,
        hold: bool = False,
        keep: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> messages.ReserveResponse:
        """Promises device bytes, by purpose, and `host_bytes` of the host pool, all or nothing.

        ttl: seconds until what is not drawn is lost; renew() counts anew.
        wait: in turn, until the timeout (DeadlineExceeded RESERVATION_DEADLINE), for what is short;
            otherwise that is refused at once. Cancelled, it leaves the queue.
        hold: what a sleep frees stays promised. keep: it outlives its last worker.
        """
        request = _request.reserve(
            name, parts, ttl, host_bytes, wait, hold, keep, request_id
        )
        answer: messages.ReserveResponse = self._call(
            _request.RESERVE, request, timeout, cancellation
        )
        return answer

    def renew(
        self,
        reservation: str,
        *,
        ttl: float,
        request_id: str | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> messages.RenewResponse:
        """Counts a reservation's time, in seconds, from now on."""
        request = _request.renew(reservation, ttl, request_id)
        answer: messages.RenewResponse = self._call(_request.RENEW, request, timeout, cancellation)
        return answer

    def release(
        self,
        reservation: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> messages.ReleaseResponse:
        """Gives back what a reservation still promises; what was drawn stays."""
        request = _request.release(reservation, request_id)
        answer: messages.ReleaseResponse = self._call(
            _request.RELEASE, request, timeout, cancellation
        )
        return answer

    def watch(
        self,
        *workers: str,
        kinds: Iterable[str] | str = (),
        cursor: str = "",
        reconnect: bool = True,
        timeout: float | None = None,
    ) -> Watch:
        """What happens from now on, or from `cursor` on: see Watch.

        kinds: only these: "session", "operation", "progress", "segments", "reservation", "queue",
            "pressure". workers: only events of these, by id or name.
        reconnect: goes on behind the last event when the connection breaks or the daemon stops,
            as soon as one listens again; otherwise that raises Unavailable.
        timeout: ends the stream after so many seconds; None: none.
        """
        return Watch(self, _request.watch(workers, kinds, cursor), reconnect, timeout)

    def _call(
        self,
        method: Method,
        request: Any,
        timeout: float | None,
        cancellation: Cancellation | None,
    ) -> Any:
        patience = Patience(self._timeout if timeout is None else timeout)
        cancellation = cancellation or Cancellation()
        repetitions = _request.Repetitions(self.target, self._retries, patience)
        while True:
            try:
                return self._call_once(method, request, patience, cancellation)
            except errors.TorporError as error:
                pause = repetitions.pause(error)
                if pause is None:
                    raise
                cancellation._wait(pause)

    def _call_once(
        self, method: Method, request: Any, patience: Patience, cancellation: Cancellation
    ) -> Any:
        told = _request.told(request, self.target)
        if cancellation.cancelled:
            raise errors.Cancelled("CALL_CANCELLED", "cancelled before it began", told)
        call = self._start(
            self._channel.unary_unary(
                method.path, method.request_serializer, method.response_deserializer
            ).future,
            request,
            patience,
        )
        cancellation._add(call, call.cancel)
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise errors.Cancelled("CALL_CANCELLED", "cancelled", told) from None
        except grpc.RpcError:
            raise _status.from_rpc(call, told) from None
        except BaseException:  # KeyboardInterrupt
            call.cancel()
            raise
        finally:
            cancellation._remove(call)

    def _start(self, start: Callable[..., Any], request: Any, patience: Patience) -> Any:
        try:
            return start(request, timeout=patience.left())
        except ValueError:
            if not self._closed:
                raise
            raise _status.closed(self.target) from None

    def _open(self, request: messages.WatchRequest, patience: Patience) -> Any:
        stream = self._channel.unary_stream(
            _request.WATCH.path,
            _request.WATCH.request_serializer,
            _request.WATCH.response_deserializer,
        )
        return self._start(stream, request, patience)


class Watch:
    """Events of a daemon, as an iterator of messages.WatchResponse.

        with client.watch(kinds="operation") as watch:
            usage = client.usage()  # nothing is missed between this and the events
            for event in watch:
                print(event.WhichOneof("event"), watch.cursor)

    The stream is open when the `with` block begins, or open() returns, or at the first event. `lost`
    is an event, too: the daemon has no longer had all that came behind the cursor, or has started
    anew. The iterator ends after the timeout, and when the watch is closed, which any thread may do;
    iterate in one.
    """

    def __init__(
        self,
        client: Client,
        request: messages.WatchRequest,
        reconnect: bool,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._request = request
        self._reconnect = reconnect
        self._patience = Patience(timeout)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._first: messages.WatchResponse | None = None

    @property
    def cursor(self) -> str:
        """Where another watch goes on behind the last event of this one."""
        return str(self._request.cursor)

    def open(self) -> Watch:
        """Waits until the daemon streams. Raises what Client's methods do."""
        repetitions = _request.Repetitions(self._client.target, 0, self._patience, waits=True)
        while self._call is None and not self._closing.is_set():
            try:
                self._first = self._connect()
            except errors.TorporError as error:
                pause = repetitions.pause(error)
                if pause is None:
                    raise
                self._closing.wait(pause)
        return self

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()

    def __enter__(self) -> Watch:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[messages.WatchResponse]:
        return self

    def __next__(self) -> messages.WatchResponse:
        while not self._closing.is_set():
            try:
                response = self._next()
            except errors.TorporError as error:
                if self._closing.is_set() or self._patience.over():
                    break
                if not self._reconnect or not isinstance(error, errors.Unavailable):
                    raise
                again = self._open_again()
                if again is None:
                    break
                response = again
            self._request.cursor = response.cursor
            if response.WhichOneof("event") is not None:
                return response
        raise StopIteration

    def _next(self) -> messages.WatchResponse:
        self.open()
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._read()

    def _open_again(self) -> messages.WatchResponse | None:
        for pause in _request.backoffs(None):
            if self._closing.wait(pause) or self._patience.over():
                return None
            try:
                return self._connect()
            except errors.Unavailable:
                continue
            except errors.TorporError:
                if self._closing.is_set() or self._patience.over():
                    return None
                raise
        return None

    def _connect(self) -> messages.WatchResponse:
        call = self._client._open(self._request, self._patience)
        with self._lock:
            self._call = call
        if self._closing.is_set():
            call.cancel()
        try:
            return self._read()
        except BaseException:
            with self._lock:
                self._call = None
            raise

    def _read(self) -> messages.WatchResponse:
        told = {"target": self._client.target}
        try:
            response: messages.WatchResponse = next(self._call)
            return response
        except StopIteration:
            raise errors.Unavailable(
                "DAEMON_UNREACHABLE", "the daemon ended the stream", told
            ) from None
        except grpc.RpcError:
            raise _status.from_rpc(self._call, told) from None
        except BaseException:  # KeyboardInterrupt: gRPC's stream cannot be read again
            with self._lock:
                call, self._call = self._call, None
            call.cancel()
            raise
