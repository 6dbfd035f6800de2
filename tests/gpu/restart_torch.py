"""A daemon that is killed under PyTorch: one model generates on, another sleeps meanwhile.

torpor-keeper starts torpord; torpord is killed with SIGKILL while one process generates and
another's model sleeps. The first goes on with equal logits, and sleeps and wakes after it; the
second wakes with every byte. Measures the time from the kill until the next daemon answers Usage,
until it has all sessions back, and until it has allocated. Then the keeper is killed, and another
one takes over. Where a tmpfs can be mounted for the host pool, both are killed at once, too: while
both models sleep, and while one is awake. Ends with 0 if every check held.

    restart_torch.py --bundle DIR [--out DIR] [--kills N] [--pool SIZE] [--small]

The package, torpor, has to be importable.
"""

import argparse
import contextlib
import faulthandler
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import engine
import torpor
import torpor.torch as tt
from figures import Figures
from torpor import Quiesce
from torpor_daemon import CommandFailed, Daemon, Programs, number

MIB = 1 << 20


def connect(name, runtime_dir):
    torch.cuda.init()
    session = torpor.connect(
        name=name, runtime_dir=runtime_dir, driver="cuda", quiesce=Quiesce.GUARD
    )
    tt.use(session)
    return session


def sleeper(options):
    """A process of its own whose memory sleeps: obeys lines, answers each with a line."""
    session = connect("asleep", options.runtime_dir)
    generator = torch.Generator(device="cuda").manual_seed(7)
    with tt.memory_pool("weights"):
        parts = [
            torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(options.parts)
        ]
    with session.work():
        for part in parts:
            part.random_(0, 256, generator=generator)
        torch.cuda.synchronize()
    copies = [part.cpu() for part in parts]
    for line in sys.stdin:
        if line == "sleep\n":
            print("ok", session.sleep(1).copied_bytes, flush=True)
        elif line == "wake\n":
            start = time.monotonic()
            copied = session.wake_up().copied_bytes
            spent = time.monotonic() - start
            with session.work(timeout=20):
                right = all(
                    torch.equal(part.cpu(), copy) for part, copy in zip(parts, copies, strict=True)
                )
            print("ok" if right else "wrong", copied, spent, flush=True)


class Sleeper:
    def __init__(self, runtime_dir, parts):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--runtime_dir", str(runtime_dir), "--parts", str(parts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()


