"""Any number of threads wait for results with one reader, and each gets its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
import redis
from anyio import fail_after, to_thread

from taskbull.app.app import App
from taskbull.errors import JobFailed, JobNotFound, ServerRefused
from taskbull.queue.handle import JobHandle
from taskbull.queue.stores import SyncResultWatch
from taskbull.store.address import parse
from tests.app.test_results import readers
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

LIMIT = 60.0
MANY = 200


class Waits:
    """Threads that wait, each for one job, and what they got."""

    def __init__(self) -> None:
        self.got: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, job: JobHandle[Any], timeout: float | None = None) -> None:
        def wait() -> None:
            try:
                self.got[name] = job.result(timeout)
            except Exception as error:  # noqa: BLE001 - it is looked at
                self.got[name] = error

        thread = threading.Thread(target=wait, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(LIMIT)
        return self.got


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running:
        yield running


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[App]:
    """An app that sees the server through the proxy."""
    app = App("far", redis=proxy.url, prefix=prefix)
    yield app
    app.close()


def watch_of(app: App) -> SyncResultWatch:
    return app.producer.stores.sync_result_watch(app.queue("q").keys)


def waiting(app: App) -> int:
    """Count the threads that wait at the stream, one of them reading."""
    return len(watch_of(app)._waiting)


async def seen(condition: Callable[[], bool], what: str) -> None:
    await to_thread.run_sync(wait_until, condition, what)


async def test_many_threads_wait_on_two_connections_and_all_have_their_results(
    app: App, admin: redis.Redis, proxy: Proxy, far: App
) -> None:
    gate = anyio.Event()

    @app.task(queue="q", attempts=1)
    async def in_time(value: int) -> int:
        await gate.wait()
        return value

    waits = Waits()
    with fail_after(3 * LIMIT):
        jobs = await app.aenqueue([in_time.job(number) for number in range(MANY)])
        slow = await in_time.adelay(-1)
        async with app.worker("q", concurrency=MANY + 1).running():
            await seen(lambda: admin.llen(app.queue("q").keys.active) == MANY + 1, "all run")
            before = int(admin.info("clients")["connected_clients"])
            waits.start("too short", far.job("q", slow.id), 0.05)
            for job in jobs:
                waits.start(job.id, far.job("q", job.id))
            await seen(lambda: waiting(far) >= MANY and "too short" in waits.got, "all wait")
            await seen(lambda: readers(admin) == 1, "one reads")  # not between two reads
            assert int(admin.info("clients")["connected_clients"]) <= before + 2
            # The network fails, and some jobs finish unnoticed.
            await to_thread.run_sync(proxy.refuse)
            await to_thread.run_sync(proxy.cut)
            waits.start("without Redis", far.job("q", slow.id), 0.2)
            await seen(lambda: "without Redis" in waits.got, "one gives up")
            gate.set()
            assert await slow.aresult() == -1
            admin.xtrim(app.queue("q").keys.events, maxlen=0)
            await to_thread.run_sync(proxy.accept)
            got = await to_thread.run_sync(waits.join)
    for name in ("too short", "without Redis"):
        error = got.pop(name)
        assert isinstance(error, TimeoutError)
        assert f"Job '{slow.id}' in queue 'q' did not finish within" in str(error)
    assert got == {job.id: number for number, job in enumerate(jobs)}
    assert waiting(far) == 0


async def test_the_reader_goes_and_another_reads_on(app: App, admin: redis.Redis) -> None:
    gates = {number: anyio.Event() for number in range(5)}

    @app.task(queue="q", attempts=1)
    async def in_turn(number: int) -> int:
        await gates[number].wait()
        return number

    waits = Waits()
    with fail_after(LIMIT):
        async with app.worker("q").running():
            jobs = [await in_turn.adelay(number) for number in gates]
            for number, job in enumerate(jobs):  # the first one reads
                waits.start(str(number), job)
                await seen(lambda number=number: waiting(app) == number + 1, "it waits")  # type: ignore[misc]
            for number, gate in gates.items():
                gate.set()
                await seen(lambda number=number: str(number) in waits.got, "it has its result")  # type: ignore[misc]
                assert len(waits.got) == number + 1
                assert readers(admin) <= 1
    assert waits.join() == {str(number): number for number in gates}


async def test_several_threads_may_wait_for_the_same_job(app: App) -> None:
    gate = anyio.Event()

    @app.task(queue="q", attempts=1)
    async def fails() -> None:
        await gate.wait()
        raise ValueError("no")

    waits = Waits()
    with fail_after(LIMIT):
        job = await fails.adelay()
        for number in range(5):
            waits.start(str(number), job)
        nobody = app.job("q", "nobody")
        waits.start("nobody", nobody)
        async with app.worker("q").running():
            watch = watch_of(app)
            await seen(lambda: len(watch._waiting.get(job.id, ())) == 5, "they wait")
            gate.set()
            got = await to_thread.run_sync(waits.join)
    assert isinstance(got.pop("nobody"), JobNotFound)
    assert all(isinstance(error, JobFailed) and error.attempts == 1 for error in got.values())
    assert len({id(error) for error in got.values()}) == 5


def test_each_thread_gets_the_refusal_of_redis(app: App, admin: redis.Redis) -> None:
    @app.task(queue="q")
    def never() -> None: ...

    job = never.delay()
    events = app.queue("q").keys.events
    admin.delete(events)
    admin.set(events, "no stream")
    waits = Waits()
    for number in range(10):
        waits.start(str(number), job)
    got = waits.join()
    assert len(got) == 10
    assert all(isinstance(error, ServerRefused) for error in got.values())


@pytest.mark.parametrize("reading", [True, False])
def test_a_wait_can_be_interrupted_and_the_others_continue(
    app: App, admin: redis.Redis, reading: bool
) -> None:
    @app.task(queue="q", attempts=1)
    async def at_once(value: int) -> int:
        return value

    mine, other = at_once.delay(1), at_once.delay(2)
    waits = Waits()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: waiting(app) == 1 and readers(admin) == 1, "the main thread reads")
        waits.start("other", other)
        wait_until(lambda: waiting(app) == 2, "the other waits")
        signal.pthread_kill(main, signal.SIGINT)

    def interrupt_who_sleeps() -> None:
        wait_until(lambda: waiting(app) == 2, "the main thread waits")
        signal.pthread_kill(main, signal.SIGINT)

    if not reading:
        waits.start("other", other)
        wait_until(lambda: waiting(app) == 1 and readers(admin) == 1, "the other reads")
    thread = threading.Thread(target=interrupt if reading else interrupt_who_sleeps)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        mine.result()
    thread.join(LIMIT)
    # With its traceback still alive: the other must not depend on that.
    assert interrupted.tb is not None
    wait_until(lambda: waiting(app) == 1 and readers(admin) == 1, "the other reads")
    anyio.run(lambda: app.run_worker(burst=True))
    assert waits.join() == {"other": 2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_reads_by_itself(app: App, admin: redis.Redis) -> None:
    @app.task(queue="q", attempts=1)
    async def at_once(value: int) -> int:
        return value

    first, second = at_once.delay(1), at_once.delay(2)
    waits = Waits()
    waits.start("parent", first)
    wait_until(lambda: waiting(app) == 1 and readers(admin) == 1, "the parent reads")
    watch = watch_of(app)
    with watch._state, watch._asking:  # the worst moment for it
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if second.result(LIMIT) == 2 else 1
        finally:
            os._exit(code)
    wait_until(lambda: readers(admin) == 2, "the child reads, too")
    anyio.run(lambda: app.run_worker(burst=True))
    assert waits.join() == {"parent": 1}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_deadline_holds_while_others_ask(app: App) -> None:
    @app.task(queue="q")
    def never() -> None: ...

    job = never.delay()
    late = pytest.raises(TimeoutError, match=r"did not finish within 0\.05 s")
    with watch_of(app)._asking, late:  # A thread sends a call, and Redis does not reply.
        job.result(0.05)
