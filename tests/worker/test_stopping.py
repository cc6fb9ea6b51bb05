"""A worker can be stopped at any time: no job stays in `active`, and none is missing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import anyio
import pytest
import redis
from anyio import CancelScope, Event, create_task_group, fail_after, sleep, sleep_forever
from anyio.abc import TaskStatus

from taskbull.core import events
from taskbull.core.job import ExecutionMode, Job
from taskbull.worker import worker as module
from taskbull.worker.attempt import Route
from taskbull.worker.run import Shutdown
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.worker.bed import Recorder, WorkerBed, echo, until
from tests.worker.looking import ends, keep_all_entries, listed, locks, ranked
from tests.worker.scale import ROUGH_KINDS, SEED, scaled

INSTANTS = scaled(40, 200)  # per event loop
SHORT: Any = {"lock_duration": 2, "heartbeat_interval": 0.2, "stalled_interval": 0.3}


class Errands:
    """Jobs of all durations, in the event loop and in threads, and how often each finished."""

    def __init__(self, bed: WorkerBed, random: Random) -> None:
        self._bed = bed
        self._random = random
        self.hurry = False
        self.ids: list[str] = []
        self.spent: Counter[str] = Counter()
        keep_all_entries(bed)

    async def add(self, count: int) -> None:
        names = self._random.choices(("short", "long", "thread", "fail"), (6, 1, 2, 1), k=count)
        priorities = self._random.choices((0, 2), (3, 1), k=count)
        jobs = [
            self._bed.queue.job(name, priority=priority, attempts=1000, backoff=None)
            for name, priority in zip(names, priorities, strict=True)
        ]
        self.ids += [handle.id for handle in await self._bed.queue.add_bulk(jobs)]

    def resolve(self, job: Job) -> Route:
        return (
            Route(self._block, execution_mode=ExecutionMode.THREAD)
            if job.name == "thread"
            else Route(self._run)
        )

    async def _run(self, job: RunningJob) -> None:
        if self.hurry:
            return
        await sleep(60 if job.name == "long" else self._random.random() * 0.005)
        if job.name == "fail":
            raise ZeroDivisionError

    def _block(self, _: RunningJob) -> None:
        time.sleep(0 if self.hurry else 0.003)

    def note(self, event: events.Event) -> None:
        """Listen to a worker's events that use an attempt."""
        if isinstance(event, events.Completed | events.Failed | events.Retried):
            self.spent[event.job.id] += 1
        assert not isinstance(event, events.Lost), event

    def check(self) -> None:
        """Fail if a job is active or missing, or used an attempt without an event."""
        admin, keys = self._bed.admin, self._bed.keys
        assert listed(self._bed, keys.active) == []
        assert locks(self._bed) == []
        there = Counter(listed(self._bed, keys.wait))
        for key in (keys.prioritized, keys.delayed, keys.completed, keys.failed):
            there.update(ranked(self._bed, key))
        assert there == Counter(self.ids)
        with admin.pipeline(transaction=False) as pipe:
            for job_id in self.ids:
                pipe.hget(keys.job(job_id), "atm")
            made = [int(value or 0) for value in pipe.execute()]
        assert dict(zip(self.ids, made, strict=True)) == {i: self.spent[i] for i in self.ids}


async def _end_of_block(worker: Worker, instant: float) -> None:
    async with worker.running():
        await sleep(instant)


async def _cancel_scope(worker: Worker, instant: float) -> None:
    with anyio.move_on_after(instant):
        await worker.run()


async def _at_once(worker: Worker, instant: float) -> None:
    async with worker.running() as shutdown:
        await sleep(instant)
        shutdown.at_once()


async def _second_word(worker: Worker, instant: float) -> None:
    async with worker.running() as shutdown:
        await sleep(instant / 2)
        shutdown.begin()
        await sleep(instant / 2)
        shutdown.at_once()


async def _native_cancel(worker: Worker, instant: float) -> None:
    task = asyncio.ensure_future(worker.run())
    await sleep(instant)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


