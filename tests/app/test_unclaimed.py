"""Jobs whose task an app lacks, and jobs of other producers without `attempts`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from anyio import fail_after

from taskbull import current_job, events
from taskbull.app.app import App
from taskbull.core.keys import JobState
from taskbull.errors import JobFailed
from tests.servers.kinds import Reachable
from tests.worker.bed import Recorder

LIMIT = 60.0
DAY_MS = 86_400_000


def declare(app: App) -> None:
    @app.task(queue="q")
    async def send() -> None: ...


def now_ms() -> int:
    return int(time.time() * 1000)


# D7, D8


async def test_a_job_whose_task_is_not_here_waits_and_no_attempt_is_spent(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    declare(app)
    record = Recorder()
    app.on(events.Event)(record)
    queue = app.queue("q")
    with fail_after(LIMIT), caplog.at_level(logging.WARNING):
        jobs = await queue.add_bulk([("sendd", {}, {"attempts": 1})] * 3)
        other = await queue.add("other")
        async with app.worker().running():
            await record.wait_for(events.Released, 4)
    assert {event.delay for event in record.of(events.Released)} == {10.0}
    for job in (*jobs, other):
        info = await job.ainfo()
        assert await job.astate() is JobState.DELAYED
        assert (info.attempts_made, info.failed_reason) == (0, None)
    told = sorted(line for line in caplog.messages if "is not registered" in line)
    assert len(told) == 2  # one for each name, however many jobs
    assert "Task 'sendd' of a job in queue q is not registered in App shop (did you mean" in told[1]
    assert "Register the task in every worker of this queue" in told[1]


@pytest.mark.parametrize(("known_for", "delay"), [(15, 15), (100, 100), (301, 300), (80_000, 300)])
async def test_the_longer_it_waits_the_rarer_it_is_looked_at(
    app: App, admin: Any, known_for: int, delay: int
) -> None:
    declare(app)
    record = Recorder()
    app.on(events.Event)(record)
    job = await app.queue("q").add("sendd")
    first = now_ms() - known_for * 1000
    admin.hset(app.queue("q").keys.job(job.id), "tbun", f"{first}:{now_ms() - 5000}")
    with fail_after(LIMIT):
        async with app.worker().running():
            [released] = await record.wait_for(events.Released)
    assert delay <= released.delay <= min(300, delay + LIMIT)


async def test_after_a_day_it_fails_and_a_retry_by_hand_waits_as_long_again(
    app: App, admin: Any
) -> None:
    declare(app)
    record = Recorder()
    app.on(events.Event)(record)
    queue = app.queue("q")
    job = await queue.add("sendd", attempts=5)
    key = queue.keys.job(job.id)
    admin.hset(key, "tbun", f"{now_ms() - DAY_MS}:{now_ms() - 300_000}")
    with fail_after(LIMIT):
        async with app.worker().running():
            with pytest.raises(JobFailed, match=r"'sendd' .*did you mean send") as failed:
                await job.aresult()
            assert failed.value.attempts == 1
            assert not admin.hexists(key, "tbun")
            await queue.retry(job.id)
            [released] = await record.wait_for(events.Released)
    assert released.delay == 10


async def test_a_job_that_was_run_meanwhile_has_its_day_again(app: App, admin: Any) -> None:
    declare(app)
    record = Recorder()
    app.on(events.Event)(record)
    job = await app.queue("q").add("sendd")
    days_ago = now_ms() - 3 * DAY_MS
    admin.hset(app.queue("q").keys.job(job.id), "tbun", f"{days_ago}:{days_ago + 10_000}")
    with fail_after(LIMIT):
        async with app.worker().running():
            [released] = await record.wait_for(events.Released)
    assert released.delay == 10


@pytest.mark.parametrize("junk", ["", "1e999:1", "99999999999999999:1"])
async def test_a_note_that_others_spoilt_does_no_harm(app: App, admin: Any, junk: str) -> None:
    declare(app)
    record = Recorder()
    app.on(events.Event)(record)
    job = await app.queue("q").add("sendd")
    admin.hset(app.queue("q").keys.job(job.id), "tbun", junk)
    with fail_after(LIMIT):
        async with app.worker().running():
            [released] = await record.wait_for(events.Released)
    assert released.delay == 10


async def test_two_apps_that_share_a_queue_fail_nothing(server: Reachable, prefix: str) -> None:
    record = Recorder()
    apps = [App(name, redis=server.url, prefix=prefix) for name in ("shop", "main")]
    for app in apps:

        @app.task(name=f"work_of_{app.name}")
        async def work(n: int) -> int:
            return n

        app.on(events.Event)(record)
    with fail_after(LIMIT):
        for n in range(10):
            for app in apps:
                await app.tasks[f"work_of_{app.name}"].adelay(n)
        async with apps[0].worker().running(), apps[1].worker().running():
            while len(record.of(events.Completed)) < 20:
                await record.wait_for(events.Ended, len(record.of(events.Ended)) + 1)
                await apps[0].queue("default").promote_all()
    assert not record.of(events.Failed)
    assert not record.of(events.Retried)
    for app in apps:
        app.close()


def test_names_that_an_app_lacks_are_found_in_the_queue(app: App) -> None:
    declare(app)
    queue = app.sync_queue("q")
    assert app.unknown_names("q") == []
    queue.add("send")
    queue.add_bulk([("waits", {})] * 3)
    queue.add("is_urgent", priority=1)
    queue.add("comes_later", delay=60)
    assert app.unknown_names("q") == ["comes_later", "is_urgent", "waits"]
    queue.pause()
    assert app.unknown_names("q") == ["comes_later", "is_urgent", "waits"]
    assert app.unknown_names("empty") == []


# D6


class Tries:
    """An app with a task that always fails, and a job of a producer that names no attempts."""

    def __init__(self, server: Reachable, prefix: str, **settings: Any) -> None:
        self.app = App("tries", redis=server.url, prefix=prefix, backoff=None, **settings)
        self.seen: list[int] = []

    def declare(self, **options: Any) -> None:
        @self.app.task(name="work", queue="q", **options)  # type: ignore[untyped-decorator]
        async def work() -> None:
            self.seen.append(current_job().attempts)
            raise ValueError("no")

    async def run_foreign(self, admin: Any, opts: str) -> int:
        """Give how often the job was tried; that is what was said before, and in the task."""
        handle = await self.app.queue("q").add("work")
        admin.hset(self.app.queue("q").keys.job(handle.id), "opts", opts)
        said = self.app.attempts_of(await handle.ainfo())
        with fail_after(LIMIT):
            async with self.app.worker().running():
                with pytest.raises(JobFailed) as failed:
                    await handle.aresult()
        assert self.seen == [said] * said
        assert failed.value.attempts == said
        return said


@pytest.fixture
def tries_of(server: Reachable, prefix: str) -> Callable[..., Tries]:
    return lambda **settings: Tries(server, prefix, **settings)


@pytest.mark.parametrize("opts", ["{}", '{"attempts":0}'])
@pytest.mark.parametrize(
    ("of_app", "of_task", "tries"), [(None, None, 1), (2, None, 2), (None, 4, 4), (3, None, 3)]
)
async def test_a_job_of_others_without_attempts_has_one_unless_they_are_declared(
    tries_of: Callable[..., Tries], admin: Any, opts: str, of_app: Any, of_task: Any, tries: int
) -> None:
    bed = tries_of(attempts=of_app)
    bed.declare(attempts=of_task)
    assert await bed.run_foreign(admin, opts) == tries


async def test_its_own_attempts_win(tries_of: Callable[..., Tries], admin: Any) -> None:
    bed = tries_of(attempts=5)
    bed.declare()
    assert await bed.run_foreign(admin, '{"attempts":2}') == 2


def test_jobs_of_our_own_have_three_as_before() -> None:
    app = App("x", redis="redis://localhost:1")

    @app.task
    def work() -> None: ...

    assert work.job().options.attempts == 3
