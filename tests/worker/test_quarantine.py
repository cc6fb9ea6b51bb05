"""Jobs that have stalled before start one at a time, in case one of them kills its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

import pytest
from anyio import Event, fail_after, to_thread
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.monitor.server import Server
from taskbull.queue.queue import Queue
from taskbull.scripts.cycle import FetchOptions, cycle
from taskbull.store.address import parse
from taskbull.store.sync_store import SyncStore
from taskbull.worker import demand
from taskbull.worker.demand import BATCH, Quarantine
from taskbull.worker.run import ReadyJobs, Run
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed, until
from tests.worker.looking import listed, locks
from tests.worker.scale import ROUGH_KINDS

on_a_server = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)


def _have_stalled(bed: WorkerBed, queue: Queue, job_ids: Iterable[str]) -> None:
    for job_id in job_ids:
        bed.admin.hset(queue.keys.job(job_id), "stc", "1")


async def _add(bed: WorkerBed, queue: Queue, name: str, count: int) -> list[str]:
    """Add jobs that have stalled, if they are named so."""
    await queue.pause()
    ids = [handle.id for handle in await queue.add_bulk([(name, {})] * count)]
    if name == "stalled":
        _have_stalled(bed, queue, ids)
    await queue.resume()
    return ids


def now_ms() -> int:
    return time_ns() // 1_000_000


class Crowd:
    """A handler that sees who runs at the same time."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self.together: list[tuple[str, ...]] = []

    async def __call__(self, job: RunningJob) -> None:
        self._running.append(job.name)
        self.together.append(tuple(self._running))
        for _ in range(5):
            await checkpoint()
        self._running.remove(job.name)


@on_a_server
async def test_jobs_that_have_stalled_run_one_at_a_time_in_all_queues(bed: WorkerBed) -> None:
    # F13
    other = Queue("other", redis=bed.url, prefix=bed.prefix)
    crowd = Crowd()
    for queue in (bed.queue, other):
        await _add(bed, queue, "stalled", 3)
        await _add(bed, queue, "sound", 5)
    async with bed.worker(crowd, queues=["q", "other"]).running():
        await bed.record.wait_for(events.Completed, 16)
    assert max(names.count("stalled") for names in crowd.together) == 1
    assert max(names.count("sound") for names in crowd.together) > 1
    for queue in (bed.queue, other):
        counts = await queue.counts()
        assert (counts["completed"], counts["active"]) == (8, 0)


