"""The programs of docs/examples/python with models of PyTorch.

Two models, one of which only puts itself to sleep, take turns on the GPU; a generator and a trainer
work in a loop. Ends with 0 if every check held.

    examples.py --bundle DIR [--out DIR]

The package, torpor, has to be importable with torpor.control.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

from figures import Figures
from torpor.control import Client
from torpor_daemon import Daemon, Programs

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "docs/examples/python"
MODEL = HERE / "example_model.py"
MIB = 1 << 20


class Process:
    """A program that is asked, and answers, in lines."""

    def __init__(self, program, *arguments, scratch):
        self.name = pathlib.Path(program).name
        self.process = subprocess.Popen(
            [sys.executable, program, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}")
        return line.strip()

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Run:
    def __init__(self, daemon, client, figures):
        self.daemon = daemon
        self.client = client
        self.figures = figures
        self.processes = []

    def start(self, program, *arguments):
        process = Process(program, *arguments, scratch=self.daemon.runtime_dir)
        self.processes.append(process)
        return process

    def end_all(self):
        """The programs that did not end well."""
        ended = [(process.name, process.end()) for process in self.processes]
        self.processes = []
        return [(name, status) for name, status in ended if status != 0]

    def resident(self):
        """{worker: MiB on the device}, of those that have some"""
        totals = {
            worker.name: sum(tag.resident_bytes for tag in worker.tags) // MIB
            for worker in self.client.usage().workers
        }
        return {name: total for name, total in totals.items() if total}

    def orchestrator(self):
        models = {
            "first": self.start(MODEL, "first", "generator"),
            "second": self.start(MODEL, "second", "generator", "--engine"),
        }
        for model in models.values():
            model.answer()
        tokens = {
            name: json.loads(model.ask('{"call": "generate"}')) for name, model in models.items()
        }
        self.figures.check("two models tell different tokens", tokens["first"] != tokens["second"])
        orchestrator = self.start(EXAMPLES / "orchestrator.py")
        for turn in range(6):
            name = ("first", "second")[turn % 2]
            start = time.monotonic()
            said = orchestrator.ask(name)
            resident = self.resident()
            self.figures.row(
                f"turn {turn}: {name}", size=resident.get(name, 0) * MIB,
                seconds=time.monotonic() - start, note=said,
            )
            self.figures.check(f"turn {turn}: only {name} is on the GPU", list(resident) == [name],
                               resident)
            generated = json.loads(models[name].ask('{"call": "generate"}'))
            self.figures.check(f"turn {turn}: same tokens", generated == tokens[name], generated)

    def rl_loop(self):
        loop = self.start(
            EXAMPLES / "rl_loop.py", "3", f"{sys.executable} {MODEL} generator generator",
            f"{sys.executable} {MODEL} trainer trainer",
        )
        reports = []
        for _ in range(4):
            start = time.monotonic()
            name, text = loop.answer().split(maxsplit=1)
            self.figures.row(f"loop: {name}", seconds=time.monotonic() - start, note=text[:100])
            reports.append(json.loads(text))
        counts = [report.get("count") for report in reports]
        self.figures.check("three steps, and a generation", counts == [1, 2, 3, None], counts)
        self.figures.check(
            "the generator tells what the trainer tells",
            reports[3]["tokens"] == reports[2]["tokens"], reports[3]["tokens"],
        )
        losses = [report.get("loss") for report in reports[:3]]
        falls = None not in losses and losses[0] > losses[1] > losses[2] > 0
        self.figures.check("training goes on", falls, losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(300, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    programs = Programs(bundle=options.bundle)
    figures = Figures("The examples of orchestration, with models of PyTorch")
    daemon = Daemon(
        programs, "--driver=cuda", "--host_pool=8GiB", "--worker_deadline=20s",
        log=out / "examples-torpord.log",
    )
    os.environ["TORPOR_RUNTIME_DIR"] = str(daemon.runtime_dir)
    client = Client(daemon.control_socket)
    run = Run(daemon, client, figures)
    try:
        for step in (run.orchestrator, run.rl_loop):
            print(f"== {step.__name__}", flush=True)
            try:
                step()
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()
                figures.check(f"{step.__name__} runs to its end", False)
                print("---- torpord", daemon.process.poll(), daemon.log_tail(60), sep="\n")
            bad = run.end_all()
            figures.check(f"{step.__name__}: every program ends with 0", not bad, bad)
    finally:
        client.close()
        figures.write(out, "examples")
        status = daemon.close()
    print(f"torpord ended with {status}")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
