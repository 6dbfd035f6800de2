"""What operators run, on a GPU: top, health, metrics, and a Prometheus that scrapes while a model sleeps.

Keeps what `torporctl top --once` prints, awake and asleep.
With --prometheus, the times of sleeps and wakes without a scraper and with a real Prometheus that
scrapes each second and each 100 ms, in turn; every byte is new before each sleep, so that all are
copied. Ends with 0 if every check held.

    operate.py --bundle DIR [--out DIR] [--prometheus PROGRAM] [--rounds N] [--parts N]

The package, torpor, has to be importable, and torch.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)


import torch

import torpor
import torpor.torch as tt
from figures import Figures
from torpor_daemon import Daemon, Programs, number

MIB = 1 << 20


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Model:
    """Weights that change before each sleep."""

    def __init__(self, runtime_dir, parts):
        self.session = torpor.connect(
            name="model", runtime_dir=runtime_dir, driver="cuda", quiesce=torpor.Quiesce.GUARD
        )
        tt.use(self.session)
        self.generator = torch.Generator(device="cuda").manual_seed(11)
        with tt.memory_pool("weights"):
            self.weights = self.allocate(parts)
        with tt.memory_pool("kv_cache"):
            self.cache = self.allocate(parts // 4)
        self.change()

    def allocate(self, parts):
        return [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(parts)]

    def sums(self):
        return [int(part.to(torch.int64).sum()) for part in self.weights]

    def change(self):
        with self.session.work(timeout=60):
            for part in self.weights:
                part.random_(0, 256, generator=self.generator)
            self.expected = self.sums()
            torch.cuda.synchronize()

    def same(self):
        with self.session.work(timeout=60):
            return self.sums() == self.expected


def query(api, text):
    """The value of a query that has one."""
    answer = json.loads(get(f"{api}/query?query={urllib.parse.quote(text)}"))
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


@contextlib.contextmanager
def prometheus(program, port, interval):
    """A real one that scrapes `port`; gives its API."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        config = pathlib.Path(folder) / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {interval}}}\n"
            "scrape_configs:\n"
            "  - job_name: torpor\n"
            f"    static_configs: [targets: ['127.0.0.1:{port}']]\n"
        )
        address = f"127.0.0.1:{free_port()}"
        with open(pathlib.Path(folder) / "log", "w") as log:
            process = subprocess.Popen(
                [
                    program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address={address}",
                ],
                stdout=log, stderr=log, cwd=folder,
            )
        try:
            while True:
                if process.poll() is not None:
                    raise RuntimeError((pathlib.Path(folder) / "log").read_text())
                try:
                    get(f"http://{address}/-/ready")
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.05)
            api = f"http://{address}/api/v1"
            # It looks for its targets some seconds after it is ready.
            while query(api, "sum(up)") == 0:
                time.sleep(0.05)
            yield api
        finally:
            process.kill()
            process.wait()


def timed(daemon, *command):
    begin = time.monotonic()
    answer = daemon.ctl(*command)
    return (time.monotonic() - begin) * 1000, answer


def cycles(daemon, model, rounds):
    """Of sleeps, then of wakes: median and 95th percentile in ms; whether all was copied."""
    sleeps, wakes, copied = [], [], True
    size = 256 * MIB * len(model.weights)
    for _ in range(rounds):
        model.change()
        spent, answer = timed(daemon, "sleep", "--level=1", "model")
        sleeps.append(spent)
        copied = copied and number(answer, "copied_bytes") == size
        spent, answer = timed(daemon, "wake", "model")
        wakes.append(spent)
        copied = copied and number(answer, "copied_bytes") == size
    return [
        figure
        for times in (sleeps, wakes)
        for figure in (statistics.median(times), statistics.quantiles(times, n=20)[18])
    ], copied


def scrape_cost(options, daemon, port, model, figures):
    head = ("scrapes", "sleep p50", "sleep p95", "wake p50", "wake p95", "scrape, mean", "scrapes done")
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    while daemon.ctl("usage")["host_pool"]["pinning"]:
        time.sleep(0.1)
    cycles(daemon, model, 3)
    for interval in (None, "1s", "100ms") * 2:
        with contextlib.ExitStack() as stack:
            api = interval and stack.enter_context(prometheus(options.prometheus, port, interval))
            times, copied = cycles(daemon, model, options.rounds)
            figures.check(f"all bytes were copied each time, scraped: {interval}", copied)
            row = [f"each {interval}" if interval else "none", *(f"{one:.0f} ms" for one in times)]
            if interval:
                good = query(api, "sum_over_time(up[10m])")
                mean = query(api, "avg_over_time(scrape_duration_seconds[10m])")
                row += [f"{mean * 1000:.1f} ms", f"{good:.0f}"]
                figures.check(f"Prometheus scraped each {interval}", good > 0, f"{good:.0f}")
            else:
                row += ["", ""]
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    figures.check("the bytes are right in the end", model.same())
    return "\n".join(lines) + "\n"


def keep(folder, name, command, **more):
    """What `command` prints, also as a file; its exit status."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)
    host = socket.gethostname()
    text = (done.stdout + done.stderr).replace(host, "host")
    (folder / f"{name}.txt").write_text(text)
    print(f"---- {name}: status {done.returncode}\n{text}", flush=True)
    return done.returncode, text


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--prometheus")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--parts", type=int, default=32, help="of 256 MiB, of weights")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    programs = Programs(bundle=options.bundle)
    figures = Figures("Operating")
    ctl = programs.torporctl
    port = free_port()
    torch.cuda.init()

    with Daemon(
        programs, "--driver=cuda", f"--metrics=127.0.0.1:{port}", log=out / "operate-torpord.log",
        keeper=True,
    ) as daemon:
        at = f"--target={daemon.control_socket}"
        size = {"env": {**os.environ, "COLUMNS": "80", "LINES": "24"}}
        model = Model(daemon.runtime_dir, options.parts)
        status, text = keep(out, "health", [ctl, at, "health"])
        figures.check("health says SERVING", status == 0 and "SERVING" in text, text)
        keep(out, "top-awake", [ctl, at, "top", "--once"], **size)
        daemon.ctl("sleep", "--level=1", "model")
        status, text = keep(out, "top-asleep", [ctl, at, "top", "--once"], **size)
        lines = text.splitlines()
        figures.check(
            "top fits 80x24", status == 0 and len(lines) <= 24 and max(map(len, lines)) <= 80
        )
        daemon.ctl("wake", "model")
        figures.check("the bytes are right after a wake", model.same())
        text = get(f"http://127.0.0.1:{port}/metrics")
        (out / "metrics.txt").write_text(text)
        resident = re.search(r"^torpor_device_resident_bytes (\S+)", text, re.MULTILINE)
        usage = daemon.ctl("usage")
        figures.check(
            "metrics and Usage agree on what is resident",
            resident and int(float(resident[1])) == number(usage["device"], "resident_bytes"),
        )
        if options.prometheus:
            table = scrape_cost(options, daemon, port, model, figures)
            (out / "scrape-cost.md").write_text(table)
        model.session.close()

    figures.write(out, "operate")
    return 1 if figures.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
