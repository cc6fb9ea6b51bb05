"""Sync middleware: it runs around sync functions, in their thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from anyio import fail_after

from taskbull import App, JobFailed, PermanentError, Snooze, current_job
from taskbull.worker.running_job import RunningJob

LIMIT = 60.0

AsyncNext = Callable[[RunningJob], Awaitable[Any]]
Next = Callable[[RunningJob], Any]

whose = threading.local()
variable: ContextVar[str] = ContextVar("variable")


async def test_plain_layers_are_inside_of_all_async_ones_in_the_thread_of_the_function(
    app: App,
) -> None:
    told: list[str] = []
    threads: set[int] = set()
    loop_thread = threading.get_ident()

    def layer(name: str) -> Callable[[RunningJob, Next], Any]:
        def around(job: RunningJob, call_next: Next) -> Any:
            assert job is current_job()
            threads.add(threading.get_ident())
            told.append(name)
            result = call_next(job)
            told.append(f"/{name}")
            return f"{result} {name}"

        return around

    def async_layer(name: str) -> Callable[[RunningJob, AsyncNext], Awaitable[Any]]:
        async def around(job: RunningJob, call_next: AsyncNext) -> Any:
            assert threading.get_ident() == loop_thread
            told.append(name)
            result = await call_next(job)
            told.append(f"/{name}")
            return f"{result} {name}"

        return around

    app.middleware(layer("plain 1"))
    app.middleware(async_layer("async 1"))
    app.middleware(layer("plain 2"))
    app.middleware(async_layer("async 2"))

    @app.task
    def work() -> str:
        threads.add(threading.get_ident())
        told.append("work")
        return "done"

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay()).aresult() == "done plain 2 plain 1 async 2 async 1"
    assert told == [
        "async 1", "async 2", "plain 1", "plain 2", "work",
        "/plain 2", "/plain 1", "/async 2", "/async 1",
    ]  # fmt: skip
    assert len(threads) == 1
    assert loop_thread not in threads


async def test_they_do_not_surround_async_tasks(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    def layer(job: RunningJob, call_next: Next) -> Any:
        seen.append(job.name)
        return call_next(job)

    @app.task
    async def awaited() -> None: ...

    @app.task
    def plain() -> None: ...

    with fail_after(LIMIT):
        async with app.worker().running():
            await (await awaited.adelay()).aresult()
            await (await plain.adelay()).aresult()
    assert seen == ["plain"]


async def test_what_a_layer_sets_in_its_thread_the_function_sees(app: App) -> None:
    @app.middleware
    def layer(job: RunningJob, call_next: Next) -> Any:
        whose.job = job.id
        variable.set(job.id)
        try:
            return call_next(job)
        finally:
            del whose.job

    @app.task
    def work() -> bool:
        return bool(whose.job == variable.get() == current_job().id)

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay()).aresult()


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_layer_may_raise_catch_and_steer(app: App, attempts: int) -> None:
    seen: list[str] = []

    @app.middleware
    def layer(job: RunningJob, call_next: Next) -> Any:
        if job.data["what"] == "refuse":
            raise PermanentError("not now")
        if job.data["what"] == "snooze" and not seen:
            seen.append("snoozed")
            raise Snooze(0)
        try:
            return call_next(job)
        except LookupError as error:
            return f"caught {error}"

    @app.task(attempts=attempts)
    def work(what: str) -> str:
        if what == "raise":
            raise LookupError(what)
        return what

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay("raise")).aresult() == "caught raise"
            assert await (await work.adelay("snooze")).aresult() == "snooze"
            with pytest.raises(JobFailed, match="not now"):
                await (await work.adelay("refuse")).aresult()


async def test_one_that_is_added_later_counts_for_the_next_job(app: App) -> None:
    @app.task
    def work() -> int:
        return 1

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay()).aresult() == 1
            app.middleware(lambda job, call_next: call_next(job) + 1)
            assert await (await work.adelay()).aresult() == 2


async def test_data_that_do_not_fit_are_met_inside_of_the_layers(app: App) -> None:
    closed: list[str] = []

    @app.middleware
    def layer(job: RunningJob, call_next: Next) -> Any:
        try:
            return call_next(job)
        finally:
            closed.append(job.name)

    @app.task
    def work(number: int) -> None: ...

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await app.queue("default").add("work", {"number": "5"})
            with pytest.raises(JobFailed, match="argument 'number'"):
                await job.aresult()
    assert closed == ["work"]
