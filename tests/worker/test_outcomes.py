"""The outcome of a job whose handler raises: retried, failed or delayed, depending on the error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.core.outcome import Category, Verdict
from taskbull.core.retry import RetryPolicy
from taskbull.errors import (
    PermanentError,
    RateLimited,
    Retry,
    Snooze,
    TransientError,
    UnrecoverableError,
)
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import KINDS
from tests.worker.bed import HandClock, WorkerBed, echo

# The scripts are tested on every kind of server; here it is the worker that counts.
pytestmark = pytest.mark.parametrize("server", KINDS[:1], indirect=True)


class RateLimitError(Exception):
    """An error that some service's client raises."""


def raising(error: Callable[[RunningJob], BaseException | None]) -> Any:
    async def handler(job: RunningJob) -> str:
        if (raised := error(job)) is not None:
            raise raised
        return "done"

    return handler


async def delays(bed: WorkerBed, error: Callable[[], Exception], **options: Any) -> list[float]:
    """Run a job that always fails; give the seconds between its attempts, by a clock of hand."""
    clock = HandClock()
    await bed.queue.add("work", **options)
    async with bed.worker(raising(lambda _: error()), clock=clock).running():
        for number in range(1, options["attempts"]):
            [*_, retried] = await bed.record.wait_for(events.Retried, number)
            clock.turn(retried.delay)
        await bed.record.wait_for(events.Failed)
    return [event.delay for event in bed.record.of(events.Retried)]


EXPONENTIAL = Backoff.exponential(1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"backoff": Backoff.linear(1)}, [1, 2, 3], id="VAL-01"),
        pytest.param({"backoff": Backoff.polynomial(0.5)}, [0.5, 2, 4.5], id="VAL-02"),
        pytest.param({"backoff": Backoff.polynomial(0.1, exponent=3)}, [0.1, 0.8], id="VAL-03"),
        pytest.param(
            {"backoff": Backoff.exponential(1, max_delay=10)}, [1, 2, 4, 8, 10], id="VAL-05"
        ),
        pytest.param({"backoff": Backoff.linear(5, max_delay=15)}, [5, 10, 15, 15], id="VAL-06"),
        pytest.param(
            {"backoff": EXPONENTIAL, "error_backoffs": {"RateLimitError": Backoff.fixed(30)}},
            [30, 30],
            id="VAL-07",
        ),
        pytest.param(
            {"backoff": EXPONENTIAL, "error_backoffs": {"OtherError": Backoff.fixed(30)}},
            [1, 2],
            id="VAL-08",
        ),
        pytest.param({"backoff": Backoff.fixed(2)}, [2, 2], id="VAL-09"),
        pytest.param({"backoff": EXPONENTIAL}, [1, 2, 4], id="VAL-10"),
        pytest.param({"backoff": None}, [0, 0], id="none"),
    ],
)
async def test_attempts_come_after_the_delays_of_the_backoff(
    bed: WorkerBed, options: dict[str, Any], expected: list[float]
) -> None:
    attempts = len(expected) + 1
    assert await delays(bed, RateLimitError, attempts=attempts, **options) == expected


async def test_the_job_of_an_event_has_the_delay_that_redis_has(bed: WorkerBed) -> None:  # K12
    handle = await bed.queue.add("work", attempts=3, backoff=Backoff.fixed(60))
    raised = iter([Snooze(30), ValueError()])
    async with bed.worker(raising(lambda _: next(raised))).running():
        [released] = await bed.record.wait_for(events.Released)
        assert released.job.delay_ms == (await bed.job(handle.id)).delay_ms == 30_000
        await bed.queue.promote_all()
        [retried] = await bed.record.wait_for(events.Retried)
        assert retried.job.delay_ms == (await bed.job(handle.id)).delay_ms == 60_000


async def test_decorrelated_jitter_stays_in_its_bounds(bed: WorkerBed) -> None:  # VAL-04
    backoff = Backoff.decorrelated_jitter(1, max_delay=30)
    waits = await delays(bed, RateLimitError, attempts=12, backoff=backoff)
    assert all(1 <= wait <= 30 for wait in waits)
    assert all(wait <= 3 * before + 0.001 for before, wait in pairwise(waits))


