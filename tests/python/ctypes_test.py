"""libtorpor.so in a process of its own, asleep and awake through torporctl, on the host driver.

    ctypes_test.py TORPORD TORPORCTL LIBTORPOR [MODEL.safetensors]
"""

import pathlib
import random
import sys
import threading
import time
import unittest

import safetensors

from torpor_ctypes import Library, Policy, Quiesce, TorporError
from torpor_daemon import CommandFailed, Daemon, Programs, number, seconds

MIB = 1 << 20
MODEL = None
PROGRAMS = None


class CtypesTest(unittest.TestCase):
    def setUp(self):
        self.library = Library(PROGRAMS.library)
        self.daemon = Daemon(
            PROGRAMS, "--driver=host", "--host_device_memory=640MiB", "--host_pool=512MiB",
            "--safety_reserve=0",
        )
        self.addCleanup(self.stop)
        self.session = self.library.connect(
            name="w", runtime_dir=self.daemon.runtime_dir, quiesce=Quiesce.GUARD
        )

    def stop(self):
        if self.session.handle:
            self.session.close()
        self.assertEqual(self.daemon.close(), 0)

    def assert_fails(self, reason, function, *arguments, **named):
        with self.assertRaises(TorporError) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.reason, reason, caught.exception)

    def free_bytes(self):
        return number(self.daemon.ctl("usage")["device"], "free_bytes")

    def test_sleep_from_outside_and_wake(self):
        data = random.Random(1).randbytes(7 * MIB)
        weights = self.session.allocate("weights", len(data))
        cache = self.session.allocate("kv_cache", 4 * MIB)
        self.session.write(weights, data)
        self.session.write(cache, b"\xaa" * (4 * MIB))
        self.assertEqual(self.session.segment(weights + 5 * MIB), (weights, 8 * MIB, "weights"))
        free = self.free_bytes()

        answer = self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.assertEqual(number(answer, "device_bytes"), 12 * MIB)
        self.assertEqual(number(answer, "copied_bytes"), 8 * MIB)
        self.assertGreater(seconds(answer["workers"][0]["timing"]["total"]), 0)
        self.assertEqual(self.free_bytes(), free + 12 * MIB)
        _, tags = self.session.usage()
        self.assertEqual(tags["weights"].offloaded_bytes, 8 * MIB)
        self.assertEqual(tags["kv_cache"].discarded_bytes, 4 * MIB)

        self.daemon.ctl("wake", "--worker=w")
        self.assertEqual(self.free_bytes(), free)
        self.assertEqual(self.session.read(weights, len(data)), data)
        self.assertEqual(self.session.read(cache, 4 * MIB), bytes(4 * MIB))

    def test_guard_of_a_tag_passes_while_another_sleeps(self):
        self.session.allocate("weights", 2 * MIB)
        self.session.allocate("kv_cache", 2 * MIB)
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.assert_fails("ASLEEP", self.enter, timeout=0)
        self.daemon.ctl("wake", "--worker=w", "--tag=weights")
        with self.session.work("weights", timeout=0):
            self.assert_fails("ASLEEP", self.enter, "kv_cache")
        self.assert_fails("ASLEEP", self.enter, timeout=0)
        self.daemon.ctl("wake", "--worker=w", "--tag=kv_cache")
        with self.session.work(timeout=0):
            pass

    def enter(self, *tags, timeout=None):
        with self.session.work(*tags, timeout=timeout):
            pass

    def test_sleep_waits_for_the_guard(self):
        self.session.allocate("weights", 2 * MIB)
        done = threading.Event()

        def sleep():
            self.daemon.ctl("sleep", "--worker=w", "--level=1")
            done.set()

        with self.session.work():
            thread = threading.Thread(target=sleep)
            thread.start()
            self.assertFalse(done.wait(0.5))
        thread.join(30)
        self.assertTrue(done.is_set())

    def test_a_thread_waits_at_the_guard_until_the_wake(self):
        address = self.session.allocate("weights", 2 * MIB)
        self.session.write(address, b"x" * 100)
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        read = []
        thread = threading.Thread(target=lambda: read.append(self.session.read(address, 100)))
        thread.start()
        time.sleep(0.2)
        self.assertEqual(read, [])
        self.daemon.ctl("wake", "--worker=w")
        thread.join(30)
        self.assertEqual(read, [b"x" * 100])

    def test_own_sleep_and_policies(self):
        address = self.session.allocate("kv_cache", 2 * MIB)
        self.session.write(address, b"kept")
        result = self.session.sleep_policies({"kv_cache": Policy.OFFLOAD})
        self.assertEqual(result.copied_bytes, 2 * MIB)
        self.session.wake_up("kv_cache")
        self.assertEqual(self.session.read(address, 4), b"kept")
        result = self.session.sleep(2)
        self.assertEqual((result.copied_bytes, result.discarded_bytes), (0, 2 * MIB))
        self.assertEqual(self.session.wake_up().discarded_bytes, 2 * MIB)
        self.assertEqual(self.session.read(address, 4), bytes(4))
        with self.session.work():
            self.assert_fails("WORK_GUARD_HELD", self.session.sleep, 1)

    def test_a_worker_that_stated_nothing_sleeps_by_its_own_call_only(self):
        self.session.allocate("weights", 2 * MIB)
        self.session.set_quiesce(Quiesce.NONE)
        with self.assertRaisesRegex(CommandFailed, "WORKER_NOT_QUIESCIBLE"):
            self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.assertEqual(self.session.sleep(1).device_bytes, 2 * MIB)

    def test_copies_are_checked(self):
        address = self.session.allocate("weights", 2 * MIB)
        self.assert_fails("BAD_SIZE", self.session.write, address + MIB, bytes(MIB + 1))
        self.assert_fails("UNKNOWN_ADDRESS", self.session.read, address + 2 * MIB, 1)
        self.session.write(address, b"")
        self.session.write(address + 2 * MIB - 3, b"end")
        self.assertEqual(self.session.read(address + 2 * MIB - 4, 4), b"\0end")
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.session.free(address)
        self.assert_fails("UNKNOWN_ADDRESS", self.session.read, address, 1)

    def test_pytorch_entry_points(self):
        self.session.torch_use()
        free = self.free_bytes()
        with self.library.torch_tag("weights"):
            address = self.library.c.torpor_torch_malloc(3 * MIB, 0, None)
        self.assertEqual(self.session.segment(address), (address, 4 * MIB, "weights"))
        other = self.library.c.torpor_torch_malloc(1, 0, None)
        self.assertEqual(self.session.segment(other)[2], "default")
        self.assertIsNone(self.library.c.torpor_torch_malloc(0, 0, None))
        self.assertIsNone(self.library.c.torpor_torch_malloc(1 << 40, 0, None))
        self.assertEqual(self.library.last_error().code, 8)
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.library.c.torpor_torch_free(address, 3 * MIB, 0, None)
        self.daemon.ctl("wake", "--worker=w")
        self.library.c.torpor_torch_free(other, 1, 0, None)
        self.assertEqual(self.free_bytes(), free)

    def test_every_tensor_of_a_published_model(self):
        if MODEL is None:
            self.skipTest("no model given")
        tensors = safetensors.deserialize(pathlib.Path(MODEL).read_bytes())
        placed = {}
        for name, tensor in tensors:
            data = bytes(tensor["data"])
            placed[name] = (self.session.allocate("weights", len(data)), data)
            self.session.write(*placed[name])
        for level in (1, 1):
            self.daemon.ctl("sleep", "--worker=w", f"--level={level}")
            self.daemon.ctl("wake", "--worker=w")
            for name, (address, data) in placed.items():
                self.assertEqual(self.session.read(address, len(data)), data, name)
        self.assertGreater(len(placed), 50)


if __name__ == "__main__":
    torpord, torporctl, library, *model = sys.argv[1:]
    PROGRAMS = Programs(torpord=torpord, torporctl=torporctl, library=library)
    MODEL = model[0] if model else None
    unittest.main(argv=sys.argv[:1], verbosity=2)
