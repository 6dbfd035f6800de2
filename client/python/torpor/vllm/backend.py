"""The sleep-mode backend that vLLM's factory knows as `torpor`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torpor import _abi, errors
from torpor.vllm import allocator

if TYPE_CHECKING:
    _Base: Any = object
else:
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackend as _Base
    except ImportError:
        _Base = object

_logger = logging.getLogger("vllm.torpor")

# What a sleep keeps on the host at every level; level 1 keeps the weights as well. All other tags
# are dropped.
KEPT = ("runtime", "cudagraph")


class TorporSleepModeBackend(_Base):
    """Suspends and resumes the memory that a vLLM worker has from Torpor. Of vLLM's class if
    vLLM is there. vLLM calls it from one thread.

    Each call either does all that it was asked or raises RuntimeError and leaves the memory as
    it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state = "RUNNING"
        # Refuses if the model has been loaded into vLLM's own allocator.
        allocator.install()

    def suspend(self, level: int = 1) -> None:
        """Level 1 keeps the weights on the host and drops the KV cache; level 2 drops both.
        ValueError for any other."""
        if level not in (1, 2):
            raise ValueError(f"a sleep has level 1 or 2, not {level}")
        kept = ("weights", *KEPT) if level == 1 else KEPT
        allocator.CuMemAllocator.get_instance().sleep(kept)
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Brings back what `tags` name, or everything, and in any case what is neither `weights`
        nor `kv_cache`. RuntimeError if the device has no room: what slept sleeps on."""
        memory = allocator.CuMemAllocator.get_instance()
        self._state = "RESUMING"
        state = "SUSPENDED"
        try:
            memory.wake_up(tags)
            if not memory.asleep_tags():
                state = "RUNNING"
        finally:
            self._state = state

    def discard(self, tags: tuple[str, ...]) -> None:
        """Drops the contents of what `tags` name, and its device memory."""
        memory = allocator.CuMemAllocator.get_instance()
        memory.discard(tags)
        self._state = "SUSPENDED" if memory.asleep_tags() else "RUNNING"

    def state(self) -> str:
        """RUNNING, SUSPENDED (a tag is asleep) or RESUMING."""
        return self._state

    @classmethod
    def is_supported(cls) -> bool:
        """Whether libtorpor.so can be loaded and PyTorch has CUDA. Starts and connects nothing."""
        try:
            _abi.library()
        except errors.TorporError as error:
            _logger.error("the sleep-mode backend torpor cannot be used: %s", error)
            return False
        import torch

        return torch.version.cuda is not None

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Communicators stay: their own memory is none of Torpor's. Buffers that they have
        registered are something else, see docs/integration/vllm.md."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Compiled kernels stay: the process and its CUDA context go on."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Not promised: a graph may hold registrations of buffers that have slept."""
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """What sleeps lives as long as its process and its daemon."""
        return False
