"""Sessions with the daemon of a device: see Session and connect."""

from __future__ import annotations

import collections
import ctypes
import os
import threading
from types import TracebackType
from typing import Any, Mapping, Union

from torpor import _abi, _callbacks, _registry, devices, errors
from torpor._callbacks import Pause, Resume
from torpor._work import Work, here
from torpor.types import Policy, Quiesce, Segment, SessionInfo, SleepResult, TagUsage, Usage

BytesLike = Union[bytes, bytearray, memoryview]


class Session:
    """A worker's session with the daemon of its device; made by connect().

    Allocates memory that the daemon owns, and lets the daemon take it away and give it back at the
    same addresses. It lives until close() or the end of the process, also when nothing refers to
    it any more: PyTorch frees into it until the very end. As a context manager it closes itself.

    Thread-safe; blocking calls let other threads run. Ctrl-C ends a wait for work(), read() and
    write(); other calls return first. close() waits for calls of other threads. In a forked child
    everything raises FailedPrecondition FORKED. When the daemon goes away, memory that is resident
    stays usable; what needs the daemon waits for the next one, or raises Unavailable DAEMON_GONE
    when none comes.

    Timeouts are in seconds; 0 does not wait, None waits as long as it takes. Sizes are bytes.

    Attributes:
        info: what the daemon said when the session was opened.
        device: CUDA ordinal of its device, as this process counts.
    """

    def __init__(self, library: _abi.Library, handle: ctypes.c_void_p, device: int) -> None:
        self.device = device
        self._library = library
        # Without prototypes, which would convert on each call what Work has converted already.
        self._begin = library.c["torpor_work_begin_tags"]
        self._end = library.c["torpor_work_end"]
        self._handle: ctypes.c_void_p | None = handle
        self._pid = os.getpid()
        # How often each thread keeps the session open. Changed by that thread alone, without a lock:
        # it counts itself before it looks at _open; close() changes that before it looks here.
        self._uses: collections.defaultdict[int, int] = collections.defaultdict(int)
        self._open = True  # neither closed nor closing
        # Re-entrant: signal handlers and finalizers may call in while it is held. Never held while
        # the C library is called.
        self._idle = threading.Condition(threading.RLock())
        self._closing = False
        self._any_work = Work(self, (), None)
        self._hook_lock = threading.RLock()  # one on_pause() at a time
        self._hook_key = 0
        about = _abi.SessionInfo(ctypes.sizeof(_abi.SessionInfo))
        library.check(library.c.torpor_describe(handle, ctypes.byref(about)))
        self.info = SessionInfo(
            worker_id=about.worker_id,
            device_kind=about.device_kind.decode(),
            device_uuid=about.device_uuid.decode(),
            device_total_bytes=about.device_total_bytes,
            granularity_bytes=about.granularity_bytes,
        )

    @property
    def handle(self) -> ctypes.c_void_p | None:
        """The torpor_session* of torpor.h; None once closed."""
        return self._handle

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"worker {self.info.worker_id}"
        return f"<torpor.Session {state} on {self.info.device_uuid}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle is not None and os.getpid() == self._pid:
            self.close()

    # ---- Life

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise _registry.forked(self._pid)

    def _enter(self) -> ctypes.c_void_p | None:
        """Keeps the session open until _leave()."""
        self._check_process()
        thread = here.thread
        self._uses[thread] += 1
        if not self._open:
            try:
                self._check_entry()
            except BaseException:
                self._leave()
                raise
        return self._handle

    def _check_entry(self) -> None:
        """That this thread, which has counted itself, may use a session that is not open: where it
        keeps it open already.
        """
        self._check_process()
        with self._idle:
            if self._handle is None or (self._closing and self._uses[here.thread] <= 1):
                raise errors.Unavailable("SESSION_CLOSED", "the session is closed")

    def _check_open(self) -> None:
        """That nobody is closing what this thread keeps open."""
        with self._idle:
            if self._closing:
                raise errors.Unavailable("SESSION_CLOSED", "the session is being closed")

    def _leave(self) -> None:
        thread = here.thread
        if self._uses[thread] > 0:
            self._uses[thread] -= 1
        if not self._open:
            self._tell_left()

    def _tell_left(self) -> None:
        if os.getpid() == self._pid:
            with self._idle:
                self._idle.notify_all()

    def _in_use(self) -> bool:
        return any(self._uses.copy().values())

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function of torpor.h whose first argument is the session, and raises its error.

        Raises Unimplemented LIBRARY_TOO_OLD where the library has no such function.
        """
        try:
            target = getattr(self._library.c, function)
        except AttributeError:
            raise errors.Unimplemented(
                "LIBRARY_TOO_OLD",
                f"{self._library.path} (version {self._library.version()}) has no {function}",
            ) from None
        handle = self._enter()
        try:
            self._library.check(target(handle, *arguments))
        finally:
            self._leave()

    def _in_callback(self) -> bool:
        hooks = _callbacks.installed.get(self._hook_key)
        return hooks is not None and hooks.thread == threading.get_ident()

    def close(self) -> None:
        """Ends the session: waits for calls and work guards of other threads and for the device,
        then unmaps all its segments. Threads that wait to enter work() get SESSION_CLOSED. Nothing
        happens if it is closed already.

        Raises:
            FailedPrecondition CALLED_FROM_CALLBACK, FORKED, or WORK_GUARD_HELD by this thread:
                the session is as before.
        """
        self._check_process()
        if self._in_callback():
            raise errors.FailedPrecondition(
                "CALLED_FROM_CALLBACK", "a callback cannot close its session"
            )
        with self._idle:
            if self._uses[here.thread] > 0:
                raise errors.FailedPrecondition(
                    "WORK_GUARD_HELD", "this thread is inside the work guard of the session"
                )
            if self._closing:
                self._idle.wait_for(lambda: not self._closing)
            if self._handle is None:
                return
            self._closing = True
            self._open = False
            try:
                self._idle.wait_for(lambda: not self._in_use())
            except BaseException:
                self._closing = False
                self._open = True
                self._idle.notify_all()
                raise
        code = self._library.c.torpor_close(self._handle)
        error = self._library.last_error() if code != _abi.OK else None
        with self._idle:
            self._closing = False
            if error is None:
                self._handle = None
            else:
                self._open = True
            self._idle.notify_all()
        if error is not None:
            raise error
        _callbacks.installed.pop(self._hook_key, None)
        _registry.forget(self)

    # ---- Memory

    def allocate(self, tag: str, size: int, *, timeout: float | None = 0.0) -> int:
        """The address of at least `size` bytes, zeroed unless reused, under `tag` (1 to 63 of
        [A-Za-z0-9_.-]). The address stays the same until free(); its memory goes while it sleeps.

        `timeout`: how long to wait in turn for device memory that others have. Not inside work()
        nor in a callback unless 0.

        Raises:
            InvalidArgument EMPTY_ALLOCATION, BAD_ALLOCATION_SIZE, BAD_TAG
            ResourceExhausted: with requested_bytes and mostly available_bytes; the next call may
                well succeed.
            DeadlineExceeded ALLOCATION_DEADLINE
            FailedPrecondition WORK_GUARD_HELD, CALLED_FROM_CALLBACK
        """
        if not _abi.fits_int64(size):
            raise errors.InvalidArgument(
                "BAD_ALLOCATION_SIZE", f"{size} bytes are no size", {"requested_bytes": size}
            )
        address = ctypes.c_void_p()
        self.call(
            "torpor_allocate_wait", _abi.text(tag), size, _abi.milliseconds(timeout),
            ctypes.byref(address),
        )
        return address.value or 0

    def free(self, address: int) -> None:
        """Frees the segment that starts at `address` (0 is ignored), also while it sleeps. Never
        waits for an operation; synchronizes the device if memory is to be unmapped.

        Raises NotFound UNKNOWN_ADDRESS.
        """
        self.call("torpor_free", _address(address))

    def segment(self, address: int) -> Segment:
        """The segment that contains `address`. Raises NotFound UNKNOWN_ADDRESS."""
        info = _abi.SegmentInfo(ctypes.sizeof(_abi.SegmentInfo))
        self.call("torpor_segment", _address(address), ctypes.byref(info))
        return Segment(info.address, info.size, info.tag.decode())

    def write(self, address: int, data: BytesLike) -> None:
        """Copies `data` (contiguous) into a part of one segment. Blocks while its tag is asleep,
        inside the work guard.

        Raises:
            NotFound UNKNOWN_ADDRESS
            InvalidArgument BAD_SIZE: not inside the segment.
            FailedPrecondition ASLEEP: this thread is inside work(), and the tag is asleep.
        """
        source: Any
        if isinstance(data, bytes):
            size = len(data)
            source = ctypes.c_char_p(data)
        else:
            with memoryview(data) as view:
                size = view.nbytes
                if view.readonly or size == 0:
                    source = ctypes.c_char_p(view.tobytes())
                else:
                    source = (ctypes.c_char * size).from_buffer(view)
        tag = self._tag_of(address, size)
        if size > 0:
            with self.work(tag):
                self.call("torpor_copy_to_device", address, source, size)

    def read(self, address: int, size: int) -> bytes:
        """Copies `size` bytes out of a part of one segment; blocks and raises like write()."""
        tag = self._tag_of(address, size)
        buffer = ctypes.create_string_buffer(size)
        if size > 0:
            with self.work(tag):
                self.call("torpor_copy_from_device", buffer, address, size)
        return buffer.raw

    def _tag_of(self, address: int, size: int) -> str:
        """The tag of the segment that `size` bytes at `address` are part of."""
        segment = self.segment(address)
        room = segment.address + segment.size - address
        if not 0 <= size <= room:
            raise errors.InvalidArgument(
                "BAD_SIZE",
                "the copy does not lie inside one segment",
                {"requested_bytes": size, "available_bytes": room},
            )
        return segment.tag

    # ---- Work

    def work(self, *tags: str, timeout: float | None = None) -> Work:
        """The work guard, as a context manager: inside it nothing is unmapped under what this
        thread submits. It covers submission (and graph capture); what was submitted is waited for.

        Entering blocks while an operation needs this process quiet, or a tag of `tags` (none: any
        tag) is asleep. It is per thread and may be nested; only outermost entries wait. Do not
        await inside it.

        Raises on entering:
            DeadlineExceeded ASLEEP: still so after `timeout`.
            FailedPrecondition ASLEEP: nested, and a tag is asleep.
            FailedPrecondition CALLED_FROM_CALLBACK: in a callback, and it would have to wait.
            Unavailable DAEMON_GONE: a tag is asleep, and lost with its daemon.
            DataLoss SEGMENTS_LOST: likewise, and the daemon was started again; until they are freed.
        """
        return Work(self, tags, timeout) if tags or timeout is not None else self._any_work

    def set_quiesce(self, quiesce: Quiesce) -> None:
        """States how others may quiet this process; replaces what connect() said."""
        self.call("torpor_set_quiesce", int(quiesce))

    def set_sleep_endpoint(self, endpoint: str | None) -> None:
        """Tells the daemon which endpoint of this process's engine puts it to sleep, as
        "POST http://127.0.0.1:8000/sleep"; what others are told when their sleep is refused because
        this process puts only itself to sleep. None: there is none.

        Raises Unimplemented LIBRARY_TOO_OLD.
        """
        self.call("torpor_set_sleep_endpoint", _abi.text(endpoint))

    def on_pause(self, pause: Pause | None, resume: Resume | None = None) -> None:
        """Sets the callbacks that stop this process's work, and states Quiesce.CALLBACK; None takes
        them away and restores what was stated before.

        `pause` is called before the process is put to sleep, `resume` when none of its tags is
        asleep any more; in turn, on a thread of the library. `pause` returns when everything has
        stopped; it refuses by returning False or raising (which is logged): the sleep then fails
        with PAUSE_REFUSED. They may allocate and free, but not sleep, wake, close or set
        callbacks (CALLED_FROM_CALLBACK). work() lets no one in by then: pause must not wait for a
        thread that may be about to enter. Blocks while a callback runs; afterwards the former ones
        are not called again. At the end of the process they are taken away.
        """
        _check_callable(pause, resume)
        self._check_process()
        if self._in_callback():
            raise errors.FailedPrecondition(
                "CALLED_FROM_CALLBACK", "a callback cannot set the callbacks"
            )
        with self._hook_lock:
            self._set_hooks(None if pause is None else _callbacks.Hooks(pause, resume))

    def on_resume(self, resume: Resume | None) -> None:
        """Replaces the resume callback beside the pause callback that is set; None: there is none.
        Does not block: one that runs goes on.

        Raises FailedPrecondition NO_PAUSE_CALLBACK.
        """
        _check_callable(resume)
        self._check_process()
        hooks = _callbacks.installed.get(self._hook_key)
        if hooks is None:
            raise errors.FailedPrecondition(
                "NO_PAUSE_CALLBACK", "there is no pause callback that one could resume from"
            )
        hooks.resume = resume

    def _set_hooks(self, hooks: _callbacks.Hooks | None) -> None:
        key = 0
        arguments: tuple[Any, ...] = (_callbacks.NO_PAUSE, _callbacks.NO_RESUME, None)
        if hooks is not None:
            key = next(_callbacks.keys)
            _callbacks.installed[key] = hooks
            arguments = (_callbacks.PAUSE, _callbacks.RESUME, key)
        try:
            self.call("torpor_on_pause", *arguments)
        except errors.Unavailable as error:
            if error.reason != "SESSION_CLOSED":
                self._forget_hooks(key)  # the library has no callbacks any more
            _callbacks.installed.pop(key, None)
            raise
        self._forget_hooks(key)

    def _forget_hooks(self, but: int) -> None:
        _callbacks.installed.pop(self._hook_key, None)
        self._hook_key = but

    # ---- Sleep

    def sleep(self, level: int = 1, *tags: str, timeout: float | None = None) -> SleepResult:
        """Puts this process's segments under `tags` to sleep; none: all. Level 1 keeps weights and
        drops the KV cache, 2 drops both; other tags keep their bytes unless the daemon's table says
        otherwise. Blocks until the memory is free for others or, after `timeout`, everything is as
        it was. What sleeps already is left alone.

        Raises:
            FailedPrecondition WORK_GUARD_HELD: this thread is inside work().
            ResourceExhausted: no room in host memory; nothing has changed.
            DeadlineExceeded OPERATION_DEADLINE
        """
        if not _abi.fits_int(level):
            raise errors.InvalidArgument(
                "BAD_LEVEL", "sleep levels are 1 and 2", {"level": level}
            )
        result = _new_result()
        self.call(
            "torpor_sleep", level, _abi.texts(tags), len(tags), _abi.milliseconds(timeout),
            ctypes.byref(result),
        )
        return _sleep_result(result)

    def sleep_policies(
        self,
        policies: Mapping[str, Policy],
        *,
        force: bool = False,
        timeout: float | None = None,
    ) -> SleepResult:
        """As sleep(), with a policy for each tag; tags that are not named are kept. `force`:
        DISCARD also drops the bytes of what is asleep with its bytes kept.

        Raises InvalidArgument EMPTY_SELECTION as well.
        """
        result = _new_result()
        array = (_abi.TagPolicy * len(policies))(
            *[_abi.TagPolicy(_abi.text(tag), int(policy)) for tag, policy in policies.items()]
        )
        self.call(
            "torpor_sleep_policies", array, len(policies), int(force), _abi.milliseconds(timeout),
            ctypes.byref(result),
        )
        return _sleep_result(result)

    def discard(
        self, *tags: str, force: bool = False, timeout: float | None = None
    ) -> SleepResult:
        """Drops the bytes of `tags` (none: of all that this session has) and frees their memory;
        the tags sleep and come back zeroed. `force`: also of those asleep with their bytes kept.
        """
        names = tags or tuple(self.usage().tags)
        if not names:
            return SleepResult(0, 0, 0)
        policies = {tag: Policy.DISCARD for tag in names}
        return self.sleep_policies(policies, force=force, timeout=timeout)

    def wake_up(
        self, *tags: str, reservation: str | None = None, timeout: float | None = None
    ) -> SleepResult:
        """Wakes `tags`, in that order; none: all. `reservation` is the id of one to draw on, None
        that of the session. Blocks until the memory is usable or, on failure, everything is asleep
        as before.

        Raises:
            ResourceExhausted: the device has no room; with requested_bytes and available_bytes.
            DeadlineExceeded OPERATION_DEADLINE
        """
        result = _new_result()
        self.call(
            "torpor_wake_up", _abi.texts(tags), len(tags), _abi.text(reservation),
            _abi.milliseconds(timeout), ctypes.byref(result),
        )
        return _sleep_result(result)

    # ---- Usage

    def usage(self) -> Usage:
        """The device and this session's tags, as the daemon sees them now."""
        info = _abi.UsageInfo(ctypes.sizeof(_abi.UsageInfo))
        capacity = 32
        while True:
            tags = (_abi.TagUsage * capacity)()
            tags[0].struct_size = ctypes.sizeof(_abi.TagUsage)
            self.call("torpor_usage", ctypes.byref(info), tags, capacity)
            if info.tag_count <= capacity:
                break
            capacity = info.tag_count
        return Usage(
            info.device_total_bytes,
            info.device_free_bytes,
            info.available_bytes,
            {
                tag.tag.decode(): TagUsage(
                    tag.segments, tag.resident_bytes, tag.offloaded_bytes, tag.discarded_bytes
                )
                for tag in tags[: info.tag_count]
            },
        )

    def report_usage(self, live_bytes: int, reserved_bytes: int) -> None:
        """Tells the daemon what this process's own allocator says: bytes in live tensors and bytes
        that it holds. Shown beside the daemon's figures.
        """
        for size in (live_bytes, reserved_bytes):
            if not _abi.fits_int64(size):
                raise errors.InvalidArgument("BAD_SIZE", f"{size} bytes are no size")
        self.call("torpor_report_usage", live_bytes, reserved_bytes)


