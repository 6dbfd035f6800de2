"""PyTorch through the Python package: models that sleep and wake, and what the package costs.

A transformer of two billion parameters and one of 7B shape generate the same tokens before and
after sleep; CUDA graphs, also with their own memory asleep; a compiled model; 50 cycles with flat
memory; the allocator's corners. Ends with 0 if every check held.

    package_torch.py --bundle DIR [--out DIR] [--cycles N] [--small]

The package, torpor, has to be importable. --small takes small models, to try the program out.
"""

import argparse
import contextlib
import faulthandler
import gc
import os
import pathlib
import statistics
import sys
import threading
import time
import traceback

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import engine
import torpor
import torpor.torch as tt
from figures import Figures
from torpor import Policy, Quiesce
from torpor_daemon import Daemon, Programs, number

MIB = 1 << 20
NAME = "package"
# Kernels and libraries may load on the way.
SLACK = 64 * MIB


def free_bytes():
    """As the driver sees it, of the whole device."""
    return torch.cuda.mem_get_info()[0]


def resident_bytes(pid):
    """Of a process, in host memory of its own: what is shared (a pinned pool) is not counted."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        fields[key] = value
    return int(fields["RssAnon"].split()[0]) * 1024


def descriptors(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


class Run:
    def __init__(self, options, daemon, figures):
        self.options = options
        self.daemon = daemon
        self.figures = figures
        torch.cuda.init()
        self.session = torpor.connect(
            name=NAME, runtime_dir=daemon.runtime_dir, driver="cuda", quiesce=Quiesce.GUARD
        )
        tt.use(self.session)
        self.engine = None

    # ---- Helpers

    @contextlib.contextmanager
    def work(self):
        with self.session.work(timeout=20), torch.inference_mode():
            yield

    def usage(self, tag):
        return self.session.usage().tags.get(tag, torpor.TagUsage(0, 0, 0, 0))

    def sleep(self, step, *arguments, **named):
        return self._timed("sleep", step, lambda: self.session.sleep(*arguments, **named))

    def wake(self, step, *tags):
        return self._timed("wake", step, lambda: self.session.wake_up(*tags))

    def _timed(self, what, step, call):
        before = free_bytes()
        start = time.monotonic()
        result = call()
        spent = time.monotonic() - start
        self.figures.row(
            f"{what}, {step}", size=result.device_bytes, seconds=spent,
            note=f"copied {result.copied_bytes:,}, dropped {result.discarded_bytes:,} bytes",
        )
        change = abs(free_bytes() - before)
        self.figures.check(
            f"{what}, {step}: the driver's free memory changed by what the answer says",
            abs(change - result.device_bytes) <= SLACK, f"{change:,} of {result.device_bytes:,}",
        )
        return result

    def generation(self, model, count):
        """(tokens, last logits), on the host."""
        with self.work():
            tokens, logits = model.generate(count)
        torch.cuda.synchronize()
        return tokens.cpu(), logits.cpu()

    def check_generation(self, step, model, expected):
        tokens, logits = self.generation(model, expected[0].shape[1])
        self.figures.check(f"{step}: same tokens", torch.equal(tokens, expected[0]))
        self.figures.check(f"{step}: last logits bit-equal", torch.equal(logits, expected[1]))

    def make(self, config, *, batch, context):
        start = time.monotonic()
        made = engine.Engine(
            config, device="cuda", batch=batch, context=context,
            weights=lambda: tt.memory_pool("weights"),
            kv_cache=lambda: tt.memory_pool("kv_cache"),
        )
        spent = time.monotonic() - start
        size = sum(self.usage(tag).resident_bytes for tag in ("weights", "kv_cache"))
        self.figures.row("allocate model and cache", size=size, seconds=spent)
        with self.work():
            made.fill_weights()
        torch.cuda.synchronize()
        return made

    # ---- Steps

    def two_billion(self):
        options, figures = self.options, self.figures
        context = 1024 if options.small else 4096
        config = engine.small(context) if options.small else engine.two_billion(context)
        self.engine = model = self.make(config, batch=4, context=context)
        figures.fact("parameters", f"{model.parameters():,}")
        held = tt.segments()
        figures.fact("segments", f"{len(held)}, {sum(s.size for s in held):,} bytes")
        tags = {self.session.segment(t.data_ptr()).tag for t in model.weights().values()}
        figures.check("every weight is in the daemon's memory", tags == {"weights"}, tags)
        live, reserved = tt.report_usage()
        resident = sum(self.usage(tag).resident_bytes for tag in ("weights", "kv_cache"))
        figures.check(
            "PyTorch holds what the daemon gave", reserved == resident >= live,
            f"{live:,} live, {reserved:,} held, {resident:,} resident",
        )
        self.expected = self.generation(model, 32)
        figures.check(
            "the model is deterministic",
            torch.equal(self.generation(model, 32)[0], self.expected[0]),
        )
        figures.check("it says more than one word", len(self.expected[0].unique()) > 1)
        addresses = model.addresses()
        tt.guard(model.model, timeout=20)
        self.sleep("level 1, first", 1)
        figures.check("asleep: a guarded call does not run", *self.refused(model))
        self.wake("level 1, first")
        self.check_generation("level 1, first", model, self.expected)
        figures.check("same addresses", model.addresses() == addresses)
        self.daemon.ctl("sleep", f"--worker={NAME}", "--level=1")
        self.wake("put to sleep by torporctl")
        self.check_generation("put to sleep by torporctl", model, self.expected)
        self.sleep("by tag", 1, "kv_cache")
        with self.session.work("weights", timeout=0):
            pass
        self.wake("by tag", "kv_cache")
        self.check_generation("by tag", model, self.expected)

    def refused(self, model):
        """(whether a guarded call is held off, why)"""
        tt.guard(model.model, timeout=0)
        try:
            with torch.inference_mode():
                model.model(input_ids=model.prompt)
            return False, "it ran"
        except torpor.errors.DeadlineExceeded as error:
            return error.reason == "ASLEEP", error
        finally:
            tt.guard(model.model, timeout=20)

    def captured_graph_replays(self):
        """Bit for bit after a wake, also where the graph's own memory slept or was dropped."""
        model, figures = self.engine, self.figures
        with self.work():
            model.prefill()
            with tt.graph_pool("graphs") as pool:
                model.capture(pool)
        usage = self.usage("graphs")
        figures.fact(
            "graph's own memory", f"{usage.segments} segments, {usage.resident_bytes:,} bytes"
        )
        figures.check("the graph's memory is the daemon's", usage.resident_bytes > 0)

        def replay():
            with self.work():
                model.prefill()
                out = model.replay()
            torch.cuda.synchronize()
            return out.cpu()

        expected = replay()
        with self.work():
            eager = model.decode()
        figures.check(
            "the graph computes what the kernels compute one by one",
            torch.allclose(eager.cpu().float(), expected.float(), atol=1e-2),
        )
        self.sleep("with the graph's memory", 1)
        self.wake("with the graph's memory")
        figures.check("a graph replays bit-equal", torch.equal(replay(), expected))
        result = self.session.sleep_policies({"graphs": Policy.DISCARD})
        figures.check("the graph's memory alone is dropped", result.copied_bytes == 0, result)
        self.session.wake_up("graphs")
        figures.check("a graph whose memory was dropped replays", torch.equal(replay(), expected))
        self.expected_replay = expected
        self.replay = replay

    def cycles(self):
        """Sleeps and wakes, with host and device memory flat."""
        figures, count = self.figures, self.options.cycles
        process, daemon = os.getpid(), self.daemon.process.pid
        samples = []
        good = 0
        times = {"sleep": [], "wake": []}
        for _ in range(count):
            start = time.monotonic()
            self.session.sleep(1)
            times["sleep"].append(time.monotonic() - start)
            asleep = free_bytes()
            start = time.monotonic()
            self.session.wake_up()
            times["wake"].append(time.monotonic() - start)
            good += torch.equal(self.replay(), self.expected_replay)
            samples.append({
                "asleep": asleep,
                "awake": free_bytes(),
                "worker": resident_bytes(process),
                "daemon": resident_bytes(daemon),
                "worker_fds": descriptors(process),
                "daemon_fds": descriptors(daemon),
            })
        figures.check(f"{count} cycles: each replays bit-equal", good == count, f"{good}")
        for what in ("sleep", "wake"):
            figures.row(
                f"{what}, median of {count} cycles", seconds=statistics.median(times[what]),
                note=f"most {max(times[what]):.3f} s",
            )
        # What grows is what differs between an early cycle and the last; libraries load before.
        first, last = samples[min(4, count - 1)], samples[-1]
        for key, bound in (
            ("asleep", 16 * MIB), ("awake", 16 * MIB), ("worker", 64 * MIB),
            ("daemon", 64 * MIB), ("worker_fds", 4), ("daemon_fds", 4),
        ):
            spread = [sample[key] for sample in samples]
            figures.check(
                f"{count} cycles: {key} is flat", abs(last[key] - first[key]) <= bound,
                f"5th {first[key]:,}, last {last[key]:,},"
                f" least {min(spread):,}, most {max(spread):,}",
            )
        self.check_generation(f"after {count} cycles", self.engine, self.expected)

    def goes_back(self):
        """A model that nobody refers to any more leaves nothing behind."""
        self.engine.graph.reset()
        self.engine = self.replay = None
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        left = {tag: usage for tag, usage in self.session.usage().tags.items() if usage.segments}
        self.figures.check("deleted models leave no segment behind", not left, left)
        self.figures.check("and no pool", not tt.pools(), len(tt.pools()))

    def seven_billion(self):
        options = self.options
        config = engine.small(1024) if options.small else engine.seven_billion(2048)
        model = self.make(config, batch=2, context=1024 if options.small else 2048)
        self.figures.fact("parameters, 7B shape", f"{model.parameters():,}")
        expected = self.generation(model, 16)
        for turn in ("first", "second"):
            step = f"7B shape, {turn}"
            self.sleep(step, 1)
            self.wake(step)
            self.check_generation(step, model, expected)
        with self.work():
            model.fill_kv()
        self.sleep("7B shape, level 2", 2)
        self.wake("7B shape, level 2")
        with self.work():
            self.figures.check("7B shape, level 2: weights are zero", model.weights_are_zero())
            self.figures.check("7B shape, level 2: the cache is zero", model.kv_is_zero())
            model.fill_weights()
        self.check_generation("7B shape, weights loaded again", model, expected)

    def compiled(self):
        """torch.compile, with the backend that works on this machine."""
        figures = self.figures
        torch.manual_seed(5)
        with tt.memory_pool("compiled"):
            net = torch.nn.Sequential(
                torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
            ).to(device="cuda", dtype=torch.bfloat16)
        net.requires_grad_(False)
        entry = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
        used = None
        for backend in ("inductor", "cudagraphs", "aot_eager"):
            torch._dynamo.reset()
            try:
                model = tt.guard(torch.compile(net, backend=backend), "compiled", timeout=20)
                with torch.inference_mode():
                    expected = model(entry).clone()
                    again = model(entry).clone()
                torch.cuda.synchronize()
                used = backend
                break
            except Exception as error:  # pylint: disable=broad-except
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                figures.fact(f"torch.compile with {backend} fails here", reason[:300])
        figures.fact("torch.compile backend", used or "none works here")
        if not figures.check("some backend of torch.compile works", used is not None):
            return
        figures.check("the compiled model is deterministic", torch.equal(expected, again))
        with torch.inference_mode():
            eager = net(entry)
        figures.check(
            "it computes what the module computes",
            torch.allclose(eager.float(), expected.float(), atol=5e-2, rtol=5e-2),
        )
        for turn in range(3):
            self.session.sleep(1, "compiled")
            tt.guard(model, "compiled", timeout=0)
            try:
                with torch.inference_mode():
                    model(entry)
                figures.check("asleep: a compiled model does not run", False, "it ran")
            except torpor.errors.DeadlineExceeded:
                pass
            tt.guard(model, "compiled", timeout=20)
            self.session.wake_up("compiled")
            with torch.inference_mode():
                out = model(entry).clone()
            figures.check(f"compiled, {turn + 1}. wake: bit-equal", torch.equal(out, expected))
        figures.check("guarding kept the module's class", isinstance(model, torch.nn.Module))

    def corners(self):
        """What the caching allocator makes hard."""
        figures, session = self.figures, self.session

        def tag_of(tensor):
            return session.segment(tensor.data_ptr()).tag

        with tt.memory_pool("outer"):
            one = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            with tt.memory_pool("inner"):
                two = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            three = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
            four = []
            thread = threading.Thread(
                target=lambda: four.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
            )
            thread.start()
            thread.join()
        tags = [tag_of(tensor) for tensor in (one, two, three)]
        figures.check("scopes nest", tags == ["outer", "inner", "outer"], tags)
        try:
            figures.check("a scope is of its thread", False, tag_of(four[0]))
        except torpor.errors.NotFound:
            figures.check("a scope is of its thread", True)
        four.clear()
        del one, two, three

        with tt.memory_pool("scratch"):
            kept = torch.full((30 * MIB,), 7, dtype=torch.uint8, device="cuda")
            gone = torch.empty(500 * MIB, dtype=torch.uint8, device="cuda")
            del gone
            inside = self.usage("scratch").resident_bytes
        after = self.usage("scratch").resident_bytes
        figures.check(
            "what is empty at the end of a scope goes back",
            (inside, after) == (530 * MIB, 30 * MIB), f"{inside:,} then {after:,} bytes",
        )
        session.sleep_policies({"scratch": Policy.OFFLOAD})
        with tt.memory_pool("scratch"):
            second = torch.full((30 * MIB,), 9, dtype=torch.uint8, device="cuda")
        figures.check(
            "a tag is entered again while it sleeps",
            self.usage("scratch").resident_bytes == 30 * MIB,
        )
        session.wake_up()
        figures.check(
            "both have their bytes", bool((kept == 7).all()) and bool((second == 9).all())
        )
        session.sleep_policies({"scratch": Policy.OFFLOAD})
        holder = [kept, second]
        del kept, second
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        torch.cuda.empty_cache()
        figures.check(
            "freed by another thread while asleep", self.usage("scratch").segments == 0
        )

        total = torch.cuda.mem_get_info()[1]
        try:
            with tt.memory_pool("scratch"):
                torch.empty(total, dtype=torch.uint8, device="cuda")
            figures.check("out of memory raises", False, "it did not")
        except tt.OutOfMemoryError as error:
            requested = error.torpor.number("requested_bytes")
            figures.check(
                "out of memory tells Torpor's reason and numbers",
                isinstance(error, torch.OutOfMemoryError) and requested is not None
                and requested >= total, error.torpor,
            )
        with tt.memory_pool("scratch"):
            tensor = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
        figures.check("an allocation after a refused one works", tag_of(tensor) == "scratch")
        del tensor

        torch._C._accelerator_setAllocatorSettings("expandable_segments:True,max_split_size_mb:512")
        try:
            with tt.memory_pool("scratch"):
                tensor = torch.full((30 * MIB,), 3, dtype=torch.uint8, device="cuda")
            figures.check("expandable segments are off in a scope", tag_of(tensor) == "scratch")
            settings = torch.cuda.memory._snapshot()["allocator_settings"]
            figures.check(
                "and come back after it, with the other settings",
                settings.get("expandable_segments") is True
                and settings.get("max_split_size") == 512 * MIB,
                settings,
            )
            del tensor
        finally:
            torch._C._accelerator_setAllocatorSettings("expandable_segments:False")

        with tt.memory_pool("scratch"):
            with tt.ordinary_memory():
                outside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        try:
            figures.check("ordinary memory within a scope", False, tag_of(outside))
        except torpor.errors.NotFound:
            figures.check("ordinary memory within a scope", True)
        del outside
        torch.cuda.empty_cache()

    # ---- Measurements

    def guard_cost(self):
        figures = self.figures
        count = 20000
        work = self.session.work()
        start = time.perf_counter()
        for _ in range(count):
            with work:
                pass
        figures.row(
            "enter and leave the guard", seconds=(time.perf_counter() - start) / count,
            note="mean of 20,000, in Python",
        )
        small = engine.Engine(
            engine.small(512), device="cuda", batch=1, context=512,
            weights=lambda: tt.memory_pool("small"), kv_cache=lambda: tt.memory_pool("small"),
        )
        with self.work():
            small.fill_weights()
            small.prefill()
            small.capture()
        layer = torch.nn.Linear(64, 64, device="cuda")
        entry = torch.randn(1, 64, device="cuda")
        for name, module, call in (
            ("decoding step, 6 layers, kernel by kernel", small.model, small.decode),
            ("decoding step, 6 layers, CUDA graph", None, small.replay),
            ("one linear layer", layer, lambda: layer(entry)),
        ):
            self._compare(name, module, call)

    def _compare(self, name, module, call, rounds=30, calls=40):
        """Medians of `call`, synchronized each time, alternating with and without the guard."""
        work = self.session.work()

        def guarded():
            with work:
                call()

        times = {False: [], True: []}
        with torch.inference_mode():
            for turn in range(rounds):
                for guard in (False, True) if turn % 2 else (True, False):
                    run = call
                    if guard and module is not None:
                        tt.guard(module)
                    elif guard:
                        run = guarded
                    for _ in range(calls):
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                        run()
                        torch.cuda.synchronize()
                        if turn > 1:
                            times[guard].append(time.perf_counter() - start)
                    if module is not None:
                        tt.unguard(module)
        plain, with_guard = (statistics.median(times[guard]) for guard in (False, True))
        self.figures.row(f"{name}, without the guard", seconds=plain,
                         note=f"{plain * 1e6:.1f} us, median of {len(times[False])}")
        self.figures.row(f"{name}, with the guard", seconds=with_guard,
                         note=f"{with_guard * 1e6:.1f} us, ratio {with_guard / plain:.4f}")

    def allocation_cost(self):
        """Segments through PyTorch, beside PyTorch's own from the driver."""
        count = 64
        for size in (20 * MIB, 256 * MIB):  # smaller tensors share segments of 2 or 20 MiB
            what = f"{count} of {size // MIB} MiB"
            self._allocate(f"Torpor, {what}", count, size, lambda: tt.memory_pool("cost"))
            self._allocate(f"PyTorch, {what}", count, size, tt.ordinary_memory)

    def _allocate(self, name, count, size, scope):
        made, reused, freed = [], [], []
        for _ in range(3):
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            with scope():
                start = time.perf_counter()
                tensors = [
                    torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)
                ]
                made.append((time.perf_counter() - start) / count)
                del tensors
                start = time.perf_counter()
                tensors = [
                    torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)
                ]
                reused.append((time.perf_counter() - start) / count)
                del tensors
                start = time.perf_counter()
            freed.append((time.perf_counter() - start) / count)
        for what, times in (("allocate", made), ("again, cached", reused), ("free", freed)):
            spent = statistics.median(times)
            self.figures.row(f"{name}: {what}", seconds=spent, note=f"{spent * 1e6:.1f} us each")


