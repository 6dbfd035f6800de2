"""libtorpor.so for Python, as thin as it gets: ctypes on torpor.h."""

import contextlib
import ctypes
import enum

OK = 0
NO_TIMEOUT = -1


class Quiesce(enum.IntEnum):
    NONE = 0
    SYNCHRONIZE = 1
    GUARD = 2
    CALLBACK = 3


class Policy(enum.IntEnum):
    KEEP = 0
    OFFLOAD = 1
    DISCARD = 2


class _Options(ctypes.Structure):
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


class _SegmentInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("tag", ctypes.c_char * 64),
    ]


class _TagPolicy(ctypes.Structure):
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


class TorporError(Exception):
    """A call that failed: `code` (a number of torpor_code), `reason`, and everything as text."""

    def __init__(self, code, reason, text):
        super().__init__(text)
        self.code = code
        self.reason = reason


_POINTER = ctypes.c_void_p
_TEXTS = ctypes.POINTER(ctypes.c_char_p)
_PROTOTYPES = {
    "torpor_version": (ctypes.c_char_p, []),
    "torpor_last_error": (_POINTER, []),
    "torpor_error_code": (ctypes.c_int, [_POINTER]),
    "torpor_error_reason": (ctypes.c_char_p, [_POINTER]),
    "torpor_error_text": (ctypes.c_char_p, [_POINTER]),
    "torpor_error_detail": (ctypes.c_char_p, [_POINTER, ctypes.c_char_p]),
    "torpor_connect": (ctypes.c_int, [ctypes.POINTER(_Options), ctypes.POINTER(_POINTER)]),
    "torpor_close": (ctypes.c_int, [_POINTER]),
    "torpor_allocate": (
        ctypes.c_int,
        [_POINTER, ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(_POINTER)],
    ),
    "torpor_free": (ctypes.c_int, [_POINTER, _POINTER]),
    "torpor_segment": (ctypes.c_int, [_POINTER, _POINTER, ctypes.POINTER(_SegmentInfo)]),
    "torpor_copy_to_device": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, ctypes.c_int64]),
    "torpor_copy_from_device": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, ctypes.c_int64]),
    "torpor_work_begin_tags": (
        ctypes.c_int,
        [_POINTER, _TEXTS, ctypes.c_size_t, ctypes.c_int64],
    ),
    "torpor_work_end": (ctypes.c_int, [_POINTER]),
    "torpor_set_quiesce": (ctypes.c_int, [_POINTER, ctypes.c_int]),
    "torpor_sleep": (
        ctypes.c_int,
        [
            _POINTER,
            ctypes.c_int,
            _TEXTS,
            ctypes.c_size_t,
            ctypes.c_int64,
            ctypes.POINTER(SleepResult),
        ],
    ),
    "torpor_sleep_policies": (
        ctypes.c_int,
        [
            _POINTER,
            ctypes.POINTER(_TagPolicy),
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.POINTER(SleepResult),
        ],
    ),
    "torpor_wake_up": (
        ctypes.c_int,
        [
            _POINTER,
            _TEXTS,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.POINTER(SleepResult),
        ],
    ),
    "torpor_usage": (
        ctypes.c_int,
        [_POINTER, ctypes.POINTER(UsageInfo), ctypes.POINTER(TagUsage), ctypes.c_size_t],
    ),
    "torpor_report_usage": (ctypes.c_int, [_POINTER, ctypes.c_int64, ctypes.c_int64]),
    "torpor_torch_malloc": (_POINTER, [ctypes.c_ssize_t, ctypes.c_int, _POINTER]),
    "torpor_torch_free": (None, [_POINTER, ctypes.c_ssize_t, ctypes.c_int, _POINTER]),
    "torpor_torch_set_tag": (ctypes.c_int, [ctypes.c_char_p]),
    "torpor_torch_use": (ctypes.c_int, [_POINTER]),
    "torpor_torch_session": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(_POINTER)]),
}


def _text(value):
    return None if value is None else str(value).encode()


def _texts(values):
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


def _milliseconds(seconds):
    return NO_TIMEOUT if seconds is None else int(seconds * 1000)


