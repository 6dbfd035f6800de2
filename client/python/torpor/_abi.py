"""libtorpor.so through ctypes: the structures and functions of torpor.h.

Nothing is loaded before the first library(). ctypes lets other Python threads run during calls.
"""

from __future__ import annotations

import ctypes
import math
import os
import pathlib
import threading
from typing import Any, Iterable

from torpor import errors

OK = 0
NO_TIMEOUT = -1

_INT64_MAX = (1 << 63) - 1


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("socket_path", ctypes.c_char_p),
        ("runtime_dir", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("device_uuid", ctypes.c_char_p),
        ("quiesce", ctypes.c_int),
        ("reservation", ctypes.c_char_p),
        ("driver", ctypes.c_char_p),
    ]


class SessionInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("worker_id", ctypes.c_uint64),
        ("device_kind", ctypes.c_char * 16),
        ("device_uuid", ctypes.c_char * 96),
        ("device_total_bytes", ctypes.c_int64),
        ("granularity_bytes", ctypes.c_int64),
    ]


class SegmentInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("tag", ctypes.c_char * 64),
    ]


class TagPolicy(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_char_p), ("policy", ctypes.c_int)]


class SleepResult(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device_bytes", ctypes.c_int64),
        ("copied_bytes", ctypes.c_int64),
        ("discarded_bytes", ctypes.c_int64),
    ]


class UsageInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device_total_bytes", ctypes.c_int64),
        ("device_free_bytes", ctypes.c_int64),
        ("available_bytes", ctypes.c_int64),
        ("tag_count", ctypes.c_size_t),
    ]


class TagUsage(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("tag", ctypes.c_char * 64),
        ("segments", ctypes.c_uint64),
        ("resident_bytes", ctypes.c_int64),
        ("offloaded_bytes", ctypes.c_int64),
        ("discarded_bytes", ctypes.c_int64),
    ]


POINTER = ctypes.c_void_p
TEXTS = ctypes.POINTER(ctypes.c_char_p)
PAUSE_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
RESUME_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_INT64 = ctypes.c_int64
_RESULT = ctypes.POINTER(SleepResult)

# {name: (result, arguments)}
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "torpor_version": (ctypes.c_char_p, []),
    "torpor_last_error": (POINTER, []),
    "torpor_error_code": (ctypes.c_int, [POINTER]),
    "torpor_error_reason": (ctypes.c_char_p, [POINTER]),
    "torpor_error_message": (ctypes.c_char_p, [POINTER]),
    "torpor_error_detail_at": (ctypes.c_int, [POINTER, ctypes.c_size_t, TEXTS, TEXTS]),
    "torpor_connect": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(POINTER)]),
    "torpor_close": (ctypes.c_int, [POINTER]),
    "torpor_describe": (ctypes.c_int, [POINTER, ctypes.POINTER(SessionInfo)]),
    "torpor_allocate_wait": (
        ctypes.c_int,
        [POINTER, ctypes.c_char_p, _INT64, _INT64, ctypes.POINTER(POINTER)],
    ),
    "torpor_free": (ctypes.c_int, [POINTER, POINTER]),
    "torpor_segment": (ctypes.c_int, [POINTER, POINTER, ctypes.POINTER(SegmentInfo)]),
    "torpor_copy_to_device": (ctypes.c_int, [POINTER, POINTER, POINTER, _INT64]),
    "torpor_copy_from_device": (ctypes.c_int, [POINTER, POINTER, POINTER, _INT64]),
    "torpor_work_begin_tags": (ctypes.c_int, [POINTER, TEXTS, ctypes.c_size_t, _INT64]),
    "torpor_work_end": (ctypes.c_int, [POINTER]),
    "torpor_set_quiesce": (ctypes.c_int, [POINTER, ctypes.c_int]),
    "torpor_set_sleep_endpoint": (ctypes.c_int, [POINTER, ctypes.c_char_p]),
    "torpor_on_pause": (ctypes.c_int, [POINTER, PAUSE_FUNCTION, RESUME_FUNCTION, POINTER]),
    "torpor_sleep": (
        ctypes.c_int,
        [POINTER, ctypes.c_int, TEXTS, ctypes.c_size_t, _INT64, _RESULT],
    ),
    "torpor_sleep_policies": (
        ctypes.c_int,
        [
            POINTER,
            ctypes.POINTER(TagPolicy),
            ctypes.c_size_t,
            ctypes.c_int,
            _INT64,
            _RESULT,
        ],
    ),
    "torpor_wake_up": (
        ctypes.c_int,
        [POINTER, TEXTS, ctypes.c_size_t, ctypes.c_char_p, _INT64, _RESULT],
    ),
    "torpor_usage": (
        ctypes.c_int,
        [POINTER, ctypes.POINTER(UsageInfo), ctypes.POINTER(TagUsage), ctypes.c_size_t],
    ),
    "torpor_report_usage": (ctypes.c_int, [POINTER, _INT64, _INT64]),
    "torpor_torch_malloc": (POINTER, [ctypes.c_ssize_t, ctypes.c_int, POINTER]),
    "torpor_torch_free": (None, [POINTER, ctypes.c_ssize_t, ctypes.c_int, POINTER]),
    "torpor_torch_set_tag": (ctypes.c_int, [ctypes.c_char_p]),
    "torpor_torch_use": (ctypes.c_int, [POINTER]),
    "torpor_torch_session": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(POINTER)]),
}