async def test_jitter_shortens_a_delay(bed: WorkerBed) -> None:  # VAL-19
    waits = await delays(bed, RateLimitError, attempts=3, backoff=Backoff.linear(1, jitter=0.5))
    assert 0.5 <= waits[0] <= 1
    assert 1 <= waits[1] <= 2


async def test_a_job_out_of_attempts_fails_with_its_reason_and_stacks(bed: WorkerBed) -> None:
    handle = await bed.queue.add("work", attempts=2, backoff=None)
    async with bed.worker(raising(lambda job: ValueError(f"bad {job.attempt}"))).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.EXHAUSTED
    assert failed.failure.category is Category.UNKNOWN
    job = await bed.job(handle.id)
    assert job.failed_reason == "ValueError: bad 2"
    assert job.attempts_made == 2
    assert [stack.splitlines()[-1] for stack in job.stacktrace] == [
        "ValueError: bad 1",
        "ValueError: bad 2",
    ]
    assert all("taskbull/worker" not in stack for stack in job.stacktrace)
    assert await bed.count("failed") == 1


@pytest.mark.parametrize("error", [PermanentError("no"), UnrecoverableError("no")])
async def test_a_permanent_error_fails_immediately(bed: WorkerBed, error: Exception) -> None:
    await bed.queue.add("work", attempts=5)
    async with bed.worker(raising(lambda _: error)).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert (failed.verdict, failed.job.attempt) == (Verdict.PERMANENT, 1)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TransientError("x"), Category.TRANSIENT),
        (TimeoutError("x"), Category.TRANSIENT),
        (KeyError("x"), Category.UNKNOWN),
    ],
)
async def test_other_errors_are_retried_with_their_category(
    bed: WorkerBed, error: Exception, category: Category
) -> None:
    await bed.queue.add("work", backoff=None)
    handler = raising(lambda job: error if job.attempt == 1 else None)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    [retried] = bed.record.of(events.Retried)
    assert retried.failure.category is category


async def test_retry_waits_exactly_as_long_as_the_task_says(bed: WorkerBed) -> None:
    clock = HandClock()
    handle = await bed.queue.add("work", backoff=Backoff.fixed(5))
    handler = raising(lambda job: Retry(after=30) if job.attempt == 1 else None)
    async with bed.worker(handler, clock=clock).running():
        [retried] = await bed.record.wait_for(events.Retried)
        clock.turn(30)
        await bed.record.wait_for(events.Completed)
    assert retried.delay == 30
    assert (await bed.job(handle.id)).attempts_made == 2


async def test_a_snooze_spends_no_attempt(bed: WorkerBed) -> None:
    clock = HandClock()
    handle = await bed.queue.add("work", attempts=1)
    handler = raising(lambda job: Snooze(60) if job.job.attempts_started == 1 else None)
    async with bed.worker(handler, clock=clock).running():
        [released] = await bed.record.wait_for(events.Released)
        assert await bed.count("delayed") == 1
        clock.turn(60)
        await bed.record.wait_for(events.Completed)
    assert released.delay == 60
    assert (await bed.job(handle.id)).attempts_made == 1


async def test_a_task_can_let_its_whole_queue_wait(bed: WorkerBed) -> None:
    await bed.queue.set_global_rate_limit(1000, 1)
    handle = await bed.queue.add("work", attempts=1)
    handler = raising(lambda job: RateLimited(0.3) if job.job.attempts_started == 1 else None)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Released)
        [completed] = await bed.record.wait_for(events.Completed)
    first = bed.record.of(events.Started)[0].job
    assert completed.job.id == handle.id == first.id
    assert (await bed.job(handle.id)).attempts_made == 1


async def test_the_rules_of_the_worker_serve_jobs_that_bring_none(bed: WorkerBed) -> None:
    # FR-4: a Node producer said nothing about attempts.
    await bed.queue.add("work")
    bed.admin.hset(bed.keys.job("1"), "opts", "{}")
    policy = RetryPolicy(attempts=3, backoff=Backoff.none())
    async with bed.worker(raising(lambda _: KeyError("x")), policy=policy).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.job.attempt == 3


async def test_a_timeout_cancels_the_handler_and_is_transient(bed: WorkerBed) -> None:
    cancelled = anyio.Event()

    async def handler(job: RunningJob) -> None:
        if job.attempt == 1:
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

    await bed.queue.add("work", timeout=0.5, backoff=None)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    [retried] = bed.record.of(events.Retried)
    assert cancelled.is_set()
    assert retried.failure.category is Category.TRANSIENT
    reason = "TimeoutError: the job took longer than its timeout of 0.5 s"
    assert retried.failure.reason == reason


