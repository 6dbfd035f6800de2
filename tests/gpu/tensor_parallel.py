"""A PyTorch model in tensor parallel over NCCL, its GPUs' memory put to sleep by one call.

A torpord and a process for each GPU; weights and KV cache of each rank are under Torpor's tags,
what is communicated is in ordinary memory. One torporctl for all daemons puts the ranks to sleep (level
1, level 2) and wakes them tag by tag; logits are compared bit for bit, and NCCL's communicator is
used before, between, after, and while the model sleeps. Then a CUDA graph with its all-reduces, the
same with the graph's memory asleep as well, all-reduces of memory under a tag, and a sleep that
comes while the ranks generate. Ends with 0 if every check held.

    tensor_parallel.py --bundle DIR [--out DIR] [--ranks 2] [--steps levels,cycles,...] [--small]

The package torpor has to be importable. Variables for NCCL may be set from outside; those that this
program sets otherwise are in SETTINGS.
"""

import argparse
import faulthandler
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import gpus as hosts
from figures import Figures
from torpor_daemon import CommandFailed, Daemon, Programs, ctl_all, ctl_each, number, seconds

MIB = 1 << 20
GIB = 1 << 30
# Kernels and libraries may load on the way.
SLACK = 64 * MIB
STEPS = ("levels", "cycles", "tagged", "graph", "graph_asleep", "while_generating")
SETTINGS = {
    # A captured collective would register its buffers, whose pages a sleep takes away.
    "NCCL_GRAPH_REGISTER": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,REG",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "OMP_NUM_THREADS": "4",
}
# No NVLink multicast, whatever is set outside.
ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


class RankGone(Exception):
    """A rank has ended, or does not answer in time: nothing can go on."""


class RankRaised(Exception):
    """What a rank was told ended in an error; it takes the next."""


