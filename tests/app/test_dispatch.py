"""From a job to its task: found by name, prepared once, with middleware around."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anyio import fail_after

from taskbull.app.app import App, dispatch_of
from taskbull.core import events
from taskbull.core.job import Job, compose
from taskbull.core.outcome import classify
from taskbull.errors import (
    ConfigurationError,
    InvalidArguments,
    JobFailed,
    PermanentError,
    TaskNotRegistered,
)
from taskbull.worker.running_job import RunningJob, current_job
from tests.worker.bed import Recorder

LIMIT = 60.0

CallNext = Callable[[RunningJob], Awaitable[Any]]


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1", attempts=4)


def test_what_a_task_needs_is_made_once(local: App) -> None:
    @local.task(attempts=9, timeout=5)
    async def work() -> None: ...

    job = Job(id="1", name="work")
    found = dispatch_of(local).resolve(job)
    assert found is dispatch_of(local).resolve(Job(id="2", name="work"))
    assert (found.policy.attempts, found.timeout) == (9, 5.0)


def test_names_from_redis_are_not_collected(local: App) -> None:
    first = dispatch_of(local).resolve(Job(id="1", name="nobody"))
    assert first is dispatch_of(local).resolve(Job(id="2", name="nobody else"))
    assert first.policy.attempts == 4


def test_a_task_that_cannot_be_prepared_is_reported_before_the_first_job(local: App) -> None:
    @local.task
    def work(x: complex) -> None: ...

    with pytest.raises(ConfigurationError, match="Parameter 'x' of task 'work'"):
        local.worker()
    with pytest.raises(ConfigurationError, match="Parameter 'x' of task 'work'"):
        dispatch_of(local).resolve(Job(id="1", name="work"))


def test_a_task_that_is_missing_may_be_there_later() -> None:
    assert classify(TaskNotRegistered("work", "it is not there")) == "permanent"


async def test_layers_are_called_in_order() -> None:
    told: list[str] = []

    def layer(name: str) -> Any:
        async def around(job: str, call_next: Any) -> str:
            told.append(f"{name} before")
            result = await call_next(job)
            told.append(f"{name} after")
            return f"{result} {name}"

        return around

    async def handler(job: str) -> str:
        told.append(job)
        return "done"

    assert await compose([layer("outer"), layer("inner")], handler)("job") == "done inner outer"
    assert told == ["outer before", "inner before", "job", "inner after", "outer after"]
    assert compose([], handler) is handler


def yields(job: Any, call_next: Any) -> Any:
    yield call_next(job)


async def yields_too(job: Any, call_next: Any) -> Any:
    yield call_next(job)


@pytest.mark.parametrize(
    "wrong",
    [yields, yields_too, lambda job: None, lambda: None, RunningJob, 5, None],
    ids=["generator", "async generator", "job only", "nothing", "class", "5", "None"],
)
def test_what_is_no_middleware_is_refused(local: App, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"app\.middleware must be a def or async def"):
        local.middleware(wrong)


async def test_async_and_plain_tasks_are_run_with_their_arguments(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.middleware
    async def outer(job: RunningJob, call_next: CallNext) -> Any:
        return [job.name, await call_next(job)]

    @app.task
    async def add(a: int, b: int = 2) -> int:
        seen.append((current_job().name, current_job().attempts))
        return a + b

    @app.task
    def multiply(a: int, b: int = 2, /, *, c: int = 1) -> int:
        seen.append((current_job().name, current_job().attempts))
        return a * b * c

    with fail_after(LIMIT):
        async with app.worker().running():
            jobs = await app.aenqueue([add.job(1), multiply.job(3, c=5)])
            assert [await app.job("default", job.id).aresult() for job in jobs] == [
                ["add", 3],
                ["multiply", 30],
            ]
    assert sorted(seen) == [("add", 3), ("multiply", 3)]


async def test_data_that_do_not_fit_fail_immediately_saying_why(app: App) -> None:
    called: list[int] = []

    @app.task(queue="q", attempts=5)
    async def add(a: int) -> None:
        called.append(a)

    @app.task(queue="q", attempts=5)
    def add_in_thread(a: int) -> None:
        called.append(a)

    queue = app.queue("q")
    wrong: list[Any] = [{"a": "secret"}, {}, {"a": 1, "b": 2}, "text", 5, [1], None]
    with fail_after(LIMIT):
        async with app.worker().running():
            for name in ("add", "add_in_thread"):
                for data in wrong:
                    job = await queue.add(name, data, attempts=5)
                    with pytest.raises(JobFailed, match=rf"{name}\(\)") as failed:
                        await job.aresult()
                    assert failed.value.attempts == 1
                    stored = (await job.ainfo()).raw_stacktrace or b""
                    assert InvalidArguments.__name__.encode() in stored
                    assert b"secret" not in stored
    assert called == []


async def test_a_middleware_can_bind_tasks_to_their_queues(app: App) -> None:
    # S12: as docs/security.md has it; no function starts from another queue than its own
    started: list[str] = []

    @app.middleware
    async def only_from_its_own_queue(job: Any, call_next: Any) -> Any:
        if job.queue != app.tasks[job.name].queue:
            raise PermanentError(f"task {job.name} does not run from queue {job.queue}")
        return await call_next(job)

    @app.task(queue="admin")
    async def awaited() -> None:
        started.append("awaited")

    @app.task(queue="admin")
    def plain() -> None:
        started.append("plain")

    @app.batch_task(queue="admin", size=1, wait=5)
    async def many(items: list[dict[str, int]]) -> list[None]:
        started.append("many")
        return [None for _ in items]

    @app.task(queue="shop")
    async def own() -> int:
        return 1

    record = Recorder()
    app.on(events.Event)(record)
    for name in ("awaited", "plain", "many", "own"):
        await app.queue("shop").add(name)
    async with app.worker(queues=["shop"]).running():
        failed = await record.wait_for(events.Failed, 3)
        await record.wait_for(events.Completed)
    assert {event.job.failed_reason for event in failed} == {
        f"task {name} does not run from queue shop" for name in ("awaited", "plain", "many")
    }
    assert started == []
