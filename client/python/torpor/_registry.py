"""The open sessions of this process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING, Iterator

from torpor import _callbacks, errors

if TYPE_CHECKING:
    from torpor.session import Session

_log = logging.getLogger("torpor")

# The newest last. A forked child keeps those of its parent, to tell what is wrong.
_sessions: list[Session] = []
_sessions_lock = threading.RLock()
_at_exit = False


def _after_fork() -> None:
    global _sessions_lock
    _sessions_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def remember(session: Session) -> None:
    global _at_exit
    with _sessions_lock:
        _sessions.append(session)
        if not _at_exit:
            _at_exit = True
            atexit.register(_take_callbacks_back)


def forget(session: Session) -> None:
    with _sessions_lock:
        if session in _sessions:
            _sessions.remove(session)


def _take_callbacks_back() -> None:
    """At exit: the interpreter must not be called when it is gone. Sessions stay open, for those
    that free memory until the very end.
    """
    with _sessions_lock:
        mine = [session for session in _sessions if session._pid == os.getpid()]
    for session in mine:
        hooks = _callbacks.installed.get(session._hook_key)
        if hooks is None:
            continue
        with hooks.changed:
            hooks.exiting = True
            stopped = hooks.changed.wait_for(lambda: hooks.thread is None, timeout=10)
        if not stopped:
            _log.warning("a pause callback does not return while the process exits")
            continue
        try:
            session.on_pause(None)
        except errors.TorporError:
            _log.debug("callbacks of %r", session, exc_info=True)


def sessions() -> Iterator[Session]:
    """The open sessions of this process, the newest first."""
    with _sessions_lock:
        return iter([s for s in reversed(_sessions) if s._pid == os.getpid()])


def current() -> Session:
    """The newest session that is open.

    Raises FailedPrecondition NOT_CONNECTED, or FORKED where only the parent had one.
    """
    for session in sessions():
        return session
    with _sessions_lock:
        parents = _sessions[-1]._pid if _sessions else None
    if parents is not None:
        raise forked(parents)
    raise errors.FailedPrecondition("NOT_CONNECTED", "this process has no open session")


def forked(parent: int) -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        "FORKED",
        "the session belongs to the process that this one was forked from",
        {"pid": os.getpid(), "parent_pid": parent},
    )
