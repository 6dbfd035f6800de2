"""The scenarios that users of torch_memory_saver rely on, through torpor.compat.torch_memory_saver,
and its C interface: addresses that stay, graphs that replay, bytes with a cpu backup right after
resume, odd sizes, memory freed while paused, nested regions. Ends with 0 if every check held.

    compat_tms.py --bundle DIR [--out DIR]

The package, torpor, has to be importable.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import pathlib
import sys
import time
import traceback

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)

import torch

import torpor
import torpor.compat.torch_memory_saver
import torpor.torch
from figures import Figures
from torpor_daemon import Daemon, Programs

torpor.compat.torch_memory_saver.install()

from torch_memory_saver import configure_subprocess, torch_memory_saver

MIB = 1 << 20
SLACK = 64 * MIB


def free_bytes():
    """Of the device, without what PyTorch only holds."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def full(size, value):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


class Run:
    def __init__(self, daemon, figures):
        self.daemon = daemon
        self.figures = figures
        self.saver = torch_memory_saver

    @property
    def session(self):
        return torpor.torch.session_of(0)

    def check_change(self, what, before, expected):
        """That the device's free memory has grown by `expected` bytes since `before`."""
        change = free_bytes() - before
        self.figures.check(what, abs(change - expected) <= SLACK, f"{change:,} of {expected:,}")

    # ---- Scenarios

    def simple(self):
        """Two regions, one of them with a backup, paused and resumed several times."""
        size = 1024 * MIB
        with self.saver.region(tag="kv_cache"):
            cache = full(size, 1)
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weights = full(size, 2)
        self.figures.check("the first region has opened the session", self.session is not None)
        addresses = cache.data_ptr(), weights.data_ptr()
        for turn in range(3):
            before = free_bytes()
            start = time.monotonic()
            self.saver.pause()
            self.figures.row(f"pause {turn + 1}", size=2 * size, seconds=time.monotonic() - start)
            self.check_change(f"pause {turn + 1}: memory is free", before, 2 * size)
            start = time.monotonic()
            self.saver.resume()
            self.figures.row(f"resume {turn + 1}", size=2 * size, seconds=time.monotonic() - start)
            self.check_change(f"resume {turn + 1}: memory is taken", before, 0)
            self.figures.check(
                f"resume {turn + 1}: same addresses",
                addresses == (cache.data_ptr(), weights.data_ptr()),
            )
            self.figures.check(f"resume {turn + 1}: backed up bytes", bool((weights == 2).all()))
            self.figures.check(f"resume {turn + 1}: others are zero", bool((cache == 0).all()))
            cache.fill_(1)

    def tags(self):
        """One tag at a time, in any order; twice is as once."""
        with self.saver.region(tag="one", enable_cpu_backup=True):
            one = full(200 * MIB, 1)
        with self.saver.region(tag="two", enable_cpu_backup=True):
            two = full(200 * MIB, 2)
        before = free_bytes()
        self.saver.pause("one")
        self.check_change("pause of one tag", before, 200 * MIB)
        self.figures.check("the other works", bool((two == 2).all()))
        self.saver.pause("one")
        self.saver.pause("two")
        self.check_change("pause of the other", before, 400 * MIB)
        self.saver.resume("two")
        self.figures.check("resume in another order", bool((two == 2).all()))
        self.saver.resume("one")
        self.saver.resume("one")
        self.figures.check("resume of the first", bool((one == 1).all()))

    def backup(self):
        """With and without a backup under the default tag; other memory is taken meanwhile."""
        with self.saver.region(enable_cpu_backup=True):
            kept = full(20_000_000, 10)
            typed = torch.full((10, 20, 30), 1.5, dtype=torch.float32, device="cuda")
        with self.saver.region(enable_cpu_backup=False):
            dropped = full(20_000_000, 20)
        self.saver.pause()
        try:
            self.saver.get_cpu_backup(typed)
            self.figures.check("a backup cannot be had while paused", False, "there is one")
        except NotImplementedError as error:
            self.figures.check("a backup cannot be had while paused", True, error)
        unrelated = full(200_000_000, 30)
        self.saver.resume()
        self.figures.check("bytes right after resume", bool((kept == 10).all()))
        self.figures.check("typed values right after resume", bool((typed == 1.5).all()))
        self.figures.check("without a backup: zero", bool((dropped == 0).all()))
        self.figures.check("ordinary memory is untouched", bool((unrelated == 30).all()))
        self.figures.check("no backup while not paused", self.saver.get_cpu_backup(kept) is None)

    def odd_sizes(self):
        sizes = [1, 3, 511, 513, MIB - 1, MIB + 1, 2 * MIB - 1, 2 * MIB + 1, 10 * MIB + 7,
                 20 * MIB - 3, 33_333_333, 123_456_789]
        generator = torch.Generator(device="cuda").manual_seed(3)
        with self.saver.region(tag="odd", enable_cpu_backup=True):
            tensors = [
                torch.randint(
                    0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator
                )
                for size in sizes
            ]
        copies = [tensor.cpu() for tensor in tensors]
        addresses = [tensor.data_ptr() for tensor in tensors]
        for _ in range(2):
            self.saver.pause("odd")
            self.saver.resume("odd")
            wrong = [
                size for size, tensor, copy in zip(sizes, tensors, copies)
                if not torch.equal(tensor.cpu(), copy)
            ]
            self.figures.check("odd sizes have their bytes", not wrong, wrong)
        self.figures.check(
            "odd sizes stay where they are", addresses == [t.data_ptr() for t in tensors]
        )

    def free_while_paused(self):
        with self.saver.region(tag="going", enable_cpu_backup=True):
            tensors = [full(100 * MIB, value) for value in range(4)]
        self.saver.pause("going")
        before = free_bytes()
        del tensors[1:3]
        torch.cuda.empty_cache()
        self.figures.check(
            "freed while paused", self.session.usage().tags["going"].segments == 2
        )
        self.saver.resume("going")
        self.check_change("only what is left comes back", before, -200 * MIB)
        self.figures.check(
            "with its bytes", [int(t[0]) for t in tensors] == [0, 3]
            and all(bool((t == t[0]).all()) for t in tensors),
        )
        self.saver.pause("going")
        tensors.clear()
        torch.cuda.empty_cache()
        self.saver.resume("going")
        self.figures.check("all of it freed", self.session.usage().tags["going"].segments == 0)

    def nested(self):
        """A region without a backup within one that has one."""
        with self.saver.region(tag="model", enable_cpu_backup=True):
            weight = full(40 * MIB, 42)
            with self.saver.region(tag="gradients"):
                gradient = full(40 * MIB, 99)
            later = full(40 * MIB, 7)
        tags = [self.session.segment(t.data_ptr()).tag for t in (weight, gradient, later)]
        self.figures.check("tags of nested regions", tags == ["model", "gradients", "model"], tags)
        before = free_bytes()
        self.saver.pause()
        self.check_change("nested: all is free", before, 120 * MIB)
        self.saver.resume()
        self.figures.check("nested: the outer's bytes", bool((weight == 42).all())
                           and bool((later == 7).all()))
        self.figures.check("nested: the inner's are zero", bool((gradient == 0).all()))
        gradient.fill_(3)
        self.figures.check("nested: it is writable", int(gradient.max()) == 3)

    def disable(self):
        """Ordinary memory within a region, also while everything is paused."""
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weights = full(100 * MIB, 5)
            self.saver.pause()
            before = free_bytes()
            with self.saver.disable():
                scratch = full(500 * MIB, 53)
                self.figures.check("work while paused", bool((scratch == 53).all()))
                del scratch
            self.check_change("what was taken while disabled is free again", before, 0)
            self.saver.resume()
        self.figures.check("disabled: the bytes are as before", bool((weights == 5).all()))

    def graph(self):
        """A graph over memory of regions replays after pause and resume."""
        hidden = 1024
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weight = torch.randn(hidden, hidden, device="cuda")
        with self.saver.region(tag="kv_cache"):
            cache = torch.zeros(64, hidden, device="cuda")
        entry = torch.randn(64, hidden, device="cuda")
        graph = torch.cuda.CUDAGraph()
        out = torch.empty(64, hidden, device="cuda")

        def step():
            cache.copy_(torch.tanh(entry @ weight))
            out.copy_(cache + entry)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        torch.cuda.synchronize()
        expected = out.clone()
        for turn in range(3):
            self.saver.pause()
            self.saver.resume()
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.figures.check(f"graph replays after resume {turn + 1}", torch.equal(out, expected))

    def graph_memory(self):
        """A graph's own memory is paused, for two graphs that share a pool."""
        entry = torch.randn(4096, 4096, device="cuda")
        out = [torch.empty(4096, 4096, device="cuda") for _ in range(2)]
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        handle = torch.cuda.graph_pool_handle()

        def step(index):
            middle = entry * 2 + index  # 64 MiB each
            middle = torch.sin(middle) + torch.cos(middle)
            out[index].copy_(middle)

        for index in range(2):
            step(index)
        torch.cuda.synchronize()
        expected = [tensor.clone() for tensor in out]
        stream = torch.cuda.Stream()
        for index, graph in enumerate(graphs):
            with self.saver.cuda_graph(graph, pool=handle, stream=stream, tag="cuda_graph"):
                step(index)
        usage = self.session.usage().tags["cuda_graph"]
        self.figures.check(
            "intermediates of graphs are the daemon's", usage.resident_bytes >= 128 * MIB, usage
        )
        for turn in range(3):
            before = free_bytes()
            self.saver.pause("cuda_graph")
            self.check_change("pause of graphs' memory", before, usage.resident_bytes)
            self.saver.resume("cuda_graph")
            for index, graph in enumerate(graphs):
                out[index].zero_()
                graph.replay()
                torch.cuda.synchronize()
                self.figures.check(
                    f"graph {index + 1} replays after resume {turn + 1}",
                    torch.equal(out[index], expected[index]),
                )
        for graph in graphs:
            graph.reset()

    def no_room(self):
        """A resume that finds no room raises, and leaves everything asleep."""
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weights = full(4096 * MIB, 6)
        self.saver.pause("weights")
        # Torpor counts what its workers have: another tag takes all that is left.
        available = self.session.usage().available_bytes
        taken = self.session.allocate("other", available - 1024 * MIB)
        try:
            self.saver.resume("weights")
            self.figures.check("no room: resume raises", False, "it did not")
        except torpor.errors.ResourceExhausted as error:
            self.figures.check("no room: resume raises", True, error)
        self.session.free(taken)
        self.saver.resume("weights")
        self.figures.check("no room: the bytes came later", bool((weights == 6).all()))

    def reload(self):
        """As trainers do: weights are dropped, resumed and filled again in place."""
        with self.saver.region(tag="weights"):
            layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
        layer.requires_grad_(False)
        entry = torch.randn(8, 4096, device="cuda")
        copy = layer.weight.cpu()
        expected = layer(entry)
        for turn in range(3):
            self.saver.pause("weights")
            self.saver.resume("weights")
            self.figures.check(f"reload {turn + 1}: zero before", not bool(layer.weight.any()))
            layer.weight.copy_(copy)
            self.figures.check(
                f"reload {turn + 1}: same result", torch.equal(layer(entry), expected)
            )

    def many(self):
        """Twenty turns leave host and device memory as they were."""
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            weights = full(1024 * MIB, 8)
        samples = []
        for _ in range(20):
            self.saver.pause()
            self.saver.resume()
            status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
            anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            samples.append((free_bytes(), int(anonymous.split()[1]) * 1024))
        self.figures.check("20 turns: the bytes are there", bool((weights == 8).all()))
        for name, index, bound in (("device", 0, 16 * MIB), ("host", 1, 32 * MIB)):
            grown = samples[-1][index] - samples[3][index]
            self.figures.check(
                f"20 turns: {name} memory is flat", abs(grown) <= bound, f"{grown:,}"
            )

    def surface(self):
        with configure_subprocess():
            self.figures.check(
                "no LD_PRELOAD", "memory_saver" not in os.environ.get("LD_PRELOAD", "")
            )
        self.saver.hook_mode = "torch"
        self.figures.check("enabled", self.saver.enabled)

    def c_interface(self):
        """libtorpor_tms.so under PyTorch, as a program that loads the hook library uses it."""
        path = pathlib.Path(torpor.__file__).with_name("libtorpor_tms.so")
        library = ctypes.CDLL(str(path))
        library.tms_set_current_tag.argtypes = [ctypes.c_char_p]
        library.tms_set_interesting_region.argtypes = [ctypes.c_bool]
        library.tms_set_enable_cpu_backup.argtypes = [ctypes.c_bool]
        library.tms_pause.argtypes = [ctypes.c_char_p]
        library.tms_resume.argtypes = [ctypes.c_char_p]
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(path), "tms_torch_malloc", "tms_torch_free"
        )
        pools = []
        tensors = {}
        for tag, backup in (("c_weights", True), ("c_cache", False)):
            pool = torch.cuda.MemPool(self.allocator.allocator())
            pools.append(pool)
            library.tms_set_current_tag(tag.encode())
            library.tms_set_interesting_region(True)
            library.tms_set_enable_cpu_backup(backup)
            with torch.cuda.use_mem_pool(pool):
                tensors[tag] = full(300 * MIB + 1, 11)
            library.tms_set_interesting_region(False)
            found = self.session.segment(tensors[tag].data_ptr()).tag
            self.figures.check(f"C: {tag} is the daemon's", found == tag, found)
        before = free_bytes()
        codes = [library.tms_pause(b"c_weights"), library.tms_pause(b"c_cache")]
        self.check_change("C: pause", before, 2 * 302 * MIB)
        codes += [library.tms_resume(None)]
        self.check_change("C: resume", before, 0)
        self.figures.check("C: every call worked", codes == [0, 0, 0], codes)
        self.figures.check("C: backed up bytes", bool((tensors["c_weights"] == 11).all()))
        self.figures.check("C: others are zero", bool((tensors["c_cache"] == 0).all()))
        tensors.clear()
        del pool
        pools.clear()  # PyTorch frees what they have
        left = [self.session.usage().tags[tag].segments for tag in ("c_weights", "c_cache")]
        self.figures.check("C: freed with its pool", left == [0, 0], left)


