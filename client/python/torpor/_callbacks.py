"""Pause and resume callbacks, as the C library calls them on a thread of its own."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Callable

from torpor import _abi

_log = logging.getLogger("torpor")

Pause = Callable[[], object]
Resume = Callable[[], object]


class Hooks:
    """The callbacks of one on_pause(), and which thread runs one of them."""

    def __init__(self, pause: Pause, resume: Resume | None) -> None:
        self.pause = pause
        self.resume = resume
        self.changed = threading.Condition()
        self.thread: int | None = None
        self.exiting = False  # no callback is run any more

    def run(self, function: Callable[[], object]) -> object:
        with self.changed:
            if self.exiting:
                return False
            self.thread = threading.get_ident()
        try:
            return function()
        finally:
            with self.changed:
                self.thread = None
                self.changed.notify_all()


# What the C library's `user` stands for. One pair of C functions serves all sessions and is never
# freed, so that a late call finds code to run.
installed: dict[int, Hooks] = {}
keys = itertools.count(1)


def _call_pause(key: int | None) -> int:
    hooks = installed.get(key or 0)
    if hooks is None:
        return 1
    try:
        return 1 if hooks.run(hooks.pause) is False else 0
    except BaseException:  # pylint: disable=broad-except
        _log.exception("the pause callback failed: the sleep is refused")
        return 1


def _call_resume(key: int | None) -> None:
    hooks = installed.get(key or 0)
    resume = hooks.resume if hooks is not None else None
    if hooks is None or resume is None:
        return
    try:
        hooks.run(resume)
    except BaseException:  # pylint: disable=broad-except
        _log.exception("the resume callback failed")


PAUSE = _abi.PAUSE_FUNCTION(_call_pause)
RESUME = _abi.RESUME_FUNCTION(_call_resume)
NO_PAUSE = _abi.PAUSE_FUNCTION()
NO_RESUME = _abi.RESUME_FUNCTION()
