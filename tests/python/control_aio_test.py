"""torpor.control.AsyncClient with real daemons and workers, on the host driver."""

import asyncio
import contextlib
import signal
import tempfile

import fixture
import torpor
from fixture import MIB, DaemonTest
from proxy import Proxy
from torpor import errors
from torpor.control import AsyncClient, Client, failures, messages, new_request_id


def asynchronous(method):
    """A test that is a coroutine with a client; the fixture's own methods stay as they are."""

    def run(self):
        async def test():
            async with AsyncClient(self.daemon.control_socket) as client:
                await method(self, client)

        asyncio.run(asyncio.wait_for(test(), 120))

    run.__name__ = method.__name__
    return run


class AsyncControlTest(DaemonTest):
    async def until(self, condition):
        """Waits for a coroutine function to give something true."""
        while not await condition():
            await asyncio.sleep(0.01)

    async def until_waiting(self, client, count=1):
        async def waiting():
            return len((await client.usage()).queue) == count

        await self.until(waiting)

    async def take_all(self, client):
        available = (await client.usage()).device.available_bytes
        return (await client.reserve("all", {"weights": available}, ttl=60)).reservation_id

    async def assert_raises(self, reason, awaitable):
        with self.assertRaises(torpor.TorporError) as caught:
            await awaitable
        self.assertEqual(caught.exception.reason, reason, caught.exception)
        return caught.exception


class Calls(AsyncControlTest):
    @asynchronous
    async def test_several_sleep_at_once(self, client):
        sessions = [self.connect(f"m{i}") for i in range(4)]
        for session in sessions:
            session.allocate("weights", 4 * MIB)
        slept = await asyncio.gather(
            *(client.sleep(f"m{i}", level=1, priority=i) for i in range(4))
        )
        self.assertEqual([answer.device_bytes for answer in slept], [4 * MIB] * 4)
        woken = await client.wake_up(all=True, order="weights")
        self.assertEqual(woken.device_bytes, 16 * MIB)
        self.assertEqual(failures(woken), {})

    @asynchronous
    async def test_reservations(self, client):
        made = await client.reserve(
            "model", {"weights": MIB}, ttl=60, host_bytes=MIB, hold=True, keep=True
        )
        await client.renew(made.reservation_id, ttl=3600)
        self.assertEqual((await client.usage()).reservations[0].id, made.reservation_id)
        released = await client.release(made.reservation_id)
        self.assertEqual(released.device_bytes, MIB)
        error = await self.assert_raises(
            "RESERVATION_RELEASED", client.release(made.reservation_id)
        )
        self.assertEqual(error.details["reservation"], made.reservation_id)

    @asynchronous
    async def test_refusals_have_their_numbers(self, client):
        await self.take_all(client)
        error = await self.assert_raises(
            "DEVICE_BUDGET_EXHAUSTED", client.reserve("more", {"weights": 2 * MIB}, ttl=60)
        )
        self.assertIsInstance(error, MemoryError)
        self.assertEqual(error.number("requested_bytes"), 2 * MIB)
        self.assertEqual(error.number("available_bytes"), 0)
        late = await self.assert_raises(
            "RESERVATION_DEADLINE",
            client.reserve("late", {"weights": MIB}, ttl=60, wait=True, timeout=0.3),
        )
        self.assertIsInstance(late, TimeoutError)
        with self.assertRaises(ValueError):
            client.watch(kinds="thunder")

    @asynchronous
    async def test_a_request_id(self, client):
        request_id = new_request_id()
        first, second = await asyncio.gather(
            *(client.reserve("r", {"weights": MIB}, ttl=60, request_id=request_id)
              for _ in range(2))
        )
        self.assertEqual(first.reservation_id, second.reservation_id)
        self.assertEqual(sorted([first.replayed, second.replayed]), [False, True])
        await self.assert_raises(
            "REQUEST_ID_REUSED", client.release("r-1", request_id=request_id)
        )

    @asynchronous
    async def test_a_closed_client(self, client):
        await self.take_all(client)
        other = AsyncClient(self.daemon.control_socket)
        wait = asyncio.create_task(other.reserve("w", {"weights": MIB}, ttl=60, wait=True))
        await self.until_waiting(client)
        await other.close()
        with self.assertRaises((errors.Cancelled, asyncio.CancelledError)):
            await wait
        await self.until_waiting(client, 0)
        await self.assert_raises("CLIENT_CLOSED", other.usage())

    def test_made_before_the_loop(self):
        client = AsyncClient(runtime_dir=self.daemon.runtime_dir)

        async def test():
            async with client:
                self.assertEqual((await client.usage()).device.uuid, "host-0")

        asyncio.run(test())


    @asynchronous
    async def test_waits_for_room_in_a_full_queue(self, client):
        fixture.fill_queue(self.daemon)
        usage = asyncio.create_task(client.usage())
        watch = asyncio.create_task(client.watch(kinds="queue").open())
        await asyncio.sleep(1)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.assertTrue((await usage).version)
        (await watch).close()


