"""A shell session in a folder of its own, to which blocks of a page are given one after the other."""

import os
import pathlib
import re
import select
import signal
import subprocess
import time

PATIENCE_S = 300.0


class Failed(Exception):
    """A command did not end as it should; the message has its output."""


class Shell:
    """Not thread-safe. `close` ends whatever its commands have left running."""

    def __init__(self, folder, environment):
        self._folder = pathlib.Path(folder)
        self._count = 0
        self._status, status = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=environment, stdin=subprocess.PIPE,
            text=True, pass_fds=[status], start_new_session=True,
        )
        os.close(status)
        # Jobs are numbered, and none of them or of what they start has the pipe.
        self._say(f"set -m; exec 9>&{status}; exec {status}>&-")

    def run(self, text, fails=False):
        """The output of commands. Each has to succeed; with `fails` the last one has to fail."""
        script, output = self._files(text)
        if fails:
            self._say(f"set +e; {{ source {script}; }} > {output} 2>&1 < /dev/null 9>&-")
        else:
            self._say(f"set -e; {{ source {script}; }} > {output} 2>&1 < /dev/null 9>&-")
        self._say("printf '%s\\n' $? >&9")
        answer = self._answer()
        written = output.read_text(encoding="utf-8", errors="replace")
        if answer is None:
            raise Failed(f"a command failed or did not end:\n{text}\n{written}")
        if fails != (answer != 0):
            raise Failed(f"exit status {answer} of\n{text}\n{written}")
        return written

    def run_in_background(self, text, pattern):
        """The output of commands that go on, as soon as a line of it matches."""
        script, output = self._files(text)
        self._say(f"{{ source {script}; }} > {output} 2>&1 < /dev/null 9>&- &")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            written = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            if re.search(pattern, written):
                return written
            time.sleep(0.05)
        raise Failed(f"no output matches {pattern}:\n{text}\n{written}")

    def close(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._left()
            for pid in left:
                # A bash without a command sleeps through SIGTERM.
                self._kill(pid, signal.SIGKILL if pid == self._bash.pid else number)
            end = time.monotonic() + 15
            while self._left() and time.monotonic() < end:
                self._bash.poll()
                time.sleep(0.05)
        self._bash.wait()
        self._bash.stdin.close()
        os.close(self._status)

    def _files(self, text):
        self._count += 1
        script = self._folder / f".{self._count}.sh"
        script.write_text(text, encoding="utf-8")
        return script, self._folder / f".{self._count}.out"

    def _say(self, line):
        try:
            self._bash.stdin.write(line + "\n")
            self._bash.stdin.flush()
        except BrokenPipeError:
            pass  # told by _answer

    def _answer(self):
        """The exit status, or None if there was none in time or bash has ended."""
        end = time.monotonic() + PATIENCE_S
        text = ""
        while not text.endswith("\n"):
            if not select.select([self._status], [], [], max(end - time.monotonic(), 0))[0]:
                return None
            got = os.read(self._status, 16).decode()
            if not got:
                return None
            text += got
        return int(text)

    def _left(self):
        """The processes of the session."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended
            if fields[0] != "Z" and int(fields[3]) == self._bash.pid:
                found.append(int(path.parent.name))
        return found

    @staticmethod
    def _kill(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
