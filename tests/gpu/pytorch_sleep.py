"""A PyTorch transformer of two billion parameters sleeps and wakes through the daemon.

Its parameters live under the tag weights, its static KV cache under kv_cache, both through
torch.cuda.MemPool; activations stay in PyTorch's own pool. Sleep and WakeUp come over gRPC from
another process, torporctl. Ends with 0 if every check held.

    pytorch_sleep.py --bundle DIR [--out DIR] [--repeat N] [--batch N] [--context N]
"""

import argparse
import contextlib
import faulthandler
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pynvml
import torch
import transformers

import engine
import torpor
import torpor.torch
from figures import Figures
from torpor_daemon import Daemon, Programs, number, seconds

MIB = 1 << 20
NAME = "llama-2b"
# Kernels and libraries may load on the way; a sleep frees gigabytes.
SLACK = 64 * MIB


class DeviceMemory:
    """What the whole device uses, as NVML (nvidia-smi) and the CUDA driver see it."""

    def __init__(self):
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        self.uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
        except pynvml.NVMLError:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used(self):
        return pynvml.nvmlDeviceGetMemoryInfo(self._handle).used

    @staticmethod
    def free():
        return torch.cuda.mem_get_info()[0]

    @staticmethod
    def smi():
        query = "--query-gpu=name,driver_version,memory.used,memory.total"
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, check=False,
        )
        return done.stdout.strip() or done.stderr.strip()


class TimedPools:
    """Pools of PyTorch whose memory is the daemon's, and how long their scopes took."""

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def tag(self, tag):
        start = time.monotonic()
        with torpor.torch.memory_pool(tag):
            yield
        self.seconds[tag] = time.monotonic() - start


