"""The end of a burst: what the worker waits for, and what it leaves."""

from __future__ import annotations

import logging

import pytest

from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.errors import Snooze
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed


async def echo(job: RunningJob) -> object:
    return job.data


async def test_it_waits_for_what_is_due_soon_and_leaves_the_rest(  # D4
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    soon = await bed.queue.add("soon", delay=0.3)
    late = await bed.queue.add("late", delay=3600)
    with caplog.at_level(logging.INFO):
        await bed.worker(echo).run(burst=True)
    assert bed.record.jobs(events.Completed) == [soon.id]
    assert await bed.queue.get_state(late.id) == "delayed"
    assert "Burst finished; left in queue q: 1 delayed" in caplog.text


async def test_it_waits_for_retries(bed: WorkerBed) -> None:
    async def fail_once(job: RunningJob) -> None:
        if job.attempt == 1:
            raise ValueError("not yet")

    job = await bed.queue.add("flaky", attempts=2, backoff=Backoff.fixed(0.2))
    await bed.worker(fail_once).run(burst=True)
    assert bed.record.jobs(events.Completed) == [job.id]


async def test_it_does_not_wait_longer_than_its_limit(bed: WorkerBed) -> None:
    job = await bed.queue.add("soon", delay=5)
    await bed.worker(echo, burst_wait=0).run(burst=True)
    assert await bed.queue.get_state(job.id) == "delayed"


async def test_a_job_that_comes_back_forever_does_not_keep_it_alive(bed: WorkerBed) -> None:
    async def snooze(job: RunningJob) -> None:
        raise Snooze(0.01)

    await bed.queue.add("sleepy")
    await bed.worker(snooze, burst_wait=0.2).run(burst=True)
    counts = await bed.queue.counts()
    assert counts["delayed"] + counts["waiting"] == 1  # its last run may have been given back


async def test_delayed_jobs_of_a_paused_queue_are_not_waited_for(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    await bed.queue.add("soon", delay=5)
    await bed.queue.pause()
    await bed.queue.add("parked")
    with caplog.at_level(logging.INFO):
        await bed.worker(echo).run(burst=True)
    assert "left in queue q: 1 paused, 1 delayed (the queue is paused)" in caplog.text


async def test_a_worker_tells_when_it_is_idle(bed: WorkerBed) -> None:
    await bed.queue.add_bulk([("work", {})] * 20)
    worker = bed.worker(echo, concurrency=3)
    async with worker.running():
        await worker.until_idle()
        assert await bed.count("completed") == 20


async def test_the_former_name_of_that_wait_warns_and_works(bed: WorkerBed) -> None:
    await bed.queue.add("work")
    worker = bed.worker(echo)
    async with worker.running():
        with pytest.warns(DeprecationWarning, match="until_idle"):
            await worker.empty()
        assert await bed.count("completed") == 1
