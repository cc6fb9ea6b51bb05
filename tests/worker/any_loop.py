"""Work of every kind that makes a worker wait, for tests in all sorts of event loops.

Started by uvicorn, `web` does it in a FastAPI app whose lifespan runs the worker.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

from taskbull import (
    App,
    Backoff,
    CircuitBreaker,
    Dashboard,
    Every,
    JobFailed,
    Limiter,
    RateLimited,
    Snooze,
    current_job,
)

SHORT = 0.03
"""Seconds of every delay."""


def make_work(url: str, prefix: str) -> Work:  # noqa: C901 - many short tasks
    """Return an app with a task for each way to wait."""
    app = App("any-loop", redis=url, prefix=prefix, backoff=Backoff.fixed(SHORT))
    app.queue_options("limited", limiter=Limiter(1, SHORT))
    seen: set[str] = set()

    def is_first() -> bool:
        known, job_id = len(seen), f"{current_job().queue}:{current_job().id}"
        seen.add(job_id)
        return len(seen) > known

    @app.task
    async def plain(n: int) -> int:
        return n

    @app.task
    def threaded(n: int) -> int:
        return n

    @app.task(attempts=2)
    async def retried(n: int) -> int:
        if is_first():
            raise ValueError("the first attempt fails")
        return n

    @app.task(attempts=2)
    def threaded_retried(n: int) -> int:
        if is_first():
            raise ValueError("the first attempt fails")
        return n

    @app.task(timeout=10)
    def threaded_in_time(n: int) -> int:
        return n

    @app.task
    async def snoozed(n: int) -> int:
        if is_first():
            raise Snooze(SHORT)
        return n

    @app.task(queue="limiting")
    async def limits(n: int) -> int:
        if is_first():
            raise RateLimited(SHORT)
        return n

    @app.task(queue="limited")
    async def limited(n: int) -> int:
        return n

    @app.task(queue="broken", attempts=2, circuit_breaker=CircuitBreaker(1, SHORT))
    def broken(n: int) -> int:
        if is_first():
            raise ValueError("the first attempt opens the circuit")
        return n

    @app.batch_task(size=2)
    async def batched(items: list[int]) -> list[int]:
        return items

    @app.task(queue="scheduled", schedule=Every(SHORT))
    async def scheduled() -> None:
        pass

    alone = (plain, threaded, retried, threaded_retried, threaded_in_time, snoozed, limits)
    return Work(app, [*alone, limited, broken, batched])


class Work(NamedTuple):
    """An app, and those of its tasks that take a number and return it."""

    app: App
    tasks: list[Any]

    async def run(self) -> None:
        """Do all of it in this event loop; the worker's end is a graceful stop."""
        async with self.app.worker().running():
            await self.do()

    async def do(self) -> None:
        """Have all of it done by a worker that runs."""
        numbers = range(len(self.tasks))
        handles = [await task.adelay(n) for n, task in enumerate(self.tasks)]
        handles += [await t.options(delay=SHORT).adelay(n) for n, t in enumerate(self.tasks)]
        assert [await one.aresult(timeout=30) for one in handles] == [*numbers, *numbers]
        unwanted = await self.tasks[0].options(delay=3600).adelay(0)
        await unwanted.acancel("no longer wanted")
        with pytest.raises(JobFailed, match="no longer wanted"):
            await unwanted.aresult(timeout=30)
        while (await self.app.queue("scheduled").counts())["completed"] < 2:
            await (await self.tasks[0].options(delay=SHORT).adelay(0)).aresult(timeout=30)


def make_web() -> FastAPI:
    """Return a web app that works by itself."""
    work = make_work(os.environ["TASKBULL_REDIS_URL"], os.environ["ANY_LOOP_PREFIX"])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with work.app.worker().running():
            yield

    web = FastAPI(lifespan=lifespan)
    web.mount("/jobs", Dashboard(work.app))

    @web.get("/work")
    async def do() -> None:
        await work.do()

    return web
