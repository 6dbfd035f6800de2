"""Workers that do at random what workers do, and a model of each that knows every byte."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import select
import signal
import subprocess
import threading
import time

from service import PATIENCE_S, WORKER, Failure, Service

MIB = 1 << 20
TAGS = ("weights", "kv_cache", "adapter")
MOST_BYTES = 128 * MIB  # of one worker
ZERO = 0  # as a seed: cleared memory

# No memory for it, now.
FULL = {"DEVICE_BUDGET_EXHAUSTED", "DEVICE_OUT_OF_MEMORY", "HOST_POOL_EXHAUSTED"}
# Lost a race against another operation, or too slow for a timeout; the daemon was away.
LATE = {
    "OPERATION_IN_PROGRESS", "ROLLBACK_PENDING", "OPERATION_DEADLINE", "OPERATION_CANCELLED",
    "WORKER_SILENT", "DAEMON_SILENT",
}
# What the documents allow. Anything else is a failure.
ALLOWED: dict[str, set[str]] = {
    "connect": {"DAEMON_NOT_RUNNING", "DAEMON_GONE", "DAEMON_STOPPING"},
    "alloc": FULL | {"ALLOCATION_DEADLINE", "ARENA_EXHAUSTED", "DAEMON_SILENT"},
    "fill": {"ASLEEP"},
    "check": {"ASLEEP", "DIFFERENT"},  # compared with the model by the caller
    "checkzero": {"ASLEEP", "DIFFERENT"},
    "sleep_policies": FULL | LATE,
    "wake": FULL | LATE,
}


@dataclasses.dataclass
class Segment:
    tag: str
    size: int
    contents: list[int]  # seeds of what it may be: several after a discard in doubt; none: any


class Counts:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def get(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))


class Worker:
    """One process and what it has. Not thread-safe."""

    def __init__(self, service: Service, name: str, counts: Counts):
        self.name = name
        self.counts = counts
        self.segments: dict[str, Segment] = {}
        self.history: collections.deque[str] = collections.deque(maxlen=60)
        self.working = False
        self.stopped = False  # by SIGSTOP, for a moment
        self._buffer = b""
        self.process = subprocess.Popen(
            [service.path(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def connect(self, service: Service) -> None:
        line = f"connect socket={service.worker_socket} name={self.name} quiesce=guard"
        while not self.ask(line).startswith("ok"):
            time.sleep(0.05)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.history.append(f"{time.strftime('%T')} {line}")
        self.process.stdin.write(line.encode() + b"\n")

    def ask(self, line: str) -> str:
        """The answer; Failure if it is an error that is not allowed."""
        self.tell(line)
        return self.judge(line, self.hear())

    def hear(self) -> str:
        assert self.process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        while b"\n" not in self._buffer:
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                raise Failure("HANG: no answer")
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                raise Failure(f"the worker has ended with {self.process.wait()}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        self.history.append(f"{time.strftime('%T')}     {line.decode()[:300]}")
        return line.decode()

    def judge(self, line: str, answer: str) -> str:
        command = line.removeprefix("bg ").split()[0]
        words = answer.split()
        outcome = "ok" if words[0] == "ok" else words[2]
        self.counts.add(f"worker {command} {outcome}")
        if outcome != "ok" and outcome not in ALLOWED.get(command, set()):
            raise Failure(f"{line}: {answer}")
        return answer

    def bytes(self) -> int:
        return sum(segment.size for segment in self.segments.values())

    # --- what it does

    def allocate(self, rng: random.Random, tag: str, wait_ms: int) -> None:
        size = 2 * rng.randint(1, 12) * MIB
        answer = self.ask(f"alloc {tag} {size} timeout={wait_ms}").split()
        if answer[0] == "ok":
            self.segments[answer[1]] = Segment(tag, int(answer[3]), [])
            self.fill(rng, answer[1])

    def fill(self, rng: random.Random, number: str) -> None:
        seed = rng.randint(1, 1 << 30)
        if self.ask(f"fill {number} {seed}") == "ok":
            self.segments[number].contents = [seed]

    def check(self, number: str) -> bool:
        """False if it is asleep, or nothing is known of it."""
        segment = self.segments[number]
        for seed in segment.contents:
            line = f"check {number} {seed}" if seed != ZERO else f"checkzero {number}"
            answer = self.ask(line)
            if answer == "ok":
                segment.contents = [seed]
                self.counts.add("bytes checked", segment.size)
                return True
            if answer.split()[2] == "ASLEEP":
                return False
        if segment.contents:
            raise Failure(f"WRONG BYTES in segment {number} ({segment}): {answer}")
        return False

    def free(self, number: str) -> None:
        self.ask(f"free {number}")
        del self.segments[number]

    def discard(self, timeout_ms: int) -> None:
        """Drops the KV cache, offloads the rest."""
        dropped = {n: s for n, s in self.segments.items() if s.tag == "kv_cache"}
        for number in dropped:
            self.ask(f"forget {number}")
        answer = self.ask(
            "sleep_policies kv_cache=discard weights=offload adapter=offload force"
            f" timeout={timeout_ms}"
        )
        for segment in dropped.values():
            before = [seed for seed in segment.contents if seed != ZERO]
            if answer.startswith("ok"):
                segment.contents = [ZERO]
            elif segment.contents:
                segment.contents = [*before, ZERO]

    def beside(self, rng: random.Random, line: str, then: str) -> None:
        """An operation in the background, an allocation meanwhile."""
        self.ask(f"bg {line}")
        time.sleep(rng.choice((0, 0.002, 0.02)))
        self.allocate(rng, then, rng.choice((0, 500)))
        self.tell("wait")
        self.judge(line, self.hear())

    def work(self, on: bool) -> None:
        if on != self.working:
            self.ask("work 2" if on else "stop_work")
            self.working = on

    def usage(self) -> None:
        """Compared with the model: nobody else takes or gives segments."""
        words = self.ask("usage").split()
        told = {}
        for word in words[4:]:
            tag, _, numbers = word.partition("=")
            segments, *parts = map(int, numbers.split(","))
            if segments:
                told[tag] = (segments, sum(parts))
        if told != (has := self.has()):
            raise Failure(f"the daemon says {told}, and it has {has}")

    def has(self) -> dict[str, tuple[int, int]]:
        """Segments and bytes by tag."""
        has: dict[str, tuple[int, int]] = {}
        for segment in self.segments.values():
            number, size = has.get(segment.tag, (0, 0))
            has[segment.tag] = (number + 1, size + segment.size)
        return has

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self.work(False)  # a session in use is not closed
            self.ask("close")
        self.tell(rng.choice(("exit", "exit 3")))
        self.process.wait(timeout=PATIENCE_S)


class Slot(threading.Thread):
    """A worker after the other, each with a life at random, until `stop`. `lock` is free between
    two of its steps; whoever holds it finds a worker that rests."""

    def __init__(self, service: Service, index: int, seed: int, counts: Counts,
                 stop: threading.Event):
        super().__init__(name=f"slot {index}", daemon=True)
        self.service, self.index, self.counts, self.stop = service, index, counts, stop
        self.rng = random.Random(f"{seed}/{index}")
        self.lock = threading.Lock()
        self.worker: Worker | None = None  # a session that was opened, and is not being closed
        self.failure: str | None = None
        self.last: Worker | None = None
        self._lives = 0

    def run(self) -> None:
        while not self.stop.is_set():
            with self.lock:
                self.guarded(self.step)
            self.stop.wait(self.rng.expovariate(1 / 0.05))

    def guarded(self, step) -> None:
        """Keeps the first failure, and ends the run with it."""
        try:
            step()
        except Exception as error:  # pylint: disable=broad-except
            history = "\n  ".join(self.last.history) if self.last else ""
            name = self.last.name if self.last else self.name
            pid = self.last.process.pid if self.last else 0
            self.failure = f"{name} (pid {pid}): {type(error).__name__}: {error}\n  {history}"
            self.stop.set()

    def step(self) -> None:
        rng, worker = self.rng, self.worker
        if worker is None:
            self._lives += 1
            self.last = worker = Worker(self.service, f"s{self.index}-{self._lives}", self.counts)
            worker.connect(self.service)
            self.worker = worker
            return
        timeout = rng.choice((100, 1000, 30000, 30000))
        tag, number = rng.choice(TAGS), rng.choice([*worker.segments, ""])
        some = rng.sample(TAGS, rng.randint(1, 3))
        sleep = "sleep_policies " + " ".join(f"{t}=offload" for t in some) + f" timeout={timeout}"
        wake = f"wake {' '.join(rng.choice((some, [])))} timeout={timeout}"
        steps = {
            "allocate": 14 if worker.bytes() < MOST_BYTES else 0,
            "fill": 6 if number else 0, "check": 24 if number else 0, "free": 8 if number else 0,
            "sleep": 10, "discard": 3, "wake": 16, "beside": 4, "work": 4, "iterations": 4,
            "usage": 4, "stopped": 1, "end": 1, "kill": 1, "kill in": 1,
        }
        step = rng.choices(list(steps), list(steps.values()))[0]
        if step == "allocate":
            worker.allocate(rng, tag, rng.choice((0, 0, 500, 3000)))
        elif step == "fill":
            worker.fill(rng, number)
        elif step == "check":
            if not worker.check(number) and worker.segments[number].contents:
                worker.ask(wake)
        elif step == "free":
            worker.free(number)
        elif step == "sleep":
            worker.ask(sleep)
        elif step == "discard":
            worker.discard(timeout)
        elif step == "wake":
            worker.ask(wake)
        elif step == "beside":
            worker.beside(rng, rng.choice((sleep, wake)), tag)
        elif step == "work":
            worker.work(not worker.working)
        elif step == "iterations":
            worker.ask("iterations")
        elif step == "usage":
            worker.usage()
        elif step == "stopped":
            worker.stopped = True
            worker.process.send_signal(signal.SIGSTOP)
            time.sleep(rng.choice((0.1, 1, 1, 7)))  # a daemon waits for 5 s
            worker.process.send_signal(signal.SIGCONT)
            worker.stopped = False
        else:
            self.counts.add(f"workers: {'killed' if step != 'end' else 'ended'}")
            self.worker = None
            if step == "end":
                worker.end(rng)
                return
            if step == "kill in":
                worker.tell(rng.choice((sleep, wake, f"alloc {tag} 8MiB timeout=500")))
                time.sleep(rng.choice((0, 0.001, 0.005, 0.02)))
            worker.kill()
