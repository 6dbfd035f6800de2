"""vLLM's allocator for sleep mode, with memory that a Torpor daemon owns.

CuMemAllocator has the surface of vllm.device_allocator.cumem.CuMemAllocator; install() puts it
in that place. Importing this module needs neither vLLM nor a GPU and starts nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torpor import errors
from torpor.types import Policy, Quiesce

if TYPE_CHECKING:
    from torpor.session import Session
    from torpor.types import SleepResult, TagUsage

# A wake with tags may leave these out; it brings back all others.
DEFERRABLE_TAGS = ("weights", "kv_cache")
# How others are told to put a worker to sleep, unless $TORPOR_SLEEP_ENDPOINT says it better.
SLEEP_ENDPOINT = "POST /sleep of the vLLM server that this worker belongs to"

_GRAPHS = "cudagraph"
_GIB = 1 << 30
_logger = logging.getLogger("vllm.torpor")


@dataclasses.dataclass(frozen=True)
class AllocationData:
    """A segment that PyTorch has from Torpor.

    Attributes:
        handle: (device, size, address, 0): the CUDA ordinal, bytes (a multiple of the granularity).
        tag: of its memory.
        is_asleep: whether its device memory has been taken away.
        cpu_backup_tensor: None. What is kept of it on the host is the daemon's.
    """

    handle: tuple[int, int, int, int]
    tag: str
    is_asleep: bool = False
    cpu_backup_tensor: None = None


class CuMemAllocator:
    """The allocator of a vLLM worker: one for each process, see get_instance().

    Memory that is allocated within use_memory_pool(tag) belongs to the daemon of the device that
    is current at that time, and stays on that device. It sleeps and wakes by tags, at the same
    addresses. Memory of a tag that was dropped comes back zeroed.

    The session opens with the first pool. It states that nobody can quiet this process from
    outside: the engine pauses itself and then calls here, and a Sleep of somebody else is
    refused with the engine's own endpoint as the reason ($TORPOR_SLEEP_ENDPOINT, else
    SLEEP_ENDPOINT).

    sleep, wake_up and discard raise RuntimeError for whatever Torpor cannot do, with its reason and
    numbers; nothing has changed then. Thread-safe.
    """

    instance: ClassVar[CuMemAllocator | None] = None
    default_tag: ClassVar[str] = "default"

    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """The allocator of this process."""
        with CuMemAllocator._instance_lock:
            if CuMemAllocator.instance is None:
                CuMemAllocator.instance = CuMemAllocator()
            return CuMemAllocator.instance

    def __init__(self) -> None:
        self.current_tag = self.default_tag
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._tags: list[str] = []  # in the order of their first use
        self._asleep: set[int] = set()  # addresses

    # ---- Memory

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What this thread allocates inside comes from Torpor under `tag` (default_tag). Nests,
        and may be entered for a tag as often as you like. Segments without a tensor go back at
        the end.

        Raises ValueError BAD_TAG: a tag is 1 to 63 of [A-Za-z0-9_.-]; what torpor.torch.use
        raises where there is no daemon, say."""
        from torpor import torch as torpor_torch

        tag = self.default_tag if tag is None else tag
        session = self._open()
        with torpor_torch.memory_pool(tag, session=session), self._tagged(tag):
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The id of the pool into which CUDA graphs are captured inside, under the tag
        `cudagraph`; the same for all. It is kept for as long as the process lives."""
        from torpor import torch as torpor_torch

        with torpor_torch.graph_pool(_GRAPHS, session=self._open(), share=_GRAPHS) as pool:
            with self._tagged(_GRAPHS):
                yield pool

    @property
    def pointer_to_data(self) -> dict[int, AllocationData]:
        """What is allocated now, by address: a copy."""
        from torpor import torch as torpor_torch

        with self._lock:
            session = self._session
            if session is None:
                return {}
            records = {}
            for held in torpor_torch.segments():
                if held.device != session.device or held.tag not in self._tags:
                    continue
                try:
                    segment = session.segment(held.address)
                except errors.NotFound:  # freed meanwhile
                    continue
                handle = (session.device, segment.size, segment.address, 0)
                records[segment.address] = AllocationData(handle, segment.tag)
            self._asleep.intersection_update(records)
            if self._asleep:
                # Others may have woken this process.
                tags = self.asleep_tags()
                self._asleep.difference_update(
                    [address for address, data in records.items() if data.tag not in tags]
                )
            for address in self._asleep:
                records[address] = dataclasses.replace(records[address], is_asleep=True)
            return records

    @property
    def allocator_and_pools(self) -> dict[str, list[tuple[Any, Any]]]:
        """For each tag its MemPools that hold memory or are in use, each with the
        CUDAPluggableAllocator, which is one and the same. A pool serves one entry of
        use_memory_pool."""
        from torpor import torch as torpor_torch

        with self._lock:
            tags = tuple(self._tags)
        pluggable = torpor_torch._allocator  # pylint: disable=protected-access
        return {tag: [(pool, pluggable) for pool in torpor_torch.pools(tag)] for tag in tags}

    def get_current_usage(self) -> int:
        """Bytes that are allocated, awake or asleep: a multiple of the granularity."""
        return sum(data.handle[1] for data in self.pointer_to_data.values())

    def release_pools(self) -> None:
        """Gives back all memory without a tensor. What has one goes with it, as there is no pool to
        keep it. Call it as often as you like."""
        if self._session is not None:
            _empty_cache()

    close = release_pools

    # ---- Sleep

    def sleep(self, offload_tags: Sequence[str] | str | None = None) -> None:
        """Puts everything to sleep: `offload_tags` (None: default_tag) keep their bytes on the
        host, all other tags lose them. What sleeps already stays as it is. Blocks until the
        memory is free for others. RuntimeError if the host has no room."""
        if offload_tags is None:
            offload_tags = (self.default_tag,)
        kept = _tags(offload_tags)
        _empty_cache()
        with self._lock, _explained("sleep"):
            usage = self._usage()
            policies = {
                tag: Policy.OFFLOAD if tag in kept else Policy.DISCARD
                for tag, of_tag in usage.items()
                if of_tag.resident_bytes > 0
            }
            other = [
                tag
                for tag, of_tag in usage.items()
                if (of_tag.discarded_bytes if tag in kept else of_tag.offloaded_bytes) > 0
            ]
            if other:
                _logger.warning("asleep already, and stay what they are: %s", ", ".join(other))
            self._put_to_sleep("sleep", policies)

    def discard(self, tags: Sequence[str] | str) -> None:
        """Drops the bytes of `tags` and frees their memory at once; they sleep until woken. What
        sleeps already stays as it is. Blocks."""
        named = _tags(tags)
        with self._lock, _explained("discard"):
            usage = self._usage()
            kept = [tag for tag in named if tag in usage and usage[tag].offloaded_bytes > 0]
            if kept:
                _logger.warning("asleep already, and keep their bytes: %s", ", ".join(kept))
            self._put_to_sleep(
                "discard",
                {
                    tag: Policy.DISCARD
                    for tag in named
                    if tag in usage and usage[tag].resident_bytes > 0
                },
            )

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Brings back `tags`, or everything for None, at the same addresses; in any case
        whatever sleeps under a tag that is not one of DEFERRABLE_TAGS. Blocks until the memory
        can be used.

        RuntimeError if the device has no room: everything sleeps on."""
        named = None if tags is None else _tags(tags)
        _empty_cache()
        with self._lock, _explained("wake up"):
            wanted = [
                tag
                for tag in self.asleep_tags()
                if named is None or tag in named or tag not in DEFERRABLE_TAGS
            ]
            if not wanted:
                return
            assert self._session is not None
            result = self._session.wake_up(*wanted)
            records = self.pointer_to_data
            self._asleep.difference_update(a for a, d in records.items() if d.tag in wanted)
            _report("wake up", wanted, result)

    def asleep_tags(self) -> list[str]:
        """The tags of which something sleeps."""
        with self._lock:
            return [
                tag
                for tag, of_tag in self._usage().items()
                if of_tag.offloaded_bytes + of_tag.discarded_bytes > 0
            ]

    # ---- Helpers

    @contextlib.contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        with self._lock:
            if tag not in self._tags:
                self._tags.append(tag)
        outer = self.current_tag
        self.current_tag = tag
        try:
            yield
        finally:
            self.current_tag = outer

    def _open(self) -> Session:
        import torch
        from torpor import torch as torpor_torch

        device = torch.cuda.current_device()
        with self._lock:
            if self._session is None:
                session = torpor_torch.use()
                session.set_quiesce(Quiesce.NONE)
                try:
                    session.set_sleep_endpoint(
                        os.environ.get("TORPOR_SLEEP_ENDPOINT") or SLEEP_ENDPOINT
                    )
                except errors.Unimplemented as error:
                    _logger.debug("refusals will not name the engine's endpoint: %s", error)
                self._session = session
            if self._session.device != device:
                raise RuntimeError(
                    f"this process has its memory on device {self._session.device}, and now its"
                    f" device is {device}: a vLLM worker has one"
                )
            return self._session

    def _usage(self) -> dict[str, TagUsage]:
        """Of the tags that this allocator has used."""
        if self._session is None:
            return {}
        usage = self._session.usage().tags
        return {tag: usage[tag] for tag in self._tags if tag in usage}

    def _put_to_sleep(self, what: str, policies: dict[str, Policy]) -> None:
        if not policies:
            return
        assert self._session is not None
        result = self._session.sleep_policies(policies)
        records = self.pointer_to_data
        self._asleep.update(address for address, d in records.items() if d.tag in policies)
        _report(what, policies, result)