STEPS = ("two_billion", "captured_graph_replays", "cycles", "goes_back", "seven_billion", "corners",
         "guard_cost", "allocation_cost", "compiled")


def diagnose(run, daemon):
    print("---- torpord", daemon.process.poll(), daemon.log_tail(60), sep="\n", flush=True)
    for what in (
        lambda: daemon.ctl("usage"),
        tt.last_error,
        tt.segments if run else lambda: None,
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
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", default=",".join(STEPS))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(400, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("PyTorch through the Python package")
    run = None
    daemon = Daemon(
        Programs(bundle=options.bundle), "--driver=cuda", "--host_pool=24GiB",
        "--worker_deadline=20s", log=out / "package-torpord.log",
    )
    try:
        figures.fact(
            "Python, PyTorch, transformers, torpor",
            f"{sys.version.split()[0]}, {torch.__version__}, {transformers.__version__},"
            f" {torpor.__version__} of {pathlib.Path(torpor.__file__).parent}",
        )
        figures.fact("device", torch.cuda.get_device_name(0))
        run = Run(options, daemon, figures)
        for name in options.steps.split(","):
            print(f"== {name}", flush=True)
            start = time.monotonic()
            try:
                getattr(run, name)()
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()
                figures.check(f"{name} runs to its end", False)
                diagnose(run, daemon)
            finally:
                # The next step starts awake.
                with contextlib.suppress(torpor.TorporError):
                    run.session.wake_up()
                gc.collect()
                torch.cuda.empty_cache()
            figures.fact(f"seconds of {name}", f"{time.monotonic() - start:.1f}")
        usage = daemon.ctl("usage")
        figures.fact("device at the end", {
            name: number(usage["device"], name) for name in ("total_bytes", "free_bytes")
        })
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        figures.check("the run reaches its end", False)
        diagnose(run, daemon)
    finally:
        figures.write(out, "package")
        status = daemon.close()
    print(f"torpord ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
