"""Pause callbacks: what they may do, what happens when they fail, and at the end of the process."""

import threading
import weakref

import torpor
from fixture import MIB, DaemonTest, main
from torpor import Quiesce
from torpor_daemon import CommandFailed


class CallbacksTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.session = self.connect(quiesce=Quiesce.NONE)
        self.address = self.session.allocate("weights", 2 * MIB)
        self.calls = []

    def sleep(self):
        self.daemon.ctl("sleep", "--worker=w", "--level=1")

    def wake(self):
        self.daemon.ctl("wake", "--worker=w")

    def log(self, word):
        return lambda: self.calls.append(word)

    def test_they_are_called_in_turn(self):
        self.session.on_pause(self.log("pause"), self.log("resume"))
        for _ in range(3):
            self.sleep()
            self.wake()
        self.assertEqual(self.calls, ["pause", "resume"] * 3)
        self.session.sleep()
        self.session.wake_up()
        self.assertEqual(self.calls, ["pause", "resume"] * 4)

    def test_freeing_all_that_sleeps_resumes(self):
        resumed = threading.Event()
        self.session.on_pause(self.log("pause"), resumed.set)
        other = self.session.allocate("kv_cache", 2 * MIB)
        self.sleep()
        self.session.free(other)
        self.assert_fails("ASLEEP", self.session.work(timeout=0.05).__enter__)
        self.session.free(self.address)
        with self.session.work():
            pass
        self.assertTrue(resumed.wait(60))
        self.assertEqual(self.calls, ["pause"])

    def test_the_session_keeps_them(self):
        class Engine:
            def __init__(self, calls):
                self.calls = calls

            def pause(self):
                self.calls.append("pause")

        engine = Engine(self.calls)
        kept = weakref.ref(engine)
        self.session.on_pause(engine.pause)
        del engine
        self.assertIsNotNone(kept())
        self.sleep()
        self.wake()
        self.assertEqual(self.calls, ["pause"])
        self.session.on_pause(None)
        self.assertIsNone(kept())

    def test_resume_is_replaced_alone(self):
        self.assert_fails("NO_PAUSE_CALLBACK", self.session.on_resume, self.log("resume"))
        self.session.on_pause(self.log("pause"), self.log("never"))
        self.sleep()
        torpor.on_resume(self.log("resume"))
        self.wake()
        self.session.on_resume(None)
        self.sleep()
        self.wake()
        self.assertEqual(self.calls, ["pause", "resume", "pause"])

    def test_they_can_be_called(self):
        self.assertRaises(TypeError, self.session.on_pause, 5)
        self.assertRaises(TypeError, self.session.on_pause, lambda: None, 5)
        self.session.on_pause(lambda: None)
        self.assertRaises(TypeError, self.session.on_resume, 5)

    def test_without_them_what_was_stated_before_counts(self):
        self.session.on_pause(self.log("pause"))
        self.session.on_pause(None)
        with self.assertRaisesRegex(CommandFailed, "WORKER_NOT_QUIESCIBLE"):
            self.sleep()
        self.session.set_quiesce(Quiesce.GUARD)
        self.sleep()
        self.assertEqual(self.calls, [])

    def test_false_refuses(self):
        for answer, refused in ((False, True), (None, False), (True, False), (0, False)):
            with self.subTest(answer=answer):
                self.session.on_pause(lambda answer=answer: answer)
                if refused:
                    with self.assertRaisesRegex(CommandFailed, "PAUSE_REFUSED"):
                        self.sleep()
                    self.assertEqual(self.session.usage().tags["weights"].resident_bytes, 2 * MIB)
                else:
                    self.sleep()
                    self.wake()

    def test_one_that_raises_refuses_and_is_logged(self):
        def pause():
            raise KeyError("the scheduler")

        self.session.on_pause(pause)
        with self.assertLogs("torpor", "ERROR") as logged:
            with self.assertRaisesRegex(CommandFailed, "PAUSE_REFUSED"):
                self.sleep()
        self.assertIn("the scheduler", logged.output[0])
        with self.assertLogs("torpor", "ERROR"):
            self.assert_fails("PAUSE_REFUSED", self.session.sleep)
        self.session.on_pause(self.log("pause"))
        self.sleep()

    def test_a_resume_that_raises_is_logged(self):
        def resume():
            raise SystemExit(3)

        self.session.on_pause(self.log("pause"), resume)
        self.sleep()
        with self.assertLogs("torpor", "ERROR") as logged:
            self.wake()
        self.assertIn("SystemExit", logged.output[0])
        self.sleep()
        self.assertEqual(self.calls, ["pause", "pause"])

    def test_they_may_allocate_and_free_but_not_sleep(self):
        reasons = {}

        def pause():
            self.session.free(self.session.allocate("scratch", 1))
            for name, call in (
                ("sleep", self.session.sleep),
                ("wake_up", self.session.wake_up),
                ("close", self.session.close),
                ("on_pause", lambda: self.session.on_pause(None)),
                ("wait", lambda: self.session.allocate("scratch", 1, timeout=1)),
            ):
                try:
                    call()
                    reasons[name] = None
                except torpor.TorporError as error:
                    reasons[name] = error.reason

        self.session.on_pause(pause)
        self.sleep()
        self.assertEqual(set(reasons.values()), {"CALLED_FROM_CALLBACK"}, reasons)
        self.assertEqual(len(reasons), 5)

    def test_pause_stops_the_thread_that_submits(self):
        """The usual engine without a guard: pause asks its loop to stop, resume lets it go on."""
        running, stopped = threading.Event(), threading.Event()
        done = threading.Event()
        running.set()

        def pause():
            running.clear()
            return stopped.wait(30)

        def loop():
            while not done.is_set():
                if running.is_set():
                    stopped.clear()
                    self.session.segment(self.address)  # submits work
                else:
                    stopped.set()
                    running.wait(0.01)

        self.session.on_pause(pause, running.set)
        thread = threading.Thread(target=loop)
        thread.start()
        try:
            for _ in range(3):
                self.sleep()
                self.assertTrue(stopped.is_set())
                self.wake()
                self.assertTrue(running.is_set())
        finally:
            done.set()
            thread.join(30)

    def test_they_are_replaced_while_sleeps_come_in(self):
        turns = 30
        done = threading.Event()

        def replace():
            while not done.is_set():
                self.session.on_pause(self.log("pause"), self.log("resume"))

        threads = [threading.Thread(target=replace) for _ in range(2)]
        self.session.on_pause(self.log("pause"))
        for thread in threads:
            thread.start()
        try:
            for _ in range(turns):
                self.session.sleep()
                self.session.wake_up()
        finally:
            done.set()
            for thread in threads:
                thread.join(30)
        self.assertGreaterEqual(self.calls.count("pause"), turns)
        self.assertLessEqual(len(torpor._callbacks.installed), 1)

    def test_one_of_a_closed_session_is_not_called(self):
        other = self.connect("other")
        other.allocate("weights", 1)
        other.on_pause(self.log("pause"))
        other.close()
        self.assertEqual(len(torpor._callbacks.installed), 0)
        self.wait_for(lambda: "other" not in self.workers())

    def test_of_a_process_that_ends(self):
        """The interpreter is not called any more when it is gone, whatever comes in."""
        program = """
            import sys, torpor
            session = torpor.connect(name="leaver")
            session.allocate("weights", 1)
            session.on_pause(lambda: [None for _ in range(20000)] and None, lambda: None)
            print("ready", flush=True)
            sys.stdin.readline()
        """
        for _ in range(5):
            process = self.start_python(program)
            process.stdout.readline()
            done = threading.Event()

            def operate():
                while not done.is_set():
                    for command in (["sleep", "--level=1"], ["wake"]):
                        try:
                            self.daemon.ctl(*command, "--worker=leaver")
                        except CommandFailed:
                            pass

            thread = threading.Thread(target=operate)
            thread.start()
            try:
                _, errors = process.communicate("\n", timeout=60)
            finally:
                done.set()
                thread.join(60)
            self.assertEqual((process.returncode, errors), (0, ""))

    def test_of_a_process_that_ends_while_one_runs(self):
        said = self.run_python(
            """
            import subprocess, sys, threading, time, torpor
            session = torpor.connect(name="leaver")
            session.allocate("weights", 1)
            inside, let_go = threading.Event(), threading.Event()
            session.on_pause(lambda: (inside.set(), let_go.wait(60), print("paused")) and None)
            thread = threading.Thread(target=session.sleep, daemon=True)
            thread.start()
            inside.wait(60)
            import atexit
            atexit.register(let_go.set)
            """
        )
        self.assertEqual(said, "paused\n")


if __name__ == "__main__":
    main()
