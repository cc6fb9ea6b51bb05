"""Running jobs that are cancelled are notified, and finish once."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import Event, create_task_group, fail_after, sleep_forever

from taskbull.core import events
from taskbull.core.options import Keep
from taskbull.core.outcome import Cancelled, Verdict
from taskbull.core.retry import BreakerState, CircuitBreaker
from taskbull.core.schedule import Every
from taskbull.errors import (
    CancelRequested,
    JobCancelled,
    PermanentError,
    RateLimited,
    Snooze,
    WaitForChildren,
)
from taskbull.scripts.change import requests_key
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed, until
from tests.worker.looking import ends, lock_of

FAR = 86_400
WHY = "cancelled: enough"


class Sleeper:
    """A handler that runs until it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def __call__(self, _: RunningJob) -> None:
        try:
            await sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


async def _stopped(bed: WorkerBed, job_id: str, **worker: Any) -> events.Failed:
    """Cancel a job when it runs; give the event of its end."""
    await bed.record.wait_for(events.Started)
    assert await bed.queue.cancel(job_id, "enough") is Cancelled.REQUESTED
    [failed] = await bed.record.wait_for(events.Failed)
    return failed


async def _check_cancelled(bed: WorkerBed, job_id: str, failed: events.Failed) -> None:
    assert (failed.verdict, failed.failure.reason) == (Verdict.CANCELLED, WHY)
    job = await bed.job(job_id)
    assert (job.failed_reason, job.deferred_failure) == (WHY, None)
    assert ends(bed)[job_id] == 1
    assert await bed.count("active") == 0


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("on_lost_lock", ["continue", "cancel"])
async def test_an_async_function_is_cancelled_at_its_next_await(
    bed: WorkerBed, timeout: float | None, on_lost_lock: str
) -> None:
    handler = Sleeper()
    handle = await bed.queue.add("work", timeout=timeout)
    async with bed.worker(handler, on_lost_lock=on_lost_lock).running():
        failed = await _stopped(bed, handle.id)
        with pytest.raises(JobCancelled) as caught:
            await handle.aresult(timeout=60)
    assert handler.cancelled == 1
    assert caught.value.reason == WHY
    await _check_cancelled(bed, handle.id, failed)


async def test_the_slot_of_a_cancelled_job_runs_the_next_ones(bed: WorkerBed) -> None:
    sleeper = Sleeper()

    async def handler(job: RunningJob) -> str:
        if job.name == "sleep":
            await sleeper(job)
        await anyio.lowlevel.checkpoint()
        return job.name

    async with bed.worker(handler, concurrency=1).running():
        for number in range(1, 6):
            handle = await bed.queue.add("sleep")
            await bed.record.wait_for(events.Started, 2 * number - 1)
            await bed.queue.cancel(handle.id)
            done = await bed.queue.add("next")
            assert await done.aresult(timeout=60) == "next"
    assert sleeper.cancelled == 5
    assert len(bed.record.of(events.Failed)) == 5


async def test_a_value_that_is_returned_in_spite_of_it_counts(bed: WorkerBed) -> None:
    async def handler(job: RunningJob) -> str:
        if job.name == "work":
            with suppress(anyio.get_cancelled_exc_class()):
                await sleep_forever()
        return "done"

    handle = await bed.queue.add("work")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Started)
        await bed.queue.cancel(handle.id)
        [completed] = await bed.record.wait_for(events.Completed)
        await bed.queue.add("next")
        await bed.record.wait_for(events.Completed, 2)
    assert completed.value == "done"
    assert (await bed.job(handle.id)).deferred_failure is None


async def test_another_error_that_is_raised_then_has_its_stack_kept(bed: WorkerBed) -> None:
    async def handler(_: RunningJob) -> None:
        try:
            await sleep_forever()
        finally:
            raise ValueError("while it ended")

    handle = await bed.queue.add("work", attempts=3)
    async with bed.worker(handler).running():
        failed = await _stopped(bed, handle.id)
    await _check_cancelled(bed, handle.id, failed)
    assert "ValueError: while it ended" in (await bed.job(handle.id)).stacktrace[-1]


