"""bench_sleep, from the start to the report, on the host driver with small loads.

    bench_sleep_test.py BENCH_SLEEP TORPORD REPORT IN_PROCESS
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = {}
LOADS = ("seed", "tiny", "b14")
# What docs/measurements/README.md promises for every load.
LOAD_KEYS = (
    "first_sleep_cold_gbps", "first_sleep_gbps", "dirty_sleep_gbps", "clean_sleep_ms",
    "one_percent_sleep_ms", "wake_gbps", "alloc_us_per_segment", "bookkeeping_ms",
)
PINNING_KEYS = ("gib_per_s", "worst_query_ms_other_process", "worst_query_ms_own_thread")
TOP_KEYS = (
    "link_d2h_gbps", "link_h2d_gbps", "duplex_gbps", "gpu", "driver", "commit", "date",
    "daemon_device_bytes",
)


def run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"{command[0]}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class BenchSleepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.figures = cls.root / "bench_sleep.json"
        cls.table = run(
            PROGRAMS["bench_sleep"], f"--torpord={PROGRAMS['torpord']}", "--driver=host",
            "--scale=1024", "--cycles=2", f"--loads={','.join(LOADS)}", "--link_bytes=16MiB",
            "--pinning_pool=32MiB", "--no_touch", "--commit=abc", "--driver_version=1.2",
            f"--torpord_log={cls.root / 'torpord.log'}", f"--out={cls.figures}",
        )
        cls.data = json.loads(cls.figures.read_text())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_figure_is_there(self):
        self.assertTrue(self.data["complete"])
        for key in TOP_KEYS:
            self.assertIn(key, self.data)
        for load in LOADS:
            for key in LOAD_KEYS:
                self.assertGreater(abs(self.data[load][key]), 0, f"{load}.{key}")
        for key in PINNING_KEYS:
            self.assertIn(key, self.data["pinning"])
        for key in ("cold_worst_query_ms_other_process", "cold_worst_query_ms_own_thread"):
            self.assertGreater(self.data["b14"][key], 0)
        self.assertGreater(self.data["b14"]["neighbour"]["clean_sleep_ms"], 0)
        self.assertEqual(self.data["commit"], "abc")
        self.assertEqual(self.data["driver"], "1.2")

    def test_every_byte_was_compared(self):
        for load in LOADS:
            figures = self.data[load]
            all_bytes = figures["weight_bytes"] + figures["kv_cache_bytes"]
            # With a cold pool and with a pinned one.
            self.assertEqual(figures["verified_bytes"], [all_bytes, all_bytes])

    def test_what_is_unchanged_is_not_copied(self):
        for load in LOADS:
            rows = self.data[load]["rows"]
            self.assertEqual(rows["clean_sleep"]["copied_bytes"], 0)
            self.assertEqual(rows["dirty_sleep"]["copied_bytes"], self.data[load]["weight_bytes"])
            self.assertEqual(rows["wake"]["copied_bytes"], self.data[load]["weight_bytes"])

    def test_rows_are_broken_down(self):
        for load in LOADS:
            for name, row in self.data[load]["rows"].items():
                self.assertLessEqual(
                    {"quiesce", "copy", "handles", "worker"}, set(row["phases_ms"]), name
                )
                self.assertGreaterEqual(row["worst_ms"], row["caller_ms"])
                self.assertGreater(row["outside_ms"], 0)
        self.assertIn("| sleep, nothing changed |", self.table)

    def test_the_report_has_peers_beside_it(self):
        peers = self.root / "peers.jsonl"
        cycle = {
            "sleep_s": 0.5, "sleep_gbps": 50.5, "wake_s": 0.6, "wake_gbps": 49.25,
            "bytes_same": True,
        }
        lines = [
            {"peer": "cumem", "load": "b14", "alloc_us_per_segment": 57.4, "cycles": [cycle] * 3},
            {"peer": "tms", "load": "seed", "error": "no such package"},
        ]
        peers.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run(
            sys.executable, PROGRAMS["report"], self.figures, "--peers", peers, "--out", self.root
        )
        data = json.loads((self.root / "host-memory.json").read_text())
        self.assertEqual(data["peers"]["cumem"]["b14"]["wake_gbps"], 49.25)
        self.assertEqual(data["peers"]["tms"]["seed"]["error"], "no such package")
        self.assertEqual(data["b14"], self.data["b14"])
        text = (self.root / "host-memory.md").read_text()
        self.assertIn("| wake, b14 | >= 0.98 of the link |", text)
        self.assertIn("cumem 500 ms", text)
        self.assertIn("no such package", text)

    def test_peers_have_the_same_loads(self):
        spec = importlib.util.spec_from_file_location("in_process", PROGRAMS["in_process"])
        in_process = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(in_process)
        listed = {}
        for line in run(PROGRAMS["bench_sleep"], "--list_loads").splitlines():
            name, segments, size = line.split()
            listed[name] = (int(segments), int(size))
        for name, sizes in in_process.LOADS.items():
            self.assertEqual(listed[name], (len(sizes), sum(sizes) << 20))
        self.assertEqual(listed["tiny"], (5000, 5000 << 21))


if __name__ == "__main__":
    for program in ("bench_sleep", "torpord", "report", "in_process"):
        PROGRAMS[program] = pathlib.Path(sys.argv.pop(1)).absolute()
    sys.dont_write_bytecode = True
    unittest.main()
