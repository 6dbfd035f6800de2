#!/usr/bin/env python3
"""Runs `torporctl top` against real daemons on the host driver, and puts what it shows into docs/top.md.

    bazel build //daemon:torpord //client/ctl:torporctl //tests/worker:test_worker
    docs/capture_top.py [--bin bazel-bin] [--page docs/top.md]

A page has a comment `<!-- capture: NAME -->` above each block that is replaced.
"""

import argparse
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

PATIENCE = 60


class Top:
    """A torporctl top on a terminal of 80 by 24."""

    def __init__(self, program, runtime_dir, *arguments):
        self._written = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TORPOR_RUNTIME_DIR=runtime_dir, NO_COLOR="1", TZ="UTC")
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.execv(program, [program, "top", *arguments])

    def frame(self):
        end = self._written.rfind("\x1b[J")
        begin = self._written.rfind("\x1b[H", 0, max(end, 0))
        if begin < 0:
            return ""
        text = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", self._written[begin:end])
        return text.replace("\r", "")

    def await_frame(self, *patterns):
        """The first frame in which all the patterns are found."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            frame = self.frame()
            if all(re.search(pattern, frame) for pattern in patterns):
                return frame
            if select.select([self._terminal], [], [], 0.1)[0]:
                # Little at a time: each frame is looked at.
                self._written += os.read(self._terminal, 512).decode()
        raise TimeoutError(f"{patterns} not seen, but\n{self.frame()}")

    def close(self):
        os.kill(self.pid, signal.SIGTERM)
        while True:
            try:
                if not os.read(self._terminal, 65536):
                    break
            except OSError:
                break
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


class Node:
    """Daemons and workers, with a runtime directory of their own."""

    def __init__(self, programs):
        self._programs = programs
        self.runtime_dir = tempfile.mkdtemp(prefix="torpor.")
        self._processes = []

    def daemon(self, device, *flags):
        process = subprocess.Popen(
            [
                self._programs / "daemon/torpord", "--driver=host", f"--device={device}",
                f"--runtime_dir={self.runtime_dir}", *flags,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        process.stdout.readline()  # it serves
        return process

    def worker(self, device, name, *allocations):
        process = subprocess.Popen(
            [self._programs / "tests/worker/test_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self._processes.append(process)
        socket = f"{self.runtime_dir}/{device}/worker.sock"
        self.ask(process, f"connect socket={socket} name={name} quiesce=guard")
        for allocation in allocations:
            self.ask(process, f"alloc {allocation} 1")
        return process

    @staticmethod
    def ask(process, command):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer.startswith("ok"):
            raise RuntimeError(f"{command}: {answer}")

    def ctl(self, *arguments, wait=True):
        process = subprocess.Popen(
            [self._programs / "client/ctl/torporctl", *arguments],
            env={**os.environ, "TORPOR_RUNTIME_DIR": self.runtime_dir},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        if wait:
            process.wait()
        return process

    def top(self, *arguments):
        return Top(str(self._programs / "client/ctl/torporctl"), self.runtime_dir, *arguments)

    def close(self):
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


def capture_one(programs):
    node = Node(programs)
    try:
        daemon = node.daemon(
            "host-0", "--host_device_memory=4GiB", "--host_pool=3GiB", "--safety_reserve=128MiB"
        )
        node.worker("host-0", "chat-70b", "weights 896MiB", "kv_cache 256MiB")
        node.worker("host-0", "embedder", "weights 192MiB", "workspace 32MiB")
        busy = node.worker("host-0", "reranker", "weights 64MiB")
        top = node.top("--interval=500ms")
        node.ctl("reserve", "--name=next", "--part=weights=1GiB", "--ttl=1h")
        node.ctl("sleep", "--level=1", "embedder")
        node.ask(busy, "guard_begin")  # it does not come to rest
        node.ctl("sleep", "--level=1", "reranker", wait=False)
        node.ctl("reserve", "--name=large", "--part=all=3GiB", "--ttl=1h", "--wait", wait=False)
        top.await_frame(r"come to rest", r"\(large\) queue entered")
        node.ctl("sleep", "--level=1", "chat-70b", wait=False)
        working = top.await_frame(r"copies weights +\[#+\.+\]", r"moving", r"waits 1")
        top.await_frame(r"weights +offloaded .* 896M")
        daemon.kill()
        gone = top.await_frame(r"NOT ANSWERING")
        top.close()
        return {"working": working, "gone": gone}
    finally:
        node.close()


def capture_several(programs):
    node = Node(programs)
    try:
        daemons = [
            node.daemon(f"host-{i}", "--host_device_memory=1GiB", "--host_pool=512MiB",
                        "--safety_reserve=32MiB")
            for i in range(4)
        ]
        for i in range(4):
            node.worker(f"host-{i}", f"rank-{i}", "weights 256MiB", "kv_cache 64MiB")
        node.worker("host-1", "embedder", "weights 96MiB")
        top = node.top()
        node.ctl("sleep", "--level=1", "rank-1", "--device=host-1")
        node.ctl("sleep", "--level=1", "rank-2", "--device=host-2")
        daemons[3].kill()
        frame = top.await_frame(r"4 daemons, 3 serve", r"rank-2 +kv_cache +discarded", r"rank-1 +kv_cache +discarded")
        top.close()
        return {"several": frame}
    finally:
        node.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("bazel-bin"))
    parser.add_argument("--page", type=pathlib.Path, default=pathlib.Path("docs/top.md"))
    options = parser.parse_args()
    programs = options.bin.resolve()
    captures = {**capture_one(programs), **capture_several(programs)}
    page = options.page.read_text(encoding="utf-8")
    for name, frame in captures.items():
        lines = "\n".join(line.rstrip() for line in frame.splitlines()).strip("\n")
        block = f"<!-- capture: {name} -->\n```text\n{lines}\n```"
        page, count = re.subn(
            rf"(?ms)<!-- capture: {name} -->\n```.*?^```$", lambda _, b=block: b, page
        )
        if count != 1:
            raise SystemExit(f"{options.page} has {count} places for {name}")
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
