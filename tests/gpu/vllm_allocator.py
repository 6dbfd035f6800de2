"""vLLM's allocator and sleep-mode backend on a GPU, with PyTorch's own pools and without vLLM.

What vLLM and its tests ask of the allocator, and a transformer of two billion parameters that a
worker would put to sleep at levels 1 and 2. vLLM's factory of backends is the stand-in of
tests/python/vllm_stubs. Ends with 0 if every check held.

    vllm_allocator.py --bundle DIR [--out DIR] [--cycles N]
"""

import argparse
import faulthandler
import gc
import os
import pathlib
import sys
import time
import traceback
import types

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import engine
from figures import Figures
from torpor_daemon import CommandFailed, Daemon, Programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Last, so that an installed package and the real PyTorch come first.
sys.path += [str(ROOT / "client/python"), str(ROOT / "tests/python/vllm_stubs")]

MIB = 1 << 20
GIB = 1 << 30
GRANULARITY = 2 * MIB
NAME = "vllm-worker"
ENDPOINT = "POST http://localhost:8000/sleep"
# Kernels and libraries may load on the way.
SLACK = 64 * MIB


def free_bytes():
    """As the driver sees it, without what PyTorch holds for no tensor."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def bytes_on_gpu(size):
    """Bytes of a pattern that no two tensors share, in the memory of the current scope."""
    bytes_on_gpu.seed += 1
    generator = torch.Generator(device="cuda").manual_seed(bytes_on_gpu.seed)
    made = torch.empty(size, dtype=torch.uint8, device="cuda")
    return made.random_(0, 256, generator=generator)


bytes_on_gpu.seed = 0


class Run:
    def __init__(self, options, daemon, figures):
        import torpor
        from torpor.vllm.allocator import CuMemAllocator
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        self.torpor = torpor
        self.options = options
        self.daemon = daemon
        self.figures = figures
        self.allocator = CuMemAllocator.get_instance()
        torpor.vllm.register()
        model = types.SimpleNamespace(enable_sleep_mode=True, sleep_mode_backend="torpor")
        self.backend = SleepModeBackendFactory.create_backend(model)
        torch.cuda.init()

    def check(self, what, good, detail=""):
        return self.figures.check(f"{self.step}: {what}", good, "" if good else detail)

    def equal(self, what, tensor, copy):
        self.check(f"{what} is the same", torch.equal(tensor, copy))

    def pool(self, tag=None):
        return self.allocator.use_memory_pool(tag)

    def states(self):
        """{tag: asleep} of everything that is allocated; "mixed" for a tag with both."""
        found = {}
        for data in self.allocator.pointer_to_data.values():
            known = found.setdefault(data.tag, data.is_asleep)
            if known != data.is_asleep:
                found[data.tag] = "mixed"
        return found

    def mapped(self):
        """Bytes of this process that the daemon has on the device."""
        (session,) = [s for s in self.torpor.sessions() if s.device == 0]
        return sum(tag.resident_bytes for tag in session.usage().tags.values())

    def timed(self, what, size, function, *arguments):
        torch.cuda.synchronize()
        start = time.monotonic()
        function(*arguments)
        self.figures.row(f"{self.step}: {what}", size=size, seconds=time.monotonic() - start)

    def run(self, step):
        self.step = step.__name__.strip("_").replace("_", " ")
        print(f"== {self.step}", flush=True)
        try:
            step()
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            self.check("runs to its end", False, f"{type(error).__name__}: {error}")
            print("---- torpord", self.daemon.log_tail(40), "----", sep="\n", flush=True)
        gc.collect()
        torch.cuda.synchronize()
        self.allocator.wake_up()
        self.allocator.release_pools()
        left = self.allocator.get_current_usage()
        self.check("everything is given back", left == 0, f"{left:,} bytes are left")

    # ---- Scenarios

    def pools_beside_pytorchs_own(self):
        ordinary = torch.zeros(1024, 1024, device="cuda")
        with self.pool():
            ones = torch.ones(1024, 1024, device="cuda")
            twos = torch.full((1024, 1024), 2.0, device="cuda")
        self.check("all add up", bool((ordinary + ones + twos == 3).all()))
        addresses = ones.data_ptr(), twos.data_ptr()
        free = free_bytes()
        self.allocator.sleep()
        self.check("a sleep frees memory", free_bytes() > free)
        self.allocator.wake_up()
        self.check("all add up after the wake", bool((ordinary + ones + twos == 3).all()))
        self.check("same addresses", addresses == (ones.data_ptr(), twos.data_ptr()))

    def mapped_bytes(self):
        sizes = [1, 3 * MIB + 1, 10 * MIB - 1, 21 * MIB + 7, 1 * GIB + 513]
        with self.pool("weights"):
            tensors = [bytes_on_gpu(size) for size in sizes]
        copies = [tensor.clone() for tensor in tensors]
        usage = self.allocator.get_current_usage()
        parts = [data.handle[1] for data in self.allocator.pointer_to_data.values()]
        self.check("sizes are multiples of 2 MiB", all(p % GRANULARITY == 0 for p in parts), parts)
        self.check("sizes add up", sum(parts) == usage == self.mapped(), (usage, self.mapped()))
        self.check("large ones have no padding", 1 * GIB + GRANULARITY in parts, parts)
        for turn in (1, 2, 3):
            free = free_bytes()
            self.timed(f"sleep {turn}", usage, self.allocator.sleep, "weights")
            self.check(f"nothing is mapped asleep, {turn}", self.mapped() == 0, self.mapped())
            freed = free_bytes() - free
            self.check(f"the driver has it, {turn}", abs(freed - usage) <= SLACK, (freed, usage))
            self.timed(f"wake {turn}", usage, self.allocator.wake_up)
            self.check(f"as much is mapped after, {turn}", self.mapped() == usage, self.mapped())
        for tensor, copy in zip(tensors, copies):
            self.equal(f"a tensor of {tensor.nbytes:,} bytes", tensor, copy)

    def out_of_memory_on_wake(self):
        with self.pool():
            tensor = bytes_on_gpu(6 * GIB)
        copy = tensor.cpu()
        self.allocator.sleep()
        hog = torch.empty(free_bytes() - 3 * GIB, dtype=torch.uint8, device="cuda")
        try:
            self.allocator.wake_up()
            self.check("a wake without room raises RuntimeError", False, "it did not")
        except RuntimeError as error:
            print(f"  {error}", flush=True)
            self.check("its text has the numbers", "available_bytes" in str(error), error)
        self.check("everything sleeps on", self.states() == {"default": True}, self.states())
        del hog
        self.allocator.wake_up()
        self.check("it wakes when there is room", self.states() == {"default": False})
        self.equal("the tensor", tensor, copy.cuda())

    def an_allocation_after_a_refused_one(self):
        too_large = 2 * torch.cuda.mem_get_info()[1]
        with self.pool("weights"):
            before = bytes_on_gpu(30 * MIB)
            copy = before.cpu()
            for _ in range(2):
                try:
                    torch.empty(too_large, dtype=torch.uint8, device="cuda")
                    self.check("too large a tensor is refused", False)
                except torch.OutOfMemoryError:
                    pass
            after = torch.full((30 * MIB,), 7, dtype=torch.uint8, device="cuda")
        self.equal("what was there before", before, copy.cuda())
        self.check("the next allocation works", bool((after == 7).all()))

    def discard_of_a_tag(self):
        with self.pool("weights"):
            weights = bytes_on_gpu(512 * MIB)
        with self.pool("kv_cache"):
            cache = bytes_on_gpu(1 * GIB)
        copy = weights.clone()
        free = free_bytes()
        self.allocator.discard("kv_cache")
        freed = free_bytes() - free
        self.check("at least the tag's bytes are free", freed >= cache.nbytes, freed)
        self.check(
            "only the tag sleeps", self.states() == {"weights": False, "kv_cache": True},
            self.states(),
        )
        self.equal("weights, in use meanwhile,", weights, copy)
        # A sleep cannot change what sleeps already.
        self.allocator.sleep(("weights", "kv_cache"))
        self.allocator.wake_up(["weights"])
        self.equal("weights after a sleep of their own", weights, copy)
        self.check("the other tag sleeps on", self.states()["kv_cache"] is True)
        self.allocator.wake_up(["kv_cache"])
        self.check("it comes back zeroed", not bool(cache.any()))

    def selective_wakes(self):
        tags = ("weights", "kv_cache", "runtime", "scratch", "default")
        tensors = {}
        for tag in tags:
            with self.pool(tag):
                tensors[tag] = bytes_on_gpu(40 * MIB)
        copies = {tag: tensor.clone() for tag, tensor in tensors.items()}
        kept = ("weights", "runtime", "default")
        for woken in ([], ["weights"], ["kv_cache"], ["runtime"], ["weights", "kv_cache"]):
            self.allocator.sleep(kept)
            self.check("everything sleeps", all(self.states().values()), self.states())
            self.allocator.wake_up(woken)
            expected = {t: t in ("weights", "kv_cache") and t not in woken for t in tags}
            self.check(f"waking {woken} maps no more", self.states() == expected, self.states())
            self.allocator.wake_up()
            self.check("and then all of it", not any(self.states().values()), self.states())
            for tag in tags:
                if tag in kept:
                    self.equal(f"{tag}, after waking {woken},", tensors[tag], copies[tag])
                else:
                    self.check(f"{tag} is zero", not bool(tensors[tag].any()))
                    tensors[tag].copy_(copies[tag])

    def a_graph_over_discarded_scratch(self):
        with self.pool():
            weight = torch.eye(1024, device="cuda")
        with self.pool("discard"):
            cache = torch.empty(1024, 1024, device="cuda")

        def model(x):
            out = x @ weight
            cache[: out.size(0)].copy_(out)
            return out + 1

        x = torch.zeros(128, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        address = cache.data_ptr()
        for turn in (1, 2):
            free = free_bytes()
            self.allocator.sleep()
            self.check(f"memory is free, {turn}", free_bytes() > free)
            self.allocator.wake_up()
            self.check(f"scratch comes back zeroed, {turn}", not bool(cache.any()))
            x.normal_()
            graph.replay()
            self.check(f"scratch is where it was, {turn}", cache.data_ptr() == address)
            self.check(f"the graph writes it, {turn}", torch.allclose(x, cache[:128], atol=1e-2))
            self.check(f"the graph's result, {turn}", torch.allclose(y, x + 1, atol=1e-2))
        graph.reset()

    def several_pools_for_a_tag(self):
        tensors = []
        for _ in range(4):
            with self.pool("weights"):
                tensors.append(bytes_on_gpu(24 * MIB + 3))
                scratch = bytes_on_gpu(200 * MIB)
                tensors.append(bytes_on_gpu(100))
                del scratch
        pools = self.allocator.allocator_and_pools["weights"]
        self.check("each entry has a pool", len(pools) == 4, len(pools))
        usage = self.allocator.get_current_usage()
        self.check("emptied segments have gone back", usage < 200 * MIB, usage)
        copies = [tensor.clone() for tensor in tensors]
        self.allocator.sleep("weights")
        # What is freed asleep is gone after the wake; the rest is there.
        del tensors[4:], copies[4:]
        with self.pool("weights"):
            fresh = torch.full((24 * MIB,), 3, dtype=torch.uint8, device="cuda")
        self.check("a tag that sleeps takes new memory", self.states() == {"weights": "mixed"})
        self.allocator.wake_up()
        for tensor, copy in zip(tensors, copies):
            self.equal("a tensor", tensor, copy)
        self.check("the new one, too", bool((fresh == 3).all()))

    def nested_pools(self):
        with self.pool("runtime"):
            outer = bytes_on_gpu(24 * MIB)
            with self.pool("kv_cache"):
                inner = bytes_on_gpu(24 * MIB)
            again = bytes_on_gpu(24 * MIB)
        tags = {}
        for name, tensor in (("outer", outer), ("inner", inner), ("again", again)):
            tags[name] = self.allocator.pointer_to_data[tensor.data_ptr()].tag
        expected = {"outer": "runtime", "inner": "kv_cache", "again": "runtime"}
        self.check("the innermost tag counts", tags == expected, tags)

    def nobody_elses_bytes(self):
        with self.pool("weights"):
            weights = bytes_on_gpu(2 * GIB)
        self.allocator.sleep(())
        secret = b"\x5a" * (512 * MIB)
        with self.torpor.connect(name="neighbour", driver="cuda") as neighbour:
            addresses = [neighbour.allocate("secret", len(secret)) for _ in range(6)]
            for address in addresses:
                neighbour.write(address, secret)
        self.allocator.wake_up()
        self.check("dropped memory comes back zeroed", not bool(weights.any()))

    def refused_from_outside(self):
        with self.pool("weights"):
            weights = bytes_on_gpu(64 * MIB)
        copy = weights.clone()
        try:
            self.daemon.ctl("sleep", f"--worker={NAME}", "--level=1")
            self.check("a Sleep from outside is refused", False, "it was not")
        except CommandFailed as error:
            said = str(error)
            self.check("a Sleep from outside is refused", "WORKER_NOT_QUIESCIBLE" in said, said)
            self.check("the refusal names the engine's endpoint", ENDPOINT in said, said)
        self.equal("weights", weights, copy)

    # ---- A model

    def a_transformer(self):
        model = engine.Engine(
            engine.two_billion(2048), device="cuda", batch=4, context=2048,
            weights=lambda: self.pool("weights"), kv_cache=lambda: self.pool("kv_cache"),
        )
        with torch.inference_mode():
            self._check_transformer(model)

    def _check_transformer(self, model):
        model.fill_weights()
        copy = model.copy_of_weights()
        model.prefill()
        model.capture()

        def outputs():
            model.prefill()
            return model.replay().clone()

        expected = outputs()
        self.check("the model is deterministic", torch.equal(outputs(), expected))
        usage = self.allocator.get_current_usage()
        addresses = model.addresses()
        free = free_bytes()
        for turn in range(1, self.options.cycles + 1):
            model.fill_kv()
            self.timed(f"suspend at level 1, {turn}", usage, self.backend.suspend, 1)
            if turn == 1:
                freed = free_bytes() - free
                self.check("its memory is free", freed >= usage - SLACK, (freed, usage))
                self.check("it says so", self.backend.state() == "SUSPENDED")
            self.timed(f"resume, {turn}", usage, self.backend.resume)
        self.check("memory stays flat", abs(free_bytes() - free) <= SLACK, free - free_bytes())
        different = model.different_weights(copy)
        self.check("every byte of the weights is the same", not different, different)
        self.check("the KV cache is zero", model.kv_is_zero())
        self.check("same outputs", torch.equal(outputs(), expected))

        self.backend.suspend(1)
        self.backend.resume(["weights"])
        self.check("half awake is not running", self.backend.state() == "SUSPENDED")
        different = model.different_weights(copy)
        self.check("weights work while the KV cache sleeps", not different, different)
        self.backend.resume(["kv_cache"])
        self.check("then it runs", self.backend.state() == "RUNNING")

        self.timed("suspend at level 2", usage, self.backend.suspend, 2)
        self.timed("resume from level 2", usage, self.backend.resume)
        self.check("weights come back zeroed", model.weights_are_zero())
        model.load_weights(copy)
        self.check("same outputs with the weights reloaded", torch.equal(outputs(), expected))
        self.check("same addresses", model.addresses() == addresses)
        model.graph.reset()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--cycles", type=int, default=5)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(280, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    programs = Programs(bundle=options.bundle)
    figures = Figures("vLLM's allocator and sleep-mode backend on Torpor")
    daemon = Daemon(
        programs, "--driver=cuda", "--host_pool=16GiB", log=out / "vllm-torpord.log"
    )
    os.environ.update(
        TORPOR_RUNTIME_DIR=str(daemon.runtime_dir),
        TORPOR_DRIVER="cuda", TORPOR_WORKER_NAME=NAME, TORPOR_SLEEP_ENDPOINT=ENDPOINT,
    )
    try:
        run = Run(options, daemon, figures)
        figures.fact("device", torch.cuda.get_device_name())
        figures.fact("PyTorch", torch.__version__)
        for step in (
            run.pools_beside_pytorchs_own, run.mapped_bytes, run.out_of_memory_on_wake,
            run.an_allocation_after_a_refused_one, run.discard_of_a_tag, run.selective_wakes,
            run.a_graph_over_discarded_scratch, run.several_pools_for_a_tag, run.nested_pools,
            run.nobody_elses_bytes, run.refused_from_outside, run.a_transformer,
        ):
            run.run(step)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        figures.check("the run reaches its end", False)
        print("---- torpord", daemon.process.poll(), daemon.log_tail(80), sep="\n", flush=True)
    finally:
        figures.write(out, "vllm")
        status = daemon.close()
    print(f"torpord ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    for check in failed:
        print(f"  FAILED {check['check']}: {check['detail']}")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
