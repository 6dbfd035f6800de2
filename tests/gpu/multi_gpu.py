"""Sleeps and wakes on all GPUs of this host at once, beside the link itself.

A torpord for each GPU, in one runtime directory, and a worker with the same load on each. First
the link with pinned memory, of each GPU alone and of all at once; then sleeps and wakes of one
GPU, and of all by one call of torporctl, with everything written anew, then with nothing changed.
Where "together" is less than the sum of the GPUs alone, for the link as well, that is the host's
memory or its root ports. Every byte is compared at the end. Ends with 0 if every check held.

    multi_gpu.py --bundle DIR [--out DIR] [--load b14] [--cycles 3] [--steps link,sleeps]
                 [--driver=host --gpus=N --scale=N]
"""

import argparse
import contextlib
import faulthandler
import os
import pathlib
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import NamedTuple

import gpus as hosts
from figures import Figures
from torpor_daemon import Daemon, Programs, ctl_all, number, seconds

MIB = 1 << 20
GIB = 1 << 30
# What the driver releases is cleared in the background, for so long, at the expense of copies.
PAUSE = 0.5
STEPS = ("link", "sleeps")
# Of an operation's time. They may overlap; what is left is none of them.
PHASES = ("quiesce", "digest", "copy", "worker", "handles")


class Moved(NamedTuple):
    """What a sleep or wake did to one worker, by the daemon's own times."""

    seconds: float
    bytes: int  # copied
    phases: dict  # seconds


