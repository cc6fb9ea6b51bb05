"""Functions that run after jobs have ended, and may block: listeners, on_success and on_failure."""

from __future__ import annotations

import logging
import threading
from functools import partial
from queue import SimpleQueue
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after

from taskbull import App, Backoff, Failure, Job, events
from taskbull.errors import ConfigurationError

LIMIT = 60.0


class Calls:
    """The arguments of hook calls, from any thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def add(self, *call: Any) -> None:
        self._queue.put(call)

    def add_in_thread(self, *call: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self._queue.put(call)

    async def take(self, count: int) -> list[Any]:
        """Wait for the next calls and return them."""
        get = partial(self._queue.get, timeout=LIMIT)
        return [await anyio.to_thread.run_sync(get) for _ in range(count)]

    def is_empty(self) -> bool:
        return self._queue.empty()


async def test_a_listener_may_be_awaited_or_run_in_a_thread(app: App) -> None:
    calls = Calls()

    @app.task(attempts=2, backoff=Backoff.none())
    async def work(fails: bool) -> int:
        if fails:
            raise KeyError("x")
        return 7

    @app.on(events.Completed)
    async def awaited(event: events.Completed) -> None:
        await anyio.lowlevel.checkpoint()
        calls.add("awaited", event.value)

    @app.on(events.Failed, thread=True)
    def blocking(event: events.Failed) -> None:
        calls.add_in_thread("blocking", event.failure.reason, event.job.attempt)

    with fail_after(LIMIT):
        async with app.worker().running():
            await work.adelay(fails=False)
            await work.adelay(fails=True)
            found = await calls.take(2)
    assert sorted(found) == [("awaited", 7), ("blocking", "KeyError: 'x'", 2)]


async def test_a_task_has_hooks_of_its_own(app: App) -> None:
    calls = Calls()

    def completed(job: Job, result: frozenset[int]) -> None:
        calls.add_in_thread(job.ref, job.data["number"], result)

    async def failed(job: Job, failure: Failure) -> None:
        calls.add(job.ref, job.queue, failure.reason)

    @app.task(on_success=completed, on_failure=failed)
    def work(number: int) -> frozenset[int]:
        if number < 0:
            raise ValueError(number)
        return frozenset({number})

    @app.task
    def other(number: int) -> None: ...

    with fail_after(LIMIT):
        async with app.worker().running():
            await other.adelay(1)
            good = await work.adelay(4)
            bad = await work.options(attempts=1).adelay(-4)
            found = await calls.take(2)
            assert ((await bad.ainfo()).ref, (await good.ainfo()).queue) == (bad.ref, "default")
    assert (good.ref, 4, frozenset({4})) in found
    assert (bad.ref, "default", "ValueError: -4") in found
    assert calls.is_empty()


async def test_hooks_run_for_every_outcome(app: App) -> None:
    calls = Calls()

    @app.task(on_failure=lambda job, failure: calls.add(app.job(job.ref).id, failure.reason))
    def work() -> None:
        raise AssertionError("must not run")

    expired = await work.options(expires=0.001, job_id="expired").adelay()
    cancelled = await work.options(delay=3600, job_id="cancelled").adelay()
    parent = await work.after(work.options(job_id="child", delay=3600).job()).adelay()
    with fail_after(LIMIT):
        async with app.worker().running():
            await cancelled.acancel("not needed")
            await parent.acancel()
            found = await calls.take(4)
    assert dict(found).keys() == {expired.id, cancelled.id, parent.id, "child"}
    assert dict(found)["cancelled"] == "cancelled: not needed"


async def test_a_job_that_is_cancelled_while_no_worker_runs_has_its_hook_run_later(
    app: App,
) -> None:
    calls = Calls()

    @app.task(on_failure=lambda job, failure: calls.add(job.id, job.data))
    def work(number: int) -> None: ...

    async with app.worker().running():
        pass
    job = await work.adelay(5)
    await job.acancel()
    with fail_after(LIMIT):
        async with app.worker().running(), app.worker().running():
            found = await calls.take(1)
    assert found == [(job.id, {"number": 5})]
    assert calls.is_empty()


async def test_an_error_in_a_hook_is_logged_with_the_job(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()

    def fail(job: Job, result: int) -> None:
        calls.add_in_thread(job.id)
        raise RuntimeError("no database")

    @app.task(on_success=fail)
    def work() -> int:
        return 1

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await work.adelay()
            await calls.take(1)
            assert await job.aresult() == 1
    [line] = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert f"failed for job {job.id} (work) in queue default" in line.getMessage()
    assert "no database" in (line.exc_text or "")


@pytest.mark.everywhere
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
@pytest.mark.parametrize("is_async", [True, False])
async def test_no_exception_of_a_hook_ends_the_worker(
    app: App, caplog: pytest.LogCaptureFixture, error: type[BaseException], is_async: bool
) -> None:
    calls = Calls()

    def fail(job: Job, result: int) -> None:
        calls.add(result)
        raise error("no database")

    async def fail_later(job: Job, result: int) -> None:
        fail(job, result)

    @app.task(on_success=fail_later if is_async else fail)
    def work(number: int) -> int:
        return number

    def refuse(record: logging.LogRecord) -> bool:
        if "2" in record.getMessage():
            raise LookupError("a filter of the application")
        return True

    hooks = logging.getLogger("taskbull.worker.hooks")
    hooks.addFilter(refuse)
    try:
        with fail_after(LIMIT):
            async with app.worker().running():
                for number in range(3):
                    await work.options(job_id=f"n{number}").adelay(number)
                    assert await calls.take(1) == [(number,)]
    finally:
        hooks.removeFilter(refuse)
    lines = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(lines) == 2
    assert all("no database" in (line.exc_text or "") for line in lines)


async def test_a_stopping_worker_waits_for_hooks(app: App) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hook(_job: Job, _result: int) -> None:
        entered.set()
        leave.wait(LIMIT)
        calls.append("done")

    calls: list[str] = []

    @app.task(on_success=hook)
    def work() -> int:
        return 1

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            async with app.worker().running() as shutdown:
                await work.adelay()
                await anyio.to_thread.run_sync(entered.wait, LIMIT)
                shutdown.begin()
                leave.set()
            tasks.cancel_scope.cancel()
    assert calls == ["done"]


@pytest.mark.parametrize("wrong", [3, "on_success"])
def test_a_wrong_hook_is_refused(wrong: Any) -> None:
    app = App("local", redis="redis://localhost:1")
    with pytest.raises(ConfigurationError, match="on_success must be a function"):

        @app.task(on_success=wrong)
        def work() -> None: ...

    async def later(event: events.Failed) -> None: ...

    with pytest.raises(ConfigurationError, match="sync function to run in a thread"):
        app.on(events.Failed, thread=True)(later)
    with pytest.raises(ConfigurationError, match="be a function that takes the event"):
        app.on(events.Failed)(lambda: None)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="be a class of"):
        app.on(int)(print)  # type: ignore[type-var]