Stop = Callable[[Worker, float], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)
async def test_a_worker_can_be_stopped_at_any_time(
    bed: WorkerBed, anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:  # NFR-2
    caplog.set_level(logging.CRITICAL, "taskbull")
    random = Random(SEED)
    ways: list[Stop] = [_end_of_block, _cancel_scope, _at_once, _second_word]
    if anyio_backend_name == "asyncio":
        ways.append(_native_cancel)
    errands = Errands(bed, random)
    used: Counter[str] = Counter()
    for _ in range(INSTANTS):
        way = random.choice(ways)
        grace = 30.0 if way is _second_word else random.choice((0.0, 0.0, 0.01))
        worker = bed.worker(
            None,
            resolve=errands.resolve,
            record=errands.note,
            shutdown_timeout=grace,
            concurrency=random.choice((1, 3, 20)),
            threads=4,
        )
        await errands.add(25)
        with fail_after(60):
            await way(worker, random.random() * 0.04)
        errands.check()
        used[way.__name__.strip("_")] += 1
    errands.hurry = True
    with fail_after(60):
        await bed.worker(None, resolve=errands.resolve, record=errands.note).run(burst=True)
    errands.check()
    assert ends(bed) == Counter(errands.ids)
    print(f"{INSTANTS} stops {dict(used)}, {len(errands.ids)} jobs, seed {SEED}")


@pytest.fixture
def away(private_server: PrivateServers, prefix: str) -> Iterator[Any]:
    """A queue on a private server, and that server."""
    server = private_server({"appendonly": "yes", "appendfsync": "always"})
    with redis.Redis.from_url(server.url) as admin:
        yield WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix), server


async def _run_until_stopped(_: RunningJob) -> None:
    await sleep_forever()


@pytest.mark.parametrize("priority", [0, 5])
async def test_a_job_that_is_given_back_is_taken_immediately_by_a_worker_that_waits(
    bed: WorkerBed, priority: int
) -> None:
    handle = await bed.queue.add("work", priority=priority)
    first, second = Recorder(), Recorder()
    idle = bed.worker(echo, record=second, drain_delay=600, worker_id="idle")
    async with create_task_group() as tasks:
        async with bed.worker(_run_until_stopped, record=first).running() as shutdown:
            await first.wait_for(events.Started)
            tasks.start_soon(idle.run)
            await until(lambda: _is_blocked(bed, "idle"))
            shutdown.at_once()
        [released] = first.of(events.Released)
        [completed] = await second.wait_for(events.Completed)
        assert released.job.id == completed.job.id == handle.id
        assert completed.job.attempt == 1  # None was used.
        tasks.cancel_scope.cancel()


def _is_blocked(bed: WorkerBed, worker_id: str) -> bool:
    clients = bed.admin.client_list()
    return any(
        worker_id in client["name"] and client["cmd"] == "bzpopmin" and "b" in client["flags"]
        for client in clients
    )


async def test_jobs_that_are_given_back_go_before_those_that_wait(bed: WorkerBed) -> None:
    given_back = {(await bed.queue.add("first")).id for _ in range(3)}
    waiting = {(await bed.queue.add("later")).id for _ in range(3)}
    async with bed.worker(_run_until_stopped, concurrency=3).running() as shutdown:
        await bed.record.wait_for(events.Started, 3)
        shutdown.at_once()
    order = [job.id for job in await bed.queue.get_jobs("waiting")]
    assert set(order[:3]) == given_back
    assert set(order[3:]) == waiting


async def test_running_jobs_have_the_grace_to_end(bed: WorkerBed) -> None:
    go = Event()

    async def handler(_: RunningJob) -> str:
        await go.wait()
        return "done"

    await bed.queue.add("work")
    await bed.queue.add("waits")
    async with bed.worker(handler, concurrency=1, shutdown_timeout=60).running() as shutdown:
        await bed.record.wait_for(events.Started)
        shutdown.begin()
        go.set()
        await bed.record.wait_for(events.Completed)
    assert await bed.count("completed") == 1
    assert await bed.count("waiting") == 1


async def test_a_worker_that_is_cancelled_waits_for_its_jobs(bed: WorkerBed) -> None:
    go = Event()

    async def handler(_: RunningJob) -> str:
        await go.wait()
        return "done"

    await bed.queue.add("work")
    async with create_task_group() as tasks:
        scope = CancelScope()

        async def run() -> None:
            with scope:
                await bed.worker(handler, shutdown_timeout=60).run()

        tasks.start_soon(run)
        await bed.record.wait_for(events.Started)
        scope.cancel()
        go.set()
        await bed.record.wait_for(events.Completed)


async def test_a_handler_that_swallows_the_cancellation_completes_its_job(bed: WorkerBed) -> None:
    async def handler(_: RunningJob) -> str:
        try:
            await sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "none of your business"
        return "never"

    await bed.queue.add("work")
    with fail_after(60):
        async with bed.worker(handler, shutdown_timeout=0).running():
            await bed.record.wait_for(events.Started)
    assert [event.value for event in bed.record.of(events.Completed)] == ["none of your business"]
    assert await bed.count("completed") == 1