class Library:
    """One loaded libtorpor.so."""

    def __init__(self, path):
        self.path = str(path)
        self.c = ctypes.CDLL(self.path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.c, name)
            function.restype = result
            function.argtypes = arguments

    def version(self):
        return self.c.torpor_version().decode()

    def last_error(self):
        error = self.c.torpor_last_error()
        return TorporError(
            self.c.torpor_error_code(error),
            self.c.torpor_error_reason(error).decode(),
            self.c.torpor_error_text(error).decode(),
        )

    def check(self, code):
        if code != OK:
            raise self.last_error()

    def connect(
        self,
        *,
        name=None,
        socket_path=None,
        runtime_dir=None,
        device=0,
        device_uuid=None,
        quiesce=Quiesce.NONE,
        reservation=None,
        driver=None,
    ):
        options = _Options(
            ctypes.sizeof(_Options),
            _text(socket_path),
            _text(runtime_dir),
            _text(name),
            device,
            _text(device_uuid),
            int(quiesce),
            _text(reservation),
            _text(driver),
        )
        handle = _POINTER()
        self.check(self.c.torpor_connect(ctypes.byref(options), ctypes.byref(handle)))
        return Session(self, handle)

    @contextlib.contextmanager
    def torch_tag(self, tag):
        """This thread's allocations through torpor_torch_malloc get `tag`."""
        self.check(self.c.torpor_torch_set_tag(tag.encode()))
        try:
            yield
        finally:
            self.c.torpor_torch_set_tag(None)


class Session:
    def __init__(self, library, handle):
        self.library = library
        self.handle = handle

    def _call(self, name, *arguments):
        self.library.check(getattr(self.library.c, name)(self.handle, *arguments))

    def close(self):
        self._call("torpor_close")
        self.handle = None

    def allocate(self, tag, size):
        address = _POINTER()
        self._call("torpor_allocate", tag.encode(), size, ctypes.byref(address))
        return address.value

    def free(self, address):
        self._call("torpor_free", address)

    def segment(self, address):
        """(start, size, tag) of the segment that contains `address`."""
        info = _SegmentInfo(ctypes.sizeof(_SegmentInfo))
        self._call("torpor_segment", address, ctypes.byref(info))
        return info.address, info.size, info.tag.decode()

    def write(self, address, data):
        """Copies `data` (bytes) to device memory."""
        self._call("torpor_copy_to_device", address, ctypes.c_char_p(data), len(data))

    def read(self, address, size):
        buffer = ctypes.create_string_buffer(size)
        self._call("torpor_copy_from_device", buffer, address, size)
        return buffer.raw

    @contextlib.contextmanager
    def work(self, *tags, timeout=None):
        """Inside the work guard for `tags` (none: all); `timeout` in seconds."""
        self._call("torpor_work_begin_tags", _texts(tags), len(tags), _milliseconds(timeout))
        try:
            yield
        finally:
            self._call("torpor_work_end")

    def set_quiesce(self, quiesce):
        self._call("torpor_set_quiesce", int(quiesce))

    def sleep(self, level, *tags, timeout=None):
        result = SleepResult(ctypes.sizeof(SleepResult))
        self._call(
            "torpor_sleep", level, _texts(tags), len(tags), _milliseconds(timeout),
            ctypes.byref(result),
        )
        return result

    def sleep_policies(self, policies, *, force=False, timeout=None):
        result = SleepResult(ctypes.sizeof(SleepResult))
        array = (_TagPolicy * len(policies))(
            *[_TagPolicy(tag.encode(), int(policy)) for tag, policy in policies.items()]
        )
        self._call(
            "torpor_sleep_policies", array, len(policies), int(force), _milliseconds(timeout),
            ctypes.byref(result),
        )
        return result

    def wake_up(self, *tags, reservation=None, timeout=None):
        result = SleepResult(ctypes.sizeof(SleepResult))
        self._call(
            "torpor_wake_up", _texts(tags), len(tags), _text(reservation), _milliseconds(timeout),
            ctypes.byref(result),
        )
        return result

    def usage(self):
        """(UsageInfo, {tag: TagUsage})."""
        info = UsageInfo(ctypes.sizeof(UsageInfo))
        tags = (TagUsage * 64)()
        tags[0].struct_size = ctypes.sizeof(TagUsage)
        self._call("torpor_usage", ctypes.byref(info), tags, len(tags))
        return info, {tag.tag.decode(): tag for tag in tags[: info.tag_count]}

    def report_usage(self, live, reserved):
        self._call("torpor_report_usage", live, reserved)

    def torch_use(self):
        self._call("torpor_torch_use")