def install() -> None:
    """Makes CuMemAllocator that of vLLM (vllm.device_allocator.cumem.CuMemAllocator). Call it as
    often as you like, before the model is loaded.

    Raises RuntimeError if vLLM's own has memory already, ImportError where vLLM has none."""
    from vllm.device_allocator import cumem

    theirs = cumem.CuMemAllocator
    if theirs is CuMemAllocator:
        return
    if getattr(theirs, "instance", None) is not None and theirs.instance.pointer_to_data:
        raise RuntimeError(
            "vLLM's own allocator has handed out memory already; call torpor.vllm.register() before"
            " vLLM makes its workers, or torpor.vllm.allocator.install() before the model is loaded"
        )
    cumem.CuMemAllocator = CuMemAllocator
    _logger.info("memory of vLLM's sleep mode comes from Torpor")


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """vLLM expects RuntimeError of whatever its allocator cannot do."""
    try:
        yield
    except errors.TorporError as error:
        raise RuntimeError(f"Torpor cannot {what}: {error}") from error


def _tags(tags: Sequence[str] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _empty_cache() -> None:
    """Gives back what PyTorch holds for no tensor: it need not sleep, and makes room for a wake."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _report(what: str, tags: Iterable[str], result: SleepResult) -> None:
    _logger.info(
        "%s of %s: %.2f GiB of device memory, %.2f GiB copied, %.2f GiB without contents",
        what, ", ".join(tags), result.device_bytes / _GIB, result.copied_bytes / _GIB,
        result.discarded_bytes / _GIB,
    )
