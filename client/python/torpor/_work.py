"""The work guard of a session."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from itertools import starmap
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torpor import _abi, errors

if TYPE_CHECKING:
    from torpor.session import Session

# How long the C library waits at a time: Python's signal handlers run in between.
_SLICE_MS = 200


class _Here(threading.local):
    """Tells what thread this is, without a call."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


here = _Here()


class Work:
    """The work guard of a session as a context manager: see Session.work. May be entered again,
    also while it is held, and by several threads; each leaves what it has entered.
    """

    # Entering and leaving are on the way of every call that is guarded. They take no lock and read
    # no clock; and CPython runs signal handlers, which may raise, only behind a call, at the
    # beginning of a function and where a loop turns: what must not be torn apart has none of these.

    __slots__ = ("_begin", "_session", "_tags", "_timeout_ms")

    def __init__(self, session: Session, tags: tuple[str, ...], timeout: float | None) -> None:
        self._session = session
        self._tags = _abi.texts(tags) if tags else None, ctypes.c_size_t(len(tags))
        self._timeout_ms = _abi.milliseconds(timeout)
        self._begin = self._arguments(_slice(self._timeout_ms))

    def _arguments(self, wait_ms: int) -> tuple[tuple[Any, ...]]:
        """Of one call of the C library, for starmap."""
        return ((self._session.handle, *self._tags, ctypes.c_int64(wait_ms)),)

    def __enter__(self) -> None:
        session = self._session
        thread = here.thread
        session._uses[thread] += 1
        codes: list[int] = []
        try:
            if not session._open:
                session._check_entry()
            # Not by an assignment, which an interrupt right behind the call would prevent.
            codes.extend(starmap(session._begin, self._begin))
            if codes[0] != _abi.OK:
                self._wait(codes)
        except BaseException:
            if codes and codes[-1] == _abi.OK:
                session._end(session._handle)
            session._leave()
            raise

    def _wait(self, codes: list[int]) -> None:
        """Tries again until `codes` ends with OK; it holds why the first call, which has waited
        already, did not enter.
        """
        session = self._session
        left = self._timeout_ms
        wait = _slice(left)
        start = time.monotonic() - wait / 1000
        while codes[-1] != _abi.OK:
            error = session._library.last_error()
            if not isinstance(error, errors.DeadlineExceeded) or wait == left:
                raise error
            session._check_open()
            if left != _abi.NO_TIMEOUT:
                left = max(0, self._timeout_ms - int((time.monotonic() - start) * 1000))
            wait = _slice(left)
            codes.clear()
            codes.extend(starmap(session._begin, self._arguments(wait)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        try:
            code = session._end(session._handle)
        finally:
            # What _leave() does.
            thread = here.thread
            if session._uses[thread] > 0:
                session._uses[thread] -= 1
            if not session._open:
                session._tell_left()
        if code != _abi.OK and os.getpid() == session._pid:
            # Else this process was forked inside: the guard is the parent's.
            raise session._library.last_error()


def _slice(left_ms: int) -> int:
    return _SLICE_MS if left_ms == _abi.NO_TIMEOUT else min(left_ms, _SLICE_MS)
