"""torpor-keeper with its torpord, which are killed and started again; and torporctl."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from typing import Any, Callable

GRACE_S = 20
# How long anything may take that has to happen: a daemon that serves, a worker that answers.
PATIENCE_S = 90
# The programs, beside each other.
KEEPER, TORPORD, TORPORCTL, WORKER = "torpor-keeper", "torpord", "torporctl", "test_worker"


class Failure(Exception):
    """Something that must not happen has happened."""


@dataclasses.dataclass
class Answer:
    """Of one torporctl call: `code` is gRPC's, 0 for OK; `body` its JSON, of an error too."""

    code: int
    reason: str
    body: dict[str, Any]

    def outcomes(self) -> list[str]:
        """The reason of each worker's result, or of the call; "ok" where there is none."""
        if self.code != 0:
            return [self.reason or f"CODE_{self.code}"]
        results = [worker.get("status", {}) for worker in self.body.get("workers", [])]
        return [reason_of(one) if one.get("code") else "ok" for one in results] or ["ok"]


def reason_of(status: dict[str, Any]) -> str:
    """The reason in a google.rpc.Status; empty where gRPC itself has failed."""
    return next((d["reason"] for d in status.get("details", []) if "reason" in d), "")


def wait_for(condition: Callable[[], Any], what: Callable[[], str], timeout: float) -> Any:
    """The first true value of `condition`; Failure with `what()` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise Failure(f"not within {timeout:.0f} s: {what()}")
        time.sleep(0.005)


def memory_of(pid: int) -> dict[str, int]:
    """Private bytes, descriptors and threads of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "private_kib": int(fields["RssAnon"].split()[0]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }


class Service:
    """In a directory of its own, with copies of the programs. Thread-safe but for the faults."""

    def __init__(self, directory: pathlib.Path, programs: list[pathlib.Path], flags: list[str]):
        self.directory = directory
        for program in programs:
            shutil.copy(program, directory)
        device = directory / "host-0"
        self.control_socket, self.worker_socket = device / "control.sock", device / "worker.sock"
        self.log_path = directory / "keeper.log"
        self.flags = flags
        self.keeper: subprocess.Popen[bytes] | None = None

    def start_keeper(self) -> None:
        command = [
            self.path(KEEPER), f"--socket={self.directory}/keeper.sock",
            f"--journal={self.directory}/journal", "--", self.path(TORPORD), "--driver=host",
            f"--runtime_dir={self.directory}", *self.flags,
        ]
        with open(self.log_path, "ab") as log:
            self.keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def path(self, program: str) -> str:
        return str(self.directory / program)

    def pids(self, program: str | None = None) -> list[int]:
        """Of all that run one of our programs, or this one."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                target = os.readlink(f"/proc/{entry}/exe") if entry.isdigit() else ""
            except OSError:
                continue
            if target == self.path(program or os.path.basename(target)):
                found.append(int(entry))
        return found

    def signal_daemon(self, number: int) -> list[int]:
        """Whom it was sent to."""
        pids = self.pids(TORPORD)
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        return pids

    def kill_daemon(self) -> list[int]:
        pids = self.signal_daemon(signal.SIGKILL)
        wait_for(lambda: not set(pids) & set(self.pids(TORPORD)), lambda: "a daemon dies", 60)
        return pids

    def kill_keeper(self) -> None:
        assert self.keeper is not None
        self.keeper.kill()
        self.keeper.wait()

    def ctl(self, *arguments: str, timeout_s: float = 10) -> Answer:
        command = [
            self.path(TORPORCTL), f"--target={self.control_socket}", "--json",
            f"--timeout={int(timeout_s * 1000)}ms", *arguments,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s + PATIENCE_S, check=False
        )
        if done.stdout:
            return Answer(0, "", json.loads(done.stdout))
        if not done.stderr.startswith("{"):
            raise Failure(f"{' '.join(arguments)}: status {done.returncode}: {done.stderr}")
        error = json.loads(done.stderr)
        return Answer(error["code"], reason_of(error), error)

    def usage(self) -> dict[str, Any] | None:
        answer = self.ctl("usage")
        return answer.body if answer.code == 0 else None

    def await_usage(
        self, condition: Callable[[dict[str, Any]], Any], what: str, timeout: float = PATIENCE_S
    ) -> dict[str, Any]:
        last: list[Any] = [None]

        def holds() -> dict[str, Any] | None:
            last[0] = self.usage()
            return last[0] if last[0] is not None and condition(last[0]) else None

        return wait_for(holds, lambda: f"{what}: {json.dumps(last[0])}", timeout)

    def log_tail(self, lines: int = 150) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def stacks(self) -> str:
        """Of all processes, where gdb is there."""
        if not shutil.which("gdb"):
            return "(no gdb)"
        stacks = []
        for pid in self.pids():
            command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 24"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            stacks.append(f"==== {pid}\n{done.stdout}")
        return "\n".join(stacks)

    def end_all(self) -> None:
        """What still runs: the keeper first, which would start another daemon."""
        if self.keeper is not None and self.keeper.poll() is None:
            self.kill_keeper()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
