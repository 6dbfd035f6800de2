"""Sleeps and wakes with and without a Prometheus that scrapes, side by side: a table.

    scrape_cost.py TORPORD TORPOR_KEEPER TORPORCTL TEST_WORKER

On the host driver, with Prometheus from .deps/bin.
"""

import json
import statistics
import time

from programs import DaemonTest, await_true, get, main

ROUNDS = 200
HEAD = ("scrapes", "sleep p50", "sleep p95", "wake p50", "wake p95", "scrapes meanwhile")


class Cost(DaemonTest):
    def figures(self, worker):
        """Of sleeps, then of wakes, by the worker's own calls: median and 95th percentile in ms."""
        times = {"sleep 1": [], "wake": []}
        for _ in range(ROUNDS):
            for command, taken in times.items():
                begin = time.monotonic()
                worker.ask(command)
                taken.append((time.monotonic() - begin) * 1000)
        return [
            figure
            for taken in times.values()
            for figure in (statistics.median(taken), statistics.quantiles(taken, n=20)[18])
        ]

    def scrapes(self):
        """How many samples of the daemon the Prometheus has that runs."""
        answer = json.loads(get(f"{self.api}/query?query=sum_over_time(up[1h])"))
        result = answer["data"]["result"]
        return float(result[0]["value"][1]) if result else 0

    def test_cost(self):
        worker = self.worker("model", "weights 32MiB 1", "kv_cache 16MiB 2")
        for number in range(20):
            self.worker(f"other-{number}", "weights 2MiB 3")
        self.figures(worker)
        print("\n| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
        # Each twice, in turn: what else the machine does changes.
        for interval in (None, "1s", "100ms") * 2:
            end = self.start_prometheus(interval) if interval else None
            if end:
                # It looks for its targets some seconds after it is ready.
                await_true(lambda: self.scrapes() > 0, "Prometheus scrapes")
            before = self.scrapes() if end else 0
            row = [f"each {interval}" if interval else "none"]
            row += [f"{figure:.1f} ms" for figure in self.figures(worker)]
            if end:
                row.append(f"{self.scrapes() - before:.0f}")
                end()
            else:
                row.append("")
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
