"""torpor.control.Client with real daemons and workers, on the host driver."""

import concurrent.futures
import math
import pathlib
import signal
import socket
import tempfile
import threading
import time

import fixture
import torpor
from fixture import MIB, DaemonTest
from proxy import Proxy
from torpor import errors
from torpor.control import Cancellation, Client, discover, error_of, failures, find, messages
from torpor.control import new_request_id


class ControlTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.client = self.client_of(self.daemon.control_socket)

    def client_of(self, target, **options):
        client = Client(target, **options)
        self.addCleanup(client.close)
        return client

    def started(self, function, *arguments, **named):
        """The future of a call in another thread."""
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(function, *arguments, **named)

    def take_all(self):
        """A reservation of everything that is available."""
        available = self.client.usage().device.available_bytes
        return self.client.reserve("all", {"weights": available}, ttl=60).reservation_id

    def waiting(self):
        return len(self.client.usage().queue)


class Calls(ControlTest):
    def test_sleep_and_wake(self):
        session = self.connect("model")
        weights = session.allocate("weights", 4 * MIB)
        cache = session.allocate("kv_cache", 2 * MIB)
        session.write(weights, b"w" * MIB)
        session.write(cache, b"c" * MIB)
        slept = self.client.sleep("model", level=1)
        self.assertEqual(slept.device_bytes, 6 * MIB)
        self.assertEqual(slept.workers[0].worker_name, "model")
        self.assertEqual(slept.workers[0].discarded_bytes, 2 * MIB)
        self.assertGreater(slept.workers[0].timing.total.ToNanoseconds(), 0)
        self.assertEqual(failures(slept), {})
        usage = self.client.usage()
        self.assertEqual(usage.workers[0].name, "model")
        self.assertEqual(usage.workers[0].quiescence, messages.QUIESCENCE_GUARD)

        part = self.client.wake_up("model", tags="weights")
        self.assertEqual(part.device_bytes, 4 * MIB)
        self.assertEqual(session.read(weights, MIB), b"w" * MIB)
        self.client.wake_up(all=True, order=["kv_cache"])
        self.assertEqual(session.read(cache, MIB), bytes(MIB))

    def test_policies(self):
        session = self.connect("model")
        address = session.allocate("weights", 2 * MIB)
        session.allocate("kv_cache", 2 * MIB)
        session.write(address, b"w" * MIB)
        kept = self.client.sleep("model", policies={"kv_cache": "discard", "weights": "keep"})
        self.assertEqual(kept.device_bytes, 2 * MIB)
        dropped = self.client.sleep(
            "model", policies={"weights": torpor.Policy.DISCARD}, tags=["weights"]
        )
        self.assertEqual(dropped.workers[0].discarded_bytes, 2 * MIB)
        self.client.wake_up("model")
        self.assertEqual(session.read(address, MIB), bytes(MIB))
        self.assert_fails("BAD_POLICY", self.client.sleep, "model", policies={"weights": "drop"})

    def test_reservations(self):
        made = self.client.reserve(
            "model", {"weights": 64 * MIB, "kv_cache": 16 * MIB}, ttl=60.5, host_bytes=8 * MIB,
            hold=True, keep=True,
        )
        self.assertEqual(made.budget.requested_bytes, 80 * MIB)
        (shown,) = self.client.usage().reservations
        self.assertEqual(shown.id, made.reservation_id)
        self.assertEqual([part.name for part in shown.parts], ["weights", "kv_cache"])
        self.assertTrue(shown.hold and shown.keep)
        renewed = self.client.renew(made.reservation_id, ttl=3600)
        self.assertGreater(
            renewed.expire_time.ToNanoseconds(), made.expire_time.ToNanoseconds()
        )
        session = self.connect("model", reservation=made.reservation_id)
        session.allocate("weights", 64 * MIB)
        released = self.client.release(made.reservation_id)
        self.assertEqual(released.device_bytes, 16 * MIB)
        self.assertEqual(released.host_bytes, 8 * MIB)
        error = self.assert_fails("RESERVATION_RELEASED", self.client.release, made.reservation_id)
        self.assertIsInstance(error, errors.FailedPrecondition)

    def test_a_wake_draws_on_a_reservation(self):
        self.connect("model").allocate("weights", 4 * MIB)
        self.client.sleep("model", level=1)
        reservation = self.take_all()
        error = self.assert_fails("DEVICE_BUDGET_EXHAUSTED", self.client.wake_up, "model")
        self.assertIsInstance(error, MemoryError)
        self.client.wake_up("model", reservation=reservation)

    def test_outcomes_that_differ(self):
        self.connect("willing").allocate("weights", 2 * MIB)
        engine = self.connect("engine", quiesce=torpor.Quiesce.NONE)
        engine.allocate("weights", 2 * MIB)
        engine.set_sleep_endpoint("POST http://localhost:8000/sleep")
        failed = failures(self.client.sleep(all=True, level=1))
        (error,) = failed.values()
        self.assertEqual(list(failed), [error.details["worker"]])
        self.assertIsInstance(error, errors.FailedPrecondition)
        self.assertEqual(error.reason, "WORKER_NOT_QUIESCIBLE")
        self.assertEqual(error.details["sleep_endpoint"], "POST http://localhost:8000/sleep")
        alone = self.assert_fails("WORKER_NOT_QUIESCIBLE", self.client.sleep, "engine", level=1)
        self.assertEqual(alone.details["sleep_endpoint"], "POST http://localhost:8000/sleep")

    def test_refusals_have_their_numbers(self):
        self.take_all()
        error = self.assert_fails(
            "DEVICE_BUDGET_EXHAUSTED", self.client.reserve, "more", {"weights": 2 * MIB}, ttl=60
        )
        self.assertIsInstance(error, errors.ResourceExhausted)
        self.assertEqual(error.number("requested_bytes"), 2 * MIB)
        self.assertEqual(error.number("available_bytes"), 0)
        self.assertIn("all (r-1)", error.details["reservations"])
        self.assertEqual(error.details["target"], self.client.target)
        huge = self.assert_fails(
            "NEVER_FITS", self.client.reserve, "huge", {"weights": 1 << 40}, ttl=60, wait=True
        )
        self.assertLess(huge.number("most_bytes"), 1 << 40)
        self.assertIsNone(huge.number("available_bytes"))
        self.assertIsInstance(
            self.assert_fails("UNKNOWN_WORKER", self.client.wake_up, "nobody"), LookupError
        )
        for reason, call in (
            ("EMPTY_SELECTOR", lambda: self.client.sleep(level=1)),
            ("BAD_LEVEL", lambda: self.client.sleep(all=True, level=7)),
            ("POLICY_MISSING", lambda: self.client.sleep(all=True)),
            ("BAD_TTL", lambda: self.client.reserve("x", {"weights": 1}, ttl=-1.5)),
            ("BAD_TTL", lambda: self.client.reserve("x", {"weights": 1}, ttl=math.nan)),
            ("BAD_TTL", lambda: self.client.reserve("x", {"weights": 1}, ttl=1e300)),
            ("BAD_SIZE", lambda: self.client.reserve("x", {"weights": -1}, ttl=1)),
            ("BAD_EVENT_KIND", lambda: self.client.watch(kinds=["operation", "thunder"])),
            ("BAD_CURSOR", lambda: self.client.watch(cursor="nonsense").open()),
        ):
            with self.subTest(reason):
                self.assertIsInstance(self.assert_fails(reason, call), ValueError)

    def test_timeouts_that_are_hardly_any(self):
        self.client.usage(timeout=math.inf)
        self.client.usage(timeout=1e300)
        self.assertRaises(ValueError, self.client.usage, timeout=math.nan)

    def test_statuses_without_an_answer_of_the_daemon(self):
        self.assertIsNone(error_of(messages.WorkerResult().status))
        plain = messages.WorkerResult()
        plain.status.code = 13
        plain.status.message = "oh"
        error = error_of(plain.status)
        self.assertIsInstance(error, errors.Internal)
        self.assertEqual((error.reason, error.message), ("CALL_FAILED", "oh"))

    def test_threads_share_a_client(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            made = list(pool.map(
                lambda i: self.client.reserve(f"r{i}", {"weights": MIB}, ttl=60).reservation_id,
                range(64),
            ))
            self.assertEqual(len(set(made)), 64)
            list(pool.map(self.client.release, made))
        self.assertEqual(len(self.client.usage().reservations), 0)

    def test_over_tcp(self):
        daemon = self.start_daemon("--listen=127.0.0.1:0")
        address = daemon.log_text().split(" 127.0.0.1:")[1].split()[0].rstrip(",")
        client = self.client_of(f"127.0.0.1:{address}")
        self.assertEqual(client.usage().device.uuid, "host-0")

    def test_a_closed_client(self):
        watch = self.client.watch().open()
        self.client.close()
        self.assert_fails("CLIENT_CLOSED", self.client.usage)
        self.assert_fails("CLIENT_CLOSED", self.client.watch().open)
        with self.assertRaises(torpor.TorporError):
            next(watch)


class Waiting(ControlTest):
    def test_in_turn(self):
        reservation = self.take_all()
        waits = self.started(self.client.reserve, "next", {"weights": MIB}, ttl=60, wait=True)
        self.wait_for(self.waiting)
        self.assertFalse(waits.done())
        self.client.release(reservation)
        self.assertTrue(waits.result().reservation_id)

    def test_until_the_timeout(self):
        self.take_all()
        error = self.assert_fails(
            "RESERVATION_DEADLINE", self.client.reserve, "late", {"weights": MIB}, ttl=60,
            wait=True, timeout=0.3,
        )
        self.assertIsInstance(error, TimeoutError)
        self.assertGreater(error.number("waited_ms"), 0)
        self.assertEqual(error.number("available_bytes"), 0)

    def test_cancelled_by_another_thread(self):
        self.take_all()
        cancellation = Cancellation()
        waits = [
            self.started(
                self.client.reserve, f"w{i}", {"weights": MIB}, ttl=60, wait=True,
                timeout=math.inf, cancellation=cancellation,
            )
            for i in range(2)
        ]
        self.wait_for(lambda: self.waiting() == 2)
        cancellation.cancel()
        for wait in waits:
            self.assertIsInstance(wait.exception(), errors.Cancelled)
            self.assertEqual(wait.exception().reason, "CALL_CANCELLED")
        self.wait_for(lambda: self.waiting() == 0)
        self.assertTrue(cancellation.cancelled)
        self.assert_fails("CALL_CANCELLED", self.client.usage, cancellation=cancellation)

    def test_a_cancelled_sleep_changes_nothing(self):
        session = self.connect("busy")
        session.allocate("weights", 2 * MIB)
        cancellation = Cancellation()
        with session.work():
            sleeps = self.started(
                self.client.sleep, "busy", level=1, cancellation=cancellation
            )
            self.wait_for(lambda: self.client.usage().workers[0].operation_id)
            cancellation.cancel()
            self.assertIsInstance(sleeps.exception(), errors.Cancelled)
            # Before it can go on.
            self.wait_for(lambda: not self.client.usage().workers[0].operation_id)
        self.assertEqual(self.client.usage().workers[0].tags[0].resident_bytes, 2 * MIB)

    def test_closing_ends_calls(self):
        self.take_all()
        other = self.client_of(self.daemon.control_socket)
        waits = self.started(other.reserve, "w", {"weights": MIB}, ttl=60, wait=True)
        self.wait_for(self.waiting)
        other.close()
        self.assertIsInstance(waits.exception(), errors.Cancelled)
        self.wait_for(lambda: self.waiting() == 0)

    def test_control_c(self):
        self.take_all()
        process = self.start_python(
            """
            from torpor.control import Client
            try:
                Client().reserve("w", {"weights": 1 << 20}, ttl=60, wait=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                input()
            """
        )
        self.wait_for(self.waiting)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "interrupted\n")
        self.wait_for(lambda: self.waiting() == 0)
        process.communicate("\n", timeout=60)


