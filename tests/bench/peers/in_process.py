"""Times sleep and wake of allocators that live in the engine's own process, to set beside the
daemon's in the same run.

    in_process.py {cumem,tms,tms-retain} {seed,b14,b32} [--library FILE] [--tms-wheel FILE]

Prints one JSON line. README.md says what the peers are.
"""

import argparse
import ctypes
import json
import os
import re
import sys
import tempfile
import time
import zipfile

MIB = 1 << 20
# As in tests/bench/model_load.cc.
LOADS = {
    "seed": [970, 256, 128, 128, 128] + [48] * 5 + [28] * 110 + [4] * 5,
    "b14": [1484, 1484] + [70, 50, 270, 135] * 48,
    "b32": [1484, 1484] + [100, 80, 540, 270] * 64,
}
KV_CACHE = [256] * 32
PEERS = ("cumem", "tms", "tms-retain")


def loaded_library(stem):
    """The path of a library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = re.search(rf"(?m)(/\S*/{re.escape(stem)}[^/\s]*\.so\S*)$", maps.read())
    if not found:
        raise RuntimeError(f"{stem} is not loaded")
    return found.group(1)


class CuMem:
    """cumem.cc for the memory, the published steps of vLLM's CuMemAllocator for the rest."""

    MOST = 16384

    def __init__(self, torch, library):
        self.torch = torch
        self.peer = ctypes.CDLL(library)
        self.peer.peer_sleep_one.argtypes = [ctypes.c_ulonglong]
        self.peer.peer_wake_one.argtypes = [ctypes.c_ulonglong, ctypes.c_int]
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(
            library, "peer_malloc", "peer_free"
        )
        self.runtime = ctypes.CDLL(loaded_library("libcudart"))
        self.pools = []
        self.tags = {}
        self.backups = {}

    def segments(self):
        numbers = (ctypes.c_ulonglong * (2 * self.MOST))()
        count = self.peer.peer_segments(numbers, self.MOST)
        return [(numbers[2 * i], numbers[2 * i + 1]) for i in range(count)]

    def allocate(self, tag, make):
        before = {address for address, _ in self.segments()}
        pool = self.torch.cuda.MemPool(self.allocator.allocator())
        self.pools.append(pool)
        with self.torch.cuda.use_mem_pool(pool):
            tensors = make()
        self.tags.update(
            {address: tag for address, _ in self.segments() if address not in before}
        )
        return tensors

    def copy(self, to, source, size):
        default_kind = 4
        status = self.runtime.cudaMemcpy(
            ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), default_kind
        )
        if status != 0:
            raise RuntimeError(f"cudaMemcpy: {status}")

    def sleep(self):
        for address, size in self.segments():
            if self.tags[address] == "weights":
                backup = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)
                self.copy(backup.data_ptr(), address, size)
                self.backups[address] = backup
            if self.peer.peer_sleep_one(address) != 0:
                raise RuntimeError("sleep failed")
        self.torch.cuda.empty_cache()

    def wake(self):
        for address, size in self.segments():
            if self.peer.peer_wake_one(address, 0) != 0:
                raise RuntimeError("wake failed")
            if address in self.backups:
                self.copy(address, self.backups.pop(address).data_ptr(), size)


class Tms:
    """The package torch_memory_saver."""

    def __init__(self, wheel, retain):
        if wheel:
            folder = tempfile.mkdtemp(prefix="tms-")
            zipfile.ZipFile(wheel).extractall(folder)
            sys.path.insert(0, folder)
        from torch_memory_saver import torch_memory_saver

        self.saver = torch_memory_saver
        self.saver.hook_mode = "torch"
        self.retain = retain

    def allocate(self, tag, make):
        with self.saver.region(tag=tag, enable_cpu_backup=tag == "weights"):
            tensors = make()
        if self.retain:
            self.saver.retain_cpu_backup = True
        return tensors

    def sleep(self):
        self.saver.pause()

    def wake(self):
        self.saver.resume()


def measure(options):
    import torch

    def timed(step):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def used_bytes():
        free, total = torch.cuda.mem_get_info()
        return total - free

    sizes = [size * MIB for size in LOADS[options.load]]
    total = sum(sizes)
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    if options.peer == "cumem":
        peer = CuMem(torch, os.path.abspath(options.library))
    else:
        peer = Tms(options.tms_wheel, options.peer == "tms-retain")

    start = time.perf_counter()
    weights = peer.allocate(
        "weights",
        lambda: [torch.empty(size // 8, dtype=torch.int64, device="cuda") for size in sizes],
    )
    taken = time.perf_counter() - start
    for weight in weights:
        weight.random_()
    kv_cache = peer.allocate(
        "kv_cache",
        lambda: [torch.zeros(n * MIB, dtype=torch.uint8, device="cuda") for n in KV_CACHE],
    )

    def contents():
        return [(weight.data_ptr(), int(weight.sum())) for weight in weights]

    expected = contents()
    cycles = []
    for _ in range(options.cycles):
        awake = used_bytes()
        sleep_s = timed(peer.sleep)
        asleep = used_bytes()
        wake_s = timed(peer.wake)
        cycles.append(
            {
                "sleep_s": round(sleep_s, 4),
                "sleep_gbps": round(total / sleep_s / 1e9, 2),
                "wake_s": round(wake_s, 4),
                "wake_gbps": round(total / wake_s / 1e9, 2),
                "used_awake_bytes": awake,
                "used_asleep_bytes": asleep,
                "bytes_same": contents() == expected,
            }
        )
    del kv_cache
    return {
        "peer": options.peer,
        "load": options.load,
        "torch": torch.__version__,
        "segments": len(sizes),
        "weight_bytes": total,
        "alloc_us_per_segment": round(taken * 1e6 / len(sizes), 1),
        "cycles": cycles,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--library", help="libpeer_cumem.so, for cumem")
    parser.add_argument("--tms-wheel", help="of torch_memory_saver; default: it is installed")
    options = parser.parse_args()
    if options.peer == "cumem" and not options.library:
        parser.error("cumem needs --library")
    print(json.dumps(measure(options)), flush=True)
    # PyTorch's pools end in an order that their allocators do not survive.
    os._exit(0)


if __name__ == "__main__":
    main()
