"""Reinforcement learning on one GPU: a generator and a trainer that do not fit on it together.

    rl_loop.py STEPS "GENERATOR COMMAND" "TRAINER COMMAND"

Both are workers of Torpor, named "generator" and "trainer". The loop asks them with a line of JSON on
standard input, {"call": NAME, ...}, and gets a line of JSON from their standard output; the first line,
when they are loaded, is an answer, too. What the steps have in common with other loops is `step`.
"""

import json
import shlex
import subprocess
import sys

from torpor.control import Client


class Worker:
    """A process that does as it is asked."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def ask(self, call, **arguments):
        self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self.process.wait()}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def step(torpor, generator, trainer):
    """The generator is awake before and after it, with the weights that the trainer has got to."""
    rollouts = generator.ask("generate")
    # Its weights are out of date soon: dropped as well as the KV cache.
    torpor.sleep("generator", level=2)

    torpor.wake_up("trainer", order=["weights"])
    report = trainer.ask("train", rollouts=rollouts)
    torpor.sleep("trainer", policies={"optimizer": "offload"})  # only its weights stay

    # The weights of both are there now, and no KV cache yet.
    torpor.wake_up("generator", tags=["weights"])
    generator.ask("load", **trainer.ask("save"))
    torpor.sleep("trainer", policies={"weights": "offload"})
    torpor.wake_up("generator", tags=["kv_cache"])
    return report


def main(steps, generator_command, trainer_command):
    with Client() as torpor:  # the only daemon of this machine
        generator = Worker(generator_command)
        torpor.sleep("generator", level=1)
        trainer = Worker(trainer_command)
        torpor.sleep("trainer", level=1)
        torpor.wake_up("generator")
        for number in range(int(steps)):
            print(number, json.dumps(step(torpor, generator, trainer)), flush=True)
        print("generates", json.dumps(generator.ask("generate")), flush=True)
        generator.end()
        trainer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
