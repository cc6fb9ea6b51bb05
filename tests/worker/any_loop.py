"""Work of every kind that makes a worker wait, for tests in all sorts of event loops.

Started by uvicorn, `web` does it in a FastAPI app whose lifespan runs the worker.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from anyio import sleep_forever
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from taskbull import (
    App,
    Backoff,
    CircuitBreaker,
    Dashboard,
    Every,
    Groups,
    JobFailed,
    JobState,
    Limiter,
    RateLimited,
    Snooze,
    current_job,
    step,
)

SHORT = 0.03
"""Seconds of every delay."""


def make_work(url: str, prefix: str) -> Work:  # noqa: C901, PLR0915 - many short tasks
    """Return an app with a task for each way to wait."""
    app = App("any-loop", redis=url, prefix=prefix, backoff=Backoff.fixed(SHORT))
    app.queue_options("limited", limiter=Limiter(1, SHORT))
    app.queue_options("grouped", groups=Groups(concurrency=1, limiter=Limiter(1, SHORT)))
    seen: set[str] = set()
    hooked: list[str] = []

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

    def note(job: Any, _: Any) -> None:
        hooked.append(job.name)

    async def anote(job: Any, _: Any) -> None:
        hooked.append(job.name)

    @app.task(queue="grouped", group_by="n", on_success=note)
    async def grouped(n: int) -> int:
        return n

    @app.task(queue="grouped", group_by=lambda n: "all", on_success=anote)
    def threaded_in_group(n: int) -> int:
        return n

    @step(attempts=2, backoff=Backoff.fixed(SHORT), timeout=10)
    async def add(n: int) -> int:
        return n + 1

    @step(attempts=2, backoff=Backoff.fixed(SHORT), timeout=10)
    def threaded_add(n: int) -> int:
        return n + 1

    @app.task
    async def in_steps(n: int) -> int:
        await current_job().asleep(SHORT)
        return await add(n) - 1

    @app.task
    def threaded_in_steps(n: int) -> int:
        current_job().sleep(SHORT)
        return threaded_add(n) - 1

    @app.task
    async def signalled(n: int) -> int:
        return await current_job().await_signal("go", int, timeout=3600) + n

    @app.task
    async def stuck() -> None:
        await sleep_forever()

    @app.task
    async def items(n: int) -> AsyncIterator[int]:
        for item in range(n):
            yield item

    @app.task
    def threaded_items(n: int) -> Iterator[int]:
        yield from range(n)

    alone = (plain, threaded, retried, threaded_retried, threaded_in_time, snoozed, limits)
    streams = [items, threaded_items]
    others = [grouped, threaded_in_group, in_steps, threaded_in_steps]
    return Work(app, [*alone, limited, broken, batched, *others], streams, signalled, stuck, hooked)


class Work(NamedTuple):
    """An app, and those of its tasks that take a number and return it."""

    app: App
    tasks: list[Any]
    streams: list[Any]
    """Tasks that take a number and yield some."""
    signalled: Any
    """Task that waits for the signal `go`, and adds its value to its argument."""
    stuck: Any
    """Task that runs until it is cancelled."""
    hooked: list[str]
    """Names of tasks whose hooks have run."""

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
        waiting = await self.signalled.adelay(1)
        await waiting.asignal("go", 41)
        assert await waiting.aresult(timeout=30) == 42
        assert len(await waiting.asteps()) == 1
        for task in self.streams:
            job = await task.adelay(5)
            assert [item async for item in job.astream()] == [0, 1, 2, 3, 4]
            assert "event: end" in "".join([event async for event in job.sse()])
            assert await job.aresult(timeout=30) == [0, 1, 2, 3, 4]
        await self._find_stack()
        while len(set(self.hooked)) < 2:
            await (await self.tasks[0].options(delay=SHORT).adelay(0)).aresult(timeout=30)
        while (await self.app.queue("scheduled").counts())["completed"] < 2:
            await (await self.tasks[0].options(delay=SHORT).adelay(0)).aresult(timeout=30)

    async def _find_stack(self) -> None:
        """Ask the worker for the stack of a running job."""
        running = await self.stuck.adelay()
        while await running.astate() is not JobState.ACTIVE:
            await (await self.tasks[0].options(delay=SHORT).adelay(0)).aresult(timeout=30)
        found = await self.app.server().stack("default", running.id)
        assert "in stuck" in found.stack
        await running.acancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await running.aresult(timeout=30)


def make_web() -> FastAPI:
    """Return a web app that works by itself."""
    work = make_work(os.environ["TASKBULL_REDIS_URL"], os.environ["ANY_LOOP_PREFIX"])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with work.app.worker().running():
            yield

    web = FastAPI(lifespan=lifespan)
    web.mount("/jobs", Dashboard(work.app))

    @web.get("/follow")
    async def follow() -> StreamingResponse:
        job = await work.streams[0].options(delay=3600).adelay(1)
        return StreamingResponse(job.sse(), media_type="text/event-stream")

    @web.get("/work")
    async def do() -> None:
        await work.do()

    return web