@on_a_server
async def test_jobs_of_a_killed_worker_all_run_again_however_long_they_take(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:  # H3
    monkeypatch.setattr(demand, "TRIAL", 3600.0)  # none of them ends within its trial
    monkeypatch.setattr(demand, "LIMIT", 0.1)
    go = Event()

    async def handler(_: RunningJob) -> None:
        await go.wait()

    ids = [handle.id for handle in await bed.queue.add_bulk([("long", {})] * 50)]
    store = SyncStore(parse(bed.url))
    taken = store.run(cycle(bed.keys, now_ms(), [], 50, "killed:1", FetchOptions(lock_life_ms=1)))
    store.close()
    assert len(taken.jobs) == 50
    async with bed.worker(handler, concurrency=50, stalled_interval=0.05).running():
        started = await bed.record.wait_for(events.Started, 50)
        assert sorted(event.job.id for event in started) == sorted(ids)
        assert sorted(listed(bed, bed.keys.active)) == sorted(ids)  # all of them, concurrently
        go.set()
        await bed.record.wait_for(events.Completed, 50)


@on_a_server
async def test_one_that_hangs_holds_up_no_sound_job_and_others_for_a_moment(
    bed: WorkerBed,
) -> None:  # H3
    go = Event()
    other = Queue("other", redis=bed.url, prefix=bed.prefix)

    async def handler(job: RunningJob) -> None:
        if job.name == "stalled" and len(bed.record.of(events.Started)) == 1:
            await go.wait()

    stalled = await _add(bed, bed.queue, "stalled", 3)
    await _add(bed, other, "stalled", 1)
    async with bed.worker(handler, queues=["q", "other"]).running():
        [first] = await bed.record.wait_for(events.Started)
        assert listed(bed, bed.keys.active) + listed(bed, other.keys.active) == [first.job.id]
        await _add(bed, bed.queue, "sound", 20)
        await bed.record.wait_for(events.Completed, 23)
        assert listed(bed, bed.keys.active) + listed(bed, other.keys.active) == [first.job.id]
        go.set()
        await bed.record.wait_for(events.Completed, 24)
    assert [(await bed.job(job_id)).attempts_made for job_id in stalled] == [1] * 3


@on_a_server
async def test_a_job_that_is_held_shows_why(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:  # H3
    go = Event()

    async def handler(_: RunningJob) -> None:
        await go.wait()

    stalled = await _add(bed, bed.queue, "stalled", 2)
    monkeypatch.setattr(demand, "TRIAL", 60.0)
    server = Server(bed.url, prefix=bed.prefix)
    async with bed.worker(handler).running():
        [first] = await bed.record.wait_for(events.Started)
        [held] = [job_id for job_id in stalled if job_id != first.job.id]
        later = (now_ms() + 10_000) * 4096
        await until(lambda: bed.admin.zcount(bed.keys.delayed, later, "inf") == 1)
        explained = await server.why("q", held)
        go.set()
    assert "because its worker died earlier" in explained.text


async def test_it_starts_when_no_call_can_bring_another() -> None:
    # relative of F13: a call of another queue's under way, which takes others that have stalled
    ward, ready = Quarantine(), ReadyJobs()
    ward.open_calls += 2
    [one, other] = [Run(Job(id=name, stalled_count=1), "t", 0.0) for name in "ab"]
    assert ward.admit([one], ready) == []
    assert ward.inside is one
    ward.call_closed()
    assert not ready.jobs
    [refused] = ward.admit([other], ready)  # by the second call
    ward.call_closed()
    assert not ready.jobs
    ward.gone(refused)
    assert list(ready.jobs) == [one]


async def test_those_that_are_held_come_back_one_after_the_other() -> None:
    # relative of F13: thousands that came together would all but one go back again
    ward, ready = Quarantine(), ReadyJobs()
    ward.admit([Run(Job(id="a", stalled_count=1), "t", 0.0)], ready)
    first = ward.hold()
    assert first is not None
    ward.have_been_held(1000, first, monotonic())
    following = ward.hold()
    assert following is not None
    assert following.first_ms > first.first_ms + 900 * first.step_ms


async def test_all_that_are_held_come_back_within_the_limit() -> None:  # H3
    ward, ready = Quarantine(), ReadyJobs()
    sent_at = monotonic()
    ward.admit([Run(Job(id="a", stalled_count=1), "t", 0.0)], ready)
    for _ in range(40):
        hold = ward.hold()
        assert hold is not None
        last_ms = hold.first_ms + (BATCH - 1) * hold.step_ms
        assert last_ms <= 1000 * demand.LIMIT + 10 * BATCH
        ward.have_been_held(BATCH, hold, sent_at)


async def test_after_the_limit_they_start_one_by_one_without_a_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # H3
    monkeypatch.setattr(demand, "LIMIT", 0.0)
    ward, ready = Quarantine(), ReadyJobs()
    for job_id in "abc":
        assert ward.admit([Run(Job(id=job_id, stalled_count=1), "t", 0.0)], ready) == []
    assert [run.job.id for run in ready.jobs] == ["a", "b", "c"]


@on_a_server
async def test_a_stop_at_any_time_leaves_none_of_them_active(bed: WorkerBed) -> None:  # F13
    async def handler(_: RunningJob) -> None:
        await checkpoint()

    stalled = await _add(bed, bed.queue, "stalled", 30)
    for passes in range(12):
        told = len(bed.record.of(events.JobEvent))
        async with bed.worker(handler, shutdown_timeout=0).running():
            await bed.record.wait_for(events.JobEvent, told + 1)
            for _ in range(passes):
                await checkpoint()
        assert listed(bed, bed.keys.active) == []
        await bed.queue.promote_all()
    counts = await bed.queue.counts()
    assert counts["waiting"] + counts["completed"] == len(stalled)
    assert locks(bed) == []


@on_a_server
async def test_a_poison_job_does_not_fail_other_jobs(
    bed: WorkerBed, anyio_backend_name: str
) -> None:  # F13
    queues = [Queue(name, redis=bed.url, prefix=bed.prefix) for name in ("a", "b")]
    [poison, *_] = await queues[0].add_bulk([("poison", {}), *[("sound", {})] * 4])
    await queues[1].add_bulk([("sound", {})] * 5)
    words = (bed.url, bed.prefix, anyio_backend_name)

    async def counts(state: str) -> list[int]:
        return [(await queue.counts())[state] for queue in queues]

    async def ended() -> bool:
        return await counts("completed") == [4, 5] and await counts("failed") == [1, 0]

    deaths = 0
    with fail_after(240):  # several processes are started, one after the other
        while not await ended():
            process = await to_thread.run_sync(_spawn, words)
            try:
                while process.poll() is None and not await ended():
                    await to_thread.run_sync(_wait_a_little, process)
            finally:
                process.kill()
                deaths += process.wait() == 86
            _expire_locks(bed)
    assert deaths == 2
    assert (await queues[0].get_job(poison.id)).failed_reason  # type: ignore[union-attr]


def _expire_locks(bed: WorkerBed) -> None:
    client: Any = bed.admin
    for key in client.scan_iter(f"{bed.prefix}:*:lock", count=10_000):
        client.delete(key)


def _wait_a_little(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.05)


def _spawn(words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.worker.poisoned_worker", *words],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