class Run:
    def __init__(self, options, daemon, figures):
        self.options = options
        self.daemon = daemon
        self.figures = figures
        self.memory = DeviceMemory()
        torch.cuda.init()
        self.session = torpor.connect(
            name=NAME, runtime_dir=daemon.runtime_dir, driver="cuda", quiesce=torpor.Quiesce.GUARD
        )
        torpor.torch.use(self.session)
        self.pools = TimedPools()
        self.engine = None
        self.logits = None

    # ---- The operator's side

    def sleep(self, *arguments, step):
        return self._operate("sleep", *arguments, step=step)

    def wake(self, *arguments, step):
        return self._operate("wake", *arguments, step=step)

    def _operate(self, command, *arguments, step):
        used, free = self.memory.used(), self.memory.free()
        start = time.monotonic()
        answer = self.daemon.ctl(command, f"--worker={NAME}", *arguments)
        wall = time.monotonic() - start
        moved = number(answer, "device_bytes")
        copied = number(answer, "copied_bytes")
        timing = answer["workers"][0]["timing"]
        total = seconds(timing["total"])
        parts = ", ".join(
            f"{part} {seconds(timing.get(part, '0s')) * 1000:.1f} ms"
            for part in ("quiesce", "copy", "worker", "handles")
        )
        self.figures.row(step, size=copied, seconds=total, note=f"{parts}; call {wall:.3f} s")
        sign = -1 if command == "sleep" else 1
        self._check_device(step, "NVML: used", sign * (self.memory.used() - used), moved)
        self._check_device(step, "driver: free", sign * (free - self.memory.free()), moved)
        return answer

    def _check_device(self, step, what, change, moved):
        self.figures.check(
            f"{step}: {what} changed by what the answer says",
            abs(change - moved) <= SLACK,
            f"{change:,} of {moved:,} bytes",
        )

    def tag_usage(self):
        for worker in self.daemon.ctl("usage")["workers"]:
            if worker["name"] == NAME:
                return {tag["tag"]: tag for tag in worker["tags"]}
        return {}

    def check_states(self, step, **states):
        """states: tag = resident, offloaded or discarded."""
        usage = self.tag_usage()
        for tag, state in states.items():
            sizes = {
                name: number(usage[tag], f"{name}_bytes")
                for name in ("resident", "offloaded", "discarded")
            }
            good = all((size > 0) == (name == state) for name, size in sizes.items())
            self.figures.check(f"{step}: {tag} is {state}", good, "" if good else sizes)

    # ---- The worker's side

    @contextlib.contextmanager
    def work(self, *tags, timeout=20):
        with self.session.work(*tags, timeout=timeout), torch.inference_mode():
            yield

    def outputs(self):
        """(prompt's logits, replayed graph's logits), on the host."""
        with self.work():
            prompt = self.engine.prefill()
            decoded = self.engine.replay()
        torch.cuda.synchronize()
        return prompt.cpu(), decoded.cpu()

    def check_outputs(self, step):
        prompt, decoded = self.outputs()
        self.figures.check(f"{step}: logits bit-equal", torch.equal(prompt, self.logits[0]))
        self.figures.check(
            f"{step}: the CUDA graph replays bit-equal", torch.equal(decoded, self.logits[1])
        )
        self.figures.check(
            f"{step}: same addresses", self.engine.addresses() == self.addresses
        )

    def check_asleep(self, step, *tags):
        try:
            with self.session.work(*tags, timeout=0):
                pass
            self.figures.check(f"{step}: the guard stays shut", False, "it opened")
        except torpor.TorporError as error:
            self.figures.check(f"{step}: the guard stays shut", error.reason == "ASLEEP", error)

    # ---- Steps

    def set_up(self):
        options, figures = self.options, self.figures
        figures.fact("device", self.memory.smi())
        figures.fact("PyTorch, transformers", f"{torch.__version__}, {transformers.__version__}")
        self.measure_link()
        free = self.memory.free()
        self.engine = engine.Engine(
            engine.two_billion(options.context),
            device="cuda", batch=options.batch, context=options.context,
            weights=lambda: self.pools.tag("weights"),
            kv_cache=lambda: self.pools.tag("kv_cache"),
        )
        with self.work():
            self.engine.fill_weights()
        torch.cuda.synchronize()
        usage = self.tag_usage()
        figures.fact("parameters", f"{self.engine.parameters():,}")
        for tag, size in (
            ("weights", self.engine.weights_bytes()), ("kv_cache", self.engine.kv_bytes())
        ):
            resident = number(usage[tag], "resident_bytes")
            figures.fact(f"{tag}: tensors", f"{size:,} bytes")
            figures.fact(f"{tag}: segments", f"{usage[tag]['segments']} of {resident:,} bytes")
            empty = [part for part in torpor.torch.segments(tag) if part.allocated == 0]
            figures.check(f"{tag}: no empty segment is left after the scope", not empty, empty)
            figures.row(f"allocate {tag}", size=resident, seconds=self.pools.seconds[tag])
        self.check_tags()
        figures.fact("device memory taken in all", f"{free - self.memory.free():,} bytes")
        with self.work():
            self.engine.prefill()
            self.engine.capture()
        self.logits = self.outputs()
        again = self.outputs()
        figures.check(
            "the model is deterministic",
            torch.equal(again[0], self.logits[0]) and torch.equal(again[1], self.logits[1]),
        )
        with self.work():
            eager = self.engine.decode()
        figures.check(
            "the CUDA graph computes what the kernels compute one by one",
            torch.allclose(eager.cpu().float(), self.logits[1].float(), atol=1e-2),
        )
        self.addresses = self.engine.addresses()
        with self.work():
            self.copy = self.engine.copy_of_weights()
        self.measure_allocation()

    def check_tags(self):
        kv_tensors = [*self.engine.kv_tensors(), *self.engine.kv_lengths()]
        for tag, tensors in (
            ("weights", self.engine.weights().values()), ("kv_cache", kv_tensors)
        ):
            tags = {self.session.segment(tensor.data_ptr()).tag for tensor in tensors}
            self.figures.check(f"{tag}: every tensor is in the daemon's memory", tags == {tag}, tags)

    def measure_link(self):
        size = 1024 * MIB
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        for name, to, source in (("to host", host, device), ("to device", device, host)):
            best = None
            for _ in range(4):
                torch.cuda.synchronize()
                start = time.monotonic()
                to.copy_(source, non_blocking=True)
                torch.cuda.synchronize()
                spent = time.monotonic() - start
                best = spent if best is None else min(best, spent)
            self.figures.row(f"link, pinned copy {name}", size=size, seconds=best)
        del host, device
        torch.cuda.empty_cache()

    def measure_allocation(self):
        for count, size in ((64, 2 * MIB), (8, 128 * MIB)):
            start = time.monotonic()
            addresses = [self.session.allocate("scratch", size) for _ in range(count)]
            allocated = time.monotonic()
            for address in addresses:
                self.session.free(address)
            freed = time.monotonic()
            what = f"{count} segments of {size // MIB} MiB"
            self.figures.row(f"allocate {what}", size=count * size, seconds=allocated - start)
            self.figures.row(f"free {what}", size=count * size, seconds=freed - allocated)

    def level_one(self):
        figures = self.figures
        with self.work("kv_cache"):
            self.engine.fill_kv()
        step = "level 1, first"
        self.sleep("--level=1", step=f"sleep, {step}")
        self.check_states(step, weights="offloaded", kv_cache="discarded")
        self.check_asleep(step, "weights")
        figures.fact("nvidia-smi while asleep", self.memory.smi())
        self.wake(step=f"wake, {step}")
        self.check_states(f"wake, {step}", weights="resident", kv_cache="resident")
        with self.work():
            figures.check(f"{step}: kv_cache comes back zeroed", self.engine.kv_is_zero())
            different = self.engine.different_weights(self.copy)
        figures.check(f"{step}: every byte of the weights is the same", not different, different)
        self.check_outputs(step)

    def again(self):
        for turn in range(2, self.options.repeat + 2):
            step = f"level 1, {turn}."
            self.sleep("--level=1", step=f"sleep, {step}")
            self.wake(step=f"wake, {step}")
            self.check_outputs(step)

    def while_busy(self):
        """Sleeps under a thread that submits work all the time."""
        stop = threading.Event()
        counts = {"replays": 0}
        errors = []

        def submit():
            try:
                while not stop.is_set():
                    with self.work():
                        self.engine.replay()
                    counts["replays"] += 1
                    torch.cuda.synchronize()
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        thread = threading.Thread(target=submit)
        thread.start()
        try:
            time.sleep(0.5)
            self.sleep("--level=1", step="sleep, level 1, under load")
            asleep = counts["replays"]
            time.sleep(0.3)
            self.figures.check(
                "under load: nothing is submitted while asleep", counts["replays"] == asleep
            )
            self.wake(step="wake, level 1, under load")
            time.sleep(0.5)
            self.figures.check(
                "under load: work goes on after the wake", counts["replays"] > asleep,
                f"{asleep} replays before, {counts['replays'] - asleep} after",
            )
        finally:
            stop.set()
            thread.join(timeout=30)
        self.figures.check("under load: no call failed", not errors, errors)
        self.check_outputs("under load")

    def level_two(self):
        step = "level 2"
        self.sleep("--level=2", step=f"sleep, {step}")
        self.check_states(step, weights="discarded", kv_cache="discarded")
        self.wake(step=f"wake, {step}")
        with self.work():
            self.figures.check(f"{step}: weights come back zeroed", self.engine.weights_are_zero())
            start = time.monotonic()
            self.engine.load_weights(self.copy)
            torch.cuda.synchronize()
            spent = time.monotonic() - start
        self.figures.row(
            "reload in place from pageable memory", size=self.engine.weights_bytes(), seconds=spent
        )
        self.check_outputs(step)

    def tag_by_tag(self):
        step = "by tag"
        with self.work("kv_cache"):
            self.engine.fill_kv()
        self.sleep("--level=1", step=f"sleep, {step}")
        self.wake("--tag=weights", step=f"wake weights, {step}")
        self.check_states(step, weights="resident", kv_cache="discarded")
        self.check_asleep(f"{step}, kv_cache asleep", "kv_cache")
        with self.work("weights", timeout=0):
            different = self.engine.different_weights(self.copy)
        self.figures.check(f"{step}: weights work while kv_cache sleeps", not different, different)
        self.wake("--tag=kv_cache", step=f"wake kv_cache, {step}")
        with self.work():
            self.figures.check(f"{step}: kv_cache comes back zeroed", self.engine.kv_is_zero())
        self.check_outputs(step)


