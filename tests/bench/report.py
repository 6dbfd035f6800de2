"""Puts the figures of one run together: bench_sleep's and the peers'.

    report.py BENCH_SLEEP.json [--peers FILE] --out DIR

FILE has a line of JSON for each peer and load (peers/in_process.py). Writes DIR/<gpu>.json and
DIR/<gpu>.md and prints the first table.
"""

import argparse
import json
import pathlib
import re

LOADS = ("seed", "b14", "b32", "tiny")
MIB = 1 << 20
# Columns of breakdowns; a phase that the daemon does not tell apart has none.
PHASES = ("quiesce", "digest", "copy", "handles", "worker")
ROWS = {
    "first_sleep_cold": "first sleep, cold pool",
    "first_sleep_cold_beside_queries": "first sleep, cold pool, beside memory queries",
    "wake_after_cold": "wake after it",
    "first_sleep": "first sleep, pinned pool",
    "first_wake": "first wake",
    "clean_sleep": "sleep, nothing changed",
    "one_percent_sleep": "sleep, 1 % of the chunks changed",
    "dirty_sleep": "sleep, all changed",
    "wake": "wake",
    "wake_at_once": "wake at once after a sleep",
    "clean_sleep_beside_neighbour": "sleep, nothing changed, beside a busy neighbour",
    "wake_beside_neighbour": "wake, beside a busy neighbour",
}


def at(data, *path):
    """The value at a path; None where there is none."""
    for key in path:
        if not isinstance(data, dict) or data.get(key) is None:
            return None
        data = data[key]
    return data


