"""Many results in one wait, and a worker in the lifespan of a web application."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis import Redis

from taskbull import App, JobFailed, JobNotFound, Keep, PermanentError
from taskbull.app.task import Task
from taskbull.testing import recorded
from tests.app.test_results import until_read
from tests.servers.kinds import PrivateServers

LIMIT = 60.0


def _tasks(app: App) -> tuple[Task[[int], int], Task[[str], str]]:
    @app.task(queue="numbers")
    async def double(n: int) -> int:
        if n < 0:
            raise PermanentError(f"{n} is negative")
        return 2 * n

    @app.task(queue="texts")
    def shout(text: str) -> str:
        return text.upper()

    return double, shout


async def test_results_of_several_queues_come_in_order(app: App, anyio_backend: str) -> None:
    double, shout = _tasks(app)
    jobs = await app.aenqueue([*(double.job(n) for n in range(300)), shout.job("a")])
    async with app.lifespan_worker() as worker:
        assert worker is not None
        assert await app.agather(jobs, timeout=LIMIT) == [2 * n for n in range(300)] + ["A"]
        assert await to_thread.run_sync(app.gather, jobs[-2:], LIMIT) == [598, "A"]
        assert await app.agather([]) == []


async def test_the_first_failure_in_order_is_raised(app: App, anyio_backend: str) -> None:
    double, _ = _tasks(app)
    jobs = await app.aenqueue([double.job(1), double.job(-2), double.job(-3)])
    async with app.lifespan_worker():
        with pytest.raises(JobFailed, match="-2 is negative"):
            await app.agather(jobs, timeout=LIMIT)
        with pytest.raises(JobFailed, match="-2 is negative"):
            await to_thread.run_sync(app.gather, jobs, LIMIT)
        found = await app.agather(jobs, timeout=LIMIT, return_failures=True)
    assert found[0] == 2
    assert [str(one.reason) for one in found if isinstance(one, JobFailed)] == [
        "-2 is negative",
        "-3 is negative",
    ]


async def test_a_wait_that_is_too_long_says_for_which_job(app: App, anyio_backend: str) -> None:
    double, _ = _tasks(app)
    jobs = await app.aenqueue([double.job(1), double.job(2)])
    text = f"2 jobs did not all finish within 0.01 s: job '{jobs[0].id}' in queue 'numbers'"
    with pytest.raises(TimeoutError, match=text):
        await app.agather(jobs, timeout=0.01)
    with pytest.raises(TimeoutError, match=text):
        await to_thread.run_sync(app.gather, jobs, 0.01)
    with pytest.raises(JobNotFound):
        await app.agather([app.job("numbers", "404")], timeout=LIMIT)


async def test_only_handles_can_be_awaited(app: App, anyio_backend: str) -> None:
    double, _ = _tasks(app)
    job = await double.adelay(1)
    wrong: list[tuple[Any, str]] = [
        ([job, 5], "got a int at index 1"), ([double.job(1)], "got a JobSpec at index 0"),
        (job, "got one JobHandle"), (5, "not iterable"),
    ]  # fmt: skip
    for jobs, text in wrong:
        with pytest.raises(TypeError, match=text):
            await app.agather(jobs)
        with pytest.raises(TypeError, match=text):
            await to_thread.run_sync(app.gather, jobs)
    coroutine: Any = double.adelay(1)
    with pytest.raises(TypeError, match="got a coroutine at index 0: await it first"):
        await app.agather([coroutine])
    coroutine.close()


async def test_results_of_removed_jobs_are_noted_while_others_run(
    app: App, admin: Redis, anyio_backend: str
) -> None:
    start, finish = anyio.Event(), anyio.Event()

    @app.task(queue="slow")
    async def wait() -> str:
        await finish.wait()
        return "done"

    @app.task(queue="brief", keep_completed=Keep.none())
    async def brief(n: int) -> int:
        await start.wait()
        return n

    jobs: list[Any] = [await wait.adelay(), *[await brief.adelay(n) for n in range(3)]]
    found: list[list[Any]] = []

    async def gather() -> None:
        found.append(await app.agather([*jobs, jobs[1]], timeout=LIMIT))

    async with (
        app.lifespan_worker(),
        anyio.create_task_group() as tasks,
        aclosing(app.queue("brief").events(last_id="0")) as events,
    ):
        tasks.start_soon(gather)
        await until_read(admin, 2)
        start.set()
        async for event in events:
            if event.name == "completed" and event.job_id == jobs[-1].id:
                break
        await app.queue("brief").trim_events(0)
        finish.set()
    assert found == [["done", 0, 1, 2, 0]]


async def test_jobs_of_several_apps_and_servers_are_awaited_together(
    app: App, private_server: PrivateServers, anyio_backend: str
) -> None:
    double, _ = _tasks(app)
    elsewhere = App("elsewhere", redis=private_server().url)

    @elsewhere.task(queue="numbers")
    async def triple(n: int) -> int:
        return 3 * n

    jobs = [await double.adelay(1), await triple.adelay(1), await double.adelay(2)]
    async with app.lifespan_worker(), elsewhere.lifespan_worker():
        assert await app.agather(jobs, timeout=LIMIT) == [2, 3, 4]
        assert await to_thread.run_sync(elsewhere.gather, jobs, LIMIT) == [2, 3, 4]


def test_a_lifespan_worker_runs_in_a_bare_asyncio_program(app: App) -> None:
    double, _ = _tasks(app)

    async def main() -> list[int]:
        async with app.lifespan_worker(concurrency=2):
            job = await double.options(delay=0.01).adelay(4)
            return await app.agather([job], timeout=LIMIT)

    assert asyncio.run(main()) == [8]


async def test_a_recorded_app_runs_no_worker(app: App, anyio_backend: str) -> None:
    double, _ = _tasks(app)
    with recorded(app) as box:
        async with app.lifespan_worker() as worker:
            assert worker is None
            job = await double.adelay(4)
            with pytest.raises(TimeoutError, match="has not run yet"):
                await app.agather([job])
            with pytest.raises(TimeoutError, match="has not run yet"):
                await app.agather([job], timeout=1)
            await box.arun()
            assert await app.agather([job]) == [8]