class Repeating(ControlTest):
    def test_a_request_id(self):
        request_id = new_request_id()
        first = self.client.reserve("r", {"weights": MIB}, ttl=60, request_id=request_id)
        again = self.client.reserve("r", {"weights": MIB}, ttl=60, request_id=request_id)
        self.assertFalse(first.replayed)
        self.assertTrue(again.replayed)
        self.assertEqual(first.reservation_id, again.reservation_id)
        other = self.client.reserve("r", {"weights": MIB}, ttl=60)
        self.assertNotEqual(first.reservation_id, other.reservation_id)
        error = self.assert_fails(
            "REQUEST_ID_REUSED", self.client.release, first.reservation_id, request_id=request_id
        )
        self.assertEqual(error.details["request_id"], request_id)

    def test_an_error_tells_the_id_to_repeat_with(self):
        self.take_all()
        error = self.assert_fails(
            "RESERVATION_DEADLINE", self.client.reserve, "late", {"weights": MIB}, ttl=60,
            wait=True, timeout=0.3,
        )
        self.client.release("r-1")
        made = self.client.reserve(
            "late", {"weights": MIB}, ttl=60, wait=True, request_id=error.details["request_id"]
        )
        self.assertTrue(made.reservation_id)

    def proxied(self, **options):
        path = tempfile.mktemp(prefix="torpor-", suffix=".sock", dir="/tmp")
        proxy = Proxy(path, self.daemon.control_socket)
        self.addCleanup(proxy.close)
        client = self.client_of(path, **options)
        client.usage()
        return proxy, client

    def test_a_lost_answer(self):
        proxy, client = self.proxied()
        proxy.deaf.set()
        reserves = self.started(client.reserve, "r", {"weights": MIB}, ttl=60)
        self.wait_for(lambda: len(self.client.usage().reservations) == 1)
        self.assertFalse(reserves.done())
        proxy.deaf.clear()
        proxy.cut()
        answer = reserves.result()
        self.assertTrue(answer.replayed)
        (made,) = self.client.usage().reservations
        self.assertEqual(made.id, answer.reservation_id)

    def test_a_lost_wait(self):
        reservation = self.take_all()
        proxy, client = self.proxied()
        waits = self.started(client.reserve, "w", {"weights": MIB}, ttl=60, wait=True)
        self.wait_for(self.waiting)
        proxy.cut()
        self.wait_for(self.waiting)
        self.client.release(reservation)
        waits.result()
        self.assertEqual(len(self.client.usage().reservations), 1)

    def test_not_repeated_if_so_wished(self):
        self.take_all()
        proxy, client = self.proxied(retries=0)
        waits = self.started(client.reserve, "w", {"weights": MIB}, ttl=60, wait=True)
        self.wait_for(self.waiting)
        proxy.cut()
        self.assertEqual(waits.exception().reason, "DAEMON_UNREACHABLE")
        self.assertIsInstance(waits.exception(), ConnectionError)


    def test_waits_for_room_in_a_full_queue(self):
        def call(function, *arguments, **named):
            fixture.fill_queue(self.daemon)
            made = self.started(function, *arguments, **named)
            time.sleep(1)
            self.daemon.process.send_signal(signal.SIGCONT)
            return made.result()

        socket = self.daemon.control_socket
        self.assertTrue(call(self.client_of(socket).usage).version)
        call(self.client_of(socket).reserve, "one", {"weights": MIB}, ttl=60)
        self.assertEqual(len(self.client.usage().reservations), 1)
        call(self.client_of(socket).watch(kinds="queue").open).close()

    def test_a_full_queue_is_not_waited_for_for_ever(self):
        fixture.fill_queue(self.daemon)
        refused = self.started(self.client_of(self.daemon.control_socket, retries=0).usage)
        self.assertEqual(refused.exception().reason, "DAEMON_UNREACHABLE")
        late = self.started(self.client_of(self.daemon.control_socket).usage, timeout=1)
        self.assertIsInstance(late.exception(), (errors.Unavailable, errors.DeadlineExceeded))
        self.daemon.process.kill()
        self.daemon.process.wait()


