"""Jobs with a deadline for their start."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anyio import Event, create_task_group
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.core.keys import JobState
from taskbull.core.options import Keep
from taskbull.core.outcome import Verdict
from taskbull.core.schedule import Every
from taskbull.core.validation import to_ms
from taskbull.errors import ConfigurationError, JobExpired, Snooze
from taskbull.worker import run
from taskbull.worker.run import Clock
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import LIMIT, HandClock, WorkerBed, echo, until
from tests.worker.looking import ends

LATE = "expired: not started by "


def age(bed: WorkerBed, job_id: str, seconds: float) -> None:
    """Let a job be older than it is."""
    key = bed.keys.job(job_id)
    bed.admin.hset(key, "timestamp", int(bed.admin.hget(key, "timestamp") or 0) - to_ms(seconds))


async def _expired(bed: WorkerBed, job_id: str) -> None:
    [failed] = await bed.record.wait_for(events.Failed, where=lambda e: e.job.id == job_id)
    assert failed.verdict is Verdict.EXPIRED
    job = await bed.job(job_id)
    assert str(job.failed_reason).startswith(LATE)
    assert str(job.failed_reason) == f"{LATE}{_iso(job.expires)}"
    assert ends(bed)[job_id] == 1


def _iso(instant: datetime | None) -> str:
    assert instant is not None
    return instant.isoformat(timespec="milliseconds")


KINDS: dict[str, dict[str, Any]] = {
    "waiting": {},
    "prioritized": {"priority": 3},
    "delayed": {"delay": 0.05},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_fetched_too_late_fails_without_running(bed: WorkerBed, kind: str) -> None:
    handle = await bed.queue.add("work", attempts=3, expires=60, **KINDS[kind])
    in_time = await bed.queue.add("work", {"in": "time"}, expires=60, **KINDS[kind])
    age(bed, handle.id, 61)
    async with bed.worker(echo).running():
        await _expired(bed, handle.id)
        assert await in_time.aresult(timeout=60) == {"in": "time"}
        with pytest.raises(JobExpired, match=LATE):
            await handle.aresult(timeout=60)


async def test_a_job_that_is_not_kept_when_it_expires_is_reported_by_its_event(
    bed: WorkerBed,
) -> None:
    handle = await bed.queue.add("work", expires=60, keep_failed=Keep.none())
    age(bed, handle.id, 61)
    async with bed.worker(echo).running():
        with pytest.raises(JobExpired, match=LATE):
            await handle.aresult(timeout=60)
    assert await bed.queue.get_job(handle.id) is None


@pytest.mark.parametrize("by_eta", [False, True])
async def test_it_counts_from_the_enqueueing_whatever_the_delay(
    bed: WorkerBed, by_eta: bool
) -> None:
    now = datetime.now(UTC)
    when: dict[str, Any] = {"eta": now + timedelta(seconds=40)} if by_eta else {"delay": 40}
    handle = await bed.queue.add("work", expires=60, **when)
    job = await bed.job(handle.id)
    assert 19_000 < (job.options.expires_ms or 0) <= 21_000
    assert job.expires is not None
    assert abs((job.expires - now).total_seconds() - 60) < 5


async def test_it_may_be_an_instant(bed: WorkerBed) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    handle = await bed.queue.add("work", expires=at, delay=60)
    assert (await bed.job(handle.id)).expires == at


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expires": 5, "delay": 5}, "expires (5 s) must be later than delay (5 s)"),
        ({"expires": 0}, "expires must be greater than 0"),
        ({"expires": "soon"}, "expires must be seconds"),
        ({"expires": datetime(2040, 1, 1)}, "expires must be a timezone-aware datetime"),  # noqa: DTZ001
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "expires must be later than"),
        (
            {"expires": 5, "eta": datetime(2030, 1, 1, tzinfo=UTC)},
            "expires must be later than",
        ),
        (
            {
                "expires": datetime(2030, 1, 1, tzinfo=UTC),
                "eta": datetime(2030, 1, 1, tzinfo=UTC),
            },
            "expires must be later than eta",
        ),
    ],
)
async def test_what_can_never_begin_in_time_is_refused(
    bed: WorkerBed, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await bed.queue.add("work", **options)
    assert str(caught.value).startswith(message)
    assert bed.admin.keys(f"{bed.prefix}:*") == []


async def test_a_retry_that_would_begin_too_late_fails_immediately(bed: WorkerBed) -> None:
    async def handler(_: RunningJob) -> None:
        raise ValueError("broke")

    handle = await bed.queue.add("work", attempts=9, expires=60, backoff=None)
    policy = {"type": "fixed", "delay": 120_000}
    key = bed.keys.job(handle.id)
    bed.admin.hset(
        key, "opts", f'{{"attempts":9,"expires":60000,"backoff":{str(policy)!s}}}'.replace("'", '"')
    )
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.EXPIRED
    job = await bed.job(handle.id)
    assert job.failed_reason == (
        f"expired: the next attempt would start after {_iso(job.expires)}; ValueError: broke"
    )
    assert "ValueError: broke" in job.stacktrace[-1]


async def test_a_snooze_beyond_it_fails_immediately_and_one_before_it_does_not(
    bed: WorkerBed,
) -> None:
    async def handler(job: RunningJob) -> None:
        raise Snooze(120 if job.name == "long" else 1)

    long = await bed.queue.add("long", expires=60)
    short = await bed.queue.add("short", expires=60)
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
        [released] = await bed.record.wait_for(events.Released)
    assert (failed.job.id, released.job.id) == (long.id, short.id)
    assert failed.failure.reason.startswith("expired: the next attempt would start after ")


async def test_a_retry_by_hand_lifts_it(bed: WorkerBed) -> None:
    handle = await bed.queue.add("work", {"a": 1}, expires=60)
    age(bed, handle.id, 61)
    async with bed.worker(echo).running():
        await _expired(bed, handle.id)
        await bed.queue.retry(handle.id)
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.value == {"a": 1}


async def test_a_function_that_waits_too_long_for_a_thread_is_not_called(bed: WorkerBed) -> None:
    clock = HandClock()
    began, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def handler(job: RunningJob) -> None:
        ran.append(job.name)
        began.set()
        assert go.wait(60)

    await bed.queue.add("first")
    async with bed.worker(handler, concurrency=2, threads=1, clock=clock).running():
        await until(began.is_set)
        second = await bed.queue.add("second", expires=60)
        await bed.record.wait_for(events.Started, 2)
        clock.turn(61)
        go.set()
        await _expired(bed, second.id)
    assert ran == ["first"]


async def test_of_a_schedule_it_counts_from_each_run(bed: WorkerBed) -> None:
    await bed.queue.upsert_schedule("s", Every(0.1), bed.queue.job("tick", expires=60))
    async with bed.worker(echo).running():
        await bed.record.wait_for(events.Completed, 3)
    [pending] = await bed.queue.get_jobs("delayed") or await bed.queue.get_jobs("waiting")
    assert pending.options.expires_ms == 60_000
    assert bed.record.of(events.Failed) == []


async def test_an_expired_run_of_a_schedule_is_followed_by_the_next(bed: WorkerBed) -> None:
    await bed.queue.upsert_schedule("s", Every(0.1), bed.queue.job("tick", expires=60))
    [first] = await bed.queue.get_jobs("waiting") or await bed.queue.get_jobs("delayed")
    age(bed, first.id, 61)
    async with bed.worker(echo).running():
        await _expired(bed, first.id)
        await bed.record.wait_for(events.Completed)


async def test_a_schedule_has_no_single_instant(bed: WorkerBed) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(ConfigurationError, match="cannot expire at a fixed time"):
        await bed.queue.upsert_schedule("s", Every(1), bed.queue.job("tick", expires=at))


@pytest.mark.parametrize("raw", ["-5", "0", '"x"', "1e400", "null", "{}"])
async def test_what_others_store_as_expiry_does_no_harm(bed: WorkerBed, raw: str) -> None:
    handle = await bed.queue.add("work")
    bed.admin.hset(bed.keys.job(handle.id), "opts", f'{{"attempts":1,"expires":{raw}}}')
    async with bed.worker(echo).running():
        [ended] = await bed.record.wait_for(events.Ended)
    assert isinstance(ended, events.Failed) == (raw in {"-5", "0"})


# H8: a worker whose clock is wrong uses that of Redis.

SKEWS = [7200.0, -120.0]


def skewed(seconds: float) -> Clock:
    """Return the clock of a machine that is so far ahead of Redis."""
    return Clock(lambda: time.time() + seconds)


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_worker_with_a_wrong_clock_expires_and_delays_jobs_as_redis_would(
    bed: WorkerBed, skew: float, caplog: pytest.LogCaptureFixture
) -> None:
    delays: list[str] = []

    async def handle(job: RunningJob) -> None:
        if job.name == "snoozes" and "snoozes" not in delays:
            delays.append(job.name)
            raise Snooze(3600)
        delays.append(job.name)

    kept = await bed.queue.add("lives", {}, expires=60)
    late = await bed.queue.add("late", {}, delay=3600)
    snoozed = await bed.queue.add("snoozes", {})
    dead = await bed.queue.add("dead", {}, expires=0.001)
    await bed.queue.upsert_schedule("tick", Every(3600), bed.queue.job("tick", {}))
    async with bed.worker(handle, clock=skewed(skew)).running():
        await kept.aresult(timeout=LIMIT)
        with pytest.raises(JobExpired):
            await dead.aresult(timeout=LIMIT)
        await until(lambda: {"snoozes", "tick"} <= {*delays})
        while await snoozed.astate() is not JobState.DELAYED:
            await checkpoint()
        assert await late.astate() is JobState.DELAYED
    delayed: Any = bed.admin.zrange(bed.keys.delayed, 0, -1, withscores=True)
    scores = dict(delayed)
    assert len(scores) == 3  # the next tick is among them
    assert all(0 < score / 4096 / 1000 - time.time() < 3660 for score in scores.values())
    [warned] = [each.message for each in caplog.records if "clock" in each.message]
    [seconds] = re.findall(r"(\S+) s (?:ahead|behind)", warned)
    assert float(seconds) == pytest.approx(abs(skew), abs=1)


async def test_a_clock_that_is_right_is_not_corrected(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    clock = skewed(0.4)
    job = await bed.queue.add("x", {})
    async with bed.worker(echo, clock=clock).running():
        await job.aresult(timeout=LIMIT)
    assert abs(clock.wall_ms() / 1000 - time.time() - 0.4) < 0.3
    assert "clock" not in caplog.text


def test_a_clock_warns_again_when_the_difference_has_changed_a_lot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    for skew in (0.9, 2, 2.5, -2, 100, 120, 200, 0, 0, 5):
        now = time.monotonic()
        clock.compare(time.time() + skew, now, now)
        assert abs(clock.wall_ms() / 1000 - time.time() - (skew if abs(skew) >= 1 else 0)) < 0.5
    warned = [each.message for each in caplog.records if each.levelname == "WARNING"]
    seconds = [re.search(r"is ([\d.]+) s", message) for message in warned]
    assert [round(float(each[1])) for each in seconds if each] == [2, 2, 100, 200, 5]


async def test_a_slow_first_answer_is_asked_for_again_before_jobs_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked, compared = skewed(300), list[bool](), Event()
    monkeypatch.setattr(run, "_ACCURATE", -1.0)  # no answer is fast enough

    async def ask() -> float:
        asked.append(compared.is_set())
        if len(asked) == 3:
            monkeypatch.setattr(run, "_ACCURATE", 60.0)
        return time.time()

    async with create_task_group() as tasks:
        tasks.start_soon(clock.follow, ask, compared)
        await compared.wait()
        tasks.cancel_scope.cancel()
    assert asked == [False] * 3
    assert abs(clock.wall_ms() / 1000 - time.time()) < 60


def test_an_answer_that_took_long_tells_nothing_about_the_clock() -> None:
    clock, now = Clock(), time.monotonic()
    clock.compare(time.time() + 100, now - 1, now)
    assert abs(clock.wall_ms() / 1000 - time.time()) < 1
