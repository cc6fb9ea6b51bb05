"""Rows of the pages about moving from RQ, Dramatiq, Taskiq, arq and `bullmq`.

`test_migrants.py` has the rows that Celery has too. `tests/docs/test_moving.py` checks the names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anyio import fail_after

from taskbull import (
    App,
    Backoff,
    Cron,
    Every,
    JobFailed,
    JobState,
    Limiter,
    PermanentError,
    Queue,
    Retry,
    Snooze,
    TaskGroup,
    WaitForChildren,
    Worker,
    WorkerOptions,
    current_job,
    from_child,
    from_lifespan,
)
from taskbull.core.job import Job
from taskbull.errors import WrongState
from taskbull.testing import recorded

LIMIT = 60.0


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1", attempts=1)


def test_rq_retry_with_intervals(local: App) -> None:
    def wait(attempt: int, error: BaseException, job: Any) -> float:
        return [10, 60, 60][attempt - 1]

    @local.task(attempts=4, backoff=Backoff.custom(wait))
    def work() -> int:
        if current_job().attempt < 4:
            raise OSError
        return current_job().attempt

    with recorded(local) as box:
        job = work.delay()
        box.run()
        assert job.result() == 4


def test_rq_result_of_a_dependency(local: App) -> None:
    @local.task
    def other(x: int) -> int:
        return x

    @local.task
    def work(x: int = from_child(other)) -> int:
        return x + 1

    with recorded(local) as box:
        job = work.after(other.job(1)).delay()
        box.run()
        assert job.result() == 2


async def test_rq_a_unique_id_and_its_queue(app: App) -> None:
    @app.task(queue="emails")
    async def send_email(to: str) -> str:
        return to

    first = await send_email.options(job_id="sync-7").adelay("ann")
    second = await send_email.options(job_id="sync-7").adelay("bob")
    assert (first.deduplicated, second.deduplicated) == (False, True)
    await send_email.options(lifo=True).adelay("eve")
    queue = app.queue("emails")
    assert (await queue.counts())["waiting"] == 2
    assert (await queue.get_jobs("waiting"))[0].data == {"to": "eve"}
    assert await queue.drain() == 2


async def test_rq_meta_of_a_job_that_runs(app: App) -> None:
    @app.task
    async def work() -> str:
        await current_job().aprogress({"done": 3})
        return current_job().headers["user"]

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await work.options(headers={"user": "7"}).adelay()
            assert await job.aresult() == "7"
    assert (await app.job("default", job.id).ainfo()).progress == {"done": 3}
    assert current_job(None) is None


def test_dramatiq_min_and_max_backoff() -> None:
    backoff = Backoff.exponential(15, max_delay=3600)
    assert [backoff.wait(attempt, random=lambda: 0.5) for attempt in (1, 2, 20)] == [15, 30, 3600]


def test_dramatiq_retry_when_and_throws(local: App) -> None:
    runs: list[str] = []

    @local.task(attempts=3, retry_on=(OSError,))
    def some(kind: str) -> None:
        runs.append(kind)
        raise OSError if kind == "disk" else KeyError

    @local.task(attempts=3, throws=(KeyError,))
    def expected() -> None:
        runs.append("expected")
        raise KeyError

    with recorded(local) as box:
        for job in (some.job("disk"), some.job("key"), expected.job()):
            local.enqueue([job])
        box.run(check=False)
    assert sorted(runs) == ["disk"] * 3 + ["expected"] * 3 + ["key"]


def test_dramatiq_pipeline_and_group(local: App) -> None:
    @local.task
    def add(x: int, y: int) -> int:
        return x + y

    with recorded(local) as box:
        jobs = local.enqueue([add.job(1, 2), add.job(3, 4)])
        box.run()
        assert local.gather(jobs) == [3, 7]


async def test_taskiq_calls(app: App) -> None:
    @app.task(attempts=1, timeout=10)
    async def resize(path: str, width: int = 800) -> int:
        if current_job().attempt == 1 and path == "again.jpg" and not seen:
            seen.append(path)
            raise Snooze(0)
        if path == "bad.jpg":
            raise PermanentError("no image")
        return width

    seen: list[str] = []
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await resize.options(job_id="cat", headers={"a": "1"}).adelay("cat", width=64)
            assert await job.aresult(timeout=10) == 64
            assert await job.astate() is JobState.COMPLETED
            assert await (await resize.adelay("again.jpg")).aresult() == 800
            jobs = await app.aenqueue([resize.job("a.jpg"), resize.job("b.jpg")])
            assert await app.agather(jobs) == [800, 800]
            with pytest.raises(JobFailed) as caught:
                await (await resize.adelay("bad.jpg")).aresult()
    assert caught.value.reason == "no image"
    assert str(caught.value.error_type).endswith("PermanentError")
    assert caught.value.stacktrace


async def test_taskiq_schedules_at_run_time(app: App) -> None:
    @app.task
    async def resize(path: str) -> None: ...

    queue = app.queue("default")
    later = await resize.options(eta=datetime.now(UTC) + timedelta(hours=1)).adelay("a")
    assert await later.astate() is JobState.DELAYED
    await queue.upsert_schedule("id", Cron("0 3 * * *"), resize.job("a"))
    await queue.upsert_schedule("every", Every(30), resize.job("b"))
    assert {one.id for one in await queue.schedules()} == {"id", "every"}
    await queue.remove_schedule("every")
    assert [one.id for one in await queue.schedules()] == ["id"]


async def test_taskiq_state_of_the_worker(app: App) -> None:
    log: list[str] = []

    @app.lifespan
    async def database() -> AsyncIterator[str]:
        log.append("startup")
        yield "db"
        log.append("shutdown")

    @app.task
    async def work(db: str = from_lifespan()) -> str:
        return db

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay()).aresult() == "db"
    assert log == ["startup", "shutdown"]


def test_taskiq_shared_task() -> None:
    group, app = TaskGroup("library"), App("local", redis="redis://localhost:1")

    @group.task(name="mail.send")
    def send() -> int:
        return 7

    app.include(group)
    with recorded(app) as box:
        job = send.delay()
        box.run()
        assert (send.name, job.result()) == ("mail.send", 7)


async def test_arq_names_of_a_job(app: App) -> None:
    @app.task(attempts=2)
    async def download(url: str) -> tuple[str, int]:
        if current_job().attempt == 1:
            raise Retry(after=0)
        return current_job().id, current_job().attempt

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await download.options(job_id="front-page").adelay("x")
            assert await job.aresult() == ("front-page", 2)
            late = await download.options(delay=60).adelay("x")
            await late.acancel()
            assert await late.astate() is JobState.FAILED
    assert [one.id for one in await app.queue("default").get_jobs("completed")] == ["front-page"]


async def test_bullmq_queue_methods(app: App) -> None:
    queue = app.queue("emails")
    job = await queue.add("send", {"to": "ann"}, job_id="mine", delay=60)
    more = await queue.add_bulk([queue.job("send", {"to": "bob"}), queue.job("send", {})])
    found = await queue.get_job("mine")
    assert found is not None
    assert (found.data, await app.job("emails", "mine").astate()) == ({"to": "ann"}, "delayed")
    await queue.promote("mine")
    with pytest.raises(WrongState, match="promote"):
        await queue.promote("mine")
    await queue.pause()
    assert await queue.is_paused()
    await queue.resume()
    await queue.set_global_concurrency(5)
    await queue.set_global_rate_limit(100, 1)
    await queue.trim_events(1000)
    assert (await queue.logs(job.id)).lines == []
    assert await queue.workers() == []
    await queue.remove(more[0].id)
    assert await queue.drain() == 2
    await queue.obliterate()


async def test_bullmq_worker_with_one_function(app: App, server: Any, prefix: str) -> None:
    seen: list[tuple[str, int]] = []

    async def process(job: Any) -> str:
        seen.append((job.name, job.attempt))
        await job.aprogress(50)
        await job.alog("half")
        if job.name == "parent" and not job.data:
            await job.aupdate_data({"spawned": True})
            job.spawn(Queue("sums", redis=server.url, prefix=prefix).job("child", {}))
            raise WaitForChildren
        return str(job.name)

    options = WorkerOptions(concurrency=20)
    queue = Queue("sums", redis=server.url, prefix=prefix)
    worker = Worker("sums", process, redis=server.url, prefix=prefix, options=options)
    with fail_after(LIMIT):
        async with worker.running():
            job = await queue.add("send", {})
            assert await job.aresult() == "send"
    assert seen == [("send", 1)]
    stored: Job = await job.ainfo()
    assert (stored.progress, (await queue.logs(job.id)).lines) == (50, ["half"])


def test_bullmq_limits_of_a_queue(local: App) -> None:
    local.queue_options("emails", concurrency=5, global_concurrency=20, limiter=Limiter(50, 1))
    assert local.known_queues == ["emails"]
