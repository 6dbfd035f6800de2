"""Workers that are killed on a GPU, awake and asleep, and a device that is full.

The daemon must get their memory back, and others must not notice. Ends with 0 if every check held.

    faults.py --bundle DIR [--out DIR]
"""

import argparse
import faulthandler
import pathlib
import signal
import subprocess
import sys
import time
import traceback

import torpor
from figures import Figures
from torpor_daemon import CommandFailed, Daemon, Programs, number

GIB = 1 << 30
MIB = 1 << 20
# What the daemon's own context may have grown by.
SLACK = 64 * MIB


def worker(runtime_dir, name, driver):
    """The process that gets killed: holds memory, and obeys on standard input."""
    session = torpor.connect(
        name=name, runtime_dir=runtime_dir, driver=driver, quiesce=torpor.Quiesce.GUARD
    )
    blocks = {}
    guards = []
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            if command == "allocate":
                tag, size = arguments[0], int(arguments[1])
                address = session.allocate(tag, size)
                blocks[address] = name.encode() * 1000 + str(address).encode()
                session.write(address, blocks[address])
            elif command == "verify":
                for address, data in blocks.items():
                    if session.read(address, len(data)) != data:
                        raise ValueError(f"other bytes at {address:#x}")
            elif command == "enter":
                guards.append(session.work(timeout=0))
                guards[-1].__enter__()
            print("ok", flush=True)
        except (torpor.TorporError, ValueError) as error:
            print(f"error {error}", flush=True)


class Worker:
    def __init__(self, options, daemon, name):
        command = [
            sys.executable, __file__, "--worker", str(daemon.runtime_dir), name, options.driver,
        ]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")

    def expect(self, answer):
        line = self.process.stdout.readline().strip()
        if line != answer:
            raise RuntimeError(f"{self.name} says {line!r}")

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


class Run:
    def __init__(self, options, daemon, figures):
        self.options = options
        self.daemon = daemon
        self.figures = figures
        self.size = options.size

    def start(self, name):
        return Worker(self.options, self.daemon, name)

    def usage(self):
        return self.daemon.ctl("usage")

    def free(self):
        return number(self.usage()["device"], "free_bytes")

    def check_free(self, what, expected):
        """Waits for it: the driver cleans up after a killed process."""
        start = time.monotonic()
        while (free := self.free()) < expected - SLACK and time.monotonic() - start < 10:
            time.sleep(0.01)
        spent = time.monotonic() - start
        told = f"{free:,} of {expected:,} after {spent:.2f} s"
        self.figures.check(what, free >= expected - SLACK, told)

    def workers(self):
        return [worker["name"] for worker in self.usage()["workers"]]

    def check_answer(self, what, answer):
        self.figures.check(what, answer == "ok", "" if answer == "ok" else answer)

    def killed(self, step, prepare):
        """Kills one worker after `prepare`; a second one keeps its bytes and goes on."""
        free = self.free()
        bystander = self.start("bystander")
        bystander.ask("allocate", "weights", 64 * MIB)
        victim = self.start("victim")
        for tag in ("weights", "kv_cache"):
            self.check_answer(f"{step}: allocates {tag}", victim.ask("allocate", tag, self.size))
        prepare(victim)
        victim.kill()
        deadline = time.monotonic() + 10
        while "victim" in self.workers() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.figures.check(f"{step}: the session has ended", "victim" not in self.workers())
        pool = number(self.usage()["host_pool"], "used_bytes")
        self.figures.check(f"{step}: the host pool has its memory back", pool == 0, f"{pool:,}")
        self.check_answer(f"{step}: the other worker's bytes", bystander.ask("verify"))
        self.daemon.ctl("sleep", "--worker=bystander", "--level=1")
        self.daemon.ctl("wake", "--worker=bystander")
        self.check_answer(f"{step}: the other worker sleeps and wakes", bystander.ask("verify"))
        bystander.end()
        self.check_free(f"{step}: all device memory is free again", free)

    def killed_awake(self):
        self.killed("killed awake", lambda _: None)

    def killed_asleep(self):
        self.killed(
            "killed asleep", lambda _: self.daemon.ctl("sleep", "--worker=victim", "--level=1")
        )

    def killed_while_it_holds_the_guard(self):
        """Its sleep cannot begin; the kill comes while the daemon waits."""

        def prepare(victim):
            self.check_answer("killed in its guard: enters", victim.ask("enter"))
            try:
                self.daemon.ctl("sleep", "--worker=victim", "--level=1", "--timeout=1s")
                self.figures.check("killed in its guard: the sleep is late", False)
            except CommandFailed as error:
                self.figures.check(
                    "killed in its guard: the sleep is late", '"code": 4' in str(error)
                )

        self.killed("killed in its guard", prepare)

    def full_device(self):
        """A wake that does not fit is refused and can be repeated."""
        sleeper = self.start("sleeper")
        sleeper.ask("allocate", "weights", self.size)
        self.daemon.ctl("sleep", "--worker=sleeper", "--level=1")
        hog = self.start("hog")
        left = number(self.usage()["device"], "available_bytes")
        granularity = number(self.usage()["device"], "granularity_bytes")
        take = (left - self.size // 2) // granularity * granularity
        answer = hog.ask("allocate", "weights", take)
        self.check_answer("full device: another worker takes the rest", answer)
        try:
            self.daemon.ctl("wake", "--worker=sleeper")
            self.figures.check("full device: the wake is refused", False)
        except CommandFailed as error:
            self.figures.check("full device: the wake is refused", '"code": 8' in str(error))
        hog.kill()
        deadline = time.monotonic() + 10
        while "hog" in self.workers() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.daemon.ctl("wake", "--worker=sleeper")
        self.check_answer("full device: the bytes are there after the next", sleeper.ask("verify"))
        sleeper.end()


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--driver", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--size", type=int, default=2 * GIB, help="of each segment")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(420, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    programs = Programs(bundle=options.bundle)
    figures = Figures("Workers that die, a device that is full")
    for name in ("killed_awake", "killed_asleep", "killed_while_it_holds_the_guard", "full_device"):
        print(f"== {name}", flush=True)
        daemon = Daemon(
            programs,
            f"--driver={options.driver}",
            f"--host_pool={options.size * 2 // MIB + 64}MiB",
            f"--host_device_memory={options.size * 4 // MIB + 256}MiB",
        )
        failed_before = len(figures.failed())
        try:
            getattr(Run(options, daemon, figures), name)()
        except Exception:
            traceback.print_exc()
            figures.check(f"{name} runs to its end", False)
        if len(figures.failed()) > failed_before:
            print("---- torpord", daemon.log_tail(60), "----", sep="\n", flush=True)
        figures.check(f"{name}: torpord ends with 0", daemon.close() == 0)
    (out / "faults.md").write_text(figures.markdown())
    bad = figures.failed()
    print(f"{len(figures.checks) - len(bad)} checks held, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
