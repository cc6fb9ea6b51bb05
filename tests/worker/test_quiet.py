"""Quiet and resume one worker: it fetches no jobs for a while, and its running jobs continue."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import Event

from taskbull import Server, events
from taskbull.errors import WorkerNotFound
from taskbull.worker.worker import Worker
from tests.worker.bed import Recorder, WorkerBed, echo, until


def server_of(bed: WorkerBed) -> Server:
    return Server(bed.url, prefix=bed.prefix)


async def recorded(bed: WorkerBed, worker: Worker, *, quiet: bool) -> None:
    """Wait until the worker's record says whether it is quiet."""
    key = bed.keys.private("worker", worker.id, "about")
    await until(lambda: (b'"quiet":true' in (bed.admin.get(key) or b"")) is quiet)


async def known(bed: WorkerBed, worker: Worker) -> None:
    await until(lambda: bed.admin.exists(bed.keys.private("worker", worker.id, "about")) == 1)


async def test_a_quiet_worker_finishes_its_job_and_fetches_no_other(bed: WorkerBed) -> None:
    started, go_on = Event(), Event()

    async def handler(job: Any) -> None:
        if job.data == "first":
            started.set()
            await go_on.wait()

    worker = bed.worker(handler, concurrency=1, records=True)
    async with worker.running():
        await bed.queue.add("a", "first")
        await started.wait()
        await known(bed, worker)
        record = await server_of(bed).quiet_worker(worker.id)
        assert record.id == worker.id
        await until(lambda: worker.is_quiet)
        await bed.queue.add("a", "second")
        go_on.set()
        await bed.record.wait_for(events.Completed, 1)
        await recorded(bed, worker, quiet=True)
        assert (await bed.count("waiting"), await bed.count("active")) == (1, 0)
        [reason] = [one for one in (await server_of(bed).why("q")).reasons if one.code == "quiet"]
        assert f"taskbull resume-worker {worker.id}" in reason.text
        await server_of(bed).resume_worker(worker.id)
        await bed.record.wait_for(events.Completed, 2)
        assert not worker.is_quiet
        await recorded(bed, worker, quiet=False)


async def test_another_worker_gets_the_jobs_and_their_markers(bed: WorkerBed) -> None:
    calm, other = Recorder(), Recorder()
    quiet = bed.worker(echo, worker_id="quiet", record=calm, drain_delay=60, concurrency=3)
    busy = bed.worker(echo, worker_id="busy", record=other, drain_delay=60, concurrency=3)
    async with quiet.running():
        await quiet.until_idle()
        # The first worker waits at the marker when it is made quiet.
        await until(lambda: waiting(bed) == 1)
        async with busy.running():
            await until(lambda: waiting(bed) == 2)
            quiet.quiet()
            for number in range(10):
                handle = await bed.queue.add("a", number)
                await until(lambda: handle.id in other.jobs(events.Completed))  # noqa: B023
            delayed = await bed.queue.add("a", "later", delay=0.05)
            await other.wait_for(events.Completed, 1, lambda e: e.job.id == delayed.id)
    assert calm.jobs(events.Completed) == []


def waiting(bed: WorkerBed) -> int:
    """Count the workers that wait at the marker of the queue."""
    return sum(
        client["cmd"] == "bzpopmin" and client["name"].startswith(f"{bed.prefix}:")
        for client in bed.admin.client_list()
    )


async def test_a_request_covers_all_queues_of_the_worker(bed: WorkerBed) -> None:
    worker = bed.worker(echo, queues=["q", "r", "s"], records=True)
    async with worker.running():
        await known(bed, worker)
        await server_of(bed).quiet_worker(worker.id)
        await until(lambda: worker.is_quiet)
        assert all(one.context.is_quiet for one in worker._consumers.values())
        await bed.queue.add("a", 1)
        await server_of(bed).resume_worker(worker.id)
        await bed.record.wait_for(events.Completed, 1)


async def test_a_later_worker_with_the_same_id_is_not_quiet(bed: WorkerBed) -> None:
    first = bed.worker(echo, worker_id="w", records=True)
    async with first.running():
        await known(bed, first)
        await server_of(bed).quiet_worker("w")
        await until(lambda: first.is_quiet)
    assert not first.is_quiet
    async with bed.worker(echo, worker_id="w", records=True).running():
        # The new worker has read the old request once it has read this one.
        await bed.queue.add("a", 1)
        await bed.record.wait_for(events.Completed, 1)
        stack = bed.keys.private("cancel")
        assert bed.admin.xlen(stack) == 1
        await until(lambda: any(c["name"] == "taskbull:requests:w" and c["cmd"] == "xread"
                                for c in bed.admin.client_list()))  # fmt: skip
        await bed.queue.add("a", 2)
        await bed.record.wait_for(events.Completed, 2)


async def test_a_worker_that_does_not_run_is_not_found(bed: WorkerBed) -> None:
    with pytest.raises(WorkerNotFound, match="No taskbull worker 'nobody' is running"):
        await server_of(bed).quiet_worker("nobody")
    assert list(bed.admin.scan_iter(f"{bed.prefix}:*tb:cancel")) == []


async def test_a_quiet_worker_stops_as_usual(bed: WorkerBed) -> None:
    worker = bed.worker(echo)
    async with worker.running():
        worker.quiet()
        await bed.queue.add("a", 1)
    assert await bed.count("waiting") == 1