class Role:
    """bench_sleep in one of its roles (tests/bench/role.h), on one GPU and the CPUs of its node."""

    def __init__(self, program, gpu, *arguments, cpus="", patience=120):
        self.gpu = gpu
        environment = dict(os.environ)
        if gpu.bus:
            environment["CUDA_VISIBLE_DEVICES"] = gpu.uuid
        pinned = ["taskset", "-c", cpus] if cpus and shutil.which("taskset") else []
        self.process = subprocess.Popen(
            [*pinned, program, "role", *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.patience = patience

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        """{key: number} of what follows "ok"."""
        try:
            line = self._lines.get(timeout=self.patience)
        except queue.Empty:
            raise RuntimeError(f"GPU {self.gpu.index}: no answer in {self.patience} s") from None
        if line is None or not line.startswith("ok"):
            raise RuntimeError(f"GPU {self.gpu.index}: {line or 'the program has ended'}")
        words = (word.partition("=") for word in line.split()[1:])
        return {key: float(value) for key, _, value in words if value}

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ask_all(roles, line):
    """The answers, and the seconds from the first question to the last answer."""
    start = time.monotonic()
    for role in roles:
        role.tell(line)
    answers = [role.answer() for role in roles]
    return answers, time.monotonic() - start


class Run:
    def __init__(self, options, figures, gpus, out):
        self.options = options
        self.figures = figures
        self.gpus = gpus
        self.out = out
        self.nodes = hosts.nodes()
        self.program = str(pathlib.Path(options.bundle) / "bin/bench_sleep")
        self.host = options.driver == "host"
        self.table = []  # (what, [GB/s of each GPU alone], [of each at once], together)
        self.daemons = []
        self.roles = []

    def cpus(self, node):
        return self.nodes.get(node, ("", 0))[0]

    def close(self):
        for thing in [*self.roles, *self.daemons]:
            try:
                thing.close()
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()
        self.roles, self.daemons = [], []

    # ---- The link

    def link(self):
        size = 256 * MIB if self.host else self.options.link_gib * GIB
        self.roles = self._links(size, [gpu.node for gpu in self.gpus])
        for what, name in (
            ("d2h", "link, to the host"), ("h2d", "link, to the device"), ("duplex", "link, both"),
        ):
            copied = size * (2 if what == "duplex" else 1)
            alone = [
                max(ask_all([role], what)[0][0]["gbps"] for _ in range(3)) for role in self.roles
            ]
            runs = [ask_all(self.roles, what) for _ in range(3)]
            best = min(runs, key=lambda run: run[1])
            each = [answer["gbps"] for answer in best[0]]
            self._record(name, copied, alone, each, copied * len(each) / best[1] / 1e9)
        self.close()
        others = [node for node, (cpus, _) in self.nodes.items() if cpus != ""]
        others = [node for node in others if node != self.gpus[0].node]
        if self.gpus[0].node < 0 or not others:
            self.figures.fact("link with memory of another node", "not told which is another")
            return
        self.roles = self._links(size, others[:1])
        for what in ("d2h", "h2d"):
            rate = max(ask_all(self.roles, what)[0][0]["gbps"] for _ in range(3))
            self.figures.row(
                f"link, {what}, GPU 0 alone, memory of node {others[0]}", size=size,
                seconds=size / rate / 1e9,
            )
        self.close()

    def _links(self, size, nodes):
        driver = self.options.driver
        roles = [
            Role(self.program, gpu, "link", driver, size, "asked", cpus=self.cpus(node))
            for gpu, node in zip(self.gpus, nodes)
        ]
        self.roles = roles
        for role in roles:
            role.answer()
        return roles

    def _record(self, name, size, alone, each, together):
        count = len(each)
        for gpu, rate in zip(self.gpus, alone):
            self.figures.row(f"{name}, GPU {gpu.index} alone", size=size, seconds=size / rate / 1e9)
        if count > 1:
            for gpu, rate in zip(self.gpus, each):
                self.figures.row(
                    f"{name}, GPU {gpu.index} of {count} at once", size=size,
                    seconds=size / rate / 1e9,
                )
            self.figures.row(
                f"{name}, {count} together", size=size * count,
                seconds=size * count / together / 1e9,
                note=f"{together / sum(alone):.3f} of the sum of each alone",
            )
        self.table.append((name, alone, each, together))

    # ---- Sleeps and wakes

    def sleeps(self):
        options = self.options
        listed = hosts.shell(
            self.program, "--list_loads", f"--loads={options.load}", f"--scale={options.scale}"
        ).split()
        weights = int(listed[2])
        self.figures.fact("load", f"{listed[0]}, {listed[1]} segments, weights {weights:,} bytes")
        pool = weights + (128 * MIB if self.host else 2 * GIB)
        runtime = tempfile.mkdtemp(prefix="torpor-", dir="/tmp")
        try:
            self._start_daemons(pool, runtime)
            self._check_nodes(weights)
            self.roles = [
                Role(
                    self.program, gpu, "worker", daemon.worker_socket, options.driver, options.load,
                    options.scale, cpus=self.cpus(gpu.node),
                )
                for gpu, daemon in zip(self.gpus, self.daemons)
            ]
            for role in self.roles:
                role.answer()
            ask_all(self.roles, "allocate")
            ask_all(self.roles, "fill 1")
            print("  workers are ready", flush=True)
            self._move("first sleep", "sleep", range(len(self.gpus)), "--level=1")
            time.sleep(PAUSE)
            self._move("first wake", "wake", range(len(self.gpus)))
            self._cycles()
            self._unchanged_cycles()
            answers, spent = ask_all(self.roles, "verify")
            self.figures.check(
                "every byte of weights and KV cache is right, on each GPU", True,
                f"{[int(answer['bytes']) for answer in answers]}, {spent:.1f} s",
            )
        finally:
            self.close()
            shutil.rmtree(runtime, ignore_errors=True)

    def _start_daemons(self, pool, runtime):
        flags = [f"--driver={self.options.driver}", f"--host_pool={pool}", "--pin_pool=background"]
        if self.host:
            flags += ["--safety_reserve=0", "--host_granularity=64KiB", "--host_device_memory=2GiB"]

        begun = time.monotonic()
        for gpu in self.gpus:
            self.daemons.append(Daemon(
                Programs(bundle=self.options.bundle), f"--device={gpu.uuid}", *flags,
                log=self.out / f"multi-torpord-{gpu.index}.log", runtime_dir=runtime,
            ))
        self.figures.row(f"start {len(self.daemons)} daemons", seconds=time.monotonic() - begun)
        begun = grown = time.monotonic()
        pinned, before = 0, -1
        while time.monotonic() - begun < 90 and time.monotonic() - grown < 10:
            pools = [answer["host_pool"] for answer in ctl_all(self.daemons, "usage")]
            pinned = sum(number(one, "pinned_bytes") for one in pools)
            if pinned != before:
                before, grown = pinned, time.monotonic()
            if all(number(one, "pinned_bytes") >= number(one, "budget_bytes") for one in pools):
                break
            time.sleep(0.05)
        self.figures.row(
            f"pin {len(self.daemons)} pools at once, in the background", size=pinned,
            seconds=time.monotonic() - begun,
            note=f"{pools[0].get('kind', '')}, {pinned:,} of {pool * len(pools):,}",
        )
        self.figures.check("the pools are pinned", pinned >= pool * len(pools), pinned)

    def _check_nodes(self, weights):
        for gpu, daemon in zip(self.gpus, self.daemons):
            pages = hosts.pages_by_node(daemon.process.pid)
            told = ", ".join(f"node {node} {size:,}" for node, size in sorted(pages.items()))
            self.figures.fact(f"memory of the daemon of GPU {gpu.index}", told or "not told")
            if gpu.node < 0 or sum(pages.values()) < weights:
                continue
            self.figures.check(
                f"the pool of GPU {gpu.index} lies on its node, {gpu.node}",
                pages.get(gpu.node, 0) >= 0.95 * sum(pages.values()), told,
            )

    def _move(self, name, verb, which, *arguments):
        """One call for all of it: what it did to each, and its own seconds."""
        daemons = [self.daemons[index] for index in which]
        start = time.monotonic()
        answers = ctl_all(daemons, verb, "--all", *arguments, timeout=60)
        wall = time.monotonic() - start
        timings = [answer["workers"][0]["timing"] for answer in answers]
        moved = [
            Moved(
                seconds(timing["total"]), number(answer, "copied_bytes"),
                {phase: seconds(timing.get(phase, "0s")) for phase in PHASES},
            )
            for answer, timing in zip(answers, timings)
        ]
        took = ", ".join(f"{1000 * one.seconds:.1f}" for one in moved)
        print(f"    {name}, {len(daemons)}: {took} ms, call {wall:.3f} s", flush=True)
        return moved, wall

    def _each_and_all(self):
        """Which GPUs are moved in a cycle, in turn."""
        count = len(self.gpus)
        return [*([index] for index in range(count)), list(range(count))]

    def _cycles(self):
        count = len(self.gpus)
        alone = {"sleep": [[] for _ in self.gpus], "wake": [[] for _ in self.gpus]}
        at_once = {"sleep": [], "wake": []}
        walls = {"sleep": [], "wake": []}
        generation = 1
        for cycle in range(self.options.cycles):
            for which in self._each_and_all():
                generation += 1
                ask_all([self.roles[index] for index in which], f"fill {generation}")
                for verb, more in (("sleep", ["--level=1"]), ("wake", [])):
                    moved, wall = self._move(f"{verb} {cycle + 1}", verb, which, *more)
                    time.sleep(0 if self.host else PAUSE)
                    if len(which) == 1:
                        alone[verb][which[0]].append(moved[0])
                    if len(which) == count:
                        at_once[verb].append(moved)
                        walls[verb].append(wall)
        for verb in ("sleep", "wake"):
            name = f"{verb}, all written anew"
            size = at_once[verb][0][0].bytes
            ones = [statistics.median(one.seconds for one in runs) for runs in alone[verb]]
            all_of = [
                statistics.median(moved[index].seconds for moved in at_once[verb])
                for index in range(count)
            ]
            slowest = statistics.median(max(one.seconds for one in run) for run in at_once[verb])
            sizes = {one.bytes for run in at_once[verb] for one in run}
            self.figures.check(f"{name}: all of it was copied, each time", len(sizes) == 1, sizes)
            self._record(
                name, size, [size / spent / 1e9 for spent in ones],
                [size / spent / 1e9 for spent in all_of], size * count / slowest / 1e9,
            )
            self.figures.row(
                f"{verb} of {count} by one torporctl, start to end",
                seconds=statistics.median(walls[verb]), note=f"worst {max(walls[verb]):.3f} s",
            )

    def _unchanged_cycles(self):
        """Sleeps with nothing to copy, by phases, and the wakes after them."""
        moves = {}  # by step and GPU
        for cycle in range(self.options.cycles):
            for which in self._each_and_all():
                how = "alone" if len(which) == 1 else f"of {len(which)} at once"
                for verb, step, more in (
                    ("sleep", "sleep, nothing changed", ["--level=1"]),
                    ("wake", "wake, nothing had changed", []),
                ):
                    moved, _ = self._move(f"{step} {cycle + 1}", verb, which, *more)
                    time.sleep(0 if self.host else PAUSE)
                    for index, one in zip(which, moved):
                        name = f"{step}, GPU {self.gpus[index].index} {how}"
                        moves.setdefault(name, []).append(one)
        for name, runs in sorted(moves.items()):
            phases = ", ".join(
                f"{phase} {1000 * statistics.median(one.phases[phase] for one in runs):.1f}"
                for phase in PHASES
            )
            spent = [one.seconds for one in runs]
            self.figures.row(
                name, seconds=statistics.median(spent),
                note=f"{phases} ms; worst {1000 * max(spent):.1f} ms",
            )
        copied = {one.bytes for name, runs in moves.items() if "sleep" in name for one in runs}
        self.figures.check("where nothing changed, nothing is copied", copied == {0}, copied)

    # ---- The result

    def one_and_all(self):
        """The rates beside each other, in GB/s."""
        count = len(self.gpus)
        lines = [
            "", "## One and all", "",
            f"| GB/s | one GPU | each of {count} at once | {count} together | of {count} alone |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for name, alone, each, together in self.table:
            cells = [
                name, _range(alone), _range(each), f"{together:.1f}", f"{together / sum(alone):.3f}"
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def diagnose(self):
        for gpu, daemon in zip(self.gpus, self.daemons):
            print(f"---- torpord of GPU {gpu.index}: {daemon.process.poll()}", flush=True)
            print(daemon.log_tail(30), flush=True)


def _range(rates):
    low, high = f"{min(rates):.1f}", f"{max(rates):.1f}"
    return low if low == high else f"{low} to {high}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--driver", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--gpus", type=int, default=0, help="so many of them (all)")
    parser.add_argument("--load", default="b14", help="as bench_sleep has them")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--link-gib", type=int, default=8, help="copied for each figure")
    parser.add_argument("--steps", default=",".join(STEPS))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(300, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("Sleep and wake on several GPUs at once")
    if options.driver == "host":
        gpus = hosts.host(options.gpus or 2)
    else:
        gpus = hosts.find()[: options.gpus or None]
    topology = hosts.tell(gpus, figures)
    (out / "topology.txt").write_text(topology)
    figures.check("there are several GPUs", len(gpus) > 1, len(gpus))
    run = Run(options, figures, gpus, out)
    for name in options.steps.split(","):
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            getattr(run, name)()
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()
            figures.check(f"{name} runs to its end", False)
            run.diagnose()
        finally:
            run.close()
        figures.fact(f"seconds of {name}", f"{time.monotonic() - start:.1f}")
        figures.write(out, "multi")
    table = run.one_and_all()
    print(table, flush=True)
    with open(out / "multi.md", "a", encoding="utf-8") as file:
        file.write(f"{table}\n## The host\n\n```text\n{topology}```\n")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
