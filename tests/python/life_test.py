"""A session's life: threads, close, fork, exit, and a daemon that is killed."""

import os
import signal
import threading

import torpor
from fixture import MIB, DaemonTest, main


class ThreadsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.session = self.connect()

    def run_threads(self, functions):
        failures = []

        def guarded(function):
            try:
                function()
            except BaseException as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(one,)) for one in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])

    def test_the_guard_from_several_threads_while_it_sleeps_and_wakes(self):
        address = self.session.allocate("weights", 2 * MIB)
        self.session.write(address, b"w" * 1000)
        done = threading.Event()
        rounds = [0] * 4

        def work(index):
            guard = self.session.work("weights")
            while not done.is_set() or rounds[index] == 0:
                with guard:
                    with guard:
                        self.assertEqual(self.session.read(address, 1000), b"w" * 1000)
                rounds[index] += 1

        def operate():
            for _ in range(20):
                self.session.sleep()
                self.session.wake_up()
            done.set()

        self.run_threads([operate, *[lambda i=i: work(i) for i in range(4)]])
        self.assertTrue(all(rounds), rounds)

    def test_allocations_and_frees_from_several_threads(self):
        def churn(tag):
            for _ in range(25):
                addresses = [self.session.allocate(tag, 2 * MIB) for _ in range(3)]
                for address in addresses:
                    self.session.free(address)

        self.run_threads([lambda tag=f"tag{i}": churn(tag) for i in range(4)])
        tags = self.session.usage().tags
        self.assertEqual([tag.segments for tag in tags.values()], [0] * 4)

    def test_a_guard_is_left_by_whom_entered_it(self):
        guard = self.session.work()
        with guard:
            self.run_threads(
                [lambda: self.assert_fails("WORK_GUARD_NOT_HELD", guard.__exit__, None, None, None)]
            )
            self.assert_fails("WORK_GUARD_HELD", self.session.sleep)
            self.assert_fails("WORK_GUARD_HELD", self.session.close)
        self.session.sleep()

    def test_the_guard_is_left_after_an_exception(self):
        with self.assertRaises(ZeroDivisionError):
            with self.session.work():
                raise ZeroDivisionError
        self.session.close()


class CloseTest(DaemonTest):
    def test_closed_is_closed(self):
        session = self.connect()
        address = session.allocate("weights", 1)
        session.close()
        session.close()
        self.assertIsNone(session.handle)
        for call in (session.usage, session.sleep, lambda: session.free(address)):
            self.assertIsInstance(
                self.assert_fails("SESSION_CLOSED", call), torpor.errors.Unavailable
            )
        with self.assertRaises(torpor.errors.Unavailable):
            with session.work():
                pass
        self.wait_for(lambda: not self.workers())

    def test_as_a_context_manager(self):
        with torpor.connect(
            name="w", runtime_dir=self.daemon.runtime_dir, driver="host"
        ) as session:
            self.assertIs(torpor.current(), session)
        self.assertIsNone(session.handle)
        self.assert_fails("NOT_CONNECTED", torpor.current)

    def test_close_waits_for_the_guards_of_others(self):
        session = self.connect()
        inside, leave = threading.Event(), threading.Event()
        order = []

        def work():
            with session.work():
                inside.set()
                leave.wait(30)
                session.allocate("weights", 1)  # open until the guard is left
                order.append("left")

        def close():
            session.close()
            order.append("closed")

        threads = [threading.Thread(target=work), threading.Thread(target=close)]
        threads[0].start()
        inside.wait(30)
        threads[1].start()
        self.wait_for(lambda: session._closing)
        self.assert_fails("SESSION_CLOSED", session.usage)
        leave.set()
        for thread in threads:
            thread.join(30)
        self.assertEqual(order, ["left", "closed"])

    def test_close_ends_the_waits_for_the_guard(self):
        session = self.connect()
        session.allocate("weights", 1)
        session.sleep()
        waiting = threading.Thread(
            target=self.assert_fails, args=("SESSION_CLOSED", session.work().__enter__)
        )
        waiting.start()
        self.wait_for(lambda: session._uses.get(waiting.ident))
        session.close()
        waiting.join(30)
        self.assertFalse(waiting.is_alive())

    def test_ctrl_c_while_it_waits_for_the_guard(self):
        said = self.run_python(
            """
            import os, signal, threading, torpor

            signal.signal(signal.SIGINT, signal.default_int_handler)
            session = torpor.connect(name="w")
            address = session.allocate("weights", 1)
            session.sleep()
            for wait in (session.work().__enter__, lambda: session.read(address, 1)):
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    wait()
                except KeyboardInterrupt:
                    print("interrupted")
            session.wake_up()
            session.sleep()  # nobody holds the guard
            session.close()
            """
        )
        self.assertEqual(said, "interrupted\n" * 2)

    def test_an_interrupted_entry_does_not_hold_the_guard(self):
        said = self.run_python(
            """
            import itertools, random, signal, torpor

            signal.signal(signal.SIGALRM, signal.default_int_handler)
            session = torpor.connect(name="w")
            work = session.work()
            interrupted = 0
            for _ in range(2000):
                entered = []
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 60e-6))
                    for _ in range(20):
                        # As `with` does it: no interrupt behind the call.
                        entered.extend(itertools.starmap(torpor.Work.__enter__, [(work,)]))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                for _ in entered:
                    work.__exit__(None, None, None)
                try:
                    work.__exit__(None, None, None)
                except torpor.TorporError as error:
                    assert error.reason == "WORK_GUARD_NOT_HELD", error
                else:
                    print("held after", len(entered), "entries")
            session.close()
            print("interrupted" if interrupted else "never interrupted")
            """
        )
        self.assertEqual(said, "interrupted\n")

    def test_without_close_it_ends_with_the_process(self):
        said = self.run_python(
            """
            import gc, torpor
            torpor.connect(name="dropped").allocate("weights", 1)
            gc.collect()
            session = torpor.current()
            print(session.usage().tags["weights"].segments)
            """
        )
        self.assertEqual(said, "1\n")
        self.wait_for(lambda: not self.workers())