SCENARIOS = ("simple", "tags", "backup", "odd_sizes", "free_while_paused", "nested", "disable",
             "graph", "graph_memory", "no_room", "reload", "many", "surface", "c_interface")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(300, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("torch_memory_saver's interface")
    daemon = Daemon(
        Programs(bundle=options.bundle), "--driver=cuda", "--host_pool=12GiB",
        log=out / "compat-torpord.log",
    )
    # The first region opens the session.
    os.environ.update(
        TORPOR_RUNTIME_DIR=str(daemon.runtime_dir), TORPOR_DRIVER="cuda",
        TORPOR_WORKER_NAME="compat",
    )
    try:
        figures.fact("Python, PyTorch, torpor",
                     f"{sys.version.split()[0]}, {torch.__version__}, {torpor.__version__}")
        figures.fact("device", torch.cuda.get_device_name(0))
        run = Run(daemon, figures)
        for name in options.scenarios.split(","):
            print(f"== {name}", flush=True)
            start = time.monotonic()
            try:
                getattr(run, name)()
                torch.cuda.synchronize()
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()
                figures.check(f"{name} runs to its end", False)
                print(daemon.log_tail(40), torpor.torch.last_error(), sep="\n", flush=True)
                with contextlib.suppress(torpor.TorporError):
                    torch_memory_saver.resume()
            gc.collect()
            torch.cuda.empty_cache()
            print(f"   {time.monotonic() - start:.1f} s", flush=True)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        figures.check("the run reaches its end", False)
    finally:
        figures.write(out, "compat")
        status = daemon.close()
    print(f"torpord ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
