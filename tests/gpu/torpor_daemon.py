"""A torpord of one's own, and torporctl beside it, for tests and measurements in Python."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

# Ends a program with its parent. Not by a preexec_fn: that forks this process, which its libraries
# (gRPC) may not survive.
_END_WITH_PARENT = ["setpriv", "--pdeathsig=TERM", "--"]


class CommandFailed(Exception):
    """torporctl said no; the text is what it printed."""


class Programs:
    """Where torpord and torporctl lie: those of an unpacked bundle, or given."""

    def __init__(self, *, bundle=None, torpord=None, torporctl=None, keeper=None):
        root = pathlib.Path(bundle) if bundle else None
        self.keeper = str(keeper or (root / "bin/torpor-keeper" if root else ""))
        self.torpord = str(torpord or root / "bin/torpord")
        self.torporctl = str(torporctl or root / "bin/torporctl")


class Daemon:
    """Runs torpord until closed, in a runtime directory of its own unless one is given. With
    `keeper`, torpor-keeper runs it, and is the process of this object."""

    def __init__(
        self, programs, *flags, log=None, start_timeout=60, runtime_dir=None, keeper=False
    ):
        self.programs = programs
        # Not below a test's own folder: paths of Unix sockets are short.
        self._scratch = pathlib.Path(tempfile.mkdtemp(prefix="torpor-", dir="/tmp"))
        self.runtime_dir = pathlib.Path(runtime_dir) if runtime_dir else self._scratch
        self.log_path = pathlib.Path(log) if log else self._scratch / "torpord.log"
        self._log = open(self.log_path, "wb")
        by = []
        if keeper:
            by = [
                programs.keeper, f"--socket={self.runtime_dir}/keeper.sock",
                f"--journal={self.runtime_dir}/journal", "--",
            ]
        self._command = [*by, programs.torpord, f"--runtime_dir={self.runtime_dir}", *flags]
        self.start()
        try:
            sockets = self._wait_for_sockets(start_timeout)
        except BaseException:
            self.close()
            raise
        self.control_socket, self.worker_socket = sockets

    def start(self):
        """Another process, after the one before was killed."""
        self.process = subprocess.Popen(
            [*_END_WITH_PARENT, *self._command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def _wait_for_sockets(self, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            said = re.search(r"^torpord .* at (\S+) and ([^\s,]+)", self.log_text(), re.MULTILINE)
            if said:
                return said.groups()
            if self.process.poll() is not None:
                status = self.process.returncode
                raise RuntimeError(f"torpord ended with status {status}:\n{self.log_tail()}")
            time.sleep(0.02)
        raise RuntimeError(f"torpord is not ready after {timeout} s:\n{self.log_tail()}")

    def log_text(self):
        return self.log_path.read_text(errors="replace")

    def log_tail(self, lines=60):
        return "\n".join(self.log_text().splitlines()[-lines:])

    def ctl(self, command, *arguments, timeout=300):
        """The JSON answer of one torporctl call."""
        line = [
            self.programs.torporctl,
            f"--target={self.control_socket}",
            "--json",
            command,
            *arguments,
        ]
        done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise CommandFailed(
                f"{' '.join(line[3:])}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return json.loads(done.stdout)

    def close(self):
        """Stops the daemon; gives its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ctl_each(daemons, command, *arguments, timeout=300):
    """One torporctl call to several daemons: its status, and for each {"response": ...} or
    {"error": ...}."""
    line = [
        daemons[0].programs.torporctl,
        *(f"--target={daemon.control_socket}" for daemon in daemons),
        "--json",
        command,
        *arguments,
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, check=False)
    if len(daemons) > 1:
        answers = json.loads(done.stdout) if done.stdout else []
        if len(answers) != len(daemons):
            raise CommandFailed(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode, answers
    # An error goes elsewhere.
    key, text = ("response", done.stdout) if done.stdout else ("error", done.stderr)
    return done.returncode, [{key: json.loads(text)}]


def ctl_all(daemons, command, *arguments, timeout=300):
    """The JSON answers of one torporctl call to several daemons, in their order."""
    status, answers = ctl_each(daemons, command, *arguments, timeout=timeout)
    if status != 0:
        raise CommandFailed(f"{command} {' '.join(arguments)}: status {status}\n{answers}")
    return [answer["response"] for answer in answers]


def number(answer, name):
    """A number of an answer; protobuf's JSON writes 64 bits as text."""
    return int(answer[name])


def seconds(duration):
    """A duration of protobuf's JSON ("1.500s") in seconds."""
    return float(duration.rstrip("s"))
