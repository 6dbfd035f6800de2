"""What torpord serves at /metrics: well-formed, right, documented and bounded."""

import re
import subprocess
import urllib.error

from programs import BIN, ROOT, DaemonTest, await_true, get, main, parse, value

MIB = 1 << 20


class Metrics(DaemonTest):
    def moved(self, before, name, **labels):
        return value(parse(self.scrape()), name, **labels) - value(before, name, **labels)

    def await_moved(self, before, by, name, **labels):
        """Events are counted a moment after the answer."""
        await_true(
            lambda: self.moved(before, name, **labels) >= by,
            lambda: f"{name} {labels} moved by {self.moved(before, name, **labels)}, not {by}",
        )
        self.assertEqual(self.moved(before, name, **labels), by, (name, labels))

    def test_counters_move_as_they_should(self):
        self.worker("model", "weights 16MiB 1", "kv_cache 8MiB 2")
        before = parse(self.scrape())
        self.assertEqual(
            value(before, "torpor_segment_bytes", worker="model", tag="weights", state="resident"),
            16 * MIB,
        )
        self.assertEqual(value(before, "torpor_healthy"), 1)
        self.assertEqual(value(before, "torpor_protected"), 0)
        self.assertEqual(value(before, "torpor_sessions", state="connected"), 1)

        self.ctl("sleep", "--level", "1", "model")
        self.await_moved(before, 1, "torpor_operations_total", kind="sleep", result="ok")
        self.await_moved(before, 1, "torpor_operation_duration_seconds_count", kind="sleep")
        self.await_moved(before, 16 * MIB, "torpor_copied_bytes_total", kind="sleep")
        self.await_moved(before, 8 * MIB, "torpor_discarded_bytes_total", kind="sleep")
        self.await_moved(before, 24 * MIB, "torpor_moved_device_bytes_total", kind="sleep")
        self.await_moved(before, 16 * MIB, "torpor_offload_asked_bytes_total")
        self.await_moved(before, 0, "torpor_offload_unchanged_bytes_total")
        asleep = parse(self.scrape())
        self.assertEqual(
            value(asleep, "torpor_segment_bytes", worker="model", state="offloaded"), 16 * MIB
        )
        self.assertEqual(value(asleep, "torpor_image_bytes", state="asleep"), 16 * MIB)
        self.assertEqual(value(asleep, "torpor_device_resident_bytes"), 0)
        self.assertGreater(
            value(asleep, "torpor_driver_call_duration_seconds_count", call="CopyToHost"), 0
        )

        self.ctl("wake", "model")
        self.ctl("sleep", "--level", "1", "model")
        self.await_moved(before, 1, "torpor_operations_total", kind="wake_up", result="ok")
        self.await_moved(before, 2, "torpor_operations_total", kind="sleep", result="ok")
        # Nobody has written to it meanwhile.
        self.await_moved(before, 16 * MIB, "torpor_offload_unchanged_bytes_total")
        self.await_moved(before, 16 * MIB, "torpor_copied_bytes_total", kind="wake_up")
        self.await_moved(before, 2, "torpor_requests_total", request="Sleep", result="ok")
        self.assertEqual(value(before, "torpor_operations_total", result="error"), 0)

    def test_refusals_are_counted_by_reason(self):
        self.worker("model", "weights 80MiB 1")
        before = parse(self.scrape())
        self.ctl("sleep", "--level", "1", "nobody", refused=True)
        self.ctl("sleep", "--level", "1", "model", refused=True)
        self.ctl("reserve", "--name=a", "--part=b=1GiB", "--ttl=1m", refused=True)
        self.await_moved(
            before, 1, "torpor_errors_total", source="control", reason="UNKNOWN_WORKER"
        )
        self.await_moved(
            before, 1, "torpor_errors_total", source="operation", reason="HOST_POOL_EXHAUSTED"
        )
        self.await_moved(before, 1, "torpor_errors_total", source="control", reason="NEVER_FITS")
        self.await_moved(before, 1, "torpor_operations_total", kind="sleep", result="error")
        self.await_moved(before, 2, "torpor_requests_total", request="Sleep", result="error")
        self.await_moved(before, 1, "torpor_requests_total", request="Reserve", result="error")

    def test_reservations_and_sessions(self):
        before = parse(self.scrape())
        one = self.worker("model")
        reserved = self.ctl("reserve", "--name=next", "--part=weights=32MiB", "--ttl=1m")
        reservation = re.search(r"\br-\d+\b", reserved).group()
        now = parse(self.scrape())
        self.assertEqual(value(now, "torpor_reservations"), 1)
        self.assertEqual(value(now, "torpor_reserved_bytes", memory="device"), 32 * MIB)
        self.assertEqual(value(now, "torpor_device_promised_bytes"), 32 * MIB)
        self.ctl("release", reservation)
        self.await_moved(before, 1, "torpor_reservation_changes_total", change="made")
        self.await_moved(before, 1, "torpor_reservation_changes_total", change="released")
        self.await_moved(before, 1, "torpor_session_changes_total", change="opened")
        one.process.kill()
        self.await_moved(before, 1, "torpor_session_changes_total", change="closed")
        await_true(lambda: value(parse(self.scrape()), "torpor_sessions") == 0, "sessions are left")

    def test_promtool_finds_nothing(self):
        self.worker("model", "weights 4MiB 1")
        self.ctl("sleep", "--level", "1", "model")
        self.ctl("sleep", "--level", "1", "nobody", refused=True)
        checked = subprocess.run(
            [BIN / "promtool", "check", "metrics"], input=self.scrape(), capture_output=True,
            text=True,
        )
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_each_family_is_documented(self):
        text = self.scrape()
        served = set(re.findall(r"(?m)^# TYPE (\w+) ", text))
        for name in served:
            self.assertRegex(text, rf"(?m)^# HELP {name} [A-Z0-9].*\.$")
        documented = set(
            re.findall(r"(?m)^\| `(\w+)`", (ROOT / "docs/monitoring.md").read_text())
        )
        documented = {name for name in documented if name.startswith(("torpor_", "process_"))}
        # Without a worker, and without an error.
        unseen = {"torpor_errors_total"}
        self.assertEqual(served - documented, set(), "not in docs/monitoring.md")
        self.assertEqual(documented - served - unseen, set(), "only in docs/monitoring.md")

    def test_nothing_else_is_served(self):
        for path in ("/", "/metrics/x", "/-/reload"):
            with self.subTest(path=path), self.assertRaises(urllib.error.HTTPError) as refused:
                get(f"http://127.0.0.1:{self.port}{path}")
            self.assertEqual(refused.exception.code, 404)
            refused.exception.close()


class Bounds(DaemonTest):
    flags = ["--host_granularity=64KiB"]

    def test_cardinality_is_bounded(self):
        for number in range(40):
            self.worker(f"worker-{number}", *(f"tag-{number}-{tag} 64KiB" for tag in range(3)))
        metrics = parse(self.scrape())
        workers = {dict(key)["worker"] for key in metrics["torpor_segment_bytes"]}
        tags = {dict(key)["tag"] for key in metrics["torpor_segment_bytes"]}
        self.assertEqual(len(workers), 33)
        self.assertEqual(len(tags), 9)
        self.assertIn("other", workers & tags)
        # Nothing is lost.
        self.assertEqual(value(metrics, "torpor_segments"), 120)
        self.assertEqual(
            value(metrics, "torpor_segment_bytes", state="resident"), 120 * (64 << 10)
        )
        self.assertLess(sum(len(series) for series in metrics.values()), 4000)


if __name__ == "__main__":
    main()