class Run:
    def __init__(self, options, daemon, figures):
        self.daemon = daemon
        self.figures = figures
        self.session = connect("awake", daemon.runtime_dir)
        config = engine.small(512) if options.small else engine.two_billion(512)
        self.engine = engine.Engine(
            config, device="cuda", batch=1, context=512,
            weights=lambda: tt.memory_pool("weights"), kv_cache=lambda: tt.memory_pool("kv_cache"),
        )
        with self.work():
            self.engine.fill_weights()
        self.expected = self.generation()
        figures.check("the model is deterministic", self.same(self.generation()))
        self.parts = 2 if options.small else 32
        self.sleeper = Sleeper(daemon.runtime_dir, self.parts)
        self.stop = threading.Event()
        self.rounds = 0
        self.longest = 0.0
        self.wrong = 0

    @contextlib.contextmanager
    def work(self):
        with self.session.work(timeout=60), torch.inference_mode():
            yield

    def generation(self):
        with self.work():
            tokens, logits = self.engine.generate(32)
        torch.cuda.synchronize()
        return tokens.cpu(), logits.cpu()

    def same(self, generation):
        return all(
            torch.equal(one, other)
            for one, other in zip(generation, self.expected, strict=True)
        )

    def generate(self):
        while not self.stop.is_set():
            start = time.monotonic()
            self.wrong += not self.same(self.generation())
            self.longest = max(self.longest, time.monotonic() - start)
            self.rounds += 1

    def daemon_pid(self):
        return int(re.findall(r"torpor-keeper: daemon (\d+) started", self.daemon.log_text())[-1])

    def protected(self):
        return not self.daemon.ctl("usage").get("protection", {}).get("code")

    def await_back(self, start, before):
        """Seconds until a daemon serves that was started after `before`, and until all are back."""
        serving = back = usage = None
        while time.monotonic() - start < 60 and back is None:
            try:
                usage = self.daemon.ctl("usage")
            except CommandFailed:
                time.sleep(0.005)
                continue
            if usage.get("start_time") == before.get("start_time"):
                continue
            serving = serving or time.monotonic() - start
            if all(
                not worker.get("awaited") and not worker.get("operation_id")
                for worker in usage["workers"]
            ):
                back = time.monotonic() - start
        return serving, back, usage

    def kill_keeper(self):
        figures = self.figures
        pid = self.daemon_pid()
        self.daemon.process.kill()
        self.daemon.process.wait()
        deadline = time.monotonic() + 10
        while self.protected() and time.monotonic() < deadline:
            time.sleep(0.01)
        figures.check("without its keeper the daemon says so", not self.protected())
        woken = self.sleeper.ask("wake")
        figures.check("it goes on without: a wake", woken[:1] == ["ok"], woken)
        slept = self.sleeper.ask("sleep")
        figures.check("and a sleep", slept[:1] == ["ok"], slept)
        start = time.monotonic()
        self.daemon.start()
        while not self.protected() and time.monotonic() - start < 20:
            time.sleep(0.01)
        figures.check("the next keeper takes it over", self.protected())
        figures.row("next keeper started: until it has everything", seconds=time.monotonic() - start)
        os.kill(pid, 0)

    def kill_both(self, what):
        figures = self.figures
        self.await_pool()
        before = self.daemon.ctl("usage")
        pid = self.daemon_pid()
        start = time.monotonic()
        os.kill(pid, signal.SIGSTOP)  # so that neither sees the other's end
        self.daemon.process.kill()
        os.kill(pid, signal.SIGKILL)
        self.daemon.process.wait()
        self.daemon.start()
        serving, back, usage = self.await_back(start, before)
        figures.check(f"both killed, {what}: the next daemon has everyone back", back is not None)
        figures.row(f"both killed, {what}: until it serves", seconds=serving)
        figures.row(f"both killed, {what}: until all sessions are back", seconds=back)
        figures.check(
            f"both killed, {what}: the pool has what it had",
            number(usage["host_pool"], "used_bytes") == number(before["host_pool"], "used_bytes"),
        )
        return usage

    def run_both(self):
        figures, ask = self.figures, self.sleeper.ask
        slept = ask("sleep")
        figures.check("the other one sleeps", slept[:1] == ["ok"], slept)
        self.session.sleep(1)
        self.kill_both("both asleep")
        woken = ask("wake")
        figures.check("the other one wakes with every byte", woken[:1] == ["ok"], woken)
        if len(woken) == 3:
            figures.row("wake of the other", size=int(woken[1]), seconds=float(woken[2]),
                        note="right after it, while the pool is being registered")
        start = time.monotonic()
        result = self.session.wake_up()
        figures.row("wake of the model", size=result.device_bytes, seconds=time.monotonic() - start)
        figures.check("the same tokens and logits", self.same(self.generation()))
        slept = ask("sleep")
        figures.check("and the other one sleeps again", slept[:1] == ["ok"], slept)
        usage = self.kill_both("one awake")
        figures.check("nothing is resident for the daemon",
                      number(usage["device"], "resident_bytes") == 0)
        lost = re.findall(r"lost: (.*)", self.daemon.log_text())
        figures.check("what was awake is told as lost, by name",
                      any(line.startswith("awake, tag weights: ") for line in lost), lost[:2])
        figures.check("it generates on: the same tokens and logits", self.same(self.generation()))
        woken = ask("wake")
        figures.check("and the other one wakes with every byte", woken[:1] == ["ok"], woken)

    def await_pool(self):
        """Until the pool is pinned as far as it will be."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            pool = self.daemon.ctl("usage")["host_pool"]
            if not pool.get("pinning", False):
                break
            time.sleep(0.1)
        return pool

    def kill(self, turn):
        figures = self.figures
        pool = self.await_pool()
        before = self.daemon.ctl("usage")
        pid = self.daemon_pid()
        start = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        serving, back, usage = self.await_back(start, before)
        figures.check(f"kill {turn}: the next daemon has everyone back", back is not None)
        if back is None:
            print(self.daemon.log_tail(), flush=True)
            return
        address = self.session.allocate("scratch", 64 * MIB)
        allocated = time.monotonic() - start
        self.session.free(address)
        figures.row(
            f"kill {turn}: until it serves", seconds=serving,
            note=f"{number(pool, 'pinned_bytes'):,} of the pool pinned,"
            f" {number(pool, 'used_bytes'):,} used",
        )
        figures.row(f"kill {turn}: until all sessions are back", seconds=back)
        figures.row(f"kill {turn}: until it has allocated", seconds=allocated)
        for key in ("resident_bytes", "available_bytes"):
            now, then = number(usage["device"], key), number(before["device"], key)
            # The contexts of two daemons need not be equally large.
            good = now == then if key == "resident_bytes" else abs(now - then) <= 256 * MIB
            figures.check(f"kill {turn}: {key} as before", good, f"{then:,} then {now:,}")
        figures.check(
            f"kill {turn}: the pool has what it had",
            number(usage["host_pool"], "used_bytes") == number(before["host_pool"], "used_bytes"),
        )

    def run(self, kills):
        figures, ask = self.figures, self.sleeper.ask
        slept = ask("sleep")
        figures.check("the other one sleeps", slept[:1] == ["ok"], slept)
        thread = threading.Thread(target=self.generate)
        thread.start()
        for turn in range(1, kills + 1):
            self.kill(turn)
            woken = ask("wake")
            figures.check(
                f"kill {turn}: the other one wakes with every byte", woken[:1] == ["ok"], woken
            )
            if len(woken) == 3:
                figures.row(
                    f"kill {turn}: wake of the other", size=int(woken[1]), seconds=float(woken[2]),
                    note="right after it, while the pool is being registered",
                )
            slept = ask("sleep")
            figures.check(f"kill {turn}: and sleeps again", slept[:1] == ["ok"], slept)
        self.stop.set()
        thread.join()
        figures.check(
            "it generated on all the while, each time the same",
            self.wrong == 0 and self.rounds > 0,
            f"{self.rounds} generations, the longest {self.longest:.3f} s",
        )
        start = time.monotonic()
        result = self.session.sleep(1)
        spent = time.monotonic() - start
        figures.row("sleep of the one that was awake", size=result.device_bytes, seconds=spent)
        start = time.monotonic()
        result = self.session.wake_up()
        spent = time.monotonic() - start
        figures.row("wake of it", size=result.device_bytes, seconds=spent)
        figures.check("after that: the same tokens and logits", self.same(self.generation()))


def mount_pool():
    """A tmpfs with huge pages; None where nothing can be mounted."""
    folder = tempfile.mkdtemp(prefix="torpor-pool-", dir="/tmp")
    command = ["mount", "-t", "tmpfs", "-o", "size=100%,huge=always,mode=0700", "torpor", folder]
    if subprocess.run(command, check=False).returncode == 0:
        return folder
    os.rmdir(folder)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle")
    parser.add_argument("--out", default=".")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--pool", default="64GiB")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--runtime_dir", help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(400, exit=True)
    if options.runtime_dir:
        return sleeper(options)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("A daemon that is killed under PyTorch")
    run = None
    pool_dir = mount_pool()
    daemon = Daemon(
        Programs(bundle=options.bundle), "--driver=cuda", f"--host_pool={options.pool}",
        "--worker_deadline=20s", *([f"--pool_dir={pool_dir}"] if pool_dir else []),
        log=out / "restart-torpord.log", keeper=True,
    )
    try:
        figures.fact("device", torch.cuda.get_device_name(0))
        run = Run(options, daemon, figures)
        usage = daemon.ctl("usage")
        figures.fact("host pool", usage["host_pool"].get("kind"))
        figures.check("it is protected", not usage.get("protection", {}).get("code"),
                      usage.get("protection"))
        run.run(options.kills)
        run.kill_keeper()
        if pool_dir:
            run.run_both()
        else:
            figures.fact("both killed", "not run: no tmpfs can be mounted")
    finally:
        if run is not None:
            run.stop.set()
            run.sleeper.process.kill()
        figures.write(out, "restart")
        status = daemon.close()
        if pool_dir:
            left = os.listdir(pool_dir)
            subprocess.run(["umount", pool_dir], check=False)
            os.rmdir(pool_dir)
    if pool_dir:
        figures.check("the pool's file is gone with the daemon", not left, left)
        figures.write(out, "restart")
    print(f"torpor-keeper ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
