"""PyTorch on Torpor: pools whose memory sleeps by tag, and a guard around a model's calls.

    import torpor, torpor.torch

    session = torpor.connect(name="llama", quiesce=torpor.Quiesce.GUARD)
    torpor.torch.use(session)
    with torpor.torch.memory_pool("weights"):
        model = load()
    with torpor.torch.memory_pool("kv_cache"):
        cache = allocate_cache()
    model = torpor.torch.guard(model)

A scope of memory_pool() is a torch.cuda.MemPool of its own. What PyTorch asks of it are segments of
2 or 20 MiB or a multiple of 2 MiB, not tensors: enter it around a whole load rather than around
each tensor. Only the thread that entered it allocates there; autograd's threads do not.

Memory goes back as PyTorch's own does: a segment that is empty at the end of its scope at once, one
that becomes empty later with torch.cuda.empty_cache(). Tensors may be freed anywhere, from any
thread, also while they sleep.

Needs PyTorch 2.9 or later; tested with 2.11.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import dataclasses
import os
import threading
from typing import Any, Hashable, Iterator, TypeVar

import torch

import torpor
from torpor import _abi, errors

__all__ = [
    "OutOfMemoryError",
    "Segment",
    "graph_pool",
    "guard",
    "last_error",
    "memory_pool",
    "ordinary_memory",
    "pools",
    "report_usage",
    "segments",
    "session_of",
    "unguard",
    "use",
]

_Module = TypeVar("_Module", bound=torch.nn.Module)
_Thing = TypeVar("_Thing")


class OutOfMemoryError(torch.OutOfMemoryError):
    """torch.OutOfMemoryError with what Torpor said: `torpor` is its error, with reason and numbers.
    The numbers in PyTorch's own text are those of the whole device, not of what this worker may
    take.
    """

    torpor: errors.TorporError

    def __init__(self, text: str, error: errors.TorporError) -> None:
        super().__init__(text)
        self.torpor = error

    @property
    def reason(self) -> str:
        return self.torpor.reason


@dataclasses.dataclass(frozen=True)
class Segment:
    """Memory that PyTorch holds in one of the pools, in bytes."""

    tag: str
    device: int
    address: int
    size: int
    allocated: int  # in tensors that live


@dataclasses.dataclass
class _Pool:
    tag: str
    device: int
    pool: torch.cuda.MemPool
    released: bool = False  # PyTorch gives its segments back as they become empty

    def snapshot(self) -> list[dict[str, Any]]:
        return self.pool.snapshot(include_traces=False)


# Guards what follows. Nothing in PyTorch or the library calls back into this module.
_lock = threading.RLock()
_allocator: torch.cuda.memory.CUDAPluggableAllocator | None = None
_sessions: dict[int, torpor.Session] = {}  # by device
_pools: list[_Pool] = []
_shared: dict[tuple[int, str, Hashable], _Pool] = {}
_thread = threading.local()  # tags: those of the scopes that this thread is in


# ---- Sessions


def use(session: torpor.Session | None = None) -> torpor.Session:
    """Makes `session` the one that PyTorch allocates from on its device, and returns it.

    None: the one in use on PyTorch's current device; if there is none, the newest open session of
    that device, else a new one, torpor.connect(device=...).

    A session in use must not be closed while tensors live in its pools. Thread-safe; a new session
    blocks for the daemon's answer.

    Raises FailedPrecondition PYTORCH_ALLOCATOR (PyTorch does not use its own caching allocator),
    InvalidArgument WRONG_DEVICE (the session's GPU is not what PyTorch calls
    cuda:<session.device>), and what torpor.connect raises.
    """
    with _lock:
        _check_allocator()
        if session is None:
            device = torch.cuda.current_device()
            known = session_of(device)
            if known is not None:
                return known
            opened = (one for one in torpor.sessions() if one.device == device)
            session = next(opened, None) or torpor.connect(device=device)
        elif session_of(session.device) is session:
            return session
        _check_device(session)
        session.call("torpor_torch_use")
        _sessions[session.device] = session
        return session


def session_of(device: int) -> torpor.Session | None:
    """The open session in use on `device` (PyTorch's ordinal); None if there is none."""
    with _lock:
        session = _sessions.get(device)
        return None if session is None or session.handle is None else session


def _check_allocator() -> None:
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise errors.FailedPrecondition(
            "PYTORCH_ALLOCATOR",
            f"PyTorch allocates with {backend}, which has no pools: leave"
            " PYTORCH_ALLOC_CONF=backend:... out",
            {"backend": backend},
        )
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        raise errors.FailedPrecondition(
            "PYTORCH_ALLOCATOR",
            "PYTORCH_NO_CUDA_MEMORY_CACHING=1 makes PyTorch pass over all pools: unset it",
        )


def _check_device(session: torpor.Session) -> None:
    expected = session.info.device_uuid
    if not expected.startswith("GPU-"):  # a MIG instance, or no GPU at all
        return
    uuid = getattr(torch.cuda.get_device_properties(session.device), "uuid", None)
    found = str(uuid).removeprefix("GPU-")
    if uuid is not None and found.lower() != expected.removeprefix("GPU-").lower():
        raise errors.InvalidArgument(
            "WRONG_DEVICE",
            f"the session is of {expected}, but PyTorch's cuda:{session.device} is GPU-{found}:"
            " connect with the ordinal that PyTorch uses",
            {"device_uuid": expected, "pytorch_uuid": f"GPU-{found}", "device": session.device},
        )


# ---- Pools


@contextlib.contextmanager
def memory_pool(
    tag: str, *, session: torpor.Session | None = None
) -> Iterator[torch.cuda.MemPool]:
    """This thread's allocations inside go to Torpor under `tag`, on the session's device; those on
    other devices do not. Yields the pool.

    Nests; the innermost scope counts. Enter it for a tag as often as you like: each time is a pool
    of its own. In all scopes expandable segments are off, for the whole process; the settings come
    back with the end of the last one.

    Inside a CUDA graph capture the pool is kept for as long as the process lives; graph_pool() is
    what goes with the graph.

    Raises InvalidArgument BAD_TAG, FailedPrecondition EXPANDABLE_SEGMENTS (they cannot be switched
    off), what use() raises, and OutOfMemoryError for a torch.OutOfMemoryError that leaves the
    scope. Inside the scope PyTorch raises its own; last_error() then has the reason.
    """
    chosen = use(session)
    entry = _new_pool(tag, chosen.device)
    keep = torch.cuda.is_current_stream_capturing()
    try:
        with _scope(tag, entry.pool):
            with torch.cuda.use_mem_pool(entry.pool, device=chosen.device):
                yield entry.pool
    finally:
        if not keep:
            _release(entry)


@contextlib.contextmanager
def graph_pool(
    tag: str, *, session: torpor.Session | None = None, share: Hashable = None
) -> Iterator[tuple[int, int]]:
    """What a CUDA graph that is captured inside allocates goes to Torpor under `tag`:

        with torpor.torch.graph_pool("graphs") as pool, torch.cuda.graph(graph, pool=pool):
            ...

    The memory belongs to the graphs captured with the pool and goes back when they are reset and
    torch.cuda.empty_cache() is called. With `share`, graphs captured under an equal value share one
    pool, which is kept for as long as the process lives. A graph replays after its pool has slept
    and woken; with its bytes dropped, if it reads nothing there that it has not written in the same
    replay. Raises as memory_pool() does.
    """
    chosen = use(session)
    key = (chosen.device, tag, share)
    with _lock:
        entry = _shared.get(key) if share is not None else None
        if entry is None:
            entry = _new_pool(tag, chosen.device)
            if share is not None:
                _shared[key] = entry
    try:
        with _scope(tag, entry.pool):
            yield entry.pool.id
    finally:
        if share is None:
            _release(entry)


@contextlib.contextmanager
def ordinary_memory() -> Iterator[torch.cuda.MemPool]:
    """This thread's allocations inside are PyTorch's own, on its current device, also within a
    memory_pool(). What is free at the end goes back to the driver at once."""
    device = torch.cuda.current_device()
    entry = _Pool("", device, _immortal(torch.cuda.MemPool()))
    try:
        with torch.cuda.use_mem_pool(entry.pool, device=device):
            yield entry.pool
    finally:
        _release(entry)


def pools(tag: str | None = None) -> list[torch.cuda.MemPool]:
    """The pools of `tag`, or all, in which PyTorch holds memory or which are in use.
    Thread-safe."""
    return [entry.pool for entry, _ in _held(tag)]


def segments(tag: str | None = None) -> list[Segment]:
    """The segments of `tag`, or all, that PyTorch holds in its pools, by address. Thread-safe."""
    found = [
        Segment(
            entry.tag, entry.device, part["address"], part["total_size"], part["allocated_size"]
        )
        for entry, parts in _held(tag)
        for part in parts
    ]
    return sorted(found, key=lambda segment: segment.address)


def report_usage(session: torpor.Session | None = None) -> tuple[int, int]:
    """Tells the daemon, and returns, how many bytes PyTorch has in tensors and how many it holds in
    the pools of the session's device; Usage shows them beside the daemon's figures. Thread-safe."""
    chosen = use(session)
    held = [segment for segment in segments() if segment.device == chosen.device]
    live = sum(segment.allocated for segment in held)
    reserved = sum(segment.size for segment in held)
    chosen.report_usage(live, reserved)
    return live, reserved


def last_error() -> errors.TorporError | None:
    """Why the last allocation from a pool failed that this thread made in its innermost scope, or
    in the one before; None if none did. Another call into Torpor that fails takes its place."""
    error = _abi.library().last_error()
    return None if error.code == _abi.OK or error.reason == _NO_ERROR else error


def _new_pool(tag: str, device: int) -> _Pool:
    global _allocator
    with _lock:
        if _allocator is None:
            # The same path, so that the dynamic loader gives the library that the session is of.
            _allocator = _immortal(
                torch.cuda.memory.CUDAPluggableAllocator(
                    _abi.library().path, "torpor_torch_malloc", "torpor_torch_free"
                )
            )
        with torch.cuda.device(device):
            pool = _immortal(torch.cuda.MemPool(_allocator.allocator()))
        entry = _Pool(tag, device, pool)
        _pools.append(entry)
        return entry


def _immortal(thing: _Thing) -> _Thing:
    """Keeps an allocator or a pool beyond the end of the interpreter, when tensors may still be
    freed. Besides, the destructor of a pool ends the process if any thread captures a graph or
    uses a pool at that moment; _release does the same, and may fail."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


def _release(entry: _Pool) -> None:
    """From now on PyTorch may give the pool's segments back; those that are empty it does now."""
    torch._C._cuda_releasePool(entry.device, entry.pool.id)
    with _lock:
        entry.released = True
    if torch.cuda.is_current_stream_capturing():
        return
    if any(part["allocated_size"] == 0 for part in entry.snapshot()):
        # Not torpor_torch_free: PyTorch would still believe that it holds the segment, and free the
        # address again when it already belongs to another.
        torch.cuda.empty_cache()


def _held(tag: str | None) -> list[tuple[_Pool, list[dict[str, Any]]]]:
    """The pools that hold something or may still do so, with their segments; forgets the others."""
    with _lock:
        found = [(entry, entry.snapshot()) for entry in _pools]
        found = [(entry, parts) for entry, parts in found if parts or not entry.released]
        _pools[:] = [entry for entry, _ in found]
    return [(entry, parts) for entry, parts in found if tag is None or entry.tag == tag]


# ---- Scopes

# The library has no way to forget an error; this one, of a call that does nothing, stands for none.
_NO_ERROR = "BAD_TAG"


@contextlib.contextmanager
def _scope(tag: str, pool: torch.cuda.MemPool) -> Iterator[None]:
    library = _abi.library()
    tags = _thread.__dict__.setdefault("tags", [])
    library.check(library.c.torpor_torch_set_tag(_abi.text(tag)))
    tags.append(tag)
    try:
        with _fixed_segments(pool):
            library.c.torpor_torch_set_tag(b"")
            yield
    except OutOfMemoryError:  # said by an inner scope
        raise
    except torch.OutOfMemoryError as error:
        reason = last_error()
        if reason is None:
            raise
        raise OutOfMemoryError(f"{reason}\n(PyTorch: {error})", reason) from error
    finally:
        tags.pop()
        _return_to_scope()


def _return_to_scope() -> None:
    tags = _thread.__dict__.get("tags")
    _abi.library().c.torpor_torch_set_tag(_abi.text(tags[-1] if tags else None))


def check_tag(tag: str) -> None:
    """Raises InvalidArgument BAD_TAG, NUL_IN_TEXT if `tag` cannot be one."""
    library = _abi.library()
    try:
        library.check(library.c.torpor_torch_set_tag(_abi.text(tag)))
    finally:
        _return_to_scope()


# ---- Expandable segments

_EXPANDABLE = "expandable_segments"
_settings_lock = threading.Lock()
_fixed_scopes = 0
_former_settings: str | None = None  # to be set by the last scope


@contextlib.contextmanager
def _fixed_segments(pool: torch.cuda.MemPool) -> Iterator[None]:
    """Expandable segments do not ask the pool's allocator: off until the last scope ends."""
    global _fixed_scopes, _former_settings
    with _settings_lock:
        if _fixed_scopes == 0:
            _former_settings = _switch_off(pool)
        _fixed_scopes += 1
    try:
        yield
    finally:
        with _settings_lock:
            _fixed_scopes -= 1
            if _fixed_scopes == 0 and _former_settings is not None:
                _set_settings(_former_settings)
                _former_settings = None


def _switch_off(pool: torch.cuda.MemPool) -> str | None:
    """The settings to return to; None where nothing had to be changed."""
    settings, expandable = _settings(pool)
    if not expandable:
        return None
    try:
        _set_settings(_with_expandable(settings, False))
    except (AttributeError, RuntimeError, ValueError) as error:
        raise errors.FailedPrecondition(
            "EXPANDABLE_SEGMENTS",
            f"expandable segments are on and cannot be switched off ({error}): take"
            " expandable_segments:True out of PYTORCH_ALLOC_CONF",
            {"settings": settings},
        ) from error
    if _settings(pool)[1]:
        raise errors.FailedPrecondition(
            "EXPANDABLE_SEGMENTS",
            "expandable segments stay on, although they were switched off: take"
            " expandable_segments:True out of PYTORCH_ALLOC_CONF",
            {"settings": settings},
        )
    return _with_expandable(settings, True)


def _settings(pool: torch.cuda.MemPool) -> tuple[str, bool]:
    """The allocator's settings as text, and whether its segments expand. As the allocator has them,
    which someone may have set at run time; else those of the environment."""
    live: dict[str, Any] = {}
    with contextlib.suppress(AttributeError, KeyError, RuntimeError, TypeError):
        # Of one pool that is empty, since only the settings matter.
        live = torch._C._cuda_memorySnapshot((*pool.id, False))["allocator_settings"]
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    text = next((live[name] for name in names if live.get(name)), None)
    if text is None:
        text = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if _EXPANDABLE in live:
        return text, bool(live[_EXPANDABLE])
    words = [field.partition(":") for field in text.split(",")]
    on = any(
        name.strip() == _EXPANDABLE and value.strip().lower() == "true" for name, _, value in words
    )
    return text, on


def _with_expandable(settings: str, on: bool) -> str:
    """All of the settings: what a new text leaves out goes back to its default."""
    fields = [field.strip() for field in settings.split(",") if field.strip()]
    kept = [field for field in fields if field.partition(":")[0].strip() != _EXPANDABLE]
    return ",".join([*kept, f"{_EXPANDABLE}:{on}"])


def _set_settings(settings: str) -> None:
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if setter is None:  # before PyTorch 2.10
        setter = torch.cuda.memory._set_allocator_settings
    setter(settings)


# ---- The guard


def guard(
    model: _Module,
    *tags: str,
    session: torpor.Session | None = None,
    timeout: float | None = None,
) -> _Module:
    """Calls of `model` run inside the work guard for `tags` (none: all) from now on: they wait
    while something of it sleeps, and a sleep waits until they have submitted their work. Returns
    the same module. `timeout`: in seconds, after which a call raises DeadlineExceeded ASLEEP.

    Guard what torch.compile() returns, not what it gets. Covers model(...), not model.forward(...),
    and nothing outside: a loop that also samples, copies or captures graphs takes `with
    session.work():` around all of it. `session` None: that of PyTorch's current device, as use()
    finds it.

    The module's class becomes a subclass of the former one; copies and pickles of it are not
    guarded. unguard() undoes it. Guarding again replaces what was said before.
    """
    work = use(session).work(*tags, timeout=timeout)
    unguard(model)
    base = type(model)

    def call(self: _Module, *arguments: Any, **named: Any) -> Any:
        with work:
            return base.__call__(self, *arguments, **named)

    def reduce(self: _Module, protocol: Any) -> Any:
        made, arguments, *rest = base.__reduce_ex__(self, protocol)
        plain = tuple(base if argument is guarded else argument for argument in arguments)
        if made is copyreg.__newobj__:  # which pickle takes only for the object's own class
            made = _new_object
        return (base if made is guarded else made, plain, *rest)

    guarded = type(
        base.__name__,
        (base,),
        {
            "__call__": call,
            "__reduce_ex__": reduce,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            _BASE: base,
        },
    )
    object.__setattr__(model, "__class__", guarded)
    return model


def unguard(model: _Module) -> _Module:
    """Takes guard() back; does nothing to a module without one. Returns the same module."""
    base = type(model).__dict__.get(_BASE)
    if base is not None:
        object.__setattr__(model, "__class__", base)
    return model


_BASE = "_torpor_unguarded"


def _new_object(kind: type, *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)
