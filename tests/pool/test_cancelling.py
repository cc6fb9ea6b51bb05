"""A job that is cancelled, or expires, while it runs in a process or waits for one."""

from __future__ import annotations

import time

import pytest

from taskbull import Cancelled, JobCancelled, JobExpired
from taskbull.core import events
from taskbull.core.outcome import Verdict
from tests.pool.conftest import PoolBed, is_there
from tests.worker.bed import until


@pytest.mark.parametrize("how", ["sleep", "spin", "regex", "deaf"])
async def test_a_cancelled_job_ends_with_its_process(bed: PoolBed, how: str) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        handle = await bed.stay.adelay(how)
        await bed.file(f"stays-{pid}")
        assert await handle.acancel("no longer wanted") is Cancelled.REQUESTED
        with pytest.raises(JobCancelled) as caught:
            await handle.aresult(timeout=60)
        assert caught.value.reason == "cancelled: no longer wanted"
        [failed] = await bed.record.wait_for(events.Failed)
        assert failed.verdict is Verdict.CANCELLED
        if how == "spin":
            assert "in spin" in failed.failure.stack
        await until(lambda: not is_there(pid))
        assert (await bed.result("who", 3))[1] == 3


async def test_the_function_learns_that_its_job_was_cancelled(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        handle = await bed.stay.adelay("told")
        await bed.file(f"stays-{pid}")
        await handle.acancel()
        with pytest.raises(JobCancelled):
            await handle.aresult(timeout=60)
    assert (bed.folder / "told").read_text() == "[False, True]"


@pytest.mark.full
async def test_a_timeout_is_not_reported_as_a_cancellation(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        await bed.ended("hang", "told")
    assert (bed.folder / "told").read_text() == "[False, False]"


@pytest.mark.parametrize(("how", "ends"), [("quick", "completed"), ("heeding", "failed")])
async def test_a_value_counts_unless_the_function_saw_the_request(
    bed: PoolBed, how: str, ends: str
) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        handle = await bed.stay.adelay(how)
        await bed.file(f"stays-{pid}")
        await handle.acancel()
        await bed.record.wait_for(events.Ended)
        assert await handle.astate() == ends


async def test_a_job_that_waits_for_a_process_is_cancelled_without_one(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        first = await bed.hold.adelay("open")
        await bed.file("holds-open")
        second = await bed.who.adelay(1)
        await bed.record.wait_for(events.Started, 2)
        await second.acancel()
        with pytest.raises(JobCancelled):
            await second.aresult(timeout=60)
        (bed.folder / "open").touch()
        assert {await first.aresult(timeout=60)} == pids == worker.pids


async def test_a_job_that_waits_too_long_for_a_process_expires(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        await bed.hold.adelay("open")
        await bed.file("holds-open")
        second = await bed.who.options(expires=0.5).adelay(1)
        late = time.monotonic() + 0.6
        await bed.record.wait_for(events.Started, 2)
        await until(lambda: time.monotonic() > late)
        (bed.folder / "open").touch()
        with pytest.raises(JobExpired):
            await second.aresult(timeout=60)