async def test_a_task_group_in_the_function_ends_with_it(bed: WorkerBed) -> None:
    inner = Sleeper()

    async def handler(job: RunningJob) -> None:
        async with create_task_group() as tasks:
            tasks.start_soon(inner, job)
            tasks.start_soon(inner, job)

    handle = await bed.queue.add("work")
    async with bed.worker(handler).running():
        failed = await _stopped(bed, handle.id)
    assert inner.cancelled == 2
    await _check_cancelled(bed, handle.id, failed)


class Plain:
    """A sync function that asks now and then, or not at all."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.began = threading.Event()
        self.go = threading.Event()

    def __call__(self, job: RunningJob) -> str:
        self.began.set()
        if self.way in {"never asks", "fails"}:
            self.go.wait(60)
            if self.way == "fails":
                raise PermanentError("its own")
            return "done"
        while not (self.way == "checks" or job.cancelled):
            time.sleep(0.005)
        while self.way == "checks":
            job.check()
            time.sleep(0.005)
        return "in part"


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("way", ["asks", "checks"])
async def test_a_plain_function_that_asks_ends_as_cancelled(
    bed: WorkerBed, way: str, timeout: float | None
) -> None:
    handle = await bed.queue.add("work", timeout=timeout)
    async with bed.worker(Plain(way)).running():
        failed = await _stopped(bed, handle.id)
    await _check_cancelled(bed, handle.id, failed)
    assert bed.record.of(events.ThreadAbandoned) == []


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("way", ["never asks", "fails"])
async def test_the_end_of_a_plain_function_that_never_asks_counts(
    bed: WorkerBed, way: str, timeout: float | None
) -> None:
    plain = Plain(way)
    handle = await bed.queue.add("work", timeout=timeout)
    async with bed.worker(plain).running():
        await until(plain.began.is_set)
        assert await bed.queue.cancel(handle.id) is Cancelled.REQUESTED
        plain.go.set()
        [ended] = await bed.record.wait_for(events.Ended)
    job = await bed.job(handle.id)
    if way == "fails":
        assert isinstance(ended, events.Failed)
        assert job.failed_reason == "its own"
    else:
        assert isinstance(ended, events.Completed)
        assert job.returnvalue == "done"
    assert job.deferred_failure is None


async def test_a_plain_function_that_waits_for_a_thread_is_withdrawn(bed: WorkerBed) -> None:
    first = Plain("never asks")
    ran: list[str] = []

    def handler(job: RunningJob) -> str:
        ran.append(job.id)
        return first(job)

    one, two = await bed.queue.add_bulk([("work", {})] * 2)
    async with bed.worker(handler, concurrency=2, threads=1).running():
        await bed.record.wait_for(events.Started, 2)
        await until(first.began.is_set)
        [running] = ran
        waiting = two if running == one.id else one
        await bed.queue.cancel(waiting.id, "enough")
        [failed] = await bed.record.wait_for(events.Failed)
        first.go.set()
        await bed.record.wait_for(events.Completed)
        again = await bed.queue.add("work")
        await again.aresult(timeout=60)
    await _check_cancelled(bed, waiting.id, failed)
    assert ran == [running, again.id]


@pytest.mark.parametrize(
    "word",
    [ValueError("broke"), Snooze(60), RateLimited(0.01), WaitForChildren()],
    ids=lambda word: type(word).__name__,
)
async def test_a_cancelled_job_does_not_start_again(bed: WorkerBed, word: Exception) -> None:
    plain = Plain("never asks")

    def handler(job: RunningJob) -> None:
        plain(job)
        raise word

    handle = await bed.queue.add("work", attempts=5)
    async with bed.worker(handler).running():
        await until(plain.began.is_set)
        await bed.queue.cancel(handle.id, "enough")
        plain.go.set()
        [ended] = await bed.record.wait_for(events.Ended)
    assert isinstance(ended, events.Failed)
    await _check_cancelled(bed, handle.id, ended)


async def test_a_job_that_a_stopping_worker_gives_back_does_not_begin_again(
    bed: WorkerBed,
) -> None:
    plain = Plain("never asks")
    handle = await bed.queue.add("work")
    async with bed.worker(plain, shutdown_timeout=0.05).running() as shutdown:
        await until(plain.began.is_set)
        await bed.queue.cancel(handle.id, "enough")
        shutdown.begin()
        [failed] = await bed.record.wait_for(events.Failed)
    plain.go.set()
    await _check_cancelled(bed, handle.id, failed)


async def test_a_job_can_be_cancelled_while_its_worker_stops(bed: WorkerBed) -> None:
    handle = await bed.queue.add("work")
    async with bed.worker(Sleeper(), shutdown_timeout=60).running() as shutdown:
        await bed.record.wait_for(events.Started)
        shutdown.begin()
        failed = await _stopped(bed, handle.id)
    await _check_cancelled(bed, handle.id, failed)


async def test_a_cancelled_run_of_a_schedule_is_followed_by_the_next(bed: WorkerBed) -> None:
    ran: list[str] = []

    async def handler(job: RunningJob) -> None:
        ran.append(job.id)

    await bed.queue.upsert_schedule("s", Every(0.2), bed.queue.job("tick"))
    [first] = await bed.queue.get_jobs("waiting") or await bed.queue.get_jobs("delayed")
    assert await bed.queue.cancel(first.id, "enough") is Cancelled.REQUESTED
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
        await bed.record.wait_for(events.Completed)
    assert (failed.job.id, failed.verdict) == (first.id, Verdict.CANCELLED)
    assert first.id not in ran
    assert await bed.queue.get_schedule("s") is not None


async def test_the_message_is_for_one_run_and_not_for_a_later_one(bed: WorkerBed) -> None:
    go = Event()

    async def handler(_: RunningJob) -> str:
        await go.wait()
        return "done"

    handle = await bed.queue.add("work")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Started)
        token = bed.admin.get(lock_of(bed, handle.id))
        assert token is not None
        bed.admin.xadd(
            requests_key(bed.keys), {"id": handle.id, "token": "tb:older:1", "reason": WHY}
        )
        other = await bed.queue.add("other")
        await bed.record.wait_for(events.Started, 2)
        await bed.queue.cancel(other.id)  # when this was read, so was the one before
        await bed.record.wait_for(events.Failed)
        go.set()
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.job.id == handle.id


async def _lose_the_stream(bed: WorkerBed, job_id: str) -> None:
    await bed.queue.cancel(job_id, "enough")
    bed.admin.delete(requests_key(bed.keys))


async def _break_the_stream(bed: WorkerBed, job_id: str) -> None:
    bed.admin.set(requests_key(bed.keys), "no stream")
    assert await bed.queue.cancel(job_id, "enough") is Cancelled.REQUESTED


@pytest.mark.parametrize("harm", [_lose_the_stream, _break_the_stream])
@pytest.mark.parametrize("kind", [Sleeper, lambda: Plain("asks")], ids=["async", "plain"])
async def test_what_the_message_does_not_tell_the_heartbeat_does(
    bed: WorkerBed, harm: Any, kind: Any
) -> None:
    handle = await bed.queue.add("work")
    async with bed.worker(kind(), heartbeat_interval=0.1).running():
        await bed.record.wait_for(events.Started)
        await harm(bed, handle.id)
        [failed] = await bed.record.wait_for(events.Failed)
    await _check_cancelled(bed, handle.id, failed)


async def test_a_plain_function_sees_it_while_the_event_loop_is_blocked(bed: WorkerBed) -> None:
    seen = threading.Event()

    def plain(job: RunningJob) -> None:
        while not job.cancelled:
            time.sleep(0.005)
        seen.set()

    async def handler(job: RunningJob) -> None:
        assert seen.wait(60)  # blocks the loop, where the message is read

    worker = bed.worker(plain, heartbeat_interval=0.1, record=bed.record)
    handle = await bed.queue.add("work")
    async with worker.running():
        await bed.record.wait_for(events.Started)
        bed.admin.hset(bed.keys.job(handle.id), "defa", WHY)
        await handler(None)  # type: ignore[arg-type]
        [failed] = await bed.record.wait_for(events.Failed)
    await _check_cancelled(bed, handle.id, failed)


async def test_a_reader_whose_connection_is_killed_continues(bed: WorkerBed) -> None:
    one, two = await bed.queue.add_bulk([("work", {})] * 2)
    async with bed.worker(Sleeper(), heartbeat_interval=60, lock_duration=120).running():
        await bed.record.wait_for(events.Started, 2)
        await until(lambda: bool(_readers(bed)))
        bed.admin.client_kill_filter(_type="normal", skipme=True)
        await bed.queue.cancel(one.id)
        await bed.record.wait_for(events.Failed)
        await bed.queue.cancel(two.id)
        await bed.record.wait_for(events.Failed, 2)
    assert await bed.count("failed") == 2


def _readers(bed: WorkerBed) -> list[Any]:
    return [one for one in bed.admin.client_list() if one["cmd"].startswith("xread")]


async def test_a_cancelled_job_says_nothing_to_the_breaker(bed: WorkerBed) -> None:
    sleeper = Sleeper()

    async def handler(job: RunningJob) -> None:
        if job.name == "fail":
            raise ValueError("broke")
        if job.name == "sleep":
            await sleeper(job)

    breaker = CircuitBreaker(threshold=2, duration=0.05)
    worker = bed.worker(handler, circuit_breaker=breaker, concurrency=1)
    async with worker.running():
        for number in range(1, 4):
            handle = await bed.queue.add("sleep")
            await bed.record.wait_for(events.Started, number)
            await bed.queue.cancel(handle.id)
            await bed.record.wait_for(events.Failed, number)
        assert worker.circuit_breaker_state("q") is BreakerState.CLOSED
        await bed.queue.add_bulk([("fail", {}, {"attempts": 1})] * 2)
        await bed.record.wait_for(events.CircuitHalfOpened)
        trial = await bed.queue.add("sleep")
        await bed.record.wait_for(events.Started, where=lambda e: e.job.id == trial.id)
        await bed.queue.cancel(trial.id)
        await bed.queue.add("fine")  # the trial has freed its place
        await bed.record.wait_for(events.CircuitClosed)


async def test_a_task_may_say_by_itself_that_it_is_cancelled(bed: WorkerBed) -> None:
    async def handler(_: RunningJob) -> None:
        raise CancelRequested("the customer is gone")

    handle = await bed.queue.add("work", attempts=3)
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.CANCELLED
    assert (await bed.job(handle.id)).failed_reason == "cancelled: the customer is gone"


async def test_a_request_that_comes_before_its_job_is_kept_for_it(bed: WorkerBed) -> None:
    """The reply with the job arrives after the request to stop it."""
    ran: list[str] = []

    async def handler(job: RunningJob) -> None:
        ran.append(job.id)

    worker = bed.worker(handler, drain_delay=60)
    async with worker.running():
        await worker.until_idle()
        cycle = worker._consumers["q"].cycle
        sequence = cycle._sequences[-1]  # the next call is under its next token
        token = sequence.next_token()
        cycle._sequences.remove(sequence)  # as if that call were in flight
        cycle.stop_job("late", token, WHY)
        sequence._calls -= 1
        cycle._sequences.append(sequence)
        await bed.queue.add("work", job_id="late")
        [failed] = await bed.record.wait_for(events.Failed)
        again = await bed.queue.add("work")
        await again.aresult(timeout=60)
        assert cycle._intake.early == {}
    await _check_cancelled(bed, "late", failed)
    assert ran == [again.id]


async def test_a_request_for_a_call_that_is_over_is_not_kept(bed: WorkerBed) -> None:
    worker = bed.worker(Sleeper())
    async with worker.running():
        await worker.until_idle()
        cycle = worker._consumers["q"].cycle
        cycle.stop_job("gone", f"{cycle._sequences[-1]._id}:1", WHY)
        cycle.stop_job("gone", "tb:another:1", WHY)
        assert cycle._intake.early == {}


async def test_a_function_reads_why_it_is_to_stop(bed: WorkerBed) -> None:
    said: list[str] = []

    def plain(job: RunningJob) -> None:
        try:
            while True:
                job.check()
                time.sleep(0.005)
        except CancelRequested as error:
            said.append(str(error))
            raise

    handle = await bed.queue.add("work")
    async with bed.worker(plain).running():
        await _stopped(bed, handle.id)
    assert said == [WHY]


@pytest.mark.parametrize("state", ["waiting", "delayed"])
async def test_waiting_for_a_cancelled_job_fails_immediately(bed: WorkerBed, state: str) -> None:
    delay = 60 if state == "delayed" else None
    for keep in (Keep.all(), Keep.none()):
        handle = await bed.queue.add("work", delay=delay, keep_failed=keep)
        with fail_after(60):
            async with create_task_group() as tasks:
                tasks.start_soon(_expect_cancelled, handle)
                await until(lambda: bool(_readers(bed)))
                assert await handle.acancel() is Cancelled.BEFORE_START


async def _expect_cancelled(handle: Any) -> None:
    with pytest.raises(JobCancelled, match="cancelled: by request"):
        await handle.aresult()
