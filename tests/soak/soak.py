"""Workers under a daemon that is killed every few seconds, for as long as asked.

    soak.py --minutes M [--seed N] [--workers N] [--every S] [--out FILE.json] [--keep]
            --programs TORPOR_KEEPER TORPORD TORPORCTL TEST_WORKER

On the host driver. Workers come, go, get killed, allocate, free, sleep, wake and work, each with a
model that says what every byte has to be. The daemon is killed, stopped for a moment, upgraded;
the keeper is killed and followed by another; both are killed at once, while all that can sleeps.
Every minute or two the faults rest: then the daemon has just the workers and the memory that there
are. Ends with 1 at the first thing that must not be, and says what the worker concerned had done.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import pathlib
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import Any, Callable

from service import GRACE_S, PATIENCE_S, TORPORD, Failure, Service, memory_of, wait_for
from workers import FULL, LATE, TAGS, Counts, Slot

SIZE = "512MiB"  # of the device, and of the pool
FLAGS = [
    f"--host_device_memory={SIZE}", f"--host_pool={SIZE}", f"--reconnect_grace={GRACE_S}s",
]
BETWEEN_RESTS_S = 90
# Of torporctl: gRPC's own codes come of a daemon that is away, or stopping.
ALLOWED = FULL | LATE | {
    "CODE_1", "CODE_4", "CODE_14", "DAEMON_STOPPING", "WORKER_GONE", "WORKER_AWAITED",
    "NOTHING_SELECTED",
}
# By which the late median may exceed the early one: (kind, factor, and so much).
FLAT = {"private_kib": (1.2, 2048), "descriptors": (1.0, 4), "threads": (1.0, 2)}


def protected(usage: dict[str, Any]) -> bool:
    return not usage.get("protection", {}).get("code")


class Soak:
    def __init__(self, options: argparse.Namespace, directory: pathlib.Path):
        self.options = options
        self.rng = random.Random(options.seed)
        self.counts = Counts()
        self.stop = threading.Event()
        pool = directory / "pool"
        pool.mkdir()
        self.service = Service(directory, options.programs, [*FLAGS, f"--pool_dir={pool}"])
        self.slots = [
            Slot(self.service, i, options.seed, self.counts, self.stop)
            for i in range(options.workers)
        ]
        self.operator_lock = threading.Lock()
        self.operator_failure: str | None = None
        self.faults: collections.deque[str] = collections.deque(maxlen=30)
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.samples: list[dict[str, Any]] = []

    # --- torporctl, beside the workers' own calls

    def operate(self) -> None:
        rng = random.Random(f"{self.options.seed}/operator")
        while not self.stop.wait(rng.expovariate(1 / 0.3)):
            try:
                with self.operator_lock:
                    self.operate_once(rng)
            except Exception as error:  # pylint: disable=broad-except
                self.operator_failure = f"torporctl: {type(error).__name__}: {error}"
                self.stop.set()

    def operate_once(self, rng: random.Random) -> None:
        slot = rng.choice(self.slots)
        worker = slot.worker
        if worker is None:
            return
        some = rng.sample(TAGS, rng.randint(1, 3))
        what = ["--all"] if rng.random() < 0.1 else [f"--worker={worker.name}"]
        if rng.random() < 0.5:
            command = ["sleep", *what, *(f"--policy={tag}=offload" for tag in some)]
        else:
            command = ["wake", *what, *(f"--tag={tag}" for tag in some if what[0] != "--all")]
        answer = self.service.ctl(*command, timeout_s=rng.choice((0.3, 3, 30, 30)))
        for outcome in answer.outcomes():
            self.counts.add(f"torporctl {command[0]} {outcome}")
            gone = outcome == "UNKNOWN_WORKER" and slot.worker is not worker
            if outcome != "ok" and outcome not in ALLOWED and not gone:
                raise Failure(f"{command}: {outcome}: {json.dumps(answer.body)}")

    # --- faults; the main thread's

    def live(self) -> dict[str, Any]:
        """Workers whose session is open, by name."""
        workers = [slot.worker for slot in self.slots]
        return {worker.name: worker for worker in workers if worker is not None}

    def await_sessions(self, start: float, kind: str) -> None:
        """Until another daemon serves and has all workers back, and is protected."""
        self.service.await_usage(lambda _: True, f"a daemon serves after: {kind}")
        self.seconds[f"{kind}, to serving"].append(time.monotonic() - start)

        def all_back(usage: dict[str, Any]) -> bool:
            known = {w["name"]: w.get("awaited", False) for w in usage.get("workers", [])}
            return not any(known.get(n, True) for n, w in self.live().items() if not w.stopped)

        self.service.await_usage(all_back, f"sessions are back after: {kind}", GRACE_S)
        self.seconds[f"{kind}, to all sessions"].append(time.monotonic() - start)
        self.await_protection()

    def await_protection(self) -> None:
        self.service.await_usage(protected, "the daemon is protected")

    def kill_daemon(self) -> None:
        start = time.monotonic()
        self.service.kill_daemon()
        self.await_sessions(start, "daemon killed")

    def kill_again(self) -> None:
        """While they start, and while workers come back."""
        pids = self.service.kill_daemon()
        for _ in range(self.rng.randint(1, 3)):
            wait_for(lambda: self.service.pids(TORPORD), lambda: "another daemon", PATIENCE_S)
            time.sleep(self.rng.choice((0, 0.01, 0.03, 0.1, 0.3)))
            pids = self.service.kill_daemon()
        self.await_sessions(time.monotonic(), "daemon killed again")
        assert pids

    def stop_daemon(self) -> None:
        self.service.signal_daemon(signal.SIGSTOP)
        time.sleep(self.rng.choice((0.1, 1, 3)))
        self.service.signal_daemon(signal.SIGCONT)

    def kill_stopped_daemon(self) -> None:
        self.service.signal_daemon(signal.SIGSTOP)
        time.sleep(self.rng.choice((0.1, 1)))
        self.kill_daemon()

    def upgrade(self) -> None:
        start, kind = time.monotonic(), "upgrade"
        before = self.service.pids(TORPORD)
        if self.rng.random() < 0.25:  # which waits for those, too, that have died meanwhile
            kind = "torporctl upgrade"
            answer = self.service.ctl("upgrade", timeout_s=60)
            if answer.code:
                raise Failure(f"upgrade: {answer}")
        else:
            self.service.signal_daemon(signal.SIGHUP)
        wait_for(
            lambda: set(self.service.pids(TORPORD)) - set(before), lambda: "an upgrade", PATIENCE_S
        )
        self.await_sessions(start, kind)

    def kill_keeper(self) -> None:
        self.service.kill_keeper()
        time.sleep(self.rng.choice((0, 0.1, 2)))
        start = time.monotonic()
        self.service.start_keeper()
        self.await_protection()
        self.seconds["keeper started, to protected"].append(time.monotonic() - start)

    def stop_keeper(self) -> None:
        """Longer than the daemon waits for its answers, at times."""
        assert self.service.keeper is not None
        self.service.keeper.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.choice((0.1, 1, 7)))
        self.service.keeper.send_signal(signal.SIGCONT)
        self.await_protection()

    def kill_both(self) -> None:
        """While all sleep but those for which there is no room: these end, their memory is lost."""
        with self.resting():
            policies = [f"--policy={tag}=offload" for tag in TAGS]
            answer = self.service.ctl("sleep", "--all", *policies, timeout_s=30)
            usage = self.service.await_usage(
                lambda usage: not any(w.get("operation_id") for w in usage.get("workers", [])),
                f"all sleep, or cannot: {answer}",
            )
            awake = {
                worker["name"] for worker in usage.get("workers", [])
                if any(int(tag.get("resident_bytes", 0)) for tag in worker.get("tags", []))
            }
            start = time.monotonic()
            self.service.signal_daemon(signal.SIGSTOP)
            self.service.kill_keeper()
            self.service.kill_daemon()
            self.service.start_keeper()
            self.await_sessions(start, "both killed")
            for slot in self.slots:
                worker = slot.worker
                if worker is None:
                    continue
                if worker.name in awake:
                    self.counts.add("workers: awake when both were killed")
                    worker.kill()
                    slot.worker = None
                else:
                    self.counts.add("workers: asleep when both were killed")

    def fault(self) -> None:
        kinds: dict[Callable[[], None], int] = {
            self.kill_daemon: 10, self.kill_again: 3, self.stop_daemon: 2,
            self.kill_stopped_daemon: 2, self.upgrade: 2, self.kill_keeper: 2, self.stop_keeper: 1,
            self.kill_both: 2,
        }
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        name = kind.__name__.replace("_", " ")
        self.faults.append(f"{time.strftime('%T')} {name}")
        self.counts.add(f"faults: {name}")
        kind()

    # --- rest

    @contextlib.contextmanager
    def resting(self):
        """Nobody does anything meanwhile."""
        with contextlib.ExitStack() as stack:
            for lock in [self.operator_lock, *(slot.lock for slot in self.slots)]:
                stack.enter_context(lock)
            yield

    def compare(self, usage: dict[str, Any]) -> str:
        """The first thing in which the daemon's books differ from what there is."""
        live = self.live()
        workers = {worker["name"]: worker for worker in usage.get("workers", [])}
        if set(workers) != set(live):
            return f"workers {sorted(workers)} instead of {sorted(live)}"
        resident = extents = offloaded = 0
        for name, told in workers.items():
            has = {}
            for tag in told.get("tags", []):
                number = {k: int(v) for k, v in tag.items() if k != "tag"}
                resident += number.get("resident_bytes", 0) + number.get("stranded_bytes", 0)
                offloaded += number.get("host_bytes", 0)
                extents += number.get("extents", 0)
                states = ("resident_bytes", "offloaded_bytes", "discarded_bytes")
                size = sum(number.get(state, 0) for state in states)
                if number.get("segments"):
                    has[tag["tag"]] = (number["segments"], size)
            if has != live[name].has():
                return f"{name} has {has} instead of {live[name].has()}"
            if told.get("awaited") or told.get("operation_id"):
                return f"{name} has an operation"
        device, pool = usage["device"], usage["host_pool"]
        if resident != int(device.get("resident_bytes", 0)):
            return f"{device} instead of {resident} resident"
        if offloaded != int(pool.get("used_bytes", 0)):
            return f"{pool} instead of {offloaded} used"
        if not protected(usage):
            return f"{usage['protection']}"
        return ""

    def rest(self) -> None:
        """Sessions of those that died unseen are over by then; compares, and measures."""
        self.faults.append(f"{time.strftime('%T')} rest")
        self.service.await_usage(
            lambda usage: not any(w.get("awaited") for w in usage.get("workers", [])),
            "nobody is awaited any more", GRACE_S + 10,
        )
        with self.resting():
            if self.stop.is_set():
                return
            difference = [""]

            def same(usage: dict[str, Any]) -> bool:
                difference[0] = self.compare(usage)
                return not difference[0]

            try:
                usage = self.service.await_usage(same, "books", 15)
            except Failure as failure:
                raise Failure(f"{difference[0]}; {failure}") from failure
            self.measure(usage)

    def measure(self, usage: dict[str, Any]) -> None:
        assert self.service.keeper is not None
        keeper, daemon = memory_of(self.service.keeper.pid), memory_of(*self.service.pids(TORPORD))
        tags = [tag for worker in usage.get("workers", []) for tag in worker.get("tags", [])]
        extents = sum(int(tag.get("extents", 0)) for tag in tags)
        keeper["descriptors"] -= extents  # what it is for
        daemon["descriptors"] -= 4 * extents  # with the host driver
        sample = {f"keeper {k}": v for k, v in keeper.items()}
        sample |= {f"daemon {k}": v for k, v in daemon.items()}
        sample |= {"extents": extents, "workers": len(self.live())}
        sample["journal_kib"] = (self.service.directory / "journal").stat().st_size // 1024
        self.samples.append(sample)
        print(f"{time.strftime('%T')} {json.dumps(sample)}", flush=True)

    # --- the end

    def finish_worker(self, slot: Slot) -> bool:
        """Checks and frees what is awake, then tag by tag what can be woken. True: nothing left."""
        worker = slot.worker
        if worker is None:
            return True
        worker.work(False)
        worker.ask("iterations")
        for tags in ("", *TAGS):
            if tags and not worker.ask(f"wake {tags} timeout=60000").startswith("ok"):
                continue
            for number, segment in list(worker.segments.items()):
                if tags == segment.tag or (not tags and segment.contents):
                    if worker.check(number) or (tags and not segment.contents):
                        worker.free(number)
        return not worker.segments

    def finish(self) -> None:
        """Every byte that is left is checked, and everything given back."""
        for _ in range(3 * len(self.slots)):
            done = []
            for slot in self.slots:
                slot.guarded(lambda slot=slot: done.append(self.finish_worker(slot)))
                if slot.failure:
                    return
            if all(done):
                break
        else:
            raise Failure("what sleeps cannot be woken, though all others have freed their memory")
        for slot in self.slots:
            if slot.worker is not None:
                slot.worker.ask("close")
                slot.worker.tell("exit")
                slot.worker.process.wait(timeout=PATIENCE_S)
                slot.worker = None
        self.service.await_usage(
            lambda usage: not usage.get("workers") and not self.compare(usage),
            "nothing is left", GRACE_S + 10,
        )
        keeper = self.service.keeper
        assert keeper is not None
        keeper.terminate()
        if status := keeper.wait(timeout=PATIENCE_S):
            raise Failure(f"the keeper has ended with {status}")
        if left := self.service.pids():
            raise Failure(f"processes are left: {left}")

    def check_flat(self) -> dict[str, dict[str, float]]:
        """Medians of the first and the last third."""
        window = max(len(self.samples) // 3, 1)
        figures = {}
        for key in self.samples[0] if self.samples else ():
            early, late = (
                statistics.median(sample[key] for sample in part)
                for part in (self.samples[:window], self.samples[-window:])
            )
            figures[key] = {"early": early, "late": late}
            factor, slack = FLAT.get(key.split()[-1], (0, 0))
            if slack and late > early * factor + slack:
                raise Failure(f"{key} has grown from {early} to {late}")
        return figures

    def run(self) -> None:
        self.service.start_keeper()
        self.service.await_usage(protected, "the first daemon serves")
        for slot in self.slots:
            slot.start()
        operator = threading.Thread(target=self.operate, daemon=True)
        operator.start()
        end = time.monotonic() + 60 * self.options.minutes
        next_rest = time.monotonic() + BETWEEN_RESTS_S
        while not self.stop.wait(self.rng.expovariate(1 / self.options.every)):
            if time.monotonic() > min(next_rest, end):
                self.rest()
                next_rest = time.monotonic() + BETWEEN_RESTS_S
            if time.monotonic() > end:
                break
            if not self.stop.is_set():
                self.fault()
        self.stop.set()
        for thread in [operator, *self.slots]:
            thread.join()
        if not self.failures():
            self.finish()

    def failures(self) -> list[str]:
        all_of_them = [self.operator_failure, *(slot.failure for slot in self.slots)]
        return [failure for failure in all_of_them if failure]

    def report(self) -> dict[str, Any]:
        times = {
            kind: {"median_s": statistics.median(all_of_it), "worst_s": max(all_of_it)}
            for kind, all_of_it in sorted(self.seconds.items())
        }
        return {"seed": self.options.seed, "minutes": self.options.minutes,
                "workers": self.options.workers, "counts": self.counts.get(), "times": times}


def show(report: dict[str, Any]) -> None:
    for what, number in report["counts"].items():
        print(f"{what:48} {number:>16,}")
    for kind, times in report["times"].items():
        print(f"{kind:40} median {times['median_s']:7.3f} s, worst {times['worst_s']:7.3f} s")
    for key, figures in report.get("flat", {}).items():
        print(f"{key:40} early {figures['early']:10,.1f}, late {figures['late']:10,.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randint(1, 1 << 30))
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--every", type=float, default=2.5, help="mean seconds between faults")
    parser.add_argument("--out", type=pathlib.Path, help="writes the figures there, as JSON")
    parser.add_argument("--keep", action="store_true", help="leaves the directory when it fails")
    parser.add_argument("--programs", type=pathlib.Path, nargs=4, required=True)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.minutes:g} minutes, {options.workers} workers")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    directory = pathlib.Path(tempfile.mkdtemp(prefix="torpor-soak-", dir=root))
    soak = Soak(options, directory)
    failures: list[str] = []
    figures: dict[str, Any] = {}
    try:
        soak.run()
        if not soak.failures():
            figures = soak.check_flat()
    except Exception as error:  # pylint: disable=broad-except
        failures.append(f"{type(error).__name__}: {error}")
    finally:
        soak.stop.set()
        failures += soak.failures()
        if failures:
            print(soak.service.stacks())
            print(soak.service.log_tail())
        soak.service.end_all()
        if not (failures and options.keep):
            shutil.rmtree(directory, ignore_errors=True)
    report = soak.report() | {"flat": figures, "failures": failures}
    show(report)
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for failure in failures:
        print(f"\nFAILED: {failure}")
    if failures:
        print("faults:\n  " + "\n  ".join(soak.faults))
    print(f"seed {options.seed}: {'failed' if failures else 'passed'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
