"""What can go wrong: one exception class for each code, with a reason and the numbers behind it.

docs/errors.md explains every reason. Codes equal those of google.rpc.Code and of torpor.h.
"""

from __future__ import annotations

from typing import Any, ClassVar, Mapping

__all__ = [
    "Aborted",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "TorporError",
    "Unavailable",
    "Unimplemented",
    "make",
]

# Subclasses register themselves.
_CLASSES: dict[int, type[TorporError]] = {}


class TorporError(Exception):
    """A call that failed.

    Attributes:
        code: what kind of failure, a number of google.rpc.Code.
        code_name: the same as a word, as "RESOURCE_EXHAUSTED".
        reason: a word in upper snake case that programs may compare, as "NEVER_FITS".
        message: for people.
        details: the numbers behind it, by name, as text. See number().
    """

    code: int = 2
    code_name: str = "UNKNOWN"
    reason: str
    message: str
    details: dict[str, str]

    _code: ClassVar[tuple[int, str] | None] = None

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "_code" in cls.__dict__ and cls._code is not None:
            cls.code, cls.code_name = cls._code
            _CLASSES[cls.code] = cls

    def __init__(
        self,
        reason: str,
        message: str,
        details: Mapping[str, object] | None = None,
        *,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None and code != type(self).code:
            self.code = code
            self.code_name = f"CODE_{code}"
        self.reason = reason
        self.message = message
        self.details = {key: str(value) for key, value in (details or {}).items()}

    def number(self, key: str) -> int | None:
        """The detail `key` as a number; None where it is absent or not a number."""
        try:
            return int(self.details[key])
        except (KeyError, ValueError):
            return None

    def __str__(self) -> str:
        text = f"{self.code_name} {self.reason}: {self.message}"
        if self.details:
            listed = ", ".join(f"{key}: {value}" for key, value in sorted(self.details.items()))
            text += f" {{{listed}}}"
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {self.message!r}, {self.details!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return make, (self.code, self.reason, self.message, self.details)


class Cancelled(TorporError):
    """The caller took the request back."""

    _code = (1, "CANCELLED")


class InvalidArgument(TorporError, ValueError):
    """Will fail again: change the request."""

    _code = (3, "INVALID_ARGUMENT")


class DeadlineExceeded(TorporError, TimeoutError):
    """Late."""

    _code = (4, "DEADLINE_EXCEEDED")


class NotFound(TorporError, LookupError):
    """There is no such thing (any more)."""

    _code = (5, "NOT_FOUND")


class PermissionDenied(TorporError):
    """Not allowed."""

    _code = (7, "PERMISSION_DENIED")


class ResourceExhausted(TorporError, MemoryError):
    """No memory, no descriptors: make room, or ask for less."""

    _code = (8, "RESOURCE_EXHAUSTED")


class FailedPrecondition(TorporError, RuntimeError):
    """Wrong state: change it first."""

    _code = (9, "FAILED_PRECONDITION")


class Aborted(TorporError):
    """Lost a race: try again."""

    _code = (10, "ABORTED")


class Unimplemented(TorporError):
    """The machine or the other side cannot do it."""

    _code = (12, "UNIMPLEMENTED")


class Internal(TorporError):
    """A bug, or a driver that fails."""

    _code = (13, "INTERNAL")


class Unavailable(TorporError, ConnectionError):
    """The daemon is not there, or going away."""

    _code = (14, "UNAVAILABLE")


class DataLoss(TorporError):
    """Contents are gone."""

    _code = (15, "DATA_LOSS")


def make(
    code: int, reason: str, message: str, details: Mapping[str, object] | None = None
) -> TorporError:
    """The exception for `code`; TorporError itself for a code without a class."""
    kind = _CLASSES.get(code)
    if kind is None:
        return TorporError(reason, message, details, code=code)
    return kind(reason, message, details)