def diagnose(run, daemon):
    print("---- torpord", daemon.process.poll(), daemon.log_tail(80), sep="\n", flush=True)
    for what in (
        lambda: daemon.ctl("usage"),
        DeviceMemory.smi,
        torpor.torch.last_error,
        lambda: torch.cuda.memory_summary(abbreviated=True),
    ):
        try:
            print(what(), flush=True)
        except Exception as error:  # pylint: disable=broad-except
            print(f"no diagnosis: {error}", flush=True)
    print("----", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(420, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("A PyTorch transformer asleep and awake")
    run = None
    daemon = Daemon(
        Programs(bundle=options.bundle), "--driver=cuda", "--host_pool=12GiB",
        "--worker_deadline=20s", log=out / "pytorch-torpord.log",
    )
    try:
        run = Run(options, daemon, figures)
        for step in (
            run.set_up, run.level_one, run.again, run.while_busy, run.level_two, run.tag_by_tag,
        ):
            print(f"== {step.__name__}", flush=True)
            try:
                step()
            except Exception:
                traceback.print_exc()
                figures.check(f"{step.__name__} runs to its end", False)
                diagnose(run, daemon)
                if step == run.set_up:
                    raise
                # The next step starts awake, with its weights.
                daemon.ctl("wake", f"--worker={NAME}")
                with run.work():
                    run.engine.load_weights(run.copy)
    except Exception:
        traceback.print_exc()
        figures.check("the run reaches its end", False)
        diagnose(run, daemon)
    finally:
        figures.write(out, "pytorch")
        status = daemon.close()
    print(f"torpord ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
