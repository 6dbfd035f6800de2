"""A stand-in for PyTorch where there is none: as much of its caching allocator as torpor.torch
uses, on the real libtorpor.so. It keeps PyTorch's rules, and fails where PyTorch would end the
process.

install() puts it into sys.modules.
"""

import contextlib
import ctypes
import sys
import threading
import types

MIB = 1 << 20


class OutOfMemoryError(RuntimeError):
    pass


class _Allocator:
    """CUDAPluggableAllocator."""

    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        self._malloc = getattr(library, malloc)
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free = getattr(library, free)
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._sizes = {}

    def allocator(self):
        return self

    def malloc(self, size, device):
        address = self._malloc(size, device, None)
        if address is not None:
            assert address not in self._sizes, "the allocator gave an address out twice"
            self._sizes[address] = size
        return address

    def delete(self, address, device):
        self._free(address, self._sizes.pop(address), device, None)


class _Ordinary:
    """cudaMalloc and cudaFree."""

    def __init__(self):
        self._next = 1 << 20
        self.live = set()

    def malloc(self, size, device):
        del device
        address, self._next = self._next, self._next + size
        self.live.add(address)
        return address

    def delete(self, address, device):
        del device
        self.live.remove(address)


class _Segment:
    """Allocated front to back, and free again as a whole."""

    def __init__(self, address, size):
        self.address = address
        self.size = size
        self.used = 0
        self.live = 0

    @property
    def empty(self):
        return self.live == 0


class _PrivatePool:
    def __init__(self, allocator):
        self.allocator = allocator
        self.use_count = 1
        self.segments = []


def _segment_size(size):
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


class _CachingAllocator:
    def __init__(self):
        self.ordinary = _Ordinary()
        self.pools = {(0, 0): _PrivatePool(self.ordinary)}
        self.freeable = set()
        self.underway = []  # (pool, thread), the newest last
        self.settings = ""
        self.writes = []
        self.backend = "native"
        self.capturing = set()  # threads

    @property
    def expandable(self):
        return "expandable_segments:True" in self.settings

    def begin(self, pool_id):
        if any(pool_id == active for active, _ in self.underway):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        pool = self.pools.setdefault(pool_id, _PrivatePool(self.ordinary))
        assert pool.use_count > 0
        pool.use_count += 1
        self.underway.append((pool_id, threading.get_ident()))

    def end(self, pool_id):
        self.underway = [entry for entry in self.underway if entry[0] != pool_id]

    def release(self, pool_id):
        pool = self.pools[pool_id]
        pool.use_count -= 1
        assert pool.use_count >= 0
        if pool.use_count == 0:
            self.freeable.add(pool_id)

    def allocate(self, size, device):
        thread = threading.get_ident()
        pool_id = next((p for p, t in reversed(self.underway) if t == thread), (0, 0))
        pool = self.pools[pool_id]
        for segment in pool.segments:
            if segment.empty:
                segment.used = 0
            if segment.used + size <= segment.size:
                break
        else:
            whole = _segment_size(size)
            assert not (self.expandable and pool.allocator is not self.ordinary)
            address = pool.allocator.malloc(whole, device)
            if address is None:
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {whole} bytes.")
            segment = _Segment(address, whole)
            pool.segments.append(segment)
        address = segment.address + segment.used
        segment.used += size
        segment.live += size
        return Tensor(address, size, segment)

    def empty_cache(self, device=0):
        wanted = set(self.freeable)
        if not self.underway:
            wanted.add((0, 0))
        for pool_id in wanted:
            pool = self.pools[pool_id]
            for segment in [segment for segment in pool.segments if segment.empty]:
                pool.allocator.delete(segment.address, device)
                pool.segments.remove(segment)
            if pool_id in self.freeable and not pool.segments:
                self.freeable.remove(pool_id)
                del self.pools[pool_id]

    def snapshot(self, pool_id):
        if pool_id == (0, 0):
            pools = list(self.pools.values())
        else:
            pools = [self.pools[pool_id]] if pool_id in self.pools else []
        return [
            {"address": s.address, "total_size": s.size, "allocated_size": s.live}
            for pool in pools
            for s in pool.segments
        ]


