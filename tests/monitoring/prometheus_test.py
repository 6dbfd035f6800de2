"""Every query of dashboard and rules, put to a real Prometheus that scrapes a real torpord."""

import json
import math
import os
import re
import signal
import subprocess
import unittest
import urllib.error
import urllib.parse

from programs import BIN, ROOT, DaemonTest, await_true, get, main, parse, value

DASHBOARD = ROOT / "deploy/grafana/torpor.json"
RULES = ROOT / "deploy/prometheus/torpor.rules.yml"

# Queries that find nothing where all is well. Their metrics are there all the same.
EMPTY = {
    "torpor_access_file_wrong == 1": "there is no access file",
    "torpor_health_problem{reason!=\"OPERATION_STUCK\"} == 1": "the daemon serves",
    "torpor_health_problem{reason=\"OPERATION_STUCK\"} == 1": "no operation is stuck",
    "torpor_workers_rollback_pending > 0": "all workers answer",
    "torpor_protected == 0": "there is a keeper",
    "torpor_device_overcommitted_bytes > 0": "nobody else takes memory of the host driver's device",
    "torpor_host_pool_refused_bytes > 0": "the system lets 64 MiB be pinned",
    "torpor_queue_oldest_wait_seconds > 300": "nobody waits for five minutes in a test",
    "torpor_usage_collected == 0": "the driver answers",
    "changes(process_start_time_seconds[30m]) > 2 and on (instance, job) torpor_build_info":
        "the daemon is started twice",
    "up{job=~\".*torpor.*\"} == 0": "the daemon is scraped",
    "(torpor_host_pool_used_bytes + torpor_host_pool_promised_bytes)"
    " / (torpor_host_pool_capacity_bytes > 0) > 0.9": "the pool is not full",
}


def dashboard_queries():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            yield panel["title"], query


def squeezed(query):
    return re.sub(r"\s+", " ", query).strip()


class Files(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run(
            [BIN / "promtool", *arguments], capture_output=True, text=True, cwd=RULES.parent
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_rules(self):
        self.promtool("check", "rules", "--lint=all", "--lint-fatal", RULES.name)
        self.promtool("test", "rules", "torpor.rules_test.yml")

    def test_each_alert_is_tested_and_documented(self):
        alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
        tests = (RULES.parent / "torpor.rules_test.yml").read_text()
        tested = re.findall(r"alertname: (\w+)", tests)
        documented = re.findall(r"(?m)^\| `(Torpor\w+)`", (ROOT / "docs/monitoring.md").read_text())
        self.assertEqual(alerts, set(tested))
        self.assertEqual(alerts, set(documented))

    def test_dashboard(self):
        board = json.loads(DASHBOARD.read_text())
        panels = board["panels"]
        ids = [panel["id"] for panel in panels]
        self.assertEqual(len(ids), len(set(ids)))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
            if panel["type"] != "row":
                self.assertTrue(panel["targets"] and panel["title"])
        for _, query in dashboard_queries():
            self.assertIn("instance=~", query)
            self.assertNotIn("$", query)


class Prometheus(DaemonTest):
    keeper = True

    def setUp(self):
        super().setUp()
        self.start_prometheus("500ms", RULES)

    def query(self, query):
        """The values of all series that the query finds."""
        text = get(f"{self.api}/query?{urllib.parse.urlencode({'query': query})}")
        data = json.loads(text)["data"]
        self.assertEqual(data["resultType"], "vector", query)
        return [float(series["value"][1]) for series in data["result"]]

    def has_data(self, query):
        return any(not math.isnan(number) for number in self.query(query))

    def scrapes(self):
        found = self.query('count_over_time(torpor_build_info[1h])')
        return sum(found)

    def await_scrapes(self, more):
        enough = self.scrapes() + more
        await_true(lambda: self.scrapes() >= enough, "Prometheus scrapes")

    def load(self):
        """All that makes metrics move; some of it more than once, so that rates are there."""
        self.worker("small", "weights 8MiB 1", "kv_cache 4MiB 2", "scratch 2MiB 3")
        self.worker("large", "weights 80MiB 4")
        waiting = subprocess.Popen(
            self.command("reserve", "--name=later", "--part=weights=100MiB", "--ttl=10m", "--wait"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            await_true(
                lambda: value(parse(self.scrape()), "torpor_queue_waiters") == 1, "one waits"
            )
            self.await_scrapes(2)
        finally:
            # It would have the memory of who sleeps.
            waiting.kill()
            waiting.wait()
        await_true(
            lambda: value(parse(self.scrape()), "torpor_queue_waiters") == 0, "nobody waits"
        )
        for _ in range(3):
            self.ctl("sleep", "--level=1", "small")
            self.await_scrapes(1)
            self.ctl("wake", "small")
            # Larger than the pool.
            self.ctl("sleep", "--level=1", "large", refused=True)
            self.ctl("sleep", "--level=1", "nobody", refused=True)
            self.await_scrapes(1)

    def restart_daemon(self):
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.daemon.pid)], capture_output=True, text=True
        )
        for pid in children.stdout.split():
            os.kill(int(pid), signal.SIGKILL)

        def back():
            try:
                now = parse(self.scrape())
            except (urllib.error.URLError, ConnectionError):
                return False
            return (
                value(now, "torpor_daemon_starts_total") == 2
                and value(now, "torpor_sessions", state="connected") == 2
                and value(now, "torpor_healthy") == 1
            )

        await_true(back, self.log.read_text)

    def test_every_query_finds_data(self):
        self.load()
        self.restart_daemon()
        for _ in range(3):
            self.ctl("sleep", "--level=1", "small")
            self.await_scrapes(1)
            self.ctl("wake", "small")
            self.ctl("sleep", "--level=1", "large", refused=True)
            self.await_scrapes(2)
        queries = list(dashboard_queries())
        groups = json.loads(get(f"{self.api}/rules"))["data"]["groups"]
        for rule in (rule for group in groups for rule in group["rules"]):
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule["name"])
        rules = re.findall(r"(?m)^ +expr: (>\n(?: {10}.*\n)+|.*)", RULES.read_text())
        self.assertEqual(len(rules), sum(len(group["rules"]) for group in groups))
        queries += [("rules", rule.lstrip(">")) for rule in rules]
        unused = set(EMPTY)
        for title, query in queries:
            query = squeezed(query)
            with self.subTest(panel=title, query=query):
                if query in EMPTY:
                    unused.discard(query)
                    self.assertFalse(self.has_data(query))
                else:
                    self.assertTrue(self.has_data(query))
                for name in set(re.findall(r"\b(?:torpor|process)_\w+", query)):
                    self.assertTrue(self.has_data(name), name)
        self.assertEqual(unused, set(), "no query is so")
        self.assertEqual(sum(self.query("torpor_daemon_starts_total")), 2)


if __name__ == "__main__":
    main()
