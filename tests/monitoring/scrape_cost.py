"""Sleeps and wakes with and without a Prometheus that scrapes, side by side: a table.

    scrape_cost.py TORPORD TORPOR_KEEPER TORPORCTL TEST_WORKER

On the host driver, with Prometheus from .deps/bin.
"""

import statistics
import time

from programs import DaemonTest, main

ROUNDS = 50
HEAD = ("scrapes", "sleep p50", "sleep p95", "wake p50", "wake p95")


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

    def test_cost(self):
        worker = self.worker("model", "weights 32MiB 1", "kv_cache 16MiB 2")
        for number in range(20):
            self.worker(f"other-{number}", "weights 2MiB 3")
        self.figures(worker)
        print("\n| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
        # Each twice, in turn: what else the machine does changes.
        for interval in (None, "1s", "100ms") * 2:
            end = self.start_prometheus(interval) if interval else None
            row = [f"each {interval}" if interval else "none"]
            row += [f"{figure:.1f} ms" for figure in self.figures(worker)]
            print("| " + " | ".join(row) + " |", flush=True)
            if end:
                end()


if __name__ == "__main__":
    main()