class Watching(ControlTest):
    def test_events(self):
        session = self.connect("model")
        session.allocate("weights", 2 * MIB)
        self.connect("other").allocate("weights", 2 * MIB)
        with self.client.watch("model", kinds=["operation", "segments"]) as watch:
            self.client.sleep("other", level=1)
            self.client.sleep("model", level=1)
            changes = []
            for event in watch:
                if event.WhichOneof("event") == "segments":
                    self.assertEqual(event.segments.worker_name, "model")
                    self.assertEqual(event.segments.to_state, messages.SEGMENT_STATE_OFFLOADED)
                    continue
                self.assertEqual(event.operation.worker_name, "model")
                changes.append(event.operation.change)
                if changes[-1] == messages.OPERATION_CHANGE_ENDED:
                    break
        self.assertEqual(changes, [
            messages.OPERATION_CHANGE_STARTED, messages.OPERATION_CHANGE_COMMITTED,
            messages.OPERATION_CHANGE_ENDED,
        ])
        with self.assertRaises(StopIteration):
            next(watch)

    def test_goes_on_behind_a_cursor(self):
        with self.client.watch(kinds="reservation") as watch:
            self.client.reserve("one", {"weights": MIB}, ttl=60)
            self.assertEqual(next(watch).reservation.name, "one")
        self.client.reserve("two", {"weights": MIB}, ttl=60)
        with self.client.watch(kinds="reservation", cursor=watch.cursor) as again:
            self.assertEqual(next(again).reservation.name, "two")

    def test_goes_on_after_control_c(self):
        said = self.run_python(
            """
            import os, signal, threading
            from torpor.control import Client

            signal.signal(signal.SIGINT, signal.default_int_handler)
            with Client() as client, client.watch(kinds="reservation") as watch:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    next(watch)
                except KeyboardInterrupt:
                    client.reserve("one", {"weights": 1}, ttl=60)
                print(next(watch).reservation.name)
            """
        )
        self.assertEqual(said, "one\n")

    def test_ends_after_its_timeout(self):
        self.assertEqual(list(self.client.watch(kinds="queue", timeout=0.3)), [])

    def test_closed_by_another_thread(self):
        watch = self.client.watch(kinds="queue").open()
        events = self.started(list, watch)
        watch.close()
        self.assertEqual(events.result(), [])

    def test_goes_on_when_the_connection_broke(self):
        path = tempfile.mktemp(prefix="torpor-", suffix=".sock", dir="/tmp")
        proxy = Proxy(path, self.daemon.control_socket)
        self.addCleanup(proxy.close)
        client = self.client_of(path)
        with client.watch(kinds="reservation") as watch:
            self.client.reserve("one", {"weights": MIB}, ttl=60)
            self.assertEqual(next(watch).reservation.name, "one")
            proxy.cut()
            self.client.reserve("two", {"weights": MIB}, ttl=60)
            self.assertEqual(next(watch).reservation.name, "two")
        with client.watch(kinds="reservation", reconnect=False) as watch:
            proxy.cut()
            self.assert_fails("DAEMON_UNREACHABLE", next, watch)

    def test_a_daemon_that_starts_anew(self):
        with self.client.watch(kinds="reservation") as watch:
            self.daemon.process.kill()
            self.daemon.process.wait()
            self.start_daemon(f"--runtime_dir={self.daemon.runtime_dir}")
            lost = next(watch)
            self.assertTrue(lost.lost.daemon_restarted)
            self.client.reserve("new", {"weights": MIB}, ttl=60)
            while (event := next(watch)).WhichOneof("event") != "reservation":
                pass
            self.assertEqual(event.reservation.name, "new")


