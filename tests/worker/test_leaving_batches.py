"""Jobs that leave the call of their batch: one by one, or all together when their worker stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import fail_after

from taskbull import JobHandle, PermanentError, events
from taskbull.core.job import ExecutionMode
from taskbull.core.keys import JobState
from taskbull.worker.batch import Batch
from taskbull.worker.run import Shutdown
from taskbull.worker.running_job import current_batch
from tests.worker.bed import LIMIT, WorkerBed, until
from tests.worker.test_gatherer import FAR, gathered


async def add(bed: WorkerBed, count: int) -> list[JobHandle[Any]]:
    return [await bed.queue.add("work") for _ in range(count)]


async def states(jobs: list[JobHandle[Any]]) -> list[JobState]:
    return [await job.astate() for job in jobs]


class Spared:
    """An async function that returns or raises through `end` when it is cancelled."""

    def __init__(self, end: Callable[[Batch], Any]) -> None:
        self._end = end
        self.begun = anyio.Event()

    async def __call__(self, batch: Batch) -> Any:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return self._end(batch)


async def test_results_of_a_call_that_is_stopped_are_kept(bed: WorkerBed) -> None:
    spared = Spared(lambda batch: [job.id for job in batch.jobs])
    worker = bed.worker(None, resolve=gathered(spared, size=3), shutdown_timeout=0)
    with fail_after(LIMIT):
        async with worker.running():
            jobs = await add(bed, 3)
            await spared.begun.wait()
    completed = {event.job.id: event.value for event in bed.record.of(events.Completed)}
    assert completed == {job.id: job.id for job in jobs}
    assert await states(jobs) == [JobState.COMPLETED] * 3


async def test_of_a_call_that_is_stopped_each_item_has_its_own_end(bed: WorkerBed) -> None:
    spared = Spared(lambda batch: ["well", PermanentError("one item")])
    worker = bed.worker(None, resolve=gathered(spared, size=2), shutdown_timeout=0)
    with fail_after(LIMIT):
        async with worker.running():
            jobs = await add(bed, 2)
            await spared.begun.wait()
    assert await states(jobs) == [JobState.COMPLETED, JobState.FAILED]


def give_up(batch: Batch) -> Any:
    raise RuntimeError("because it is stopped")


@pytest.mark.parametrize("end", [give_up, lambda batch: ["too few"]], ids=["raises", "too few"])
async def test_what_has_no_result_when_it_is_stopped_goes_back(
    bed: WorkerBed, end: Callable[[Batch], Any]
) -> None:
    spared = Spared(end)
    worker = bed.worker(None, resolve=gathered(spared, size=2), shutdown_timeout=0)
    with fail_after(LIMIT):
        async with worker.running():
            jobs = await add(bed, 2)
            await spared.begun.wait()
    assert await states(jobs) == [JobState.WAITING] * 2


@pytest.mark.parametrize("execution_mode", [ExecutionMode.LOOP, ExecutionMode.THREAD])
async def test_a_result_that_comes_while_the_worker_stops_is_kept(
    bed: WorkerBed, execution_mode: ExecutionMode
) -> None:
    begun, go = threading.Event(), threading.Event()

    def block(batch: Batch) -> list[str]:
        begun.set()
        go.wait(LIMIT)
        return [job.id for job in batch.jobs]

    async def wait(batch: Batch) -> list[str]:
        begun.set()
        await until(go.is_set)
        return [job.id for job in batch.jobs]

    function: Callable[[Batch], Any] = wait if execution_mode is ExecutionMode.LOOP else block
    worker = bed.worker(
        None,
        resolve=gathered(function, size=2, execution_mode=execution_mode),
        shutdown_timeout=FAR,
    )
    with fail_after(LIMIT):
        async with worker.running() as shutdown:
            jobs = await add(bed, 2)
            await until(begun.is_set)
            shutdown.begin()
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert await states(jobs) == [JobState.COMPLETED] * 2


async def test_what_is_still_gathered_when_the_worker_stops_is_called(bed: WorkerBed) -> None:
    sizes: list[int] = []

    async def function(batch: Batch) -> list[str]:
        sizes.append(len(batch.items))
        return batch.items

    resolve = gathered(function, size=5, wait=0.3)
    with fail_after(LIMIT):
        async with bed.worker(None, resolve=resolve, shutdown_timeout=FAR).running() as shutdown:
            jobs = await add(bed, 2)
            await bed.record.wait_for(events.Started, 2)
            shutdown.begin()
    assert sum(sizes) == 2
    assert await states(jobs) == [JobState.COMPLETED] * 2


async def test_a_result_that_comes_as_the_time_is_up_is_not_lost(bed: WorkerBed) -> None:
    stop: list[Shutdown] = []

    async def function(batch: Batch) -> list[str]:
        stop[0].at_once()  # the jobs are cancelled, and do not know it yet
        return batch.items

    with fail_after(LIMIT):
        async with bed.worker(None, resolve=gathered(function, size=2)).running() as shutdown:
            stop.append(shutdown)
            jobs = await add(bed, 2)
            await shutdown.wait()
    assert await states(jobs) == [JobState.COMPLETED] * 2


@pytest.mark.parametrize("execution_mode", [ExecutionMode.LOOP, ExecutionMode.THREAD])
async def test_a_function_can_see_which_of_its_jobs_was_cancelled(
    bed: WorkerBed, execution_mode: ExecutionMode
) -> None:
    seen: list[list[bool]] = []
    looked, go = threading.Event(), threading.Event()

    def check() -> None:
        seen.append([job.cancelled for job in current_batch()])

    def block(batch: Batch) -> list[str]:
        check()
        looked.set()
        go.wait(LIMIT)
        check()
        return [job.id for job in batch.jobs]

    async def wait(batch: Batch) -> list[str]:
        check()
        looked.set()
        await until(go.is_set)
        check()
        return [job.id for job in batch.jobs]

    function: Callable[[Batch], Any] = wait if execution_mode is ExecutionMode.LOOP else block
    with fail_after(LIMIT):
        async with bed.worker(
            None, resolve=gathered(function, size=3, execution_mode=execution_mode)
        ).running():
            jobs = await add(bed, 3)
            await until(looked.is_set)
            await jobs[1].acancel("no longer wanted")
            [failed] = await bed.record.wait_for(events.Failed)
            assert failed.job.id == jobs[1].id
            go.set()
            await bed.record.wait_for(events.Completed, 2)
    assert seen == [[False] * 3, [False, True, False]]
    assert await states(jobs) == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
