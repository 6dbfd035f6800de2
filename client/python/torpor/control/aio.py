"""AsyncClient, for asyncio."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, AsyncIterator, Iterable, Mapping

import grpc
import grpc.aio

from torpor import errors
from torpor.control import _request, _status, _target, _tls
from torpor.control import memory_service_pb2 as messages
from torpor.control._request import Method, Patience, PolicyLike


class AsyncClient:
    """The control plane of one daemon: Client for asyncio, with the same arguments and errors.

    A call is cancelled as any task is: the daemon takes back what has not committed. Belongs to the
    event loop of its first call; not thread-safe.
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
        """As Client."""
        found = target if target is not None else _target.find(device, runtime_dir).target
        self.target = _target.grpc_target(found)
        self._timeout = timeout
        self._retries = retries
        self._closed = False
        self._made: grpc.aio.Channel | None = None
        known = _tls.for_target(self.target, tls)
        self._options = [*_request.CHANNEL_OPTIONS, *(known.options() if known else [])]
        self._credentials = known.credentials() if known else None

    async def close(self) -> None:
        """Ends the connection and all calls under way; they raise Cancelled."""
        self._closed = True
        if self._made is not None:
            await self._made.close(None)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def sleep(
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
    ) -> messages.SleepResponse:
        """As Client.sleep."""
        chosen = _request.selector(workers, tags, all)
        request = _request.sleep(chosen, level, policies, force, priority, request_id)
        answer: messages.SleepResponse = await self._call(_request.SLEEP, request, timeout)
        return answer

    async def wake_up(
        self,
        *workers: str,
        tags: Iterable[str] | str = (),
        all: bool = False,  # pylint: disable=redefined-builtin
        order: Iterable[str] | str = (),
        reservation: str | None = None,
        priority: int = 0,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> messages.WakeUpResponse:
        """As Client.wake_up."""
        chosen = _request.selector(workers, tags, all)
        request = _request.wake_up(chosen, order, reservation, priority, request_id)
        answer: messages.WakeUpResponse = await self._call(_request.WAKE_UP, request, timeout)
        return answer

    async def usage(self, *, timeout: float | None = None) -> messages.UsageResponse:
        """As Client.usage."""
        answer: messages.UsageResponse = await self._call(
            _request.USAGE, messages.UsageRequest(), timeout
        )
        return answer

    async def reserve(
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
    ) -> messages.ReserveResponse:
        """As Client.reserve."""
        request = _request.reserve(
            name, parts, ttl, host_bytes, wait, hold, keep, request_id
        )
        answer: messages.ReserveResponse = await self._call(_request.RESERVE, request, timeout)
        return answer

    async def renew(
        self,
        reservation: str,
        *,
        ttl: float,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> messages.RenewResponse:
        """As Client.renew."""
        request = _request.renew(reservation, ttl, request_id)
        answer: messages.RenewResponse = await self._call(_request.RENEW, request, timeout)
        return answer

    async def release(
        self,
        reservation: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> messages.ReleaseResponse:
        """As Client.release."""
        request = _request.release(reservation, request_id)
        answer: messages.ReleaseResponse = await self._call(_request.RELEASE, request, timeout)
        return answer

    def watch(
        self,
        *workers: str,
        kinds: Iterable[str] | str = (),
        cursor: str = "",
        reconnect: bool = True,
        timeout: float | None = None,
    ) -> AsyncWatch:
        """As Client.watch; see AsyncWatch."""
        return AsyncWatch(self, _request.watch(workers, kinds, cursor), reconnect, timeout)

    def _channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise _status.closed(self.target)
        if self._made is None:  # needs the event loop
            self._made = (
                grpc.aio.insecure_channel(self.target, self._options)
                if self._credentials is None
                else grpc.aio.secure_channel(self.target, self._credentials, self._options)
            )
        return self._made

    async def _call(self, method: Method, request: Any, timeout: float | None) -> Any:
        patience = Patience(self._timeout if timeout is None else timeout)
        repetitions = _request.Repetitions(self.target, self._retries, patience)
        while True:
            try:
                return await self._call_once(method, request, patience)
            except errors.TorporError as error:
                pause = repetitions.pause(error)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def _call_once(self, method: Method, request: Any, patience: Patience) -> Any:
        told = _request.told(request, self.target)
        call = self._channel().unary_unary(
            method.path, method.request_serializer, method.response_deserializer
        )(request, timeout=patience.left())
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _status.from_rpc(error, told) from None
        except asyncio.CancelledError:
            if self._closed and not _cancelling():
                raise errors.Cancelled("CALL_CANCELLED", "the client is closed", told) from None
            raise

    def _open(self, request: messages.WatchRequest, patience: Patience) -> Any:
        return self._channel().unary_stream(
            _request.WATCH.path,
            _request.WATCH.request_serializer,
            _request.WATCH.response_deserializer,
        )(request, timeout=patience.left())


class AsyncWatch:
    """Events of a daemon, as an asynchronous iterator: Watch for asyncio.

        async with client.watch(kinds="operation") as watch:
            async for event in watch:
                print(event.WhichOneof("event"), watch.cursor)

    Whoever cancels a wait for an event, as asyncio.wait_for() does, loses none: the next wait goes on
    behind the last one.
    """

    def __init__(
        self,
        client: AsyncClient,
        request: messages.WatchRequest,
        reconnect: bool,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._request = request
        self._reconnect = reconnect
        self._patience = Patience(timeout)
        self._closing = False
        self._call: Any = None
        self._first: messages.WatchResponse | None = None

    @property
    def cursor(self) -> str:
        """Where another watch goes on behind the last event of this one."""
        return str(self._request.cursor)

    async def open(self) -> AsyncWatch:
        """Waits until the daemon streams. Raises what the client's methods do."""
        repetitions = _request.Repetitions(self._client.target, 0, self._patience, waits=True)
        while self._call is None and not self._closing:
            try:
                self._first = await self._connect()
            except errors.TorporError as error:
                pause = repetitions.pause(error)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        return self

    def close(self) -> None:
        self._closing = True
        if self._call is not None:
            self._call.cancel()

    async def __aenter__(self) -> AsyncWatch:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[messages.WatchResponse]:
        return self

    async def __anext__(self) -> messages.WatchResponse:
        while not self._closing:
            try:
                response = await self._next()
            except errors.TorporError as error:
                if self._closing or self._patience.over():
                    break
                if not self._reconnect or not isinstance(error, errors.Unavailable):
                    raise
                again = await self._open_again()
                if again is None:
                    break
                response = again
            self._request.cursor = response.cursor
            if response.WhichOneof("event") is not None:
                return response
        raise StopAsyncIteration

    async def _next(self) -> messages.WatchResponse:
        await self.open()
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._read()

    async def _open_again(self) -> messages.WatchResponse | None:
        for pause in _request.backoffs(None):
            await asyncio.sleep(pause)
            if self._closing or self._patience.over():
                return None
            try:
                return await self._connect()
            except errors.Unavailable:
                continue
            except errors.TorporError:
                if self._closing or self._patience.over():
                    return None
                raise
        return None

    async def _connect(self) -> messages.WatchResponse:
        self._call = self._client._open(self._request, self._patience)
        try:
            return await self._read()
        except BaseException:
            self._call = None
            raise

    async def _read(self) -> messages.WatchResponse:
        told = {"target": self._client.target}
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _status.from_rpc(error, told) from None
        except asyncio.CancelledError:
            if (self._closing or self._client._closed) and not _cancelling():
                raise errors.Cancelled("CALL_CANCELLED", "the watch is closed", told) from None
            self._call = None  # gRPC has ended it; the next read goes on behind the last event
            raise
        if response is grpc.aio.EOF:
            raise errors.Unavailable("DAEMON_UNREACHABLE", "the daemon ended the stream", told)
        assert isinstance(response, messages.WatchResponse)
        return response


def _cancelling() -> bool:
    """Whether somebody cancels this task, as far as Python tells (3.11 and newer)."""
    task = asyncio.current_task()
    cancelling = getattr(task, "cancelling", None)
    return cancelling is None or cancelling() > 0