class Rank:
    """The process of one rank, as its parent sees it: obeys a line of JSON, answers with one."""

    def __init__(self, options, rank, environment, log):
        self.rank = rank
        self.log_path = log
        self._log = open(log, "wb")
        command = [sys.executable, os.path.abspath(__file__), f"--rank={rank}"]
        command += ["--bundle=", f"--ranks={options.ranks}", f"--backend={options.backend}"]
        if options.small:
            command.append("--small")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "--", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=environment,
        )
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def tell(self, what, **arguments):
        self.process.stdin.write(json.dumps([what, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, deadline):
        """{"value": ...} or {"error": text}"""
        try:
            line = self._answers.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            raise RankGone(f"rank {self.rank} does not answer") from None
        if line is None:
            raise RankGone(f"rank {self.rank} has ended with {self.process.poll()}")
        return json.loads(line)

    def tail(self, lines=40):
        text = pathlib.Path(self.log_path).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def close(self, patience=0.0):
        """Ends it: by itself within `patience`, else by force."""
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        return self.process.returncode


class Run:
    """The parent: daemons, ranks, torporctl."""

    def __init__(self, options, figures, gpus, out):
        self.options, self.figures, self.gpus, self.out = options, figures, gpus, out
        self.runtime = tempfile.mkdtemp(prefix="torpor-", dir="/tmp")
        self.daemons, self.ranks = [], []
        self.broken = False

    # ---- Ranks

    def start(self):
        options = self.options
        flags = [f"--driver={options.driver}", f"--host_pool={'1GiB' if options.small else '8GiB'}"]
        if options.driver == "host":
            flags += ["--host_device_memory=1GiB", "--safety_reserve=0"]
        for gpu in self.gpus:
            self.daemons.append(Daemon(
                Programs(bundle=options.bundle), f"--device={gpu.uuid}", *flags,
                "--worker_deadline=6s", runtime_dir=self.runtime,
                log=self.out / f"tensor-parallel-torpord-{gpu.index}.log",
            ))
        environment = {**SETTINGS, **os.environ, **ALWAYS}
        environment |= {
            "TORPOR_RUNTIME_DIR": self.runtime, "TORPOR_TEST_RENDEZVOUS": f"{self.runtime}/ranks",
            "TORPOR_DRIVER": options.driver,
        }
        if options.driver == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in self.gpus)
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment.pop(name, None)
        for name in sorted(environment):
            # NCCL_VERSION is a container image's: PyTorch has its own NCCL, and tells its version.
            if name != "NCCL_VERSION" and name.startswith(("NCCL_", "TORCH_NCCL", "TORCH_SYMM")):
                self.figures.fact(name, environment[name])
        for rank in range(options.ranks):
            log = self.out / f"tensor-parallel-rank-{rank}.log"
            self.ranks.append(Rank(options, rank, environment, log))
        start = time.monotonic()
        facts = self.all("start", patience=60)
        for name, value in facts[0].items():
            self.figures.fact(name, value)
        for rank, fact in enumerate(facts):
            self.figures.fact(f"rank {rank}", fact["device"])
        self.figures.row("start of the ranks, with NCCL", seconds=time.monotonic() - start)
        start = time.monotonic()
        built = self.all("build", patience=40)
        self.figures.row(
            "allocate and fill", size=sum(one["bytes"] for one in built),
            seconds=time.monotonic() - start, note="with a copy of the weights on the host",
        )
        self.figures.fact("parameters, each rank", f"{built[0]['parameters']:,}")
        self.figures.fact("weights, each rank", f"{built[0]['weights']:,} bytes")
        self.figures.fact("KV cache, each rank", f"{built[0]['cache']:,} bytes")
        self.yes("weights and cache are the daemon's memory", "tagged_memory")
        self.addresses = self.all("addresses")
        self.all("generate", expect=True)
        self.logits("the model is deterministic")
        self.reduce("at first")

    def all(self, what, patience=20, **arguments):
        """The answers of all ranks, that work at it together."""
        deadline = time.monotonic() + patience
        for rank in self.ranks:
            rank.tell(what, **arguments)
        return self.answers(deadline)

    def answers(self, deadline):
        answers = [rank.answer(deadline) for rank in self.ranks]
        errors = [f"rank {i}: {one['error']}" for i, one in enumerate(answers) if "error" in one]
        if errors:
            raise RankRaised("; ".join(errors))
        return [answer["value"] for answer in answers]

    def yes(self, check, what, **arguments):
        """Records that all ranks answer true; what they say otherwise, or beside that."""
        answers = self.all(what, **arguments)
        bad = [f"rank {rank}: {one}" for rank, one in enumerate(answers) if one is not True]
        return self.figures.check(check, not bad, "; ".join(bad))

    def logits(self, step, what="generate"):
        answers = self.all(what)
        good = all(answer["tokens"] and answer["logits"] for answer in answers)
        self.figures.check(f"{step}: same tokens, logits bit-equal", good, "" if good else answers)
        digests = {answer["digest"] for answer in answers}
        self.figures.check(f"{step}: the ranks agree", len(digests) == 1, sorted(digests))

    def reduce(self, when):
        self.yes(f"all-reduces of ordinary memory are right, {when}", "reduce")

    # ---- One call for all daemons

    def move(self, step, verb, *arguments):
        free = self.all("free")
        start = time.monotonic()
        answers = ctl_all(self.daemons, verb, *arguments, timeout=40)
        wall = time.monotonic() - start
        after = self.all("free")
        totals = [seconds(answer["workers"][0]["timing"]["total"]) for answer in answers]
        sizes = [number(answer, "copied_bytes") for answer in answers]
        moved = [number(answer, "device_bytes") for answer in answers]
        took = ", ".join(f"{1000 * spent:.1f}" for spent in totals)
        self.figures.row(
            step, size=sum(sizes), seconds=max(totals),
            note=f"each {took} ms, call {wall:.3f} s, {sum(moved):,} bytes of device memory",
        )
        if self.options.driver == "cuda":
            change = [abs(one - other) for one, other in zip(after, free)]
            self.figures.check(
                f"{step}: each GPU's free memory changed by what the answer says",
                all(abs(one - two) <= SLACK for one, two in zip(change, moved)),
                f"{change} of {moved}",
            )
        return answers

    # ---- Steps

    def levels(self):
        for level in (1, 2):
            name = f"level {level}"
            self.all("fill_cache")
            answers = self.move(f"{name}: sleep", "sleep", "--all", f"--level={level}")
            copied = [number(answer, "copied_bytes") for answer in answers]
            self.figures.check(
                f"{name}: weights are {'kept' if level == 1 else 'dropped'}",
                all((size > 0) == (level == 1) for size in copied), copied,
            )
            self.yes(f"{name}: asleep, the guard lets nobody in", "asleep", tags=[])
            self.reduce(f"{name}, asleep")
            self.move(f"{name}: wake weights", "wake", "--tag=weights")
            self.yes(f"{name}: the cache still sleeps", "asleep", tags=["kv_cache"])
            if level == 1:
                self.yes(f"{name}: weights bit-equal, before the cache wakes", "same_weights")
            else:
                self.yes(f"{name}: weights come back zeroed", "zero", tag="weights")
                self.all("load_weights")
                self.yes(f"{name}: weights are loaded, before the cache wakes", "same_weights")
            self.reduce(f"{name}, weights awake")
            self.move(f"{name}: wake kv_cache", "wake", "--tag=kv_cache")
            self.yes(f"{name}: the cache comes back zeroed", "zero", tag="kv_cache")
            self.logits(name)
            self.reduce(f"{name}, awake")
        self.figures.check("same addresses", self.all("addresses") == self.addresses)

    def cycles(self):
        for cycle in range(3):
            self.move(f"cycle {cycle + 1}: sleep", "sleep", "--all", "--level=1")
            time.sleep(0.5)
            self.move(f"cycle {cycle + 1}: wake", "wake", "--all", "--order=weights,kv_cache")
            self.logits(f"cycle {cycle + 1}")

    def tagged(self):
        """What need not work: sending from and to memory under a tag."""
        self.all("make_buffers")
        self.yes("all-reduces of memory under a tag are right", "reduce", tagged=True)
        self.move("tagged: sleep", "sleep", "--all", "--level=1")
        self.move("tagged: wake", "wake", "--all")
        self.yes("all-reduces of memory under a tag are right after a sleep", "reduce", tagged=True)

    def graph(self):
        self.captured("graph", None)

    def graph_asleep(self):
        self.captured("graph with memory under a tag", "graphs")

    def captured(self, name, tag):
        self.all("capture", tag=tag, patience=30)
        self.all("replay", expect=True)
        self.logits(f"{name}: replayed again", "replay")
        for level in (1, 2):
            self.move(f"{name}: sleep, level {level}", "sleep", "--all", f"--level={level}")
            self.reduce(f"{name}, asleep")
            self.move(f"{name}: wake", "wake", "--all")
            if level == 2:
                self.all("load_weights")
            self.logits(f"{name}: replayed after level {level}", "replay")
        self.logits(f"{name}: kernel by kernel, too")
        self.all("drop_graph")

    def while_generating(self):
        """Ranks that are not stopped together: one may sleep while the other waits for it in a
        collective, and is refused. Waking all repairs it."""
        rounds = 10 if self.options.small else 18
        deadline = time.monotonic() + 45
        for rank in self.ranks:
            rank.tell("generate_often", rounds=rounds)
        time.sleep(0.5)
        for turn in range(2):
            status, answers = ctl_each(
                self.daemons, "sleep", "--all", "--policy=weights=offload,kv_cache=keep", timeout=20
            )
            refusals = [_refusal(answer) for answer in answers]
            self.figures.fact(
                f"sleep {turn + 1} while both generate", f"status {status}, {refusals}"
            )
            while True:
                status, answers = ctl_each(self.daemons, "wake", "--all", timeout=20)
                if status == 0 or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            self.figures.check(
                f"all is awake after sleep {turn + 1} while both generate", status == 0,
                "" if status == 0 else answers,
            )
        answers = self.answers(deadline)
        self.figures.check(
            "what was generated meanwhile is what is always generated",
            all(answer["good"] == rounds for answer in answers), answers,
        )
        self.logits("after it")

    # ---- The end

    def diagnose(self):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        for rank in self.ranks:
            print(f"---- rank {rank.rank}: {rank.process.poll()}\n{rank.tail()}", flush=True)
        for daemon in self.daemons:
            print(f"---- torpord: {daemon.process.poll()}\n{daemon.log_tail(25)}", flush=True)
            try:
                print(json.dumps(daemon.ctl("usage", "--timeout=2s")["workers"]), flush=True)
            except (CommandFailed, subprocess.TimeoutExpired) as error:
                print(f"no usage: {error}", flush=True)

    def close(self):
        if self.ranks and not self.broken:
            for rank in self.ranks:
                rank.tell("end")
            statuses = [rank.close(patience=15) for rank in self.ranks]
            self.figures.check("the ranks end by themselves", not any(statuses), statuses)
        else:
            for rank in self.ranks:
                rank.close()
        for daemon in self.daemons:
            status = daemon.close()
            self.figures.check("torpord stops", status == 0, status)
        shutil.rmtree(self.runtime, ignore_errors=True)


def _refusal(answer):
    """Why an answer is no success; empty if it is."""
    if "error" in answer:
        return answer["error"].get("message", "refused")
    workers = answer["response"]["workers"]
    return "; ".join(w["status"]["message"] for w in workers if (w.get("status") or {}).get("code"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--driver", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        import tp_rank

        return tp_rank.main(options)
    faulthandler.dump_traceback_later(118, exit=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    figures = Figures("A PyTorch model in tensor parallel")
    gpus = hosts.host(options.ranks) if options.driver == "host" else hosts.find()
    if not figures.check(
        f"there are {options.ranks} GPUs", len(gpus) >= options.ranks, len(gpus)
    ):
        return 1
    run = Run(options, figures, gpus[: options.ranks], out)
    begun = time.monotonic()
    for name in ("start", *options.steps.split(",")):
        if time.monotonic() - begun > 85:
            figures.check(f"there is time for {name}", False)
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            getattr(run, name)()
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            figures.check(f"{name} runs to its end", False, str(error).splitlines()[-1][:300])
            run.diagnose()
            run.broken = name == "start" or not isinstance(error, (CommandFailed, RankRaised))
        figures.fact(f"seconds of {name}", f"{time.monotonic() - start:.1f}")
        figures.write(out, "tensor_parallel")
        if run.broken:
            break
        try:
            # The next step starts awake.
            ctl_each(run.daemons, "wake", "--all", timeout=20)
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            figures.check(f"all is awake after {name}", False, error)
    try:
        run.close()
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        figures.check("the run ends", False)
    figures.write(out, "tensor_parallel")
    failed = figures.failed()
    print(f"{len(figures.checks) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