async def test_a_handler_with_tasks_of_its_own_is_given_back_unspent(
    bed: WorkerBed, anyio_backend_name: str
) -> None:
    async def handler(_: RunningJob) -> None:
        if anyio_backend_name == "trio":
            import trio  # noqa: PLC0415 - trio is optional

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(asyncio.sleep(60))

    handle = await bed.queue.add("work", attempts=1)
    async with bed.worker(handler, shutdown_timeout=0).running():
        await bed.record.wait_for(events.Started)
        await anyio.lowlevel.checkpoint()
    assert bed.record.jobs(events.Released) == [handle.id]
    assert (await bed.job(handle.id)).attempts_made == 0
    assert await bed.count("waiting") == 1


async def test_a_thread_that_outlives_the_stop_does_not_hold_it_up(bed: WorkerBed) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(_: RunningJob) -> str:
        begun.set()
        go.wait(60)
        ended.set()
        return "too late"

    handle = await bed.queue.add("work")
    try:
        with fail_after(60):
            async with bed.worker(handler, shutdown_timeout=0).running():
                await until(begun.is_set)
        assert not ended.is_set()
        assert bed.record.jobs(events.Released) == [handle.id]
        assert bed.record.jobs(events.ThreadAbandoned) == [handle.id]
        assert await bed.count("waiting") == 1
    finally:
        go.set()
    await until(ended.is_set)
    other = Recorder()
    async with bed.worker(echo, record=other).running():
        await other.wait_for(events.Completed)
    assert (await bed.job(handle.id)).attempts_made == 1


async def test_a_stop_without_redis_ends_within_its_limit(
    away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, server = away
    monkeypatch.setattr(module, "FLUSH_LIMIT", 0.3)
    handles = await bed.queue.add_bulk([("work", {})] * 5)
    with fail_after(60):
        worker = bed.worker(_run_until_stopped, shutdown_timeout=0, **SHORT)
        async with worker.running():
            await bed.record.wait_for(events.Started, 5)
            server.kill()
    assert bed.record.of(events.Released) == []  # No client could get a reply.
    server.start()
    other = Recorder()
    async with bed.worker(echo, record=other, **SHORT).running():
        await other.wait_for(events.Completed, 5)
    assert set(other.jobs(events.Completed)) == {handle.id for handle in handles}


async def test_a_stop_while_redis_is_frozen_ends_within_its_limit(
    away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, server = away
    monkeypatch.setattr(module, "FLUSH_LIMIT", 0.3)
    await bed.queue.add_bulk([("work", {})] * 5)
    with fail_after(60):
        worker = bed.worker(_run_until_stopped, shutdown_timeout=0, **SHORT)
        async with worker.running():
            await bed.record.wait_for(events.Started, 5)
            server.pause()
    server.resume()
    other = Recorder()
    async with bed.worker(echo, record=other, **SHORT).running():
        await other.wait_for(events.Completed, 5)
    assert await bed.count("completed") == 5


async def test_a_worker_that_never_reached_redis_can_be_stopped(
    private_server: PrivateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_LIMIT", 0.3)
    server = private_server()
    server.kill()
    lost = Recorder()
    worker = Worker("q", echo, redis=server.url, on={events.RedisLost: lost})
    with fail_after(60):
        async with worker.running():
            await lost.wait_for(events.RedisLost)


@pytest.mark.parametrize("delay", [0, 0.3], ids=["at once", "delayed"])
async def test_a_stop_never_eats_a_wake_up(bed: WorkerBed, delay: float) -> None:  # F15
    def waiting() -> int:
        return sum(client["cmd"] == "bzpopmin" for client in bed.admin.client_list())

    patient: Any = {"drain_delay": 3600, "stalled_interval": 86_400}

    async def leave(*, task_status: TaskStatus[Shutdown]) -> None:
        async with bed.worker(echo, **patient).running() as shutdown:
            task_status.started(shutdown)
            await shutdown.wait()

    for number in range(1, 9):
        async with create_task_group() as tasks:
            leaving: Shutdown = await tasks.start(leave)
            await until(lambda: waiting() == 1)  # It is woken first.
            async with bed.worker(echo, **patient).running():
                await until(lambda: waiting() == 2)
                await bed.queue.add("work", delay=delay)
                leaving.begin()
                await bed.record.wait_for(events.Completed, number)
