"""Cancelling and expiring, as users write it: tasks, handles, queues."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from taskbull import (
    App,
    Cancelled,
    ConfigurationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobState,
    current_job,
    events,
)
from tests.servers.kinds import KINDS, SharedServers
from tests.worker.bed import Recorder, until


@pytest.fixture
def app(shared_servers: SharedServers, prefix: str) -> Any:
    made = App("shop", redis=shared_servers.get(KINDS[0]).url, prefix=prefix)
    yield made
    made.close()


def test_a_job_is_cancelled_from_plain_code(app: App) -> None:
    @app.task
    def work() -> None: ...

    job = work.delay()
    assert job.cancel("not needed") is Cancelled.BEFORE_START
    assert job.cancel() is Cancelled.TOO_LATE
    assert job.state() is JobState.FAILED
    with pytest.raises(JobCancelled) as caught:
        job.result(timeout=60)
    assert isinstance(caught.value, JobFailed)
    assert (caught.value.reason, caught.value.attempts) == ("cancelled: not needed", 0)
    with pytest.raises(JobNotFound):
        app.job("default", "none").cancel()
    with pytest.raises(JobNotFound):
        app.sync_queue("default").cancel("meta")


async def test_a_job_is_cancelled_from_an_event_loop(app: App) -> None:
    @app.task
    async def work() -> None: ...

    job = await work.options(delay=60).adelay()
    assert await job.acancel() is Cancelled.BEFORE_START
    with pytest.raises(JobCancelled, match="cancelled: by request"):
        await job.aresult(timeout=60)
    assert await app.queue("default").cancel(job.id) is Cancelled.TOO_LATE


REASONS = {
    "": "cancelled: by request",
    "  ": "cancelled: by request",
    "a\nb": "cancelled: a\nb",
    "x" * 2000: f"cancelled: {'x' * 1000}",
    "lone \ud800": "cancelled: lone \\ud800",
}


@pytest.mark.parametrize("given", REASONS, ids=range(len(REASONS)))
def test_a_reason_is_stored_in_part(app: App, given: str) -> None:
    job = app.sync_queue("q").add("work")
    job.cancel(given)
    assert job.info().failed_reason == REASONS[given]


def test_a_reason_is_text(app: App) -> None:
    job = app.sync_queue("q").add("work")
    wrong: Any = 7
    with pytest.raises(ConfigurationError, match="reason must be a string, got 7"):
        job.cancel(wrong)
    assert job.state() is JobState.WAITING


async def test_both_kinds_of_functions_are_stopped(app: App) -> None:
    @app.task
    async def waits() -> None:
        await anyio.sleep_forever()

    @app.task
    def asks() -> None:
        while True:
            current_job().check()
            time.sleep(0.005)

    worker, record = app.worker(), Recorder()
    worker.on(events.Started, record)
    async with worker.running():
        for count, task in enumerate((waits, asks), 1):
            job = await task.adelay()
            await record.wait_for(events.Started, count)
            assert await job.acancel() is Cancelled.REQUESTED
            with pytest.raises(JobCancelled):
                await job.aresult(timeout=60)


async def test_a_task_says_when_its_jobs_must_begin_and_a_call_wins(app: App) -> None:
    @app.task(expires=60)
    async def work() -> str:
        return "done"

    async def left(job: Any) -> float:
        info = await job.ainfo()
        return float((info.expires - info.timestamp).total_seconds())

    assert await left(await work.adelay()) == 60
    assert await left(await work.options(expires=timedelta(hours=1)).adelay()) == 3600
    assert (await (await work.options(expires=None).adelay()).ainfo()).expires is None
    with pytest.raises(ConfigurationError, match=r"expires \(60 s\) must be later than delay"):
        work.options(delay=90)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
    assert (await (await work.options(expires=at).adelay()).ainfo()).expires == at


async def test_a_job_that_begins_too_late_has_expired(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    job = await work.options(expires=0.001).adelay()
    expires = (await job.ainfo()).expires
    await until(lambda: expires is not None and datetime.now(UTC) > expires)
    async with app.worker().running():
        with pytest.raises(JobExpired, match="expired: not started by "):
            await job.aresult(timeout=60)


def test_a_wrong_expiry_is_refused_at_the_decoration(app: App) -> None:
    with pytest.raises(ConfigurationError, match="expires must be greater than 0"):

        @app.task(expires=-1)
        def work() -> None: ...
