"""Batches: when a call starts, which jobs leave it, and which run alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import fail_after

from taskbull import events
from taskbull.core.job import ExecutionMode
from taskbull.core.retry import RetryPolicy
from taskbull.queue.queue import Queue
from taskbull.worker.attempt import Route
from taskbull.worker.batch import Batch, BatchRules
from taskbull.worker.heartbeat import find_culprit
from taskbull.worker.running_job import current_batch
from tests.worker.bed import LIMIT, HandClock, WorkerBed, until
from tests.worker.looking import lock_of

FAR = 3600.0


def read(raw: bytes) -> str:
    return raw.decode()


class Calls:
    """A batch function that notes its calls, and may be held up."""

    def __init__(self, *, held: bool = False) -> None:
        self.sizes: list[int] = []
        self.at_once = self.most = 0
        self.cancelled = 0
        self.go = anyio.Event()
        if not held:
            self.go.set()

    async def __call__(self, batch: Batch) -> list[str]:
        assert [job.job.raw_data.decode() for job in batch.jobs] == batch.items
        self.sizes.append(len(batch.items))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        return [job.id for job in current_batch()]


def gathered(
    function: Callable[[Batch], Any],
    *,
    size: int,
    wait: float = FAR,
    parallel: int = 1,
    attempts: int = 1,
    execution_mode: ExecutionMode = ExecutionMode.LOOP,
    timeout: float | None = None,
) -> Callable[[object], Route]:
    rules = BatchRules(size, wait, parallel, read)
    policy = RetryPolicy(attempts=attempts)
    route = Route(function, policy, timeout, execution_mode=execution_mode, batch=rules)
    return lambda _: route


async def test_the_first_waits_by_the_clock(bed: WorkerBed) -> None:
    clock, calls = HandClock(), Calls()
    worker = bed.worker(None, resolve=gathered(calls, size=3, wait=60), clock=clock)
    with fail_after(LIMIT):
        async with worker.running():
            for _ in range(2):
                await bed.queue.add("work")
            await bed.record.wait_for(events.Started, 2)
            clock.turn(59)
            await anyio.wait_all_tasks_blocked()
            assert calls.sizes == []
            clock.turn(2)
            await bed.record.wait_for(events.Completed, 2)
            assert calls.sizes == [2]
            for _ in range(3):  # a full one does not wait
                await bed.queue.add("work")
            await bed.record.wait_for(events.Completed, 5)
    assert calls.sizes == [2, 3]


async def test_what_comes_during_a_call_is_gathered_for_the_next(bed: WorkerBed) -> None:
    calls = Calls(held=True)
    worker = bed.worker(None, resolve=gathered(calls, size=2), concurrency=6)
    with fail_after(LIMIT):
        async with worker.running():
            for _ in range(6):
                await bed.queue.add("work")
            await bed.record.wait_for(events.Started, 6)
            assert calls.sizes == [2]
            calls.go.set()
            await bed.record.wait_for(events.Completed, 6)
    assert calls.sizes == [2, 2, 2]
    assert calls.most == 1


async def test_two_queues_share_the_calls_of_a_task(bed: WorkerBed) -> None:
    calls = Calls()
    other = Queue("other", redis=bed.url, prefix=bed.prefix)
    worker = bed.worker(
        None, resolve=gathered(calls, size=4, wait=0.01), queues=["q", "other"], concurrency=2
    )
    with fail_after(LIMIT):
        for queue in (bed.queue, other):
            for _ in range(4):
                await queue.add("work")
        async with worker.running():
            await bed.record.wait_for(events.Completed, 8)
    assert sum(calls.sizes) == 8
    assert calls.most == 1


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_lost_job_leaves_before_its_call(bed: WorkerBed, in_time: bool) -> None:
    calls, clock = Calls(), HandClock()
    worker = bed.worker(
        None,
        resolve=gathered(calls, size=3, wait=60),
        clock=clock,
        lock_duration=10,
        heartbeat_interval=0.1,
        stalled_interval=FAR,
        on_lost_lock="cancel" if in_time else "continue",
    )
    with fail_after(LIMIT):
        async with worker.running():
            jobs = [await bed.queue.add("work") for _ in range(2)]
            await bed.record.wait_for(events.Started, 2)
            bed.admin.set(lock_of(bed, jobs[0].id), "another's")
            await bed.record.wait_for(events.Lost)
            clock.turn(61)
            [completed] = await bed.record.wait_for(events.Completed)
    assert calls.sizes == [1]
    assert completed.job.id == jobs[1].id
    assert len(bed.record.of(events.Ended)) == 2


async def test_a_lost_job_leaves_its_call_and_hurts_no_neighbour(bed: WorkerBed) -> None:
    calls = Calls(held=True)
    worker = bed.worker(
        None,
        resolve=gathered(calls, size=3),
        lock_duration=10,
        heartbeat_interval=0.1,
        stalled_interval=FAR,
        on_lost_lock="cancel",
    )
    with fail_after(LIMIT):
        async with worker.running():
            jobs = [await bed.queue.add("work") for _ in range(3)]
            await until(lambda: calls.sizes == [3])
            bed.admin.set(lock_of(bed, jobs[1].id), "another's")
            [lost] = await bed.record.wait_for(events.Lost)
            assert lost.job.id == jobs[1].id
            calls.go.set()
            await bed.record.wait_for(events.Completed, 2)
    assert calls.cancelled == 0
    completed = {event.job.id: event.value for event in bed.record.of(events.Completed)}
    assert completed == {jobs[0].id: jobs[0].id, jobs[2].id: jobs[2].id}


async def test_a_call_that_all_have_left_is_cancelled(bed: WorkerBed) -> None:
    calls = Calls(held=True)
    worker = bed.worker(
        None,
        resolve=gathered(calls, size=2),
        lock_duration=10,
        heartbeat_interval=0.1,
        stalled_interval=FAR,
        on_lost_lock="cancel",
    )
    with fail_after(LIMIT):
        async with worker.running():
            jobs = [await bed.queue.add("work") for _ in range(2)]
            await until(lambda: calls.sizes == [2])
            for job in jobs:
                bed.admin.set(lock_of(bed, job.id), "another's")
            await bed.record.wait_for(events.Lost, 2)
            await until(lambda: calls.cancelled == 1)
            calls.go.set()
            for _ in range(2):  # the next call is not held up
                await bed.queue.add("work")
            await bed.record.wait_for(events.Completed, 2)
    assert calls.sizes == [2, 2]


async def test_a_job_that_has_stalled_is_called_alone(bed: WorkerBed) -> None:
    calls = Calls()
    with fail_after(LIMIT):
        jobs = [await bed.queue.add("work") for _ in range(3)]
        bed.admin.hset(bed.keys.job(jobs[1].id), "stc", 1)
        worker = bed.worker(None, resolve=gathered(calls, size=2), concurrency=3)
        async with worker.running():
            await bed.record.wait_for(events.Completed, 3)
    assert sorted(calls.sizes) == [1, 2]


async def test_a_single_attempt_is_not_a_last_of_several(bed: WorkerBed) -> None:
    calls = Calls()
    with fail_after(LIMIT):
        for attempts in (1, 1, 5):
            await bed.queue.add("work", {}, attempts=attempts)
        worker = bed.worker(None, resolve=gathered(calls, size=3), concurrency=3)
        async with worker.running():
            await bed.record.wait_for(events.Completed, 3)
    assert calls.sizes == [3]


async def test_a_thread_that_outlives_its_batch_is_reported(
    bed: WorkerBed,
) -> None:
    over = threading.Event()

    def block(batch: Batch) -> list[str]:
        over.wait(LIMIT)
        return batch.items

    resolve = gathered(block, size=2, execution_mode=ExecutionMode.THREAD, timeout=0.05)
    with fail_after(LIMIT):
        async with bed.worker(None, resolve=resolve).running():
            jobs = [await bed.queue.add("work") for _ in range(2)]
            await bed.record.wait_for(events.Failed, 2)
            [abandoned] = await bed.record.wait_for(events.ThreadAbandoned)
            over.set()
    assert abandoned.job.id in {job.id for job in jobs}
    assert {event.failure.reason for event in bed.record.of(events.Failed)} == {
        "TimeoutError: the batch took longer than 0.05 s, the shortest timeout of its jobs"
    }


async def test_who_blocks_the_event_loop_is_known_in_a_batch_too(bed: WorkerBed) -> None:
    found: list[Any] = []

    async def function(batch: Batch) -> list[str]:
        found.append(find_culprit(sys._getframe()))
        return batch.items

    with fail_after(LIMIT):
        jobs = [await bed.queue.add("work") for _ in range(2)]
        async with bed.worker(None, resolve=gathered(function, size=2), concurrency=2).running():
            await bed.record.wait_for(events.Completed, 2)
    assert found[0].job.id in {job.id for job in jobs}
    assert "test_gatherer.py" in found[0].where


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_what_is_unusual_fails_the_jobs_and_nothing_else(
    bed: WorkerBed, error: BaseException
) -> None:
    async def function(batch: Batch) -> list[str]:
        if batch.jobs[0].name == "bad":
            raise error
        return batch.items

    with fail_after(LIMIT):
        async with bed.worker(None, resolve=gathered(function, size=2), concurrency=2).running():
            for name in ("bad", "bad", "good", "good"):
                await bed.queue.add(name)
            await bed.record.wait_for(events.Failed, 2)
            await bed.record.wait_for(events.Completed, 2)