def connect(
    *,
    name: str | None = None,
    device: int = 0,
    device_uuid: str | None = None,
    socket_path: str | os.PathLike[str] | None = None,
    runtime_dir: str | os.PathLike[str] | None = None,
    quiesce: Quiesce = Quiesce.NONE,
    reservation: str | None = None,
    driver: str | None = None,
) -> Session:
    """Opens a session with the daemon of the GPU that this process sees as number `device`.

    Honours CUDA_VISIBLE_DEVICES (ordinals, UUIDs of GPUs and MIG instances, also abbreviated).
    What is None is taken from the environment, where that says something: TORPOR_WORKER_NAME,
    TORPOR_SOCKET, TORPOR_RUNTIME_DIR, TORPOR_RESERVATION, TORPOR_DRIVER.

    Args:
        name: of this worker: 1 to 63 of [A-Za-z0-9_.-]. None: the daemon makes one.
        device: CUDA ordinal.
        device_uuid: "GPU-..." or "MIG-..."; a host device's name. Instead of looking at `device`.
        socket_path: the daemon's worker socket, instead of looking for it.
        runtime_dir: where daemons have their sockets.
        quiesce: how others can bring this process to rest.
        reservation: id of a reservation to draw on.
        driver: "cuda", "host" (device memory made of files, for machines without a GPU) or "auto".

    Blocks for the daemon's answer, at most 30 seconds. Thread-safe.

    Raises:
        Unavailable DAEMON_NOT_RUNNING
        NotFound NO_SUCH_DEVICE
        FailedPrecondition AMBIGUOUS_DAEMON: several daemons could be meant; the detail
            "candidates" names them.
        FailedPrecondition WRONG_DEVICE: the daemon serves another device; details name both.
        FailedPrecondition LIBRARY_MISSING: libtorpor.so could not be loaded.
    """
    name = name or os.environ.get("TORPOR_WORKER_NAME") or None
    if socket_path is None and runtime_dir is None:
        socket_path = os.environ.get("TORPOR_SOCKET") or None
        runtime_dir = os.environ.get("TORPOR_RUNTIME_DIR") or None
    reservation = reservation or os.environ.get("TORPOR_RESERVATION") or None
    driver = driver or os.environ.get("TORPOR_DRIVER") or None
    if not 0 <= device < 1 << 31:
        raise errors.NotFound("NO_SUCH_DEVICE", f"no device number {device}", {"device": device})
    library = _abi.library()
    if device_uuid is None and driver != "host":
        device_uuid = devices.resolve(device, runtime_dir, look_up=socket_path is None)
    options = _abi.Options(
        ctypes.sizeof(_abi.Options),
        _abi.text(socket_path),
        _abi.text(runtime_dir),
        _abi.text(name),
        device,
        _abi.text(device_uuid),
        int(quiesce),
        _abi.text(reservation),
        _abi.text(driver),
    )
    handle = ctypes.c_void_p()
    library.check(library.c.torpor_connect(ctypes.byref(options), ctypes.byref(handle)))
    session = Session(library, handle, device)
    _registry.remember(session)
    return session


def _address(address: int) -> int:
    if not 0 <= address < 1 << 64:
        raise errors.NotFound("UNKNOWN_ADDRESS", f"{address:#x} is no address")
    return address


def _check_callable(*functions: object) -> None:
    for function in functions:
        if function is not None and not callable(function):
            raise TypeError(f"{function!r} cannot be called")


def _new_result() -> _abi.SleepResult:
    return _abi.SleepResult(ctypes.sizeof(_abi.SleepResult))


def _sleep_result(result: _abi.SleepResult) -> SleepResult:
    return SleepResult(result.device_bytes, result.copied_bytes, result.discarded_bytes)
