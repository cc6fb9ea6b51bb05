"""Batches, lifespans and sync middleware in a box."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from taskbull import (
    App,
    Backoff,
    ConfigurationError,
    JobFailed,
    PermanentError,
    RunningJob,
    TaskbullError,
    current_batch,
    current_job,
    from_lifespan,
)
from taskbull.testing import Box, recorded

AsyncNext = Callable[[RunningJob], Awaitable[Any]]
Next = Callable[[RunningJob], Any]
RunBox = Callable[[Box], Awaitable[None]]


@pytest.fixture
def app() -> App:
    return App("boxed", redis="redis://localhost:1", attempts=3, backoff=Backoff.fixed(60))


@pytest.fixture(params=["run", "arun"])
def run(request: pytest.FixtureRequest, anyio_backend: str) -> RunBox:
    async def in_a_thread(box: Box) -> None:
        def call() -> None:
            box.run(check=False, backend=anyio_backend)

        await anyio.to_thread.run_sync(call)

    async def here(box: Box) -> None:
        await box.arun(check=False)

    return in_a_thread if request.param == "run" else here


class Words:
    """A batch task in both kinds, and the calls that were made."""

    def __init__(self, app: App, kind: str) -> None:
        self.calls: list[list[str]] = []
        make: Any = app.batch_task(size=3, wait=3600, name="work")
        self.work = make(self.plain() if kind == "sync" else self.awaited())

    def plain(self) -> Callable[..., Any]:
        def work(words: list[str]) -> list[Any]:
            return self.handle(words)

        return work

    def awaited(self) -> Callable[..., Any]:
        async def work(words: list[str]) -> list[Any]:
            await anyio.lowlevel.checkpoint()
            return self.handle(words)

        return work

    def handle(self, words: list[str]) -> list[Any]:
        assert [job.data["words"] for job in current_batch()] == words
        with pytest.raises(TaskbullError, match="in a batch task"):
            current_job()
        self.calls.append(words)
        if "poison" in words:
            raise LookupError("poison")
        return [PermanentError("refused") if word == "bad" else word.upper() for word in words]


@pytest.fixture(params=["sync", "async"])
def words(request: pytest.FixtureRequest, app: App) -> Words:
    return Words(app, request.param)


async def test_jobs_due_at_the_same_time_run_together(app: App, words: Words, run: RunBox) -> None:
    with recorded(app) as box:
        jobs = await app.aenqueue([words.work.job(word) for word in ("a", "b", "bad", "d")])
        later = await app.aenqueue([words.work.options(delay=5).job("later")])
        await run(box)
        assert [job.result() for job in (jobs[0], jobs[1], jobs[3], *later)] == [
            "A", "B", "D", "LATER",
        ]  # fmt: skip
        with pytest.raises(JobFailed, match="refused"):
            jobs[2].result()
        box.assert_enqueued(words.work, words="a")
    assert words.calls == [["a", "b", "bad"], ["d"], ["later"]]
    assert box.now == 5


async def test_a_poison_item_is_alone_in_the_end(app: App, words: Words, run: RunBox) -> None:
    with recorded(app) as box:
        jobs = await app.aenqueue([words.work.job(word) for word in ("a", "poison", "b")])
        await run(box)
        assert [jobs[0].result(), jobs[2].result()] == ["A", "B"]
        with pytest.raises(JobFailed, match="poison") as failed:
            jobs[1].result()
        assert failed.value.attempts == 3
    together = ["a", "poison", "b"]
    assert words.calls[:2] == [together, together]
    assert sorted(words.calls[2:]) == [["a"], ["b"], ["poison"]]
    assert box.now == 120


async def test_data_that_do_not_fit_do_not_hold_up_the_others(
    app: App, words: Words, run: RunBox
) -> None:
    @app.middleware
    async def spoil(job: RunningJob, call_next: AsyncNext) -> Any:
        return "out" if job.data["words"] == "out" else await call_next(job)

    with recorded(app) as box:
        jobs = await app.aenqueue([words.work.job(word) for word in ("a", "out", "c")])
        await run(box)
        assert [job.result() for job in jobs] == ["A", "out", "C"]
    assert words.calls == [["a", "c"]]


async def test_a_layer_may_call_twice(app: App, words: Words, run: RunBox) -> None:
    @app.middleware
    async def twice(job: RunningJob, call_next: AsyncNext) -> Any:
        return [await call_next(job), await call_next(job)]

    with recorded(app) as box:
        jobs = await app.aenqueue([words.work.job(word) for word in "ab"])
        await run(box)
        assert [job.result() for job in jobs] == [["A", "A"], ["B", "B"]]
    assert words.calls == [["a", "b"]] * 2


async def test_plain_layers_run_once_for_a_call(app: App, words: Words, run: RunBox) -> None:
    told: list[str] = []

    @app.middleware
    def once(job: RunningJob, call_next: Next) -> Any:
        told.append(job.id)
        return call_next(job)

    with recorded(app) as box:
        jobs = await app.aenqueue([words.work.job(word) for word in "ab"])
        await run(box)
    assert told == ([jobs[0].id] if not words.work.is_async else [])


async def test_the_lifespan_runs_and_gives_what_it_yields(app: App, run: RunBox) -> None:
    told: list[str] = []

    @app.lifespan
    async def around() -> AsyncIterator[dict[str, Any]]:
        told.append("open")
        yield {"loop": anyio.lowlevel.current_token().native_token}
        told.append("close")

    @app.task
    def plain(resources: dict[str, Any] = from_lifespan()) -> bool:
        told.append("plain")
        return current_job().resources is resources

    @app.task
    async def awaited(resources: dict[str, Any] = from_lifespan()) -> bool:
        told.append("awaited")
        return resources["loop"] is anyio.lowlevel.current_token().native_token

    @app.batch_task(size=2)
    def batch(items: list[str], resources: dict[str, Any] = from_lifespan()) -> list[bool]:
        told.append("batch")
        return [job.resources is resources for job in current_batch()]

    with recorded(app) as box:
        jobs: list[Any] = [await plain.adelay(), await batch.adelay("a"), await batch.adelay("b")]
        jobs.append(await awaited.adelay())
        await run(box)
        assert [job.result() for job in jobs] == [True] * 4
    assert told == ["open", "plain", "batch", "awaited", "close"]


def test_plain_functions_stay_in_this_thread(app: App) -> None:
    @app.lifespan
    async def around() -> AsyncIterator[int]:
        yield 5

    @app.middleware
    def layer(job: RunningJob, call_next: Next) -> Any:
        return [threading.get_ident(), *call_next(job)]

    @app.task
    def plain(value: int = from_lifespan()) -> list[int]:
        return [value, threading.get_ident()]

    here = threading.get_ident()
    with recorded(app) as box:
        job = plain.delay()
        box.run()
        assert job.result() == [here, 5, here]


async def test_other_resources_may_be_given_then_no_lifespan_runs(app: App, run: RunBox) -> None:
    entered: list[str] = []

    @app.lifespan
    async def around() -> AsyncIterator[str]:
        entered.append("around")
        yield "real"

    @app.task
    def plain(model: str = from_lifespan()) -> str:
        return model

    @app.task
    async def awaited(model: str = from_lifespan()) -> str:
        return f"{model} {current_job().resources}"

    with recorded(app, resources="fake") as box:
        jobs = [await plain.adelay(), await awaited.adelay()]
        await run(box)
        assert [job.result() for job in jobs] == ["fake", "fake fake"]
    assert entered == []


async def test_a_task_whose_lifespan_value_is_missing_is_reported(app: App, run: RunBox) -> None:
    @app.task
    def plain(model: str = from_lifespan()) -> str:
        return model

    with recorded(app) as box:
        await plain.adelay()
        with pytest.raises(ConfigurationError, match="needs the value of a lifespan"):
            await run(box)
    with recorded(app, resources="fake") as box:
        job = await plain.adelay()
        await run(box)
        assert job.result() == "fake"


async def test_a_lifespan_that_fails_is_reported(app: App, run: RunBox) -> None:
    def connect() -> str:
        raise LookupError("no database")

    @app.lifespan
    async def around() -> AsyncIterator[str]:
        yield connect()

    @app.task
    def plain() -> None: ...

    with recorded(app) as box:
        await plain.adelay()
        with pytest.raises(LookupError, match="no database"):
            await run(box)
