"""Jobs that have stalled before run one at a time, so that a poison job fails alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from anyio import Event, fail_after, to_thread
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.queue.queue import Queue
from taskbull.worker.quarantine import Quarantine
from taskbull.worker.ready import ReadyJobs
from taskbull.worker.run import Run
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed
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
async def test_one_that_takes_long_holds_up_no_sound_job_and_the_others_wait_unlocked(
    bed: WorkerBed,
) -> None:  # F13
    go = Event()

    async def handler(job: RunningJob) -> None:
        if job.name == "stalled":
            await go.wait()

    stalled = await _add(bed, bed.queue, "stalled", 4)
    async with bed.worker(handler).running():
        [first] = await bed.record.wait_for(events.Started)
        assert listed(bed, bed.keys.active) == [first.job.id]  # the others were given back before
        await bed.record.wait_for(events.Released, 3)
        await _add(bed, bed.queue, "sound", 20)
        await bed.record.wait_for(events.Completed, 20)
        assert [event.job.name for event in bed.record.of(events.Started)].count("stalled") == 1
        go.set()
        await bed.record.wait_for(events.Completed, 24)
    assert set(stalled) <= set(bed.record.jobs(events.Completed))
    assert [(await bed.job(job_id)).attempts_made for job_id in stalled] == [1] * 4


async def test_those_that_go_back_in_several_calls_return_one_after_the_other() -> None:
    # relative of F13: thousands that come together would all but one go again, and again
    quarantine, ready = Quarantine(), ReadyJobs()
    waits = []
    for call in range(20):
        runs = [Run(Job(id=f"{call}:{i}", stalled_count=1), "t", 0.0) for i in range(50)]
        began = monotonic()
        waits += [began + wait for _, wait in quarantine.admit(runs, ready)]
    assert len(waits) == 999
    assert waits == sorted(waits)
    assert waits[-1] - waits[0] > 5


async def test_it_starts_when_no_call_can_bring_another() -> None:
    # relative of F13: a call of another queue's under way, which takes others that have stalled
    quarantine, ready = Quarantine(), ReadyJobs()
    quarantine.open_calls += 2
    [one, other] = [Run(Job(id=name, stalled_count=1), "t", 0.0) for name in "ab"]
    assert quarantine.admit([one], ready) == []
    assert quarantine.inside is one
    quarantine.call_closed()
    assert not ready.jobs
    [(refused, _)] = quarantine.admit([other], ready)  # by the second call
    quarantine.call_closed()
    assert not ready.jobs
    quarantine.gone(refused)
    assert list(ready.jobs) == [one]


async def test_those_that_redis_puts_off_come_one_after_the_other_too() -> None:
    quarantine, ready = Quarantine(), ReadyJobs()
    quarantine.admit([Run(Job(id="a", stalled_count=1), "t", 0.0)], ready)
    first = quarantine.put_off()
    quarantine.have_been_put_off(1000)
    assert quarantine.put_off().first_ms > first.first_ms + 900 * first.step_ms


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
async def test_a_poison_job_takes_no_other_with_it(
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