class ForkTest(DaemonTest):
    def test_a_forked_child_is_told(self):
        said = self.run_python(
            """
            import os, sys, torpor
            session = torpor.connect(name="parent")
            address = session.allocate("weights", 1)
            session.write(address, b"parent")
            session.on_pause(lambda: None)

            def reason(call):
                try:
                    return call() or "done"
                except torpor.TorporError as error:
                    return error.reason

            with session, session.work("weights"):
                child = os.fork()
                if child == 0:
                    calls = (
                        torpor.current, session.usage, session.close, session.sleep,
                        lambda: session.free(address), lambda: session.read(address, 1),
                        lambda: session.on_pause(None), lambda: session.work().__enter__(),
                    )
                    print(*[reason(call) for call in calls], flush=True)
                    sys.exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                assert session.read(address, 6) == b"parent"
                print("parent goes on")
            """
        )
        self.assertEqual(said, " ".join(["FORKED"] * 8) + "\nparent goes on\n")

    def test_a_forked_child_may_connect(self):
        """A host device is no GPU: CUDA would have to be used in the child for the first time."""
        said = self.run_python(
            """
            import os, torpor
            session = torpor.connect(name="parent")
            child = os.fork()
            if child == 0:
                with torpor.connect(name="child") as own:
                    address = own.allocate("weights", 1)
                    own.write(address, b"child")
                    assert torpor.current() is own
                    print(own.read(address, 5).decode(), flush=True)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print(sorted(session.usage().tags))
            """
        )
        self.assertEqual(said, "child\n[]\n")

    def test_fork_while_another_thread_is_in_a_call(self):
        said = self.run_python(
            """
            import os, threading, torpor
            session = torpor.connect(name="parent")
            session.allocate("weights", 1)
            session.sleep()
            thread = threading.Thread(target=lambda: session.work().__enter__(), daemon=True)
            thread.start()
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    try:
                        session.usage()
                    except torpor.TorporError as error:
                        os._exit(0 if error.reason == "FORKED" else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("done")
            """
        )
        self.assertEqual(said, "done\n")


class DaemonGoneTest(DaemonTest):
    def test_killed(self):
        session = self.connect()
        resident = session.allocate("weights", 2 * MIB)
        session.write(resident, b"stays")
        asleep = session.allocate("kv_cache", 2 * MIB)
        session.sleep_policies({"kv_cache": torpor.Policy.OFFLOAD})
        self.daemon.process.send_signal(signal.SIGKILL)
        self.daemon.process.wait()
        for call in (
            session.usage,
            lambda: session.allocate("weights", 1),
            session.sleep,
            session.wake_up,
            lambda: session.report_usage(1, 1),
            lambda: session.on_pause(lambda: None),
        ):
            error = self.assert_fails("DAEMON_GONE", call)
            self.assertIsInstance(error, torpor.errors.Unavailable)
            self.assertIsInstance(error, ConnectionError)
        self.assertEqual(torpor._callbacks.installed, {})
        with session.work("weights", timeout=0):
            self.assertEqual(session.read(resident, 5), b"stays")
        session.write(resident, b"still")
        self.assertEqual(session.read(resident, 5), b"still")
        for call in (
            session.work("kv_cache").__enter__,
            session.work(timeout=0).__enter__,
            lambda: session.read(asleep, 1),
        ):
            error = self.assert_fails("DAEMON_GONE", call)
            self.assertEqual(error.details["asleep_tags"], "kv_cache")
        self.assert_fails("DAEMON_GONE", session.free, asleep)
        self.assertEqual(session.read(resident, 5), b"still")
        session.close()

    def test_none(self):
        self.assert_fails(
            "DAEMON_NOT_RUNNING", torpor.connect, runtime_dir="/nonexistent", driver="host"
        )

    def test_a_new_one_after_it(self):
        session = self.connect()
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon = self.start_daemon()
        session.close()
        with torpor.connect(runtime_dir=self.daemon.runtime_dir, driver="host") as again:
            again.free(again.allocate("weights", 1))


class ImportTest(DaemonTest):
    def test_import_does_nothing(self):
        said = self.run_python(
            """
            import sys, threading
            import torpor
            assert torpor._abi._library is None
            assert "libtorpor" not in open("/proc/self/maps").read()
            assert threading.active_count() == 1
            print(*[name for name in ("torch", "grpc", "google", "numpy") if name in sys.modules])
            """
        )
        self.assertEqual(said, "\n")

    def test_a_library_that_is_missing(self):
        said = self.run_python(
            """
            import torpor
            try:
                torpor.connect()
            except torpor.errors.FailedPrecondition as error:
                print(error.reason, error.details["path"])
            """,
            TORPOR_LIBRARY="/nonexistent/libtorpor.so",
        )
        self.assertEqual(said, "LIBRARY_MISSING /nonexistent/libtorpor.so\n")

    def test_options_of_the_environment(self):
        said = self.run_python(
            """
            import torpor
            session = torpor.connect()
            print(session.info.device_uuid)
            print(torpor.connect(name="given").usage().device_total_bytes)
            """,
            TORPOR_WORKER_NAME="named",
            TORPOR_SOCKET=self.daemon.worker_socket,
            TORPOR_RUNTIME_DIR="/nonexistent",
        )
        self.assertEqual(said, f"host-0\n{640 * MIB}\n")


if __name__ == "__main__":
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None
    main()
