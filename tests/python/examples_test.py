"""The programs of docs/examples/python with models of their own, on the host driver."""

import json
import os
import pathlib
import subprocess
import sys

import fixture
import torpor
from fixture import MIB, DaemonTest
from torpor.control import Client

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "docs/examples/python"
WORKER = HERE / "example_worker.py"


class ExamplesTest(DaemonTest):
    # The pool has room for the weights of both models, as while they take turns.
    FLAGS = ("--host_device_memory=160MiB", "--host_pool=256MiB")

    def setUp(self):
        super().setUp()
        self.client = Client(self.daemon.control_socket)
        self.addCleanup(self.client.close)

    def start(self, program, *arguments):
        process = subprocess.Popen(
            [sys.executable, program, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **os.environ,
                "TORPOR_RUNTIME_DIR": str(self.daemon.runtime_dir),
                "TMPDIR": str(self.daemon.runtime_dir),
            },
        )

        def end():
            process.stdin.close()
            self.assertEqual(process.wait(timeout=60), 0, program)
            process.stdout.close()

        self.addCleanup(end)
        return process

    def ask(self, process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def generate(self, worker):
        return json.loads(self.ask(worker, '{"call": "generate"}'))["tokens"]

    def resident(self):
        """{worker: bytes on the device}, of those that have some"""
        return {
            worker.name: total
            for worker in self.client.usage().workers
            if (total := sum(tag.resident_bytes for tag in worker.tags))
        }


class Orchestrator(ExamplesTest):
    def test_models_take_turns(self):
        # Each takes 100 of 160 MiB.
        first = self.start(WORKER, "first", "80", "kv_cache", "20")
        self.assertEqual(first.stdout.readline(), "{}\n")
        second = self.start(WORKER, "second", "80", "kv_cache", "20")
        self.wait_for(lambda: self.client.usage().queue)
        orchestrator = self.start(EXAMPLES / "orchestrator.py")
        self.assertRegex(self.ask(orchestrator, "second"), "^second: awake after [0-9.]+ s\n$")
        self.assertEqual(second.stdout.readline(), "{}\n")
        tokens = {}
        for turn in range(6):
            name, worker = [("first", first), ("second", second)][turn % 2]
            self.assertRegex(self.ask(orchestrator, name), f"^{name}: awake")
            self.assertEqual(self.resident(), {name: 100 * MIB})
            generated = self.generate(worker)
            self.assertEqual(tokens.setdefault(name, generated), generated)
            self.assertIn("no worker", self.ask(orchestrator, "nobody"))
            self.assertEqual(self.resident(), {name: 100 * MIB})
        self.assertEqual(len(tokens), 2)
        self.assertNotEqual(tokens["first"], tokens["second"])

    def test_an_engine_that_puts_itself_to_sleep(self):
        engine = self.start(WORKER, "engine", "80", "kv_cache", "20", "--engine")
        self.assertEqual(engine.stdout.readline(), "{}\n")
        tokens = self.generate(engine)
        other = self.start(WORKER, "other", "80", "kv_cache", "20")
        self.wait_for(lambda: self.client.usage().queue)
        orchestrator = self.start(EXAMPLES / "orchestrator.py")
        self.ask(orchestrator, "other")
        self.assertEqual(other.stdout.readline(), "{}\n")
        self.generate(other)
        for _ in range(2):
            self.ask(orchestrator, "engine")
            self.assertEqual(self.resident(), {"engine": 100 * MIB})
            self.assertEqual(self.generate(engine), tokens)
            self.ask(orchestrator, "other")
            self.assertEqual(self.resident(), {"other": 100 * MIB})


    def test_an_engine_that_does_not_say_where(self):
        session = self.connect("vague", quiesce=torpor.Quiesce.NONE)
        session.allocate("weights", MIB)
        session.set_sleep_endpoint("POST /sleep of the server that this worker belongs to")
        orchestrator = self.start(EXAMPLES / "orchestrator.py")
        self.assertIn("does not say where", self.ask(orchestrator, "vague"))


class Loop(ExamplesTest):
    def test_generate_and_train(self):
        # 32 + 80 and 32 + 96 of 160 MiB.
        loop = self.start(
            EXAMPLES / "rl_loop.py", "3",
            f"{sys.executable} {WORKER} generator 32 kv_cache 80",
            f"{sys.executable} {WORKER} trainer 32 optimizer 96",
        )
        steps = [loop.stdout.readline().split(maxsplit=1) for _ in range(4)]
        self.assertEqual([name for name, _ in steps], ["0", "1", "2", "generates"])
        reports = [json.loads(text) for _, text in steps]
        # The optimizer has counted through its sleeps.
        self.assertEqual([report["count"] for report in reports[:3]], [1, 2, 3])
        # The generator has got what the trainer had.
        self.assertEqual(reports[3]["tokens"], reports[2]["tokens"])
        self.assertNotEqual(reports[0]["tokens"], reports[1]["tokens"])


if __name__ == "__main__":
    fixture.main()
