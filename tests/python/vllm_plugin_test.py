"""The vLLM plugin on the host driver: each test is a scenario of vllm_scenarios.py, in a process
of its own beside real daemons. vLLM and PyTorch are the stand-ins under vllm_stubs. A wheel of
vLLM, if the environment names one as TEST_VLLM_WHEEL, is asked whether it still has the
interface that they stand for.
"""

import os
import pathlib
import subprocess
import sys
import unittest

import vllm_interface
from fixture import PROGRAMS, DaemonTest, main

HERE = pathlib.Path(__file__).resolve().parent
# As those of GPUs: a host device may be called anything.
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2)]


class VllmPluginTest(DaemonTest):
    FLAGS = ("--host_device_memory=256MiB",)

    def setUp(self):
        pass  # each scenario says which daemons it needs

    def run_scenario(self, name, *, devices=1, pool="256MiB", **environment):
        daemons = []
        for uuid in UUIDS[:devices]:
            # All in one runtime directory, as on a machine with several GPUs.
            shared = [f"--runtime_dir={daemons[0].runtime_dir}"] if daemons else []
            daemons.append(
                self.start_daemon(f"--device={uuid}", f"--host_pool={pool}", *shared)
            )
        done = subprocess.run(
            [sys.executable, str(HERE / "vllm_scenarios.py"), name],
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE / 'vllm_stubs'}:{os.environ['PYTHONPATH']}",
                "TORPOR_RUNTIME_DIR": str(daemons[0].runtime_dir),
                "CUDA_VISIBLE_DEVICES": ",".join(UUIDS[:devices]),
                "TEST_TORPORCTL": PROGRAMS.torporctl,
                "TEST_CONTROL_SOCKETS": ",".join(d.control_socket for d in daemons),
                **environment,
            },
            capture_output=True, text=True, timeout=120, check=False,
        )
        self.assertEqual(done.returncode, 0, f"\n{done.stdout}{done.stderr}")

    def test_registers_and_starts_nothing(self):
        self.run_scenario("registers_and_starts_nothing")

    def test_registered_twice(self):
        self.run_scenario("registered_twice")

    def test_forked_engine(self):
        self.run_scenario("forked_engine")

    def test_vllm_without_backends(self):
        self.run_scenario("vllm_without_backends")

    def test_others_keep_their_allocator(self):
        self.run_scenario("others_keep_their_allocator")

    def test_refuses_memory_of_another_allocator(self):
        self.run_scenario("refuses_memory_of_another_allocator")

    def test_level_one(self):
        self.run_scenario("level_one")

    def test_level_two_shows_nobody_elses_bytes(self):
        self.run_scenario("level_two_shows_nobody_elses_bytes")

    def test_partial_wakes(self):
        self.run_scenario("partial_wakes")

    def test_discarded_cache(self):
        self.run_scenario("discarded_cache")

    def test_no_room_on_the_device(self):
        self.run_scenario("no_room_on_the_device")

    def test_no_room_on_the_host(self):
        self.run_scenario("no_room_on_the_host", pool="16MiB")

    def test_refused_from_outside(self):
        self.run_scenario("refused_from_outside", EXPECT_ENDPOINT="POST /sleep of the vLLM server")

    def test_refused_from_outside_with_an_endpoint(self):
        endpoint = "POST http://localhost:8000/sleep"
        self.run_scenario(
            "refused_from_outside", EXPECT_ENDPOINT=endpoint, TORPOR_SLEEP_ENDPOINT=endpoint
        )

    def test_two_workers(self):
        self.run_scenario("two_workers", devices=2)

    def test_surface(self):
        self.run_scenario("surface")

    def test_refused_allocations(self):
        self.run_scenario("refused_allocations")

    def test_empty_segments_go(self):
        self.run_scenario("empty_segments_go")

    def test_woken_from_outside(self):
        self.run_scenario("woken_from_outside")


class InterfaceTest(unittest.TestCase):
    """Reads sources only; runs nothing of vLLM's."""

    def test_stand_ins_have_the_interface(self):
        self.assertEqual(vllm_interface.problems_of_stand_ins(HERE / "vllm_stubs"), [])

    def test_wheel_has_the_interface(self):
        wheel = os.environ.get("TEST_VLLM_WHEEL")
        if not wheel:
            self.skipTest("no wheel of vLLM given (TEST_VLLM_WHEEL)")
        source = vllm_interface.Source.of_wheel(wheel)
        print(f"vLLM {source.version}", file=sys.stderr)
        self.assertEqual(vllm_interface.problems(source), [])


if __name__ == "__main__":
    main()
