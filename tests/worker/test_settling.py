"""Locks are really held, and each outcome is reported once, by the worker that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from anyio import Event

from taskbull.core import events
from taskbull.core.options import Keep
from taskbull.errors import PermanentError, Retry, Snooze
from taskbull.scripts.cycle import CYCLE
from taskbull.scripts.schedulers import ADVANCE_SCHEDULER
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.worker.bed import Recorder, WorkerBed, until
from tests.worker.looking import listed, lock_of

_CYCLE = CYCLE.sha.encode()
SHORT: dict[str, Any] = {
    "lock_duration": 2,
    "heartbeat_interval": 0.2,
    "stalled_interval": 0.2,
    "max_stalled_count": 100,
}


@pytest.fixture
def way(private_server: PrivateServers, prefix: str) -> Iterator[tuple[WorkerBed, Proxy]]:
    """A queue behind a network that can be cut."""
    server = private_server()
    with redis.Redis.from_url(server.url) as admin, Proxy(("127.0.0.1", server.port)) as proxy:
        yield WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix), proxy


KINDS: dict[str, type[events.Event]] = {
    "completed": events.Completed,
    "failed": events.Failed,
    "retried": events.Retried,
    "snoozed": events.Released,
}


async def _add_one_of_each_kind(bed: WorkerBed) -> dict[str, str]:
    """Add jobs with each outcome, some of them not kept. Return the outcomes by id."""
    keeps = {"kept": Keep.all(), "not kept": Keep.none()}
    jobs = [
        bed.queue.job(kind, {"kind": kind}, attempts=3, keep_completed=keep, keep_failed=keep)
        for kind in KINDS
        for keep in keeps.values()
    ]
    handles = await bed.queue.add_bulk(jobs)
    return {handle.id: job.name for handle, job in zip(handles, jobs, strict=True)}


def _end(job: RunningJob) -> None:
    match job.name:
        case "failed":
            raise PermanentError("as asked")
        case "retried":
            raise Retry(after=3600)
        case "snoozed":
            raise Snooze(3600)
        case _:
            pass


def _is_asked_for(event: events.Ended) -> bool:
    """Return True unless the event releases a stalled job that must wait for another one."""
    return not isinstance(event, events.Released) or event.delay == 3600


def _told(record: Recorder) -> dict[str, list[type[events.Event]]]:
    told: dict[str, list[type[events.Event]]] = {}
    for event in filter(_is_asked_for, record.of(events.Ended)):
        told.setdefault(event.job.id, []).append(type(event))
    return told


async def test_an_end_is_reported_by_the_worker_whose_write_it_was(
    way: tuple[WorkerBed, Proxy],
) -> None:  # N1
    bed, proxy = way
    go = Event()
    late, prompt = Recorder(), Recorder()

    async def held(job: RunningJob) -> None:
        await go.wait()
        _end(job)

    async def handler(job: RunningJob) -> None:
        _end(job)

    jobs = await _add_one_of_each_kind(bed)
    async with bed.worker(held, redis=proxy.url, record=late, drain_delay=0.2, **SHORT).running():
        await late.wait_for(events.Started, len(jobs))
        proxy.refuse()
        proxy.cut_before_request(_CYCLE)
        go.set()
        await until(lambda: proxy.cuts == 1)
        proxy.cut()
        async with bed.worker(handler, record=prompt, **SHORT).running():
            await prompt.wait_for(events.Ended, len(jobs), where=_is_asked_for)
        proxy.heal()
        await late.wait_for(events.Lost, len(jobs))
    assert _told(prompt) == {job_id: [KINDS[name]] for job_id, name in jobs.items()}
    assert _told(late) == {job_id: [events.Lost] for job_id in jobs}


async def test_an_end_that_was_written_is_reported_however_late_that_is_known(
    way: tuple[WorkerBed, Proxy],
) -> None:  # N1
    bed, proxy = way
    go = Event()

    async def held(job: RunningJob) -> None:
        await go.wait()
        _end(job)

    jobs = await _add_one_of_each_kind(bed)
    # With this many free slots, most outcomes are sent in one call. A poll can split them.
    worker = bed.worker(held, redis=proxy.url, drain_delay=0.2, concurrency=100, **SHORT)
    async with worker.running():
        await bed.record.wait_for(events.Started, len(jobs))
        proxy.refuse()
        proxy.hold_replies()
        go.set()
        await until(lambda: set(listed(bed, bed.keys.active)) < jobs.keys())
        proxy.cut()
        await _let_pass(bed, 1.5 * SHORT["lock_duration"])
        unwritten = set(listed(bed, bed.keys.active))
        proxy.heal()
        await until(lambda: _told(bed.record).keys() == jobs.keys())
        first = {job_id: ends[0] for job_id, ends in _told(bed.record).items()}
    assert unwritten < jobs.keys()
    assert first == {
        job_id: events.Lost if job_id in unwritten else KINDS[name] for job_id, name in jobs.items()
    }


async def test_a_job_whose_lock_lapsed_on_the_way_is_not_started(
    way: tuple[WorkerBed, Proxy],
) -> None:  # F9
    bed, proxy = way
    locked: list[bool] = []

    async def handler(job: RunningJob) -> None:
        locked.append(bool(bed.admin.exists(lock_of(bed, job.id))))

    async with bed.worker(handler, redis=proxy.url, **SHORT).running():
        await until(lambda: waits_at_marker(bed))
        proxy.slow_down(1.5 * SHORT["lock_duration"])
        handle = await bed.queue.add("late")
        await until(lambda: bool(bed.admin.exists(lock_of(bed, handle.id))))
        await until(lambda: not bed.admin.exists(lock_of(bed, handle.id)))
        proxy.heal()
        await bed.record.wait_for(events.Completed)
    assert locked == [True]
    assert bed.record.of(events.Lost) == []


async def test_a_run_whose_lock_lapsed_while_the_next_was_added_is_not_started(
    way: tuple[WorkerBed, Proxy],
) -> None:  # F9
    bed, proxy = way
    late, prompt = Recorder(), Recorder()
    ran: list[str] = []

    def handler(name: str) -> Any:
        async def handle(_: RunningJob) -> None:
            ran.append(name)

        return handle

    async with bed.worker(handler("late"), redis=proxy.url, record=late, **SHORT).running():
        await until(lambda: waits_at_marker(bed))
        await bed.queue.pause()
        handle = await bed.queue.add("run")
        options = '{"repeat":{"every":3600000,"count":1}}'
        bed.admin.hset(bed.keys.job(handle.id), mapping={"rjk": "s", "opts": options})
        proxy.refuse()
        proxy.cut_before_request(ADVANCE_SCHEDULER.sha.encode())
        await bed.queue.resume()
        await until(lambda: proxy.cuts == 1)
        proxy.cut()
        async with bed.worker(handler("prompt"), record=prompt, **SHORT).running():
            await prompt.wait_for(events.Completed)
        proxy.heal()
        await late.wait_for(events.Lost)
    assert ran == ["prompt"]


async def test_a_job_that_came_late_is_started_when_its_lock_was_renewed(
    way: tuple[WorkerBed, Proxy],
) -> None:  # F9
    bed, proxy = way
    life: list[int] = []

    async def handler(job: RunningJob) -> None:
        life.append(int(bed.admin.pttl(lock_of(bed, job.id))))

    # With these, a lock that is half a second old may not live until the next heartbeat.
    async with bed.worker(
        handler, redis=proxy.url, lock_duration=60, heartbeat_interval=59.5
    ).running():
        await until(lambda: waits_at_marker(bed))
        proxy.slow_down(0.2)
        handle = await bed.queue.add("late")
        await until(lambda: bool(bed.admin.exists(lock_of(bed, handle.id))))
        bed.admin.pexpire(lock_of(bed, handle.id), 30_000)
        await bed.record.wait_for(events.Completed)
    assert life[0] > 30_000
    assert len(bed.record.of(events.Started)) == 1


async def test_jobs_that_are_adopted_are_renewed_before_they_start(
    way: tuple[WorkerBed, Proxy],
) -> None:  # F10, F2
    bed, proxy = way
    life: dict[str, int] = {}

    async def handler(job: RunningJob) -> int:
        life[job.id] = int(bed.admin.pttl(lock_of(bed, job.id)))
        return len(job.data["text"])

    size = 700_000  # More of them than fit in one reply.
    options: Any = {"lock_duration": 600, "heartbeat_interval": 300}
    async with bed.worker(handler, redis=proxy.url, **options).running():
        await until(lambda: waits_at_marker(bed))
        proxy.refuse()
        proxy.cut_before_reply(_CYCLE)
        handles = await bed.queue.add_bulk([("big", {"text": "x" * size})] * 5)
        await until(lambda: proxy.cuts == 1)
        for handle in handles:
            bed.admin.pexpire(lock_of(bed, handle.id), 60_000)
        proxy.heal()
        ended = await bed.record.wait_for(events.Completed, 5)
    assert [event.value for event in ended] == [size] * 5
    assert len(bed.record.of(events.Started)) == 5
    assert min(life.values()) > 60_000


def waits_at_marker(bed: WorkerBed) -> bool:
    """Return True if a worker waits for the next job."""
    return any(client["cmd"] == "bzpopmin" for client in bed.admin.client_list())


async def _let_pass(bed: WorkerBed, seconds: float) -> None:
    """Wait according to the server's clock for keys, which determines when locks expire."""
    key = f"{bed.keys.base}tb:clock"
    bed.admin.set(key, 1, px=int(seconds * 1000))
    await until(lambda: not bed.admin.exists(key))
