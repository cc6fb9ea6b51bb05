"""The circuit breaker at work: a queue whose jobs fail is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from taskbull.core import events
from taskbull.core.retry import CircuitBreaker
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker
from tests.servers.kinds import KINDS
from tests.worker.bed import HandClock, WorkerBed

# The scripts are tested on every kind of server; here it is the worker that counts.
pytestmark = pytest.mark.parametrize("server", KINDS[:1], indirect=True)


def failing_if(bad: Callable[[RunningJob], bool]) -> Any:
    async def handler(job: RunningJob) -> None:
        if bad(job):
            raise ValueError(job.name)

    return handler


def worker(bed: WorkerBed, handler: Any, **options: Any) -> tuple[Worker, HandClock]:
    clock = HandClock()
    breaker = CircuitBreaker(threshold=3, duration=30)
    options.setdefault("concurrency", 1)
    return bed.worker(handler, circuit_breaker=breaker, clock=clock, **options), clock


async def add(bed: WorkerBed, *names: str) -> None:
    await bed.queue.add_bulk([(name, {}, {"attempts": 1}) for name in names])


async def test_it_opens_half_opens_and_closes(bed: WorkerBed) -> None:  # VAL-11, 12, 13
    one, clock = worker(bed, failing_if(lambda job: job.name == "bad"))
    await add(bed, "bad", "bad", "bad", "good", "good")
    async with one.running():
        [opened] = await bed.record.wait_for(events.CircuitOpened)
        await bed.record.wait_for(events.Failed, 3)
        assert (opened.failures, opened.threshold) == (3, 3)
        assert one.circuit_breaker_state("q") == "open"
        assert await bed.count("waiting") == 2
        clock.turn(29.9)
        assert bed.record.of(events.CircuitHalfOpened) == []
        clock.turn(0.2)
        [half_opened] = await bed.record.wait_for(events.CircuitHalfOpened)
        assert half_opened.duration == 30
        [closed] = await bed.record.wait_for(events.CircuitClosed)
        await bed.record.wait_for(events.Completed, 2)
        assert one.circuit_breaker_state("q") == "closed"
    assert closed.test_job_id == "4"
    assert len(bed.record.of(events.CircuitOpened)) == 1
    assert len(bed.record.of(events.CircuitHalfOpened)) == 1
    assert len(bed.record.of(events.CircuitClosed)) == 1


async def test_it_opens_again_on_a_bad_test_job(bed: WorkerBed) -> None:  # VAL-14
    one, clock = worker(bed, failing_if(lambda _: True))
    await add(bed, *["bad"] * 5)
    async with one.running():
        await bed.record.wait_for(events.CircuitOpened)
        clock.turn(30)
        await bed.record.wait_for(events.CircuitOpened, 2)
        await bed.record.wait_for(events.Failed, 4)
        assert one.circuit_breaker_state("q") == "open"
        assert await bed.count("waiting") == 1


async def test_a_success_resets_the_count(bed: WorkerBed) -> None:  # VAL-15
    one, _ = worker(bed, failing_if(lambda job: job.name == "bad"))
    await add(bed, "bad", "bad", "good", "bad", "bad", "good")
    async with one.running():
        await bed.record.wait_for(events.Completed, 2)
    assert bed.record.of(events.CircuitOpened) == []


async def test_an_open_circuit_does_not_hold_up_the_stop(bed: WorkerBed) -> None:  # VAL-17
    one, _ = worker(bed, failing_if(lambda _: True), shutdown_timeout=60)
    await add(bed, *["bad"] * 3)
    with anyio.fail_after(60):
        async with one.running():
            await bed.record.wait_for(events.Failed, 3)
    assert bed.record.of(events.CircuitHalfOpened) == []
    assert bed.record.of(events.CircuitClosed) == []


async def test_a_stall_does_not_count(bed: WorkerBed) -> None:  # VAL-18
    breaker = CircuitBreaker(threshold=1, duration=30)
    handle = await bed.queue.add("work", attempts=1)
    bed.admin.hset(bed.keys.job(handle.id), "defa", "job stalled more than allowable limit")
    one = bed.worker(failing_if(lambda _: False), circuit_breaker=breaker)
    async with one.running():
        await bed.record.wait_for(events.Failed)
        assert one.circuit_breaker_state("q") == "closed"


async def test_while_it_is_half_open_only_so_many_jobs_are_tried(bed: WorkerBed) -> None:
    go_on = anyio.Event()
    tried = 0

    async def handler(job: RunningJob) -> None:
        nonlocal tried
        if job.name == "bad":
            raise ValueError
        tried += 1
        await go_on.wait()

    breaker = CircuitBreaker(threshold=1, duration=30, half_open_max_attempts=2)
    clock = HandClock()
    await add(bed, "bad")
    async with bed.worker(handler, circuit_breaker=breaker, clock=clock).running():
        await bed.record.wait_for(events.Failed)
        await add(bed, *["good"] * 6)
        clock.turn(30)
        await bed.record.wait_for(events.Started, 3)
        assert tried <= 2
        go_on.set()
        await bed.record.wait_for(events.Completed, 6)
    assert len(bed.record.of(events.CircuitClosed)) == 1


async def test_each_queue_has_its_own(bed: WorkerBed) -> None:
    other = type(bed.queue)("r", redis=bed.url, prefix=bed.prefix)
    await add(bed, "bad")
    await other.add("good")
    breakers = {"q": CircuitBreaker(threshold=1, duration=30)}
    one = bed.worker(
        failing_if(lambda job: job.name == "bad"), queues=["q", "r"], circuit_breaker=breakers
    )
    async with one.running():
        await bed.record.wait_for(events.CircuitOpened)
        await bed.record.wait_for(events.Completed)
        assert one.circuit_breaker_state("q") == "open"
        assert one.circuit_breaker_state("r") is None


async def test_jobs_that_come_when_it_is_open_are_given_back(bed: WorkerBed) -> None:
    """A call that was under way may still bring some."""
    one, clock = worker(bed, failing_if(lambda job: job.name == "bad"), concurrency=60)
    await add(bed, *["bad"] * 3, *["good"] * 100)
    async with one.running():
        await bed.record.wait_for(events.CircuitOpened)
        clock.turn(30)
        await bed.record.wait_for(events.Completed, 100)
    assert await bed.count("completed") == 100


async def test_a_delayed_job_that_is_due_first_does_not_stop_its_clock(bed: WorkerBed) -> None:
    one, clock = worker(bed, failing_if(lambda job: job.name == "bad"))
    await bed.queue.add("later", delay=10)
    async with one.running():
        with anyio.fail_after(60):
            while not await bed.queue.workers():
                await anyio.lowlevel.checkpoint()
        await add(bed, "bad", "bad", "bad")
        await bed.record.wait_for(events.CircuitOpened)
        clock.turn(10)
        await anyio.wait_all_tasks_blocked()
        clock.turn(20.1)
        await bed.record.wait_for(events.CircuitHalfOpened)
        await bed.record.wait_for(events.CircuitClosed)
