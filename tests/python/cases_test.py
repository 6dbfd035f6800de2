"""What has gone wrong elsewhere, through the Python package: each test bears its case's name."""

import random
import threading

import torpor
from fixture import MIB, DaemonTest, main


class CasesTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.session = self.connect()

    def filled(self, tag, size, seed):
        data = random.Random(seed).randbytes(size)
        address = self.session.allocate(tag, size)
        self.session.write(address, data)
        return address, data

    def test_wake_some_tags_first(self):
        """Weights, then their update, then the KV cache: old weights, cache and new weights never
        peak together."""
        weights, old = self.filled("weights", 200 * MIB, 1)
        cache = self.session.allocate("kv_cache", 300 * MIB)
        self.session.sleep(1)
        free = self.free_bytes()

        self.session.wake_up("weights")
        self.assertEqual(self.free_bytes(), free - 200 * MIB)
        tags = self.session.usage().tags
        self.assertEqual(tags["kv_cache"].discarded_bytes, 300 * MIB)
        self.assertEqual(tags["kv_cache"].resident_bytes, 0)
        with self.session.work("weights", timeout=0):
            self.assertEqual(self.session.read(weights, len(old)), old)
            staging = self.session.allocate("update", 300 * MIB)  # where the cache will be
            new = random.Random(2).randbytes(len(old))
            self.session.write(weights, new)
        self.assert_fails("ASLEEP", self.session.work("kv_cache", timeout=0).__enter__)
        self.assert_fails("DEVICE_BUDGET_EXHAUSTED", self.session.wake_up, "kv_cache")
        self.session.free(staging)

        self.session.wake_up("kv_cache")
        with self.session.work(timeout=0):
            self.assertEqual(self.session.read(weights, len(new)), new)
            self.assertEqual(self.session.read(cache, MIB), bytes(MIB))

    def test_addresses_stay(self):
        placed = [
            self.filled(tag, size, index)
            for index, (tag, size) in enumerate(
                [("weights", 1), ("weights", 5 * MIB), ("kv_cache", 3 * MIB), ("other", 2 * MIB)]
            )
        ]
        segments = [self.session.segment(address) for address, _ in placed]
        for sleep in (
            lambda: self.session.sleep(1),
            lambda: self.daemon.ctl("sleep", "--worker=w", "--level=1"),
            lambda: self.session.sleep_policies({"weights": torpor.Policy.OFFLOAD}),
        ):
            sleep()
            self.assertEqual([self.session.segment(address) for address, _ in placed], segments)
            taken = self.session.allocate("weights", 2 * MIB)
            self.assertNotIn(taken, [address for address, _ in placed])
            self.session.wake_up()
            self.session.free(taken)
            self.assertEqual([self.session.segment(address) for address, _ in placed], segments)
            for segment, (address, data) in zip(segments, placed):
                if segment.tag != "kv_cache":
                    self.assertEqual(self.session.read(address, len(data)), data)

    def test_free_while_asleep(self):
        free = self.free_bytes()
        weights, _ = self.filled("weights", 8 * MIB, 1)
        kept, data = self.filled("weights", 2 * MIB, 2)
        cache = self.session.allocate("kv_cache", 4 * MIB)
        self.session.sleep(1)
        self.session.free(weights)
        self.session.free(cache)
        self.assert_fails("UNKNOWN_ADDRESS", self.session.free, weights)
        self.assertEqual(self.session.usage().tags["weights"].offloaded_bytes, 2 * MIB)
        self.session.wake_up()
        self.assertEqual(self.free_bytes(), free - 2 * MIB)
        self.assertEqual(self.session.read(kept, len(data)), data)
        self.session.free(kept)
        self.assertEqual(self.free_bytes(), free)

    def test_free_from_another_thread(self):
        """Also while this thread works, and while the tag sleeps."""
        free = self.free_bytes()
        awake, asleep, guarded = (self.session.allocate("weights", 2 * MIB) for _ in range(3))

        def in_thread(function, *arguments):
            failed = []

            def run():
                try:
                    function(*arguments)
                except torpor.TorporError as error:
                    failed.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join(60)
            self.assertFalse(thread.is_alive())
            self.assertEqual(failed, [])

        in_thread(self.session.free, awake)
        self.session.sleep(1)
        in_thread(self.session.free, asleep)
        self.session.wake_up()
        with self.session.work():
            in_thread(self.session.free, guarded)
        self.wait_for(lambda: self.free_bytes() == free)

    def test_free_at_exit(self):
        """By finalizers of every kind, as PyTorch's, while awake and asleep."""
        for state in ("awake", "asleep", "closed"):
            with self.subTest(state=state):
                said = self.run_python(
                    """
                    import atexit, sys, threading, weakref
                    import torpor

                    session = torpor.connect(name="leaver", quiesce=torpor.Quiesce.GUARD)
                    session.call("torpor_torch_use")
                    library = torpor._abi.library()

                    class Tensor:
                        def __init__(self):
                            self.address = library.c.torpor_torch_malloc(1 << 20, 0, None)
                            assert self.address

                        def __del__(self, free=library.c.torpor_torch_free):
                            free(self.address, 1 << 20, 0, None)

                    in_module, in_thread, early = Tensor(), Tensor(), Tensor()
                    cycle = [Tensor()]
                    cycle.append(cycle)
                    library.kept_by_a_module_of_the_package = Tensor()
                    atexit.register(early.__del__)
                    late = weakref.finalize(session, early.__del__)
                    local = threading.local()
                    local.tensor = Tensor()
                    session.on_pause(lambda: None)
                    if sys.argv[1] == "asleep":
                        session.sleep()
                    if sys.argv[1] == "closed":
                        session.close()
                    print("bye")
                    """,
                    state,
                )
                self.assertEqual(said, "bye\n")
                self.wait_for(lambda: "leaver" not in self.workers())
        self.assertEqual(self.free_bytes(), 640 * MIB)

    def test_allocation_after_a_failed_one_works(self):
        self.session.call("torpor_torch_use")
        c = torpor._abi.library().c
        hog = self.session.allocate("weights", 636 * MIB)
        for _ in range(3):
            self.assert_fails("DEVICE_BUDGET_EXHAUSTED", self.session.allocate, "more", 6 * MIB)
            self.assertIsNone(c.torpor_torch_malloc(6 * MIB, 0, None))
            address = self.session.allocate("more", 4 * MIB)
            self.session.write(address, b"works")
            self.session.free(address)
            address = c.torpor_torch_malloc(4 * MIB, 0, None)
            self.assertEqual(self.session.segment(address).size, 4 * MIB)
            c.torpor_torch_free(address, 4 * MIB, 0, None)
        self.session.free(hog)
        self.session.free(self.session.allocate("more", 600 * MIB))

    def test_fork_before_connect_works(self):
        """The package is imported and loaded; nothing has started."""
        said = self.run_python(
            """
            import multiprocessing, os, sys, torpor

            torpor._abi.library()

            def child(name):
                with torpor.connect(name=name, quiesce=torpor.Quiesce.GUARD) as session:
                    address = session.allocate("weights", 1 << 20)
                    session.write(address, name.encode())
                    session.sleep()
                    session.wake_up()
                    assert session.read(address, len(name)) == name.encode()
                sys.exit(3)

            processes = [
                multiprocessing.get_context("fork").Process(target=child, args=(f"child{i}",))
                for i in range(3)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            print(*[process.exitcode for process in processes])
            with torpor.connect(name="parent") as session:
                session.free(session.allocate("weights", 1))
            """
        )
        self.assertEqual(said, "3 3 3\n")


if __name__ == "__main__":
    main()