class Daemons(ControlTest):
    def test_killed(self):
        session = self.connect("busy")
        session.allocate("weights", 2 * MIB)
        watch = self.client.watch(reconnect=False).open()
        with session.work():
            sleeps = self.started(self.client.sleep, "busy", level=1)
            self.wait_for(lambda: self.client.usage().workers[0].operation_id)
            self.daemon.process.kill()
            self.daemon.process.wait()
            self.assertEqual(sleeps.exception().reason, "DAEMON_UNREACHABLE")
        self.assertTrue(sleeps.exception().details["request_id"])
        with self.assertRaises(errors.Unavailable):
            list(watch)
        self.assert_fails("DAEMON_UNREACHABLE", self.client.usage)
        self.assert_fails("DAEMON_NOT_RUNNING", find, runtime_dir=self.daemon.runtime_dir)
        self.assertEqual(discover(self.daemon.runtime_dir), [])
        self.start_daemon(f"--runtime_dir={self.daemon.runtime_dir}")
        self.wait_for(self.reachable)

    def reachable(self):
        try:
            return self.client.usage().device.uuid == "host-0"
        except errors.Unavailable:
            return False

    def test_discovery(self):
        root = pathlib.Path(self.daemon.runtime_dir)
        second = self.start_daemon("--device=host-1", f"--runtime_dir={root}")
        found = discover(root)
        self.assertEqual([daemon.device for daemon in found], ["host-0", "host-1"])
        self.assertEqual(
            [daemon.socket for daemon in found],
            [self.daemon.control_socket, second.control_socket],
        )
        for daemon in found:
            with Client(daemon.target) as client:
                self.assertEqual(client.usage().device.uuid, daemon.device)
        error = self.assert_fails("AMBIGUOUS_DAEMON", Client, runtime_dir=root)
        self.assertIn(second.control_socket, error.details["candidates"])
        with Client(device="host-1", runtime_dir=root) as client:
            self.assertEqual(client.usage().device.uuid, "host-1")
        self.assert_fails("DAEMON_NOT_RUNNING", find, "host-2", root)

        # What is no daemon's.
        (root / "host-2").mkdir()
        (root / "host-3").mkdir()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(root / "host-3" / "control.sock"))
        (root / "file").touch()
        self.assertEqual(discover(root), found)
        self.assertEqual(discover(root / "nowhere"), [])

    def test_targets(self):
        path = pathlib.Path(self.daemon.control_socket)
        for target in (path, str(path), f"unix:{path}", f"unix://{path}"):
            with self.subTest(target), Client(target) as client:
                self.assertEqual(client.usage().device.uuid, "host-0")
        self.assertEqual(
            self.run_python("from torpor.control import Client; print(Client().target)"),
            f"unix:{path}\n",
        )

    def test_without_grpc(self):
        said = self.run_python(
            """
            import sys, torpor
            assert not [name for name in sys.modules if name.startswith(("grpc", "google"))]
            sys.modules["grpc"] = None
            try:
                import torpor.control
            except ImportError as error:
                print(error)
            """
        )
        self.assertIn("pip install 'torpor[control]'", said)


if __name__ == "__main__":
    fixture.main()
