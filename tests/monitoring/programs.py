"""A real torpord with metrics, its workers, torporctl and promtool, for tests."""

import dataclasses
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / ".deps" / "bin"
PATIENCE = 120


@dataclasses.dataclass
class Programs:
    torpord: str
    keeper: str
    torporctl: str
    worker: str


def await_true(condition, what):
    """The first true value of `condition`."""
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not so: {what() if callable(what) else what}")
        time.sleep(0.02)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


class Worker:
    """tests/worker's test_worker: see its main.cc."""

    def __init__(self, program, worker_socket, name):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ask(f"connect driver=host socket={worker_socket} name={name} quiesce=guard")

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer.startswith("ok"):
            raise AssertionError(f"{command}: {answer}")
        return answer[3:]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class DaemonTest(unittest.TestCase):
    """With a daemon for each test, behind a keeper if `keeper`."""

    programs: Programs
    keeper = False
    flags: list = []

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="torpor.", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.port = free_port()
        command = [
            self.programs.torpord, "--driver=host", f"--runtime_dir={self.dir}",
            "--host_device_memory=128MiB", "--host_pool=64MiB", "--safety_reserve=0",
            "--pool_memory=memfd", f"--metrics=127.0.0.1:{self.port}", *self.flags,
        ]
        if self.keeper:
            command = [
                self.programs.keeper, f"--socket={self.dir}/keeper.sock",
                f"--journal={self.dir}/journal", "--", *command,
            ]
        self.log = self.dir / "log"
        with self.log.open("w") as log:
            self.daemon = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(self.end_daemon)
        await_true(lambda: " serves " in self.log.read_text(), self.log.read_text)

    def end_daemon(self):
        self.daemon.terminate()
        try:
            self.daemon.wait(PATIENCE)
        finally:
            self.daemon.kill()
            self.daemon.wait()

    def worker(self, name, *allocations):
        one = Worker(self.programs.worker, self.dir / "host-0" / "worker.sock", name)
        self.addCleanup(one.end)
        for allocation in allocations:
            one.ask(f"alloc {allocation}")
        return one

    def command(self, *arguments):
        return [self.programs.torporctl, f"--target={self.dir}/host-0/control.sock", *arguments]

    def ctl(self, *arguments, refused=False):
        """What torporctl prints, once it has done, or been refused, what it was asked for."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True)
        self.assertEqual(done.returncode != 0, refused, (arguments, done.stdout, done.stderr))
        return done.stdout

    def start_prometheus(self, interval, *rules):
        """The real one, which scrapes the daemon as the job "torpor"; its API is at self.api."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="prometheus.", dir=self.dir))
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}\n"
            f"rule_files: [{', '.join(str(one) for one in rules)}]\n"
            "scrape_configs:\n"
            "  - job_name: torpor\n"
            f"    static_configs: [targets: ['127.0.0.1:{self.port}']]\n"
        )
        checked = subprocess.run(
            [BIN / "promtool", "check", "config", config], capture_output=True, text=True
        )
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        address = f"127.0.0.1:{free_port()}"
        self.api = f"http://{address}/api/v1"
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    BIN / "prometheus", f"--config.file={config}",
                    f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}",
                ],
                stdout=log, stderr=log, cwd=folder,
            )

        def end():
            process.kill()
            process.wait()

        self.addCleanup(end)

        def ready():
            self.assertIsNone(process.poll(), (folder / "log").read_text())
            try:
                return get(f"http://{address}/-/ready")
            except (urllib.error.URLError, ConnectionError):
                return None

        await_true(ready, "Prometheus is ready")
        return end

    def scrape(self):
        return get(f"http://127.0.0.1:{self.port}/metrics")


def parse(text):
    """{name: {labels as a sorted tuple: value}} of an exposition."""
    found = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
        key = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels or "")))
        found.setdefault(name, {})[key] = float(value)
    return found


def value(metrics, name, **labels):
    """The sum of the series that have these labels among theirs."""
    series = metrics.get(name, {})
    return sum(
        number for key, number in series.items() if labels.items() <= dict(key).items()
    )


def main():
    DaemonTest.programs = Programs(*(str(pathlib.Path(one).resolve()) for one in sys.argv[1:5]))
    unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
