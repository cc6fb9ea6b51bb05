"""Declared schedules in a test: they run while virtual time passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull import App, Backoff, ConfigurationError, Cron, Every, JobFailed, PermanentError
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.job import NewJob
from taskbull.core.schedule import Rule
from taskbull.testing import recorded
from taskbull.testing.stage import VirtualSchedule

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> App:
    return App("shop", redis="redis://127.0.0.1:1/0", enqueue_timeout=0.2)


def test_a_daily_task_runs_once_a_day(app: App) -> None:
    regions: list[str] = []

    @app.task(schedule=Cron("0 3 * * *"))
    def nightly(region: str = "all") -> str:
        regions.append(region)
        return region

    app.schedule("eu", Cron("0 4 * * *"), nightly.job(region="eu"))
    with recorded(app) as box:
        box.advance(days=2)
        assert sorted(regions) == ["all", "all", "eu", "eu"]
        assert [job.value for job in box.of(nightly)] == [
            job.data.get("region", "all") for job in box.jobs
        ]
        assert box.now == 2 * 86_400
        box.advance(days=1)
    assert len(regions) == 6


def test_an_interval_begins_immediately_and_jobs_enqueue_others(app: App) -> None:
    polls: list[float] = []
    sent: list[str] = []

    @app.task
    async def send(to: str) -> None:
        sent.append(to)

    @app.task(schedule=Every(30))
    def poll() -> None:
        polls.append(box.now)
        send.options(delay=10).delay(f"n{len(polls)}")

    with recorded(app) as box:
        box.advance(seconds=0)
        assert polls == [0]
        box.advance(minutes=1)
        assert polls == [0, 30, 60]
        assert sent == ["n1", "n2"]  # the third is due at 70
        box.advance(seconds=10)
        assert sent == ["n1", "n2", "n3"]


def test_a_run_that_fails_is_retried_as_jobs_are(app: App) -> None:
    attempts: list[float] = []

    @app.task(schedule=Every(3600, limit=1), backoff=Backoff.fixed(60))
    def poll() -> None:
        attempts.append(box.now)
        if len(attempts) < 3:
            raise ConnectionError("away")

    with recorded(app) as box:
        box.advance(hours=5)
    assert attempts == [0, 60, 120]


def test_a_run_that_fails_for_good_is_raised(app: App) -> None:
    @app.task(schedule=Every(3600))
    def poll() -> None:
        raise PermanentError("no")

    with recorded(app) as box:
        with pytest.raises(JobFailed):
            box.advance(minutes=1)
        box.clear()
        box.advance(hours=2, check=False)
        assert len(box.jobs) == 2


def test_running_alone_starts_no_schedule(app: App) -> None:
    @app.task(schedule=Every(30))
    def poll() -> None: ...

    with recorded(app) as box:
        box.run()
        assert box.jobs == []


async def test_time_passes_in_an_event_loop_too(app: App) -> None:
    count = 0

    @app.task(schedule=Every(10))
    async def poll() -> None:
        nonlocal count
        count += 1

    with recorded(app) as box:
        await box.aadvance(seconds=25)
    assert count == 3


def test_a_wrong_time_is_refused(app: App) -> None:
    with recorded(app) as box:
        with pytest.raises(ConfigurationError, match="must not be negative"):
            box.advance(days=-1)
        with pytest.raises(TypeError):
            box.advance(years=1)


@pytest.mark.parametrize(
    ("rule", "hours"),
    [
        (Every(3600), [0, 1, 2, 3]),
        (Every(3600, limit=2), [0, 1]),
        (Every(3600, offset=1800), [0.5, 1.5, 2.5, 3.5]),
        (Every(3600, start=NOON + timedelta(hours=2)), [2, 3, 4, 5]),
        (Every(3600, start=NOON - timedelta(hours=2)), [0, 1, 2, 3]),
        (Every(3600, end=NOON + timedelta(hours=1)), [0, 1]),
        (Every(3600, end=NOON - timedelta(hours=1)), []),
        (Cron("0 * * * *"), [1, 2, 3, 4]),
        (Cron("0 * * * *", immediately=True), [0, 1, 2, 3]),
        (Cron("0 * * * *", end=NOON + timedelta(hours=2)), [1, 2]),
        (Cron("0 * * * *", start=NOON + timedelta(hours=2)), [3, 4, 5, 6]),
    ],
    ids=repr,
)
def test_a_schedule_runs_when_bullmq_would_run_it(rule: Rule, hours: list[float]) -> None:
    schedule = VirtualSchedule(DeclaredSchedule("s", "q", rule, NewJob("n")), NOON)
    found: list[Any] = []
    while schedule.due is not None and len(found) < 4:
        found.append((schedule.due - NOON) / timedelta(hours=1))
        schedule.run(schedule.due)
    assert found == hours


@pytest.mark.parametrize(("rule", "hour"), [(Every(3600), 4), (Cron("0 * * * *"), 4)], ids=repr)
def test_missed_slots_are_skipped(rule: Rule, hour: float) -> None:
    schedule = VirtualSchedule(DeclaredSchedule("s", "q", rule, NewJob("n")), NOON)
    schedule.run(NOON + timedelta(hours=3, minutes=20))
    assert schedule.due == NOON + timedelta(hours=hour)
