"""The interface of torch_memory_saver 0.0.10, on Torpor: for SGLang and RL trainers.

    import torpor.compat.torch_memory_saver
    torpor.compat.torch_memory_saver.install()  # before anything imports torch_memory_saver

After that `import torch_memory_saver` finds this module. With it, or used by its own name,
`region`, `pause`, `resume`, `cuda_graph` and `disable` do what they do there. What is different:

- A region without a cpu backup comes back zeroed, not with whatever bytes the memory held before;
  with one, its bytes go to the daemon's pinned memory, which is there already: no pause has to pin
  any.
- Nothing is preloaded, and LD_PRELOAD need not be set: a region covers what PyTorch's allocator
  asks for, not what libraries take with cudaMalloc. TMS_INIT_ENABLE, which declares the whole
  process a region, needs the preloaded library and is refused.
- Pausing what is paused and resuming what is not do nothing, where the original ends the process.
  What fails raises torpor.errors.TorporError, and everything is as it was.
- Others than this process can put it to sleep, too, if it has stated how it is quieted.

Tags become Torpor's, as `weights` or `kv_cache`. If a tag is used with and without a cpu backup,
the kind that comes second gets a tag of its own, with `.backup` or `.scratch` behind the name.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Iterator

import torch

import torpor
import torpor.torch
from torpor import Policy

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

_DEFAULT_TAG = "default"


class TorchMemorySaver:
    """Regions whose memory can be paused and resumed. Thread-safe; a region is of its thread."""

    # The original's inner object, which only its preloaded library has a use for.
    _impl = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # {device: {tag: {cpu backup: Torpor's tag}}}
        self._tags: dict[int, dict[str, dict[bool, str]]] = {}
        self._hook_mode = "torch"
        self._retain = False

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """What this thread allocates inside can be paused: its bytes are kept in host memory with
        `enable_cpu_backup`, else dropped. Raises NotImplementedError for a disk backup and the
        backend "mmap": a daemon keeps backups in its own pinned memory."""
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        session = torpor.torch.use()
        name = self._name(session.device, tag, enable_cpu_backup)
        with torpor.torch.memory_pool(name, session=session):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """torch.cuda.graph, whose memory can be paused. Graphs captured with an equal `pool` share
        one of Torpor's; the memory of `pool` itself is not used."""
        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        session = torpor.torch.use()
        name = self._name(session.device, tag, enable_cpu_backup)
        share = None if pool is None else tuple(pool)
        with torpor.torch.graph_pool(name, session=session, share=share) as handle:
            with torch.cuda.graph(
                cuda_graph, pool=handle, stream=stream, capture_error_mode=capture_error_mode
            ):
                yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """What this thread allocates inside is ordinary memory, also within a region; what is free
        at the end goes back at once."""
        if not dispose_mem_pool_after_use:
            raise NotImplementedError("disable() always gives back what is free at its end")
        with torpor.torch.ordinary_memory():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the device memory of `tag`, or of all tags, back; blocks until it is free for
        others. Raises torpor.errors.TorporError, with nothing changed on that device."""
        for session, names in self._selected(tag):
            session.sleep_policies(
                {
                    name: Policy.OFFLOAD if backup else Policy.DISCARD
                    for name, backup in names.items()
                }
            )

    def resume(self, tag: str | None = None) -> None:
        """Takes it again, at the same addresses; blocks until it is usable. Raises
        torpor.errors.ResourceExhausted if the device has no room, with all of it asleep as
        before."""
        for session, names in self._selected(tag):
            session.wake_up(*names)

    @property
    def enabled(self) -> bool:
        return True

    @property
    def hook_mode(self) -> str:
        """"torch" or "preload"; both cover what PyTorch allocates in regions, and no more."""
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("torch", "preload"):
            raise ValueError(f"hook_mode is neither 'torch' nor 'preload': {mode!r}")
        self._hook_mode = mode

    @property
    def memory_margin_bytes(self) -> int:
        raise NotImplementedError("only to be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        """Only 0: how much of the device stays free is the daemon's --safety_reserve."""
        if value != 0:
            raise NotImplementedError(
                "memory_margin_bytes: one process cannot keep memory of the device free for itself;"
                " start torpord with --safety_reserve, or reserve with Reserve"
            )

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether backups stay when their memory has resumed. The daemon keeps them while its pool
        has room, whatever is set here: a pause then copies only what has changed."""
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retain = bool(value)

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """None while `x` is not paused. Raises NotImplementedError while it is: the backup is in
        the daemon's memory, not in this process."""
        session = torpor.torch.session_of(x.device.index) if x.is_cuda else None
        if session is None:
            return None
        try:
            tag = session.segment(x.data_ptr()).tag
        except torpor.errors.NotFound:
            return None
        usage = session.usage().tags.get(tag)
        if usage is None or usage.offloaded_bytes == 0:
            return None
        raise NotImplementedError(
            "the backup of memory that is paused lies with the daemon: resume the tag, then copy"
            " the tensor to the CPU"
        )

    def set_disk_backup_dir(self, path: str) -> None:
        raise NotImplementedError(_NO_DISK)

    # ---- Tags

    def _name(self, device: int, tag: str, backup: bool) -> str:
        """Torpor's tag for the regions under `tag` of one kind, which is theirs from now on."""
        if os.environ.get("TMS_INIT_ENABLE", "").lower() in ("1", "true"):
            raise NotImplementedError(
                "TMS_INIT_ENABLE makes the whole process a region, which only a preloaded library"
                " can: unset it, and put regions around what is to be paused"
            )
        with self._lock:
            kinds = self._tags.setdefault(device, {}).setdefault(tag, {})
            if backup not in kinds:
                suffix = "" if not kinds else ".backup" if backup else ".scratch"
                torpor.torch.check_tag(tag + suffix)  # or each pause() would fail with it
                kinds[backup] = tag + suffix
            return kinds[backup]

    def _selected(self, tag: str | None) -> list[tuple[torpor.Session, dict[str, bool]]]:
        """For each device its session and {Torpor's tag: cpu backup}, in the order of first use."""
        selected = []
        with self._lock:
            for device, tags in self._tags.items():
                session = torpor.torch.session_of(device)
                names = {
                    name: backup
                    for known, kinds in tags.items()
                    if not tag or known == tag
                    for backup, name in kinds.items()
                }
                if session is not None and names:
                    selected.append((session, names))
        return selected


_NO_DISK = "Torpor has no backups on disk; use enable_cpu_backup"


def _check_backup(cpu: bool, disk: bool, backend: str | None) -> None:
    if disk:
        raise NotImplementedError(_NO_DISK)
    if backend is None:
        return
    if not cpu:
        raise ValueError("cpu_backup_backend goes with enable_cpu_backup=True")
    if backend == "mmap":
        raise NotImplementedError(
            "cpu_backup_backend 'mmap': backups lie in the daemon's pinned memory, which is not the"
            " process's own; leave it out"
        )
    if backend != "pinned":
        raise ValueError(f"cpu_backup_backend is neither 'pinned' nor 'mmap': {backend!r}")


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Does nothing: subprocesses need no LD_PRELOAD. They call install() themselves."""
    yield


def install() -> None:
    """Makes `import torch_memory_saver` find this module, in this process. Call it first; raises
    RuntimeError if the original has been imported already."""
    present = sys.modules.get("torch_memory_saver")
    module = sys.modules[__name__]
    if present is not None and present is not module:
        raise RuntimeError(
            "torch_memory_saver has been imported before install(): whoever did so keeps using it"
        )
    sys.modules["torch_memory_saver"] = module


torch_memory_saver = TorchMemorySaver()