class Cancelling(AsyncControlTest):
    @asynchronous
    async def test_a_waiting_reserve_leaves_the_queue(self, client):
        reservation = await self.take_all(client)
        first, second = (
            asyncio.create_task(client.reserve(name, {"weights": MIB}, ttl=60, wait=True))
            for name in ("first", "second")
        )
        await self.until_waiting(client, 2)
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        await self.until_waiting(client, 1)
        await client.release(reservation)
        await second
        (made,) = (await client.usage()).reservations
        self.assertEqual(made.name, "second")

    @asynchronous
    async def test_a_timeout_of_asyncio(self, client):
        await self.take_all(client)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(
                client.reserve("w", {"weights": MIB}, ttl=60, wait=True), timeout=0.3
            )
        await self.until_waiting(client, 0)

    @asynchronous
    async def test_a_sleep_changes_nothing(self, client):
        session = self.connect("busy")
        session.allocate("weights", 2 * MIB)

        async def moves():
            return (await client.usage()).workers[0].operation_id != ""

        async def rests():
            return not await moves()

        with session.work():
            sleep = asyncio.create_task(client.sleep("busy", level=1))
            await self.until(moves)
            sleep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sleep
            await self.until(rests)  # the daemon has heard of it before the guard opens
        (tag,) = (await client.usage()).workers[0].tags
        self.assertEqual(tag.resident_bytes, 2 * MIB)


class Watching(AsyncControlTest):
    @asynchronous
    async def test_events(self, client):
        self.connect("model").allocate("weights", 2 * MIB)
        async with client.watch("model", kinds="operation") as watch:
            await client.sleep("model", level=1)
            changes = []
            async for event in watch:
                changes.append(event.operation.change)
                if changes[-1] == messages.OPERATION_CHANGE_ENDED:
                    break
        self.assertEqual(len(changes), 3)

    @asynchronous
    async def test_goes_on_behind_a_cursor(self, client):
        async with client.watch(kinds="reservation") as watch:
            await client.reserve("one", {"weights": MIB}, ttl=60)
            self.assertEqual((await anext(watch)).reservation.name, "one")
        await client.reserve("two", {"weights": MIB}, ttl=60)
        async with client.watch(kinds="reservation", cursor=watch.cursor) as again:
            self.assertEqual((await anext(again)).reservation.name, "two")

    @asynchronous
    async def test_goes_on_after_a_wait_that_was_cancelled(self, client):
        async with client.watch(kinds="reservation") as watch:
            for name in ("one", "two"):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.1)
                await client.reserve(name, {"weights": MIB}, ttl=60)
                self.assertEqual((await anext(watch)).reservation.name, name)

    @asynchronous
    async def test_its_ends(self, client):
        self.assertEqual([event async for event in client.watch(kinds="queue", timeout=0.3)], [])
        watch = await client.watch(kinds="queue").open()

        async def all_of_it():
            return [event async for event in watch]

        task = asyncio.create_task(all_of_it())
        await client.usage()
        watch.close()
        with contextlib.suppress(asyncio.CancelledError):  # Python before 3.11 cannot tell
            self.assertEqual(await task, [])

    @asynchronous
    async def test_goes_on_when_the_connection_broke(self, client):
        path = tempfile.mktemp(prefix="torpor-", suffix=".sock", dir="/tmp")
        proxy = Proxy(path, self.daemon.control_socket)
        self.addCleanup(proxy.close)
        async with AsyncClient(path) as other, other.watch(kinds="reservation") as watch:
            await client.reserve("one", {"weights": MIB}, ttl=60)
            self.assertEqual((await anext(watch)).reservation.name, "one")
            proxy.cut()
            await client.reserve("two", {"weights": MIB}, ttl=60)
            self.assertEqual((await anext(watch)).reservation.name, "two")
            async with other.watch(reconnect=False) as strict:
                proxy.cut()
                await self.assert_raises("DAEMON_UNREACHABLE", anext(strict))


class Daemons(AsyncControlTest):
    @asynchronous
    async def test_killed(self, client):
        session = self.connect("busy")
        session.allocate("weights", 2 * MIB)

        async def moves():
            return (await client.usage()).workers[0].operation_id != ""

        with session.work():
            sleep = asyncio.create_task(client.sleep("busy", level=1))
            await self.until(moves)
            self.daemon.process.kill()
            self.daemon.process.wait()
            error = await self.assert_raises("DAEMON_UNREACHABLE", sleep)
        self.assertIsInstance(error, ConnectionError)
        self.start_daemon(f"--runtime_dir={self.daemon.runtime_dir}")

        async def reachable():
            try:
                return (await client.usage()).device.uuid == "host-0"
            except errors.Unavailable:
                return False

        await self.until(reachable)

    @asynchronous
    async def test_a_lost_answer(self, client):
        path = tempfile.mktemp(prefix="torpor-", suffix=".sock", dir="/tmp")
        proxy = Proxy(path, self.daemon.control_socket)
        self.addCleanup(proxy.close)

        async def made():
            return len((await client.usage()).reservations) == 1

        async with AsyncClient(path) as other:
            await other.usage()
            proxy.deaf.set()
            reserve = asyncio.create_task(other.reserve("r", {"weights": MIB}, ttl=60))
            await self.until(made)
            proxy.deaf.clear()
            proxy.cut()
            self.assertTrue((await reserve).replayed)
        self.assertTrue(await made())

    def test_beside_a_client_that_blocks(self):
        async def test():
            async with AsyncClient(self.daemon.control_socket) as client:
                with Client(self.daemon.control_socket) as other:
                    made, same = await asyncio.gather(
                        client.reserve("a", {"weights": MIB}, ttl=60),
                        asyncio.to_thread(other.reserve, "b", {"weights": MIB}, ttl=60),
                    )
                self.assertNotEqual(made.reservation_id, same.reservation_id)

        asyncio.run(test())


if __name__ == "__main__":
    fixture.main()