def middle(values):
    return sorted(values)[(len(values) - 1) // 2]


def read_peers(path):
    """peers.<name>.<load> with the first sleep, and medians of the later ones."""
    peers = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path else []:
        run = json.loads(line)
        entry = peers.setdefault(run["peer"], {}).setdefault(run["load"], {})
        if "error" in run:
            entry["error"] = run["error"]
            continue
        cycles = run["cycles"]
        later = cycles[1:] or cycles
        entry.update(
            {
                "first_sleep_gbps": cycles[0]["sleep_gbps"],
                "sleep_gbps": middle([cycle["sleep_gbps"] for cycle in later]),
                "sleep_ms": round(middle([cycle["sleep_s"] for cycle in later]) * 1000, 1),
                "wake_gbps": middle([cycle["wake_gbps"] for cycle in cycles]),
                "wake_ms": round(middle([cycle["wake_s"] for cycle in cycles]) * 1000, 1),
                "alloc_us_per_segment": run["alloc_us_per_segment"],
                "cycles": cycles,
            }
        )
    return peers


class Goals:
    """The table of what is to be reached."""

    def __init__(self, data):
        self.data = data
        self.rows = []

    def peers(self, load, key, unit="", link=None):
        texts = []
        for name, loads in self.data.get("peers", {}).items():
            value = at(loads, load, key)
            if value is None:
                continue
            if link:
                texts.append(f"{name} {value / link:.3f}")
            else:
                texts.append(f"{name} {value:g}{unit}")
        return ", ".join(texts)

    def add(self, what, goal, text, met, share=None, peers=""):
        verdict = {None: "", True: "yes", False: "**no**"}[met]
        of_link = f"{share:.3f}" if share is not None else ""
        self.rows.append((what, goal, text, of_link, verdict, peers))

    def rate(self, what, load, key, link_key, *, share=None, least=None, peer_key=None):
        """A rate, wanted as a share of the link's or in GB/s."""
        value = at(self.data, load, key)
        link = at(self.data, link_key)
        if value is None:
            return
        ratio = value / link if link else None
        if share is not None:
            goal, met = f">= {share:g} of the link", None if ratio is None else ratio >= share
        elif least is not None:
            goal, met = f">= {least:g} GB/s", value >= least
        else:
            goal, met = "", None
        peers = self.peers(load, peer_key, link=link) if peer_key and link else ""
        self.add(what, goal, f"{value:.2f} GB/s", met, ratio, peers)

    def most(self, what, value, limit, unit, peers="", digits=2):
        if value is None:
            return
        goal = f"<= {limit:g} {unit}" if limit is not None else "stated"
        met = value <= limit if limit is not None else None
        self.add(what, goal, f"{value:.{digits}f} {unit}", met, peers=peers)

    def fill(self):
        data = self.data
        to_host, to_device = "link_d2h_gbps", "link_h2d_gbps"
        self.rate("first sleep, b14, pool pinned", "b14", "first_sleep_gbps", to_host,
                  share=0.97, peer_key="first_sleep_gbps")
        self.rate("first sleep, b14, pool cold", "b14", "first_sleep_cold_gbps", to_host,
                  least=35, peer_key="first_sleep_gbps")
        for who, key in (("another process", "other_process"), ("a thread of the daemon", "own_thread")):
            self.most(f"worst memory query of {who} while the pool is pinned",
                      at(data, "pinning", f"worst_query_ms_{key}"), 10, "ms")
            self.most(f"the same during a cold sleep, {who}",
                      at(data, "b14", f"cold_worst_query_ms_{key}"), None, "ms")
        sleep = self.peers("b14", "sleep_ms", " ms")
        self.most("clean sleep, b14", at(data, "b14", "clean_sleep_ms"), 25, "ms", sleep)
        self.most("sleep with 1 % changed, b14", at(data, "b14", "one_percent_sleep_ms"), 35, "ms",
                  sleep)
        self.rate("sleep with all changed, b14", "b14", "dirty_sleep_gbps", to_host,
                  peer_key="sleep_gbps")
        for load, share in (("b14", 0.98), ("b32", 0.985), ("seed", 0.95)):
            self.rate(f"wake, {load}", load, "wake_gbps", to_device, share=share,
                      peer_key="wake_gbps")
        self.rate("wake at once after a sleep, b14", "b14", "wake_at_once_gbps", to_device,
                  peer_key="wake_gbps")
        self.most("tiny, everything but the copy, sleep + wake", at(data, "tiny", "bookkeeping_ms"),
                  60, "ms")
        self.most("allocation, seed, for each segment", at(data, "seed", "alloc_us_per_segment"),
                  150, "us", self.peers("seed", "alloc_us_per_segment", " us"), 1)
        device = [at(data, "daemon_device_bytes")]
        device += [at(data, load, "daemon", "device_bytes_after_work") for load in LOADS]
        device = [size for size in device if size is not None and size > 0]
        self.most("device memory of the daemon itself", max(device) / MIB if device else None, 340,
                  "MiB", digits=1)
        rss = at(data, "b14", "daemon", "rss_beside_pool_bytes")
        self.most("RSS of the daemon beside the pool, b14", rss / MIB if rss is not None else None,
                  None, "MiB", digits=1)
        self.most("clean sleep, b14, beside a busy neighbour",
                  at(data, "b14", "neighbour", "clean_sleep_ms"), None, "ms")
        value = at(data, "b14", "neighbour", "wake_gbps")
        if value is not None:
            link = at(data, to_device)
            self.add("wake, b14, beside a busy neighbour", "stated", f"{value:.2f} GB/s", None,
                     value / link if link else None)


def table(head, rows, numbers_from=1):
    aligns = ["---" if i < numbers_from else "---:" for i in range(len(head))]
    lines = ["| " + " | ".join(line) + " |" for line in ([*head], aligns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return lines


def goal_table(data):
    goals = Goals(data)
    goals.fill()
    return table(("what", "goal", "measured", "of the link", "met", "peers"), goals.rows, 6)


def breakdown(data, load):
    rows = []
    for key, name in ROWS.items():
        row = at(data, load, "rows", key)
        if row is None:
            continue
        phases = row.get("phases_ms", {})
        rows.append(
            [name, f"{row['caller_ms']:.2f}", f"{row['worst_ms']:.2f}", f"{row['gbps']:.2f}",
             f"{row['copied_bytes'] / 1e9:.2f}"]
            + [f"{phases[phase]:.2f}" if phase in phases else "" for phase in PHASES]
            + [f"{row['outside_ms']:.2f}"]
        )
    head = ("operation", "ms", "worst ms", "GB/s", "copied GB", *PHASES, "outside")
    return table(head, rows)


def peer_table(data):
    rows = []
    for name, loads in data.get("peers", {}).items():
        for load, entry in loads.items():
            if "cycles" not in entry:
                rows.append([name, load, entry.get("error", ""), "", "", "", "", ""])
                continue
            same = all(cycle["bytes_same"] for cycle in entry["cycles"])
            rows.append(
                [name, load, f"{entry['first_sleep_gbps']:.2f}", f"{entry['sleep_gbps']:.2f}",
                 f"{entry['sleep_ms']:.1f}", f"{entry['wake_gbps']:.2f}",
                 f"{entry['alloc_us_per_segment']:.1f}", "yes" if same else "**no**"]
            )
    head = ("peer", "load", "first sleep GB/s", "later sleeps GB/s", "ms", "wakes GB/s",
            "allocation us", "bytes the same")
    return table(head, rows, 2)


def handle_table(data):
    operations = ("create", "export", "import", "map", "set_access", "unmap", "release")
    rows = [
        [f"{sizes['bytes'] / MIB:g} MiB"]
        + [f"{sizes[f'{name}_us']:.1f} ({sizes[f'{name}_first_us']:.0f})" for name in operations]
        for sizes in data["handles"]
    ]
    return table(("handle", *[name.replace("_", " ") for name in operations]), rows)


def markdown(data):
    lines = [
        f"# Sleep and wake: {data['gpu']}, driver {data['driver'] or 'unknown'}",
        "",
        f"Taken on {data['date']} at commit {data['commit']} by `tests/gpu/run.sh bench`, all in one"
        f" run; {data['processors']} processors. [README](README.md) says what the figures mean.",
    ]
    if not data.get("complete"):
        lines += ["", "**Figures are missing.**"]
        lines += [f"{name}: {error}" for name, error in data.get("errors", {}).items()]
    if "link" in data:
        lines += [
            "",
            f"Link, pinned memory: {data['link_d2h_gbps']:.2f} GB/s to the host,"
            f" {data['link_h2d_gbps']:.2f} to the device, {data['duplex_gbps']:.2f} both at once.",
        ]
    lines += ["", "## Goals", "", *goal_table(data)]
    if data.get("peers"):
        lines += ["", "## Peers", "", *peer_table(data)]
    if "handles" in data:
        lines += [
            "",
            "## Handles",
            "",
            "Microseconds that the driver takes for one, medians and in brackets the first, in a"
            " process of its own with nothing else going on.",
            "",
            *handle_table(data),
        ]
    pinning = data.get("pinning") or {}
    if "gib_per_s" in pinning:
        quiet = pinning["afterwards"]
        lines += [
            "",
            "## Pinning in the background",
            "",
            f"{pinning['pool_bytes'] / 2**30:.0f} GiB at {pinning['gib_per_s']:.1f} GiB/s. Worst"
            f" memory query meanwhile {pinning['worst_query_ms_other_process']:.2f} ms in another"
            f" process, {pinning['worst_query_ms_own_thread']:.2f} ms in a thread of the daemon (a"
            " Usage, at its caller); afterwards, with nothing going on,"
            f" {quiet['worst_query_ms_other_process']:.2f} and"
            f" {quiet['worst_query_ms_own_thread']:.2f} ms.",
        ]
    for load in LOADS:
        if at(data, load, "rows") is None:
            continue
        figures = data[load]
        lines += [
            "",
            f"## {load}: {figures['segments']} segments, {figures['weight_bytes'] / 2**30:.2f} GiB,"
            f" and {figures['kv_cache_bytes'] / 2**30:.2f} GiB of KV cache",
            "",
            *breakdown(data, load),
        ]
        if at(figures, "alloc_us_per_segment") is not None:
            lines += ["", f"Allocation: {figures['alloc_us_per_segment']:.1f} us a segment."]
        if "neighbour" in figures:
            lines += [
                "",
                f"The neighbour: {figures['neighbour']['what']}. One of its kernels took"
                f" {figures['neighbour']['its_kernel_ms_alone']:.2f} ms alone,"
                f" {figures['neighbour']['its_kernel_ms_meanwhile']:.2f} ms meanwhile.",
            ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("figures", type=pathlib.Path)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    data = json.loads(options.figures.read_text(encoding="utf-8"))
    data["peers"] = read_peers(options.peers)
    name = re.sub(r"[^a-z0-9]+", "-", data["gpu"].lower()).strip("-")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (options.out / f"{name}.md").write_text(markdown(data), encoding="utf-8")
    print("\n".join(goal_table(data)))


if __name__ == "__main__":
    main()
