"""What `torporctl usage --all-devices` of many daemons takes, beside that of one: a table.

    many_daemons.py TORPORD TORPORCTL TEST_WORKER [--daemons N] [--workers N] [--rounds N]

On the host driver: real daemons, each with real workers. "in a row": one torporctl for each daemon, one
after another, as a script would do it. Answers are checked: each daemon once, with its workers.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

PATIENCE = 120


def arguments():
    parser = argparse.ArgumentParser()
    for program in ("torpord", "torporctl", "test_worker"):
        parser.add_argument(program)
    parser.add_argument("--daemons", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


def start_daemon(options, folder, number, stack):
    log = folder / f"{number}.log"
    with log.open("w") as file:
        daemon = subprocess.Popen(
            [
                options.torpord, "--driver=host", f"--device=host-{number}",
                f"--runtime_dir={folder}", "--host_device_memory=64MiB", "--host_pool=16MiB",
                "--pool_memory=memfd",
            ],
            stdout=file, stderr=file,
        )
    stack.callback(daemon.wait)
    stack.callback(daemon.terminate)
    end = time.monotonic() + PATIENCE
    while " serves " not in log.read_text():
        if daemon.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"daemon {number} does not serve:\n{log.read_text()}")
        time.sleep(0.01)


def start_worker(options, folder, number, name, stack):
    worker = stack.enter_context(
        subprocess.Popen(
            [options.test_worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1,
        )
    )
    stack.callback(worker.kill)
    socket = folder / f"host-{number}" / "worker.sock"
    for line in (f"connect driver=host socket={socket} name={name} quiesce=guard",
                 "alloc weights 2MiB 1", "alloc kv_cache 2MiB 2"):
        worker.stdin.write(line + "\n")
        answer = worker.stdout.readline()
        if not answer.startswith("ok"):
            raise SystemExit(f"worker {name}: {line}: {answer}")


def timed(command):
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.monotonic() - begin, done.stdout


def row(what, times, one):
    times = sorted(times)
    median = statistics.median(times)
    worst = times[-1]
    print(f"| {what} | {median * 1000:.1f} ms | {worst * 1000:.1f} ms | {median / one:.1f} |")


def main():
    options = arguments()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor.")))
        for number in range(options.daemons):
            start_daemon(options, folder, number, stack)
            for worker in range(options.workers):
                start_worker(options, folder, number, f"worker-{number}-{worker}", stack)
        usage = [options.torporctl, f"--runtime-dir={folder}", "usage"]
        single = [
            [*usage, f"--device=host-{number}"] for number in range(options.daemons)
        ]
        _, answer = timed([*usage, "--all-devices", "--json"])
        for number in range(options.daemons):
            for worker in range(options.workers):
                if answer.count(f'"worker-{number}-{worker}"') != 1:
                    raise SystemExit(f"worker-{number}-{worker} is not there once:\n{answer}")
        one, together, in_a_row = [], [], []
        for _ in range(options.rounds):
            one.append(timed(single[0])[0])
            together.append(timed([*usage, "--all-devices"])[0])
            in_a_row.append(sum(timed(command)[0] for command in single))
        print(f"{options.daemons} daemons with {options.workers} workers each, "
              f"{options.rounds} rounds, {os.cpu_count()} processors\n")
        print("| torporctl usage | median | worst | times one daemon |")
        print("| --- | ---: | ---: | ---: |")
        base = statistics.median(one)
        row("of one daemon", one, base)
        row("of all, in one call", together, base)
        row("of all, in a row", in_a_row, base)


if __name__ == "__main__":
    main()
