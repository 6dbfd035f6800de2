"""Makes docs/survival.md of what tests/survival/survival_test has found.

    table.py RESULTS OUT    RESULTS: the folder with the tests' files

A line of those: operation, event, number of the step, step, test, outcome, milliseconds.
"""

import collections
import pathlib
import re
import statistics
import sys

OPERATIONS = {
    "allocate": ("Allocate", "A worker allocates 64 KiB."),
    "free": ("Free", "A worker frees one of its two segments of weights, which is an extent of its own."),
    "sleep": ("Sleep", "By gRPC, level 1: 192 KiB of weights are offloaded, 64 KiB of KV cache are discarded."),
    "wake_up": ("WakeUp", "By gRPC, of what that has put to sleep."),
    "reserve": ("Reserve", "By gRPC, 256 KiB of the device and 128 KiB of the host pool."),
}
EVENTS = {
    "worker killed": "SIGKILL to the worker.",
    "worker stopped": "SIGSTOP to the worker, for longer than `--worker_deadline` (here 300 ms), then SIGCONT.",
    "daemon killed": "SIGKILL to torpord, which its keeper starts again.",
    "daemon stopped": "SIGSTOP to torpord, and SIGCONT after 100 ms.",
    "keeper killed": "SIGKILL to torpor-keeper. Another one is started when the operation has ended, and takes over.",
    "both killed": "SIGKILL to torpor-keeper and to torpord, and another keeper; with `--pool_dir`.",
    "both killed, pool without a name": "The same, with `--pool_memory=memfd`.",
    "driver error": "This call of the driver fails.",
    "no host room": "A reservation takes what is left of the host pool.",
    "no device room": "A reservation takes what is left of the device.",
    "no descriptors": "torpord gets no descriptor more, until the operation has ended.",
}
# That a test makes, and nobody else.
INJECTED = "INJECTED"


def read(folder):
    """{operation: {step: (number, {event: (outcome, ms)})}}, {event: test suite}"""
    found = collections.defaultdict(dict)
    suites = {}
    for path in sorted(pathlib.Path(folder).glob("*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            operation, event, number, step, test, outcome, ms = line.split("\t")
            row = found[operation].setdefault(step, ([], {}))
            row[0].append(int(number))
            row[1][event] = (outcome, ms)
            suites[event] = test.split(".")[0]
    return found, suites


def link(outcome):
    outcome = outcome.replace(INJECTED, "error")
    return re.sub(r"[A-Z]+(?:_[A-Z]+)+", lambda m: f"[{m[0]}](errors.md#{m[0].lower()})", outcome)


def cell(found):
    outcome, ms = found
    return "-" if outcome == "-" else f"{link(outcome)}: {ms}"


def main():
    found, suites = read(sys.argv[1])
    cells = {}
    for operation in OPERATIONS:
        for step, (_, by_event) in found[operation].items():
            for event in EVENTS:
                if event not in by_event or not by_event[event][0]:
                    sys.exit(f"no outcome: {operation}, {step}, {event}")
                cells[operation, step, event] = by_event[event]
    done = [c for c in cells.values() if c[0] != "-"]
    steps = sum(len(found[o]) for o in OPERATIONS)

    lines = [
        "# Survival",
        "",
        "What becomes of each operation, and of everybody's bytes, if something happens just before any of its",
        "steps. All of it is made by",
        "",
        "```sh",
        "tests/survival/survival.sh",
        "```",
        "",
        "which holds up the real torpord, its keeper and a worker (on the host driver) at each step in turn: each",
        "call of torpord's and of the worker's driver, each question of torpord to its keeper, each entry of the",
        "[journal](journal.md). It lets the event happen, lets everything go on, waits until all is at rest, and",
        "compares every byte of that worker and of another one: what was awake, what slept before, and what is put",
        "to sleep and woken twice afterwards. Usage has to say what is so, and no memory may be left over.",
        "",
        f"**{steps} steps, {len(EVENTS)} events: in {len(done)} of {len(cells)} cells something can happen. No byte was lost where",
        "[operations](operations.md#what-dies-what-survives) promises it, and in no cell did a worker get other bytes",
        "than its own.** What nobody promises is lost where keeper and daemon are killed together: what was on the",
        "device alone, and what slept in a pool without a name.",
        "",
        "## Words",
        "",
        "| word | the operation |",
        "| --- | --- |",
        "| done | has happened, as a whole |",
        "| undone | has not happened, nothing of it; whoever asks again gets it |",
        "| gone | has ended with its worker, whose memory is free again |",
        "| lost, usable | the daemon does not have the memory any more; the worker has it, with its bytes |",
        "| lost, SEGMENTS_LOST | nothing is left that had the bytes: the worker is told, and sees no others in their place |",
        "| - | cannot happen here: only some steps are calls of a driver |",
        "",
        "A reason in capitals is what the caller got; `error`: the driver's. Without one the call was answered",
        "by OK, or was lost with who was to answer it (*daemon killed* and *both killed*: Sleep, WakeUp, Reserve;",
        "the library puts a worker's own requests to the next daemon). Behind the colon are the milliseconds from",
        "the event, or from the end of a stop, until all was at rest and protected again. Of a daemon that was",
        "killed they include 200 ms that its keeper waits if it had not lived for a second.",
        "",
        "Room, of the host pool and of the device, is taken before the first step: so it can only be short for",
        "the call as a whole. The daemon tries twice to unmap and to release, so that one error there changes",
        "nothing. A worker that cannot unmap what it has freed tries again with its next work.",
        "",
        "## Events",
        "",
        "`OPERATION` is `allocate`, `free`, `sleep`, `wake_up` or `reserve`.",
        "",
        "| event | what happens | test | outcomes | ms, median | ms, longest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for event, text in EVENTS.items():
        of_event = [c for (_, _, e), c in cells.items() if e == event and c[0] != "-"]
        ms = [int(c[1]) for c in of_event]
        counts = collections.Counter(c[0].split(",")[0] for c in of_event)
        said = ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
        lines.append(
            f"| {event} | {text} | `{suites[event]}.OPERATION` | {said} "
            f"| {round(statistics.median(ms))} | {max(ms)} |"
        )
    for operation, (name, text) in OPERATIONS.items():
        lines += ["", f"## {name}", "", text, ""]
        lines.append("| before | " + " | ".join(EVENTS) + " |")
        lines.append("| --- |" + " --- |" * len(EVENTS))
        rows = sorted(found[operation].items(), key=lambda row: statistics.median(row[1][0]))
        for step, _ in rows:
            of_step = [cell(cells[operation, step, event]) for event in EVENTS]
            lines.append(f"| {step} | " + " | ".join(of_step) + " |")
    pathlib.Path(sys.argv[2]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{sys.argv[2]}: {steps} steps, {len(EVENTS)} events, {len(cells)} cells")


if __name__ == "__main__":
    main()
