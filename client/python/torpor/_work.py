"""The work guard of a session."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING

from torpor import _abi, errors

if TYPE_CHECKING:
    from torpor.session import Session

# How long the C library waits at a time: Python's signal handlers run in between.
_SLICE_MS = 200


class Work:
    """The work guard of a session as a context manager: see Session.work. May be entered again,
    also while it is held, and by several threads; each leaves what it has entered.
    """

    __slots__ = ("_count", "_session", "_tags", "_timeout_ms")

    def __init__(self, session: Session, tags: tuple[str, ...], timeout: float | None) -> None:
        self._session = session
        self._tags = _abi.texts(tags)
        self._count = len(tags)
        self._timeout_ms = _abi.milliseconds(timeout)

    def __enter__(self) -> None:
        session = self._session
        handle = session._enter()
        start = time.monotonic()
        left = self._timeout_ms
        while True:
            wait = _SLICE_MS if left == _abi.NO_TIMEOUT else min(left, _SLICE_MS)
            code: list[int] = []
            try:
                # Not by an assignment, which an interrupt right behind the call would prevent.
                code.extend(map(session._begin, (handle,), (self._tags,), (self._count,), (wait,)))
                if code[0] == _abi.OK:
                    return
                error = session._library.last_error()
                if not isinstance(error, errors.DeadlineExceeded) or wait == left:
                    raise error
                session._check_open()
            except BaseException:
                if code == [_abi.OK]:
                    session._end(handle)
                session._leave()
                raise
            if left != _abi.NO_TIMEOUT:
                passed = int((time.monotonic() - start) * 1000)
                left = max(0, self._timeout_ms - passed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        if os.getpid() != session._pid:
            return  # forked inside: the guard is the parent's
        try:
            session._library.check(session._end(session.handle))
        finally:
            session._leave()
