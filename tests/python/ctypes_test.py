"""Sessions: memory, the guard, sleep and wake, also through torporctl."""

import math
import pathlib
import random
import threading
import time

import safetensors

import torpor
from fixture import MIB, MODEL, DaemonTest, main
from torpor import Policy, Quiesce
from torpor_daemon import CommandFailed, number, seconds


class CtypesTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.session = self.connect()

    def test_sleep_from_outside_and_wake(self):
        data = random.Random(1).randbytes(7 * MIB)
        weights = self.session.allocate("weights", len(data))
        cache = self.session.allocate("kv_cache", 4 * MIB)
        self.session.write(weights, data)
        self.session.write(cache, b"\xaa" * (4 * MIB))
        self.assertEqual(
            self.session.segment(weights + 5 * MIB), torpor.Segment(weights, 8 * MIB, "weights")
        )
        free = self.free_bytes()

        answer = self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.assertEqual(number(answer, "device_bytes"), 12 * MIB)
        self.assertEqual(number(answer, "copied_bytes"), 8 * MIB)
        self.assertGreater(seconds(answer["workers"][0]["timing"]["total"]), 0)
        self.assertEqual(self.free_bytes(), free + 12 * MIB)
        tags = self.session.usage().tags
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
        c = torpor._abi.library().c
        self.session.call("torpor_torch_use")
        free = self.free_bytes()
        self.assertEqual(c.torpor_torch_set_tag(b"weights"), 0)
        address = c.torpor_torch_malloc(3 * MIB, 0, None)
        c.torpor_torch_set_tag(None)
        self.assertEqual(
            self.session.segment(address), torpor.Segment(address, 4 * MIB, "weights")
        )
        other = c.torpor_torch_malloc(1, 0, None)
        self.assertEqual(self.session.segment(other).tag, "default")
        self.assertIsNone(c.torpor_torch_malloc(0, 0, None))
        self.assertIsNone(c.torpor_torch_malloc(1 << 40, 0, None))
        self.assertEqual(torpor._abi.library().last_error().code, 8)
        self.daemon.ctl("sleep", "--worker=w", "--level=1")
        c.torpor_torch_free(address, 3 * MIB, 0, None)
        self.daemon.ctl("wake", "--worker=w")
        c.torpor_torch_free(other, 1, 0, None)
        self.assertEqual(self.free_bytes(), free)

    def test_what_the_daemon_said(self):
        info = self.session.info
        self.assertEqual((info.device_kind, info.device_uuid), ("host", "host-0"))
        self.assertEqual((info.device_total_bytes, info.granularity_bytes), (640 * MIB, 2 * MIB))
        self.assertEqual(self.workers()["w"]["id"], f"w-{info.worker_id}")
        self.assertIn("host-0", repr(self.session))

    def test_copies_take_whatever_has_bytes(self):
        address = self.session.allocate("weights", 2 * MIB)
        sparse = memoryview(b"xaxbx")[1::2]
        for data in (b"bytes", bytearray(b"array"), memoryview(b"views"), sparse):
            self.session.write(address, data)
            self.assertEqual(self.session.read(address, len(data)), bytes(data))
        self.session.write(address, bytearray())
        self.assertEqual(self.session.read(address, 0), b"")

    def test_numbers_that_do_not_fit_are_no_others(self):
        self.assert_fails("BAD_ALLOCATION_SIZE", self.session.allocate, "weights", -1)
        self.assert_fails("BAD_ALLOCATION_SIZE", self.session.allocate, "weights", (1 << 64) + 1)
        self.assert_fails("EMPTY_ALLOCATION", self.session.allocate, "weights", 0)
        self.assert_fails("LARGER_THAN_DEVICE", self.session.allocate, "weights", (1 << 63) - 1)
        address = self.session.allocate("weights", 1)
        self.assert_fails("UNKNOWN_ADDRESS", self.session.free, address + (1 << 64))
        self.assert_fails("UNKNOWN_ADDRESS", self.session.segment, -1)
        self.assert_fails("UNKNOWN_ADDRESS", self.session.segment, (1 << 64) - 1)
        self.assert_fails("BAD_SIZE", self.session.read, address, -1)
        self.assert_fails("BAD_SIZE", self.session.read, address, 1 << 62)
        self.assert_fails("BAD_SIZE", self.session.write, address + 1, bytes(2 * MIB))
        self.assert_fails("BAD_SIZE", self.session.report_usage, 1, (1 << 64) + 1)
        self.assert_fails("BAD_LEVEL", self.session.sleep, (1 << 32) + 1)
        # The daemon's own deadline, or the worker's that was too late for it.
        self.assertRaises(torpor.errors.DeadlineExceeded, self.session.sleep, timeout=-math.inf)
        self.assertRaises(ValueError, self.session.work, timeout=math.nan)
        self.assert_fails("NUL_IN_TEXT", self.session.allocate, "we\0ights", 1)
        self.assert_fails("BAD_TAG", self.session.allocate, "we ights", 1)
        self.assertEqual(self.session.usage().tags["weights"].segments, 1)

    def test_errors_have_numbers(self):
        hog = self.session.allocate("weights", 600 * MIB)
        error = self.assert_fails(
            "DEVICE_BUDGET_EXHAUSTED", self.session.allocate, "more", 64 * MIB
        )
        self.assertIsInstance(error, torpor.errors.ResourceExhausted)
        self.assertIsInstance(error, MemoryError)
        self.assertEqual(error.number("requested_bytes"), 64 * MIB)
        self.assertEqual(error.number("available_bytes"), 40 * MIB)
        self.assertIn("RESOURCE_EXHAUSTED DEVICE_BUDGET_EXHAUSTED", str(error))
        self.session.free(hog)
        self.session.free(0)
        error = self.assert_fails("LARGER_THAN_DEVICE", self.session.allocate, "more", 1 << 50)
        self.assertEqual(error.number("total_bytes"), 640 * MIB)
        self.assertIsNone(error.number("available_bytes"))

    def test_an_allocation_waits_for_its_turn(self):
        hog = self.session.allocate("weights", 600 * MIB)
        other = self.connect("other")
        late = self.assert_fails(
            "ALLOCATION_DEADLINE", other.allocate, "weights", 64 * MIB, timeout=0.05
        )
        self.assertIsInstance(late, TimeoutError)
        got = []
        thread = threading.Thread(
            target=lambda: got.append(other.allocate("weights", 64 * MIB, timeout=60))
        )
        thread.start()
        self.wait_for(lambda: self.daemon.ctl("usage").get("queue"))
        self.session.free(hog)
        thread.join(30)
        self.assertTrue(got)

    def test_discard(self):
        self.assertEqual(self.session.discard(), torpor.SleepResult(0, 0, 0))
        address = self.session.allocate("weights", 2 * MIB)
        self.session.allocate("kv_cache", 4 * MIB)
        self.session.write(address, b"gone")
        self.assertEqual(self.session.discard("kv_cache").device_bytes, 4 * MIB)
        self.session.sleep()
        self.session.discard(force=True)
        tags = self.session.usage().tags
        self.assertEqual(tags["weights"].discarded_bytes, 2 * MIB)
        self.session.wake_up()
        self.assertEqual(self.session.read(address, 4), bytes(4))

    def test_reports_and_lists(self):
        self.session.report_usage(3 * MIB, 5 * MIB)
        worker = self.workers()["w"]
        self.assertEqual(number(worker, "reported_live_bytes"), 3 * MIB)
        self.assertEqual(number(worker, "reported_reserved_bytes"), 5 * MIB)
        for number_of_tag in range(40):
            self.session.allocate(f"tag{number_of_tag}", 1)
        usage = self.session.usage()
        self.assertEqual(len(usage.tags), 40)
        self.assertEqual(usage.device_total_bytes, 640 * MIB)
        self.assertEqual(usage.device_free_bytes, 560 * MIB)

    def test_the_guides_worker(self):
        example = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/python/worker.py"
        self.session.close()
        said = self.run_python(example.read_text(encoding="utf-8")).splitlines()
        self.assertIn(f"copied_bytes={64 * MIB}", said[0])
        self.assertIn(f"offloaded_bytes={64 * MIB}", said[1])

    def test_an_endpoint_for_those_who_are_refused(self):
        self.session.set_quiesce(Quiesce.NONE)
        self.session.allocate("weights", 1)
        self.session.set_sleep_endpoint("POST http://127.0.0.1:8000/sleep")
        with self.assertRaisesRegex(CommandFailed, "http://127.0.0.1:8000/sleep"):
            self.daemon.ctl("sleep", "--worker=w", "--level=1")
        self.session.set_sleep_endpoint(None)
        self.assert_fails("LIBRARY_TOO_OLD", self.session.call, "torpor_of_tomorrow")

    def test_functions_of_the_module_are_those_of_the_newest_session(self):
        newest = self.connect("newest")
        self.assertIs(torpor.current(), newest)
        newest.allocate("weights", 2 * MIB)
        with torpor.work("weights", timeout=0):
            pass
        self.assertEqual(torpor.sleep(1, "weights").copied_bytes, 2 * MIB)
        self.assertEqual(torpor.usage().tags["weights"].offloaded_bytes, 2 * MIB)
        self.assertEqual(torpor.wake_up("weights").copied_bytes, 2 * MIB)
        self.assertEqual(
            torpor.sleep_policies({"weights": Policy.DISCARD}).discarded_bytes, 2 * MIB
        )
        self.assertEqual(torpor.discard("weights").discarded_bytes, 0)
        newest.close()
        self.assertIs(torpor.current(), self.session)
        self.session.close()
        self.assert_fails("NOT_CONNECTED", torpor.current)

    def test_every_tensor_of_a_published_model(self):
        tensors = safetensors.deserialize(MODEL.read_bytes())
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
    main()