class Library:
    """One loaded libtorpor.so. Thread-safe.

    Attributes:
        path: the file, as it was given to the dynamic loader.
        c: its functions, with prototypes; those that an older library lacks raise AttributeError.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.c = ctypes.CDLL(path)
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(self.c, name, None)
            if function is not None:
                function.restype = result
                function.argtypes = arguments

    def version(self) -> str:
        """As "0.1.0"."""
        return str(self.c.torpor_version().decode())

    def has(self, name: str) -> bool:
        """Whether the library has the function `name`."""
        return hasattr(self.c, name)

    def last_error(self) -> errors.TorporError:
        """The error of this thread's last call that failed."""
        c = self.c
        error = c.torpor_last_error()
        details: dict[str, str] = {}
        if self.has("torpor_error_detail_at"):
            key, value = ctypes.c_char_p(), ctypes.c_char_p()
            while c.torpor_error_detail_at(
                error, len(details), ctypes.byref(key), ctypes.byref(value)
            ):
                details[_decode(key.value)] = _decode(value.value)
        return errors.make(
            c.torpor_error_code(error),
            _decode(c.torpor_error_reason(error)),
            _decode(c.torpor_error_message(error)),
            details,
        )

    def check(self, code: int) -> None:
        """Raises what went wrong in the call of this thread that returned `code`."""
        if code != OK:
            raise self.last_error()


_library: Library | None = None
_library_lock = threading.RLock()


def _new_lock() -> None:
    global _library_lock
    _library_lock = threading.RLock()


# A thread that the child does not have may have held it.
os.register_at_fork(after_in_child=_new_lock)


def library() -> Library:
    """libtorpor.so, loaded by the first call: $TORPOR_LIBRARY, else the one that lies in the
    package, else what the dynamic loader finds.

    Raises FailedPrecondition LIBRARY_MISSING. Thread-safe.
    """
    global _library
    if _library is None:
        with _library_lock:
            if _library is None:
                _library = _load()
    return _library


def _load() -> Library:
    path = os.environ.get("TORPOR_LIBRARY")
    if not path:
        beside = pathlib.Path(__file__).with_name("libtorpor.so")
        path = str(beside) if beside.exists() else "libtorpor.so"
    try:
        return Library(path)
    except OSError as error:
        raise errors.FailedPrecondition(
            "LIBRARY_MISSING", f"cannot load {path}: {error}", {"path": path}
        ) from error


def _decode(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")


def text(value: str | os.PathLike[str] | None) -> bytes | None:
    """For an argument of type const char*; None stays NULL.

    Raises InvalidArgument NUL_IN_TEXT.
    """
    if value is None:
        return None
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise errors.InvalidArgument("NUL_IN_TEXT", f"{value!r} has a NUL character")
    return encoded


def texts(values: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    """For an argument of type const char* const*. Raises InvalidArgument NUL_IN_TEXT."""
    encoded = [text(value) for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def milliseconds(seconds: float | None) -> int:
    """A timeout for the C library: None and endless ones as long as it takes, negative ones 0.
    Raises ValueError for NaN.
    """
    if seconds is None:
        return NO_TIMEOUT
    if seconds * 1000 > _INT64_MAX:
        return NO_TIMEOUT
    return math.ceil(max(seconds, 0) * 1000)


def fits_int(value: int) -> bool:
    """Whether ctypes passes `value` on as it is, as an int of C."""
    return -(1 << 31) <= value < 1 << 31


def fits_int64(value: int) -> bool:
    """Whether ctypes passes `value` on as it is."""
    return -_INT64_MAX <= value <= _INT64_MAX
