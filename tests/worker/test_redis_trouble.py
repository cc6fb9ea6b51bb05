"""Redis fails, freezes or refuses: running jobs continue, and their outcomes are delivered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import redis
from anyio import (
    Event,
    create_task_group,
    fail_after,
    sleep_forever,
    to_thread,
    wait_all_tasks_blocked,
)

from taskbull.core import events
from taskbull.errors import ConnectionLost, Retry
from taskbull.store import protocol
from taskbull.store.server_process import ServerProcess
from taskbull.worker import demand
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.servers.waiting import wait_until
from tests.worker.bed import WorkerBed, echo, until
from tests.worker.chores import Chores
from tests.worker.looking import ends, lock_of
from tests.worker.scale import SEED, scaled

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
SAVED = {"save": "3600 1000000", "dbfilename": "saved"}


class Place:
    """A queue on a private server."""

    def __init__(self, server: ServerProcess, prefix: str) -> None:
        self.server = server
        self.admin = redis.Redis.from_url(server.url)
        self.bed = WorkerBed(Reachable(VALKEY_9, server.url), self.admin, prefix)
        self.record = self.bed.record


MakePlace = Callable[[dict[str, str]], Place]


@pytest.fixture
def place(private_server: PrivateServers, prefix: str) -> Iterator[MakePlace]:
    """Create a queue on a private server with these server options."""
    made: list[Place] = []

    def make(options: dict[str, str]) -> Place:
        made.append(Place(private_server(options), prefix))
        return made[-1]

    yield make
    for one in made:
        one.admin.close()


class Held:
    """A handler whose jobs run until the test releases them."""

    def __init__(self) -> None:
        self.go = Event()

    async def __call__(self, job: RunningJob) -> Any:
        await self.go.wait()
        if job.name == "retry" and job.attempt == 1:
            raise Retry
        return job.name


def _check_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Fail if a traceback was logged, or if the attempts do not become rarer."""
    assert [record for record in caplog.records if record.exc_info] == []
    assert "Traceback" not in caplog.text


async def test_ends_are_delivered_when_redis_is_back_from_a_crash(
    place: MakePlace, caplog: pytest.LogCaptureFixture
) -> None:  # NFR-2
    here = place(DURABLE)
    held = Held()
    await here.bed.queue.add_bulk([("work", {})] * 5)
    await here.bed.queue.add("retry")
    async with here.bed.worker(held).running():
        await here.record.wait_for(events.Started, 6)
        here.server.kill()
        await here.record.wait_for(events.RedisLost)
        held.go.set()
        await until(lambda: caplog.text.count("retrying in") >= 3)
        assert here.record.of(events.Ended) == []
        here.server.start()
        await here.record.wait_for(events.Completed, 6)
    assert len(here.record.of(events.Retried)) == 1
    assert here.record.of(events.Lost) == []
    assert len(here.record.of(events.RedisLost)) == 1
    [back] = here.record.of(events.RedisBack)
    assert back.attempts >= 3
    assert await here.bed.count("completed") == 6
    tries = [record for record in caplog.records if "retrying in" in record.getMessage()]
    delays = [record.args[0] for record in tries if isinstance(record.args, tuple)]
    assert delays == sorted(delays)  # type: ignore[type-var]
    _check_lines(caplog)