async def test_sys_exit_in_a_handler_fails_the_job_and_not_the_worker(bed: WorkerBed) -> None:
    await bed.queue.add("work", attempts=1)
    await bed.queue.add("next", attempts=1)
    handler = raising(lambda job: SystemExit(3) if job.name == "work" else None)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Failed)
        await bed.record.wait_for(events.Completed)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # On trio, no other code can cancel it.
async def test_a_cancellation_of_the_handlers_own_is_a_failure(bed: WorkerBed) -> None:
    async def handler(job: RunningJob) -> None:
        if job.name == "work":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    await bed.queue.add("work", attempts=1)
    await bed.queue.add("next")
    async with bed.worker(handler, concurrency=1).running():
        await bed.record.wait_for(events.Failed)
        await bed.record.wait_for(events.Completed)


async def test_a_doomed_job_fails_without_being_run(bed: WorkerBed) -> None:
    handle = await bed.queue.add("work")
    bed.admin.hset(bed.keys.job(handle.id), "defa", "job stalled more than allowable limit")
    ran = False

    async def handler(_: RunningJob) -> None:
        nonlocal ran
        ran = True

    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.DOOMED
    assert failed.failure.reason == "job stalled more than allowable limit"
    assert not ran


async def test_a_stalled_job_is_put_back_and_run_and_reported(bed: WorkerBed) -> None:  # FR-3
    handle = await bed.queue.add("work")
    [_] = await bed.queue.get_jobs("waiting")
    bed.admin.lmove(bed.keys.wait, bed.keys.active, "RIGHT", "LEFT")  # a worker that died
    async with bed.worker(echo, stalled_interval=0.1, drain_delay=60).running():
        [stalled] = await bed.record.wait_for(events.Stalled)
        await bed.record.wait_for(events.Completed)
    assert (stalled.job.id, stalled.doomed) == (handle.id, False)
    assert stalled.job.stalled_count == 1


async def test_a_job_that_stalls_too_often_is_failed(bed: WorkerBed) -> None:
    await bed.queue.add("work")
    bed.admin.lmove(bed.keys.wait, bed.keys.active, "RIGHT", "LEFT")
    async with bed.worker(echo, stalled_interval=0.1, max_stalled_count=0).running():
        [stalled] = await bed.record.wait_for(events.Stalled)
        [failed] = await bed.record.wait_for(events.Failed)
    assert stalled.doomed
    assert failed.failure.reason == "job stalled more than allowable limit"


KNOWN = (
    "attempts_made",
    "attempts_started",
    "processed_on",
    "processed_by",
    "finished_on",
    "failed_reason",
    "returnvalue",
    "progress",
    "data",
)


# G9: the job of an event was the one that was taken, so that a listener wrote nonsense.
async def test_the_job_of_an_end_is_as_it_stands_in_redis(bed: WorkerBed) -> None:
    async def handler(job: Any) -> Any:
        await job.aprogress(40 + job.attempt)
        if job.name == "good":
            return {"sent": True}
        raise ValueError(job.name)

    good = await bed.queue.add("good", {"to": "ann"})
    bad = await bed.queue.add("bad", {}, attempts=2, backoff=Backoff.fixed(3600))
    async with bed.worker(handler, worker_id="me").running():
        [completed] = await bed.record.wait_for(events.Completed)
        [retried] = await bed.record.wait_for(events.Retried)
        for event, handle in ((completed, good), (retried, bad)):
            stored = await bed.job(handle.id)
            assert {name: getattr(event.job, name) for name in KNOWN} == {
                name: getattr(stored, name) for name in KNOWN
            }
            assert event.job.attempt == 1
        await bed.queue.promote(bad.id)
        [failed] = await bed.record.wait_for(events.Failed)
    stored = await bed.job(bad.id)
    assert {name: getattr(failed.job, name) for name in KNOWN} == {
        name: getattr(stored, name) for name in KNOWN
    }
    assert (failed.job.attempts_made, failed.job.attempt, failed.job.progress) == (2, 2, 42)
    assert failed.job.finished_on is not None
    assert failed.job.processed_by == "me"
