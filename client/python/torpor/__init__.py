"""Torpor: GPU memory that a daemon owns, can take away and gives back at the same address.

    import torpor

    session = torpor.connect(name="engine", quiesce=torpor.Quiesce.GUARD)
    address = session.allocate("weights", 1 << 30)
    with session.work():
        ...  # submit work

The functions of this module below connect() are those of the newest open session. Importing it
loads no library, starts no thread and touches no GPU. torpor.torch is for PyTorch, torpor.control
for orchestrators.
"""

from __future__ import annotations

from typing import Mapping

from torpor import errors
from torpor._callbacks import Pause, Resume
from torpor._registry import current, sessions
from torpor._work import Work
from torpor.errors import TorporError
from torpor.session import Session, connect
from torpor.types import Policy, Quiesce, Segment, SessionInfo, SleepResult, TagUsage, Usage

__version__ = "0.1.0"

__all__ = [
    "Policy",
    "Quiesce",
    "Segment",
    "Session",
    "SessionInfo",
    "SleepResult",
    "TagUsage",
    "TorporError",
    "Usage",
    "Work",
    "connect",
    "current",
    "discard",
    "errors",
    "on_pause",
    "on_resume",
    "sessions",
    "sleep",
    "sleep_policies",
    "usage",
    "wake_up",
    "work",
]


def work(*tags: str, timeout: float | None = None) -> Work:
    """Session.work of the current session."""
    return current().work(*tags, timeout=timeout)


def sleep(level: int = 1, *tags: str, timeout: float | None = None) -> SleepResult:
    """Session.sleep of the current session."""
    return current().sleep(level, *tags, timeout=timeout)


def sleep_policies(
    policies: Mapping[str, Policy], *, force: bool = False, timeout: float | None = None
) -> SleepResult:
    """Session.sleep_policies of the current session."""
    return current().sleep_policies(policies, force=force, timeout=timeout)


def discard(*tags: str, force: bool = False, timeout: float | None = None) -> SleepResult:
    """Session.discard of the current session."""
    return current().discard(*tags, force=force, timeout=timeout)


def wake_up(
    *tags: str, reservation: str | None = None, timeout: float | None = None
) -> SleepResult:
    """Session.wake_up of the current session."""
    return current().wake_up(*tags, reservation=reservation, timeout=timeout)


def usage() -> Usage:
    """Session.usage of the current session."""
    return current().usage()


def on_pause(pause: Pause | None, resume: Resume | None = None) -> None:
    """Session.on_pause of the current session."""
    current().on_pause(pause, resume)


def on_resume(resume: Resume | None) -> None:
    """Session.on_resume of the current session."""
    current().on_resume(resume)