async def test_each_outage_is_reported_once(
    place: MakePlace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    here = place(DURABLE)
    chores = Chores(here.bed, Random(SEED))
    outages = scaled(3, 30)
    worker = here.bed.worker(chores.handler, record=chores, stalled_interval=86_400)
    with fail_after(60 + 5 * outages):
        async with worker.running():
            for number in range(1, outages + 1):
                await chores.add(30)
                await chores.at_most(20)
                here.server.kill()
                await until(lambda: chores.others[events.RedisLost] == number)  # noqa: B023
                here.server.start()
                await until(lambda: chores.others[events.RedisBack] == number)  # noqa: B023
                await chores.at_most(0)
    assert chores.others[events.RedisLost] == chores.others[events.RedisBack] == outages
    chores.check()


async def test_a_frozen_redis_loses_no_job(place: MakePlace) -> None:
    here = place({})
    held = Held()
    await here.bed.queue.add_bulk([("work", {})] * 5)
    async with here.bed.worker(held, heartbeat_interval=0.1).running():
        await here.record.wait_for(events.Started, 5)
        here.server.pause()
        held.go.set()
        await here.record.wait_for(events.HeartbeatFailed, 3)
        assert here.record.of(events.Ended) == []
        here.server.resume()
        await here.record.wait_for(events.Completed, 5)
    assert here.record.of(events.Lost) == []


@pytest.mark.parametrize("when", ["from the start", "later", "with jobs"])
async def test_a_worker_gives_up_after_as_many_tries_as_it_was_given(
    place: MakePlace, when: str
) -> None:
    here = place(DURABLE)
    handler: Any = echo

    async def never_ends(_: RunningJob) -> None:
        await sleep_forever()

    if when == "with jobs":
        handler = never_ends
        await here.bed.queue.add_bulk([("work", {})] * 5)
    if when == "from the start":
        here.server.kill()
    worker = here.bed.worker(handler, max_reconnect_attempts=2, drain_delay=0.5)
    with fail_after(60):
        async with create_task_group() as tasks:
            tasks.start_soon(_kill, here, when)
            with pytest.raises(ConnectionLost):  # And no exception group.
                await worker.run()
            tasks.cancel_scope.cancel()


async def _kill(here: Place, when: str) -> None:
    if when == "with jobs":
        await here.record.wait_for(events.Started, 5)
    elif when == "later":
        await until(lambda: len(here.admin.client_list()) > 1)
    here.server.kill()


@contextmanager
def _read_only(here: Place) -> Iterator[None]:
    here.admin.replicaof("127.0.0.1", "1")  # No server listens there. The old one keeps its data.
    yield
    here.admin.replicaof("NO", "ONE")


@contextmanager
def _out_of_memory(here: Place) -> Iterator[None]:
    here.admin.config_set("maxmemory", 1)
    yield
    here.admin.config_set("maxmemory", 0)


@contextmanager
def _cannot_save(here: Place) -> Iterator[None]:
    (here.server.folder / "saved").mkdir()
    here.admin.bgsave()
    _await_save(here, "err")
    yield
    (here.server.folder / "saved").rmdir()
    here.admin.bgsave()
    _await_save(here, "ok")


def _await_save(here: Place, status: str) -> None:
    wait_until(
        lambda: here.admin.info("persistence")["rdb_last_bgsave_status"] == status, "the save ends"
    )


Trouble = Callable[[Place], AbstractContextManager[None]]


@pytest.mark.parametrize("trouble", [_read_only, _out_of_memory, _cannot_save])
@pytest.mark.parametrize("patience", [10.0, 0.1])
async def test_jobs_continue_while_redis_refuses_to_write(
    place: MakePlace,
    trouble: Trouble,
    patience: float,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", patience)
    here = place(SAVED)
    held, second = Held(), Held()

    async def handler(job: RunningJob) -> Any:
        return await (second if job.name == "second" else held)(job)

    await here.bed.queue.add_bulk([("work", {})] * 3)
    await here.bed.queue.add("retry")
    await here.bed.queue.add("second")
    async with here.bed.worker(handler, drain_delay=0.1, heartbeat_interval=0.1).running():
        await here.record.wait_for(events.Started, 5)
        with trouble(here):
            held.go.set()
            if trouble is not _out_of_memory:  # It allows the scripts of a worker.
                await here.record.wait_for(events.HeartbeatFailed, 2)
                assert here.record.of(events.Ended) == []
            second.go.set()
        await here.record.wait_for(events.Completed, 5)
        await here.bed.queue.add("after")
        await here.record.wait_for(events.Completed, 6)
    assert len(here.record.of(events.Retried)) == 1
    assert here.record.of(events.Lost) == []
    assert len(here.record.of(events.Ended)) == 7
    assert await here.bed.count("completed") == 6
    _check_lines(caplog)


async def test_a_server_that_reads_its_data_is_waited_for(
    place: MakePlace, caplog: pytest.LogCaptureFixture
) -> None:
    slow = {"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    here = place(SAVED | slow)
    held = Held()
    await here.bed.queue.add_bulk([("work", {})] * 3)
    here.admin.mset({f"ballast {number}": "x" * 1000 for number in range(700)})
    async with here.bed.worker(held).running():
        await here.record.wait_for(events.Started, 3)
        here.admin.save()
        here.server.kill()
        async with create_task_group() as tasks:
            tasks.start_soon(partial(to_thread.run_sync, here.server.start))
            await until(lambda: "LOADING" in caplog.text)
            held.go.set()
        await here.record.wait_for(events.Completed, 3)
    assert here.record.of(events.Lost) == []
    assert len(here.record.of(events.RedisBack)) == 1
    _check_lines(caplog)


async def test_an_end_that_came_too_late_to_be_written_is_reported_as_lost(
    place: MakePlace, caplog: pytest.LogCaptureFixture
) -> None:
    """If Redis refuses writes for longer than a lock lives, the sweep returns the job."""  # FR-2
    here = place(SAVED)
    held = Held()
    handle = await here.bed.queue.add("work")
    lock = lock_of(here.bed, handle.id)
    short: Any = {"lock_duration": 2, "heartbeat_interval": 0.2, "stalled_interval": 0.3}
    caplog.set_level(logging.INFO, "taskbull.worker.cycle")
    async with here.bed.worker(held, **short).running():
        await here.record.wait_for(events.Started)
        with _cannot_save(here):
            held.go.set()
            await until(lambda: not here.admin.exists(lock))
            refusals = caplog.text.count("Redis refused")
            await until(lambda: caplog.text.count("Redis refused") > refusals)
            assert "accepts calls again" not in caplog.text
        await here.record.wait_for(events.Completed)
        await until(lambda: "Redis accepts calls again" in caplog.text)  # V38
    ended = [type(event) for event in here.record.of(events.Ended)]
    assert ended == [events.Lost, events.Completed]
    assert ends(here.bed) == {handle.id: 1}


async def test_a_job_that_is_no_hash_any_more_holds_up_no_other(place: MakePlace) -> None:
    here = place({})
    held = Held()
    handles = await here.bed.queue.add_bulk([("work", {})] * 5)
    poisoned = here.bed.keys.job(handles[2].id)
    async with here.bed.worker(held).running():
        await here.record.wait_for(events.Started, 5)
        here.admin.delete(poisoned)
        here.admin.set(poisoned, "no hash")
        held.go.set()
        await here.record.wait_for(events.Completed, 4)
        await here.record.wait_for(events.Lost)
        await here.bed.queue.add("after")
        await here.record.wait_for(events.Completed, 5)
    assert here.record.jobs(events.Lost) == [handles[2].id]


async def test_ends_that_redis_cannot_take_hold_up_no_others(place: MakePlace) -> None:
    here = place({})
    held = Held()

    async def handler(job: RunningJob) -> Any:
        await held.go.wait()
        if job.name == "fail":
            raise ValueError(job.name)
        return job.name

    names = ["fail", "work", "fail", "work", "fail"]
    handles = await here.bed.queue.add_bulk(
        [here.bed.queue.job(name, attempts=1) for name in names]
    )
    short: Any = {"lock_duration": 30, "heartbeat_interval": 0.2, "stalled_interval": 0.3}
    async with here.bed.worker(handler, **short).running():
        await here.record.wait_for(events.Started, 5)
        here.admin.set(here.bed.keys.completed, "no sorted set")
        held.go.set()
        await here.record.wait_for(events.Failed, 3)
        here.admin.delete(here.bed.keys.completed)
        await here.record.wait_for(events.Completed, 2)
    assert set(here.record.jobs(events.Failed)) == {handles[i].id for i in (0, 2, 4)}
    assert set(here.record.jobs(events.Completed)) == {handles[i].id for i in (1, 3)}
    counts = await here.bed.queue.counts()
    assert (counts["completed"], counts["failed"], counts["active"]) == (2, 3, 0)


@pytest.mark.parametrize("key", ["meta", "events", "completed", "active"])
async def test_ends_wait_for_a_queue_whose_key_was_broken(  # relative of F5
    place: MakePlace, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = place({})
    held = Held()
    handles = await here.bed.queue.add_bulk([("work", {})] * 5)
    broken = here.bed.keys.base + key
    async with here.bed.worker(held, concurrency=5).running():
        await here.record.wait_for(events.Started, 5)
        with suppress(redis.ResponseError):  # There is none.
            here.admin.rename(broken, "aside")
        here.admin.set(broken, "garbage")
        refused = here.admin.info("stats")["total_error_replies"]
        held.go.set()
        await until(lambda: here.admin.info("stats")["total_error_replies"] >= refused + 4)
        await until(lambda: f"{broken} is a string, and not a " in caplog.text)
        here.admin.delete(broken)
        if here.admin.exists("aside"):
            here.admin.rename("aside", broken)
        await here.record.wait_for(events.Completed, 5)
    assert len(here.record.of(events.Started)) == 5
    assert not here.record.of(events.Lost)
    assert ends(here.bed) == {handle.id: 1 for handle in handles}


async def test_a_result_that_is_cut_off_each_time_fails_its_job(  # relative of F2
    place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "MOST_CUTS", 3)
    here = place({"client-query-buffer-limit": "1mb"})

    async def handler(job: RunningJob) -> Any:
        return "x" * 3_000_000 if job.name == "large" else job.name

    await here.bed.queue.add("large", attempts=3)
    await here.bed.queue.add("small")
    async with here.bed.worker(handler).running():
        [failed] = await here.record.wait_for(events.Failed)
        await here.record.wait_for(events.Completed)
    assert failed.job.name == "large"
    assert await here.bed.count("active") == 0


async def test_plain_functions_that_end_while_redis_is_frozen_complete_their_jobs(
    place: MakePlace,
) -> None:
    here = place({})
    go = [threading.Event() for _ in range(3)]
    ended: list[int] = []

    def handler(job: RunningJob) -> None:
        go[job.data].wait(60)
        ended.append(job.data)

    await here.bed.queue.add_bulk([("work", number) for number in range(3)])
    async with here.bed.worker(handler, concurrency=10).running():
        await here.record.wait_for(events.Started, 3)
        here.server.pause()
        for number in range(3):  # The first one causes a call that gets no reply.
            go[number].set()
            await until(partial(ended.__contains__, number))
            await wait_all_tasks_blocked()
        assert here.record.of(events.Ended) == []
        here.server.resume()
        completed = await here.record.wait_for(events.Completed, 3)
    assert sorted(event.job.data for event in completed) == [0, 1, 2]
