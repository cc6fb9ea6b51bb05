"""Cancelling a running job also cancels its children that have not started."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import Event, fail_after, sleep_forever

from taskbull import JobHandle
from taskbull.core import events
from taskbull.core.keys import JobState
from taskbull.core.outcome import Cancelled
from taskbull.errors import PermanentError, WaitForChildren
from taskbull.worker.consumer import CancelledParents
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import LIMIT, WorkerBed, echo, until

FAR = 3600


class Parent:
    """A job that spawns two children, which start after this many seconds, and then waits."""

    def __init__(self, bed: WorkerBed, *delays: int) -> None:
        self._bed = bed
        self._delays = delays
        self.spawned = Event()
        self.go = Event()
        self.ids: list[str] = []
        self.ran: list[str] = []

    async def __call__(self, job: RunningJob) -> Any:
        if job.name == "child":
            self.ran.append(job.id)
            return await sleep_forever()
        spawned = [self._bed.queue.job("child", delay=delay) for delay in self._delays]
        self.ids = await job.aspawn(spawned)
        self.spawned.set()
        await self.go.wait()
        if job.name == "waits":
            raise WaitForChildren
        raise PermanentError("its own error")


async def _check_cancelled(bed: WorkerBed, parent: JobHandle[Any], ids: list[str]) -> None:
    reason = f"cancelled: parent {bed.keys.job(parent.id)}"
    assert [(await bed.job(job_id)).failed_reason for job_id in ids] == [reason] * len(ids)


async def test_children_are_cancelled_when_their_running_parent_has_ended(bed: WorkerBed) -> None:
    handler = Parent(bed, FAR, FAR)
    with fail_after(LIMIT):
        async with bed.worker(handler, concurrency=1).running():
            parent = await bed.queue.add("spawns")
            await handler.spawned.wait()
            assert await parent.acancel() is Cancelled.REQUESTED
            await until(lambda: bed.admin.zcard(bed.keys.failed) == 3)
    await _check_cancelled(bed, parent, handler.ids)
    assert handler.ran == []
    assert bed.admin.keys(f"{bed.keys.base}tb:cancelling*") == []


async def test_a_child_that_runs_continues(bed: WorkerBed) -> None:
    handler = Parent(bed, 0, FAR)
    with fail_after(LIMIT):
        async with bed.worker(handler, concurrency=2, shutdown_timeout=0).running():
            parent = await bed.queue.add("spawns")
            await until(lambda: len(handler.ran) == 1)
            await parent.acancel()
            await until(lambda: bed.admin.zcard(bed.keys.failed) == 2)
            [running] = handler.ran
            assert bed.admin.lrange(bed.keys.active, 0, -1) == [running.encode()]
    [other] = set(handler.ids) - {running}
    await _check_cancelled(bed, parent, [other])


async def test_a_parent_that_would_wait_for_its_children_takes_them_along(bed: WorkerBed) -> None:
    handler = Parent(bed, FAR, FAR)
    with fail_after(LIMIT):
        async with bed.worker(handler, concurrency=1).running():
            parent = await bed.queue.add("waits")
            await handler.spawned.wait()
            # As if the worker could not be notified in time: only the mark exists.
            bed.admin.hset(bed.keys.job(parent.id), "defa", "cancelled: enough")
            handler.go.set()
            await until(lambda: bed.admin.zcard(bed.keys.failed) == 3)
    await _check_cancelled(bed, parent, handler.ids)


async def test_the_children_of_a_parent_that_ends_by_its_own_error_continue(bed: WorkerBed) -> None:
    handler = Parent(bed, 0, FAR)
    with fail_after(LIMIT):
        async with bed.worker(handler, concurrency=1, shutdown_timeout=0).running():
            await bed.queue.add("spawns")
            await handler.spawned.wait()
            handler.go.set()
            await until(lambda: len(handler.ran) == 1)
    assert await bed.count("failed") == 1
    assert await bed.count("delayed") == 1


async def test_what_a_worker_has_left_undone_is_done_by_a_sweep(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Parent(bed, FAR, FAR)
    with monkeypatch.context() as patch, fail_after(LIMIT):
        # A worker that dies between the two: it writes the end, and does nothing more.
        patch.setattr(CancelledParents, "on_event", lambda *_: None)
        async with bed.worker(handler, concurrency=1, shutdown_timeout=0).running() as shutdown:
            parent = await bed.queue.add("spawns")
            await handler.spawned.wait()
            await parent.acancel()
            await bed.record.wait_for(events.Failed)
            shutdown.at_once()
    assert await bed.count("failed") == 1
    bed.admin.delete(bed.keys.stalled_check)
    with fail_after(LIMIT):
        async with bed.worker(handler).running():
            await until(lambda: bed.admin.zcard(bed.keys.failed) == 3)
    await _check_cancelled(bed, parent, handler.ids)


@pytest.mark.parametrize("flows", ["not a set of flows", "a root of another queue"])
async def test_flows_that_cannot_be_undone_keep_no_child_from_being_cancelled(  # S3
    bed: WorkerBed, flows: str, caplog: pytest.LogCaptureFixture
) -> None:
    key, parent = bed.keys.private("flows"), bed.keys.job("top")
    if flows == "not a set of flows":
        bed.admin.set(key, flows)
    else:
        bed.admin.zadd(key, {f"{bed.prefix}:other:top": 1})
    child = await bed.queue.add("child", delay=FAR)
    bed.admin.hset(bed.keys.job(child.id), "parentKey", parent)
    bed.admin.sadd(f"{parent}:dependencies", bed.keys.job(child.id))
    bed.admin.rpush(bed.keys.private("cancelling", "top", "parents"), f"{parent}:dependencies")
    bed.admin.sadd(bed.keys.private("cancelling"), "top")
    with fail_after(LIMIT):
        async with bed.worker(echo).running():
            await until(lambda: bed.admin.zcard(bed.keys.failed) == 1)
    expected = "Redis refused the sweep" if bed.admin.exists(key) else "skipped 1 unfinished flows"
    assert expected in caplog.text


@pytest.mark.parametrize("state", [JobState.FAILED])
async def test_a_job_without_children_ends_as_before(bed: WorkerBed, state: JobState) -> None:
    begun = Event()

    async def hang(_: RunningJob) -> None:
        begun.set()
        await sleep_forever()

    with fail_after(LIMIT):
        async with bed.worker(hang).running():
            job = await bed.queue.add("alone")
            await begun.wait()
            await job.acancel()
            await bed.record.wait_for(events.Failed)
    assert await job.astate() is state
    assert bed.admin.keys(f"{bed.keys.base}tb:cancelling*") == []