class Tensor:
    is_cuda = True

    def __init__(self, address, size, segment):
        self._address = address
        self.nbytes = size
        self._segment = segment
        self.device = types.SimpleNamespace(index=0, type="cuda")

    def data_ptr(self):
        return self._address

    def __del__(self):
        self._segment.live -= self.nbytes


class MemPool:
    count = 0

    def __init__(self, allocator=None):
        MemPool.count += 1
        self.id = (0, MemPool.count)
        state.pools[self.id] = _PrivatePool(allocator or state.ordinary)

    def __del__(self):
        sys.stderr.write("~MemPool, which may end the process\n")
        state.destroyed += 1

    def snapshot(self, include_traces=True):
        assert include_traces is False
        return state.snapshot(self.id)

    def use_count(self):
        return state.pools[self.id].use_count


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    assert device is not None
    state.begin(pool.id)
    try:
        yield
    finally:
        state.end(pool.id)
        state.release(pool.id)


class CUDAGraph:
    pool_id = None

    def reset(self):
        if self.pool_id is not None:
            state.release(self.pool_id)
            self.pool_id = None


@contextlib.contextmanager
def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
    del stream
    assert capture_error_mode in ("global", "thread_local", "relaxed")
    state.empty_cache()
    pool_id = pool or (MemPool.count + 1000, 0)
    state.begin(pool_id)
    state.capturing.add(threading.get_ident())
    try:
        yield
    finally:
        state.capturing.discard(threading.get_ident())
        state.end(pool_id)
        cuda_graph.pool_id = pool_id


class Module:
    def __call__(self, *arguments, **named):
        return self.forward(*arguments, **named)


def _memory_snapshot(argument):
    first, second, traces = argument
    assert traces is False
    return {
        "segments": state.snapshot((first, second)),
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": state.settings,
            "expandable_segments": state.expandable,
        },
    }


def _set_settings(text):
    if text == "refuse":
        raise RuntimeError("no")
    state.settings = text
    state.writes.append(text)


state = _CachingAllocator()
state.destroyed = 0


def install():
    """The module that `import torch` finds from now on; its `state` is what the allocator knows."""
    torch = types.ModuleType("torch")
    torch.state = state
    torch.OutOfMemoryError = OutOfMemoryError
    torch.Tensor = Tensor
    torch.empty_bytes = lambda size: state.allocate(size, 0)
    torch._C = types.SimpleNamespace(
        _cuda_releasePool=lambda device, pool_id: state.release(pool_id),
        _cuda_memorySnapshot=_memory_snapshot,
        _accelerator_setAllocatorSettings=_set_settings,
    )
    torch.nn = types.ModuleType("torch.nn")
    torch.nn.Module = Module
    torch.cuda = types.ModuleType("torch.cuda")
    torch.cuda.memory = types.SimpleNamespace(CUDAPluggableAllocator=_Allocator)
    torch.cuda.MemPool = MemPool
    torch.cuda.use_mem_pool = use_mem_pool
    torch.cuda.CUDAGraph = CUDAGraph
    torch.cuda.Stream = type("Stream", (), {})
    torch.cuda.graph = graph
    torch.cuda.device = lambda device: contextlib.nullcontext(device)
    torch.cuda.current_device = lambda: 0
    torch.cuda.empty_cache = state.empty_cache
    torch.cuda.get_allocator_backend = lambda: state.backend
    torch.cuda.is_current_stream_capturing = lambda: threading.get_ident() in state.capturing
    for module in (torch, torch.nn, torch.cuda):
        sys.modules[module.__name__] = module
    return torch
