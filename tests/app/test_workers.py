"""Workers of an app: lifespan, listeners, options, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after

from taskbull import events
from taskbull.app.app import App
from taskbull.core.retry import CircuitBreaker
from taskbull.errors import ConfigurationError
from tests.selection import in_full
from tests.servers.kinds import Reachable

LIMIT = 60.0


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


async def test_the_lifespan_surrounds_the_worker_and_may_wait_at_its_end(app: App) -> None:
    told: list[str] = []

    @app.task
    async def work() -> None:
        told.append("job")

    @app.lifespan
    async def around(given: App) -> AsyncIterator[None]:
        assert given is app
        told.append("begin")
        yield
        await anyio.lowlevel.checkpoint()
        told.append("end")

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(app.run_worker)
            await (await work.adelay()).aresult()
            tasks.cancel_scope.cancel()
    assert told == ["begin", "job", "end"]


async def test_a_lifespan_may_be_a_context_manager_that_takes_nothing(app: App) -> None:
    told: list[str] = []

    @app.task
    async def work() -> None: ...

    @app.lifespan
    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        told.append("begin")
        yield
        told.append("end")

    with fail_after(LIMIT):
        async with app.worker().running():
            assert told == ["begin"]
    assert told == ["begin", "end"]


async def test_a_lifespan_that_fails_is_reported_as_it_is(app: App) -> None:
    told: str | None = None

    @app.task
    async def work() -> None: ...

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        if told is None:
            raise LookupError("no database")
        yield

    with fail_after(LIMIT), pytest.raises(LookupError, match="no database"):
        await app.run_worker()


def test_there_is_one_lifespan(local: App) -> None:
    @local.lifespan
    async def first() -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="already has a lifespan"):
        local.lifespan(first)


async def plain() -> None: ...
async def two(one: int, other: int) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("wrong", [plain, 5, two], ids=["coroutine", "5", "two parameters"])
def test_what_is_no_lifespan_is_refused(local: App, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"app\.lifespan must"):
        local.lifespan(wrong)


async def test_listeners_hear_what_they_asked_for(app: App) -> None:
    handle_signals: list[str] = []
    all_heard: list[events.Event] = []

    @app.on(events.Completed)
    def completed(event: events.Completed) -> None:
        handle_signals.append(f"{event.job.name} {event.value}")

    @app.on(events.Completed)
    def completed_too(event: events.Completed) -> None:
        handle_signals.append("too")

    app.on(events.Event)(all_heard.append)

    @app.task
    async def work() -> int:
        return 5

    with fail_after(LIMIT):
        async with app.worker(worker_id="me").running():
            await (await work.adelay()).aresult()
    assert handle_signals == ["work 5", "too"]
    assert any(isinstance(event, events.Started) for event in all_heard)
    assert {event.worker_id for event in all_heard} == {"me"}


async def listen(event: events.Event) -> None: ...


@pytest.mark.parametrize(
    ("kind", "listener"), [(int, print), (events.Failed, 3)], ids=["int", "number"]
)
def test_what_is_no_event_or_no_listener_is_refused(local: App, kind: Any, listener: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a"):
        local.on(kind)(listener)


def test_a_worker_serves_all_queues_of_the_tasks_or_those_named(local: App) -> None:
    @local.task(queue="a", circuit_breaker=CircuitBreaker(threshold=1, duration=1))
    def first() -> None: ...

    @local.task(queue="b")
    def second() -> None: ...

    assert local.worker().queues == ["a", "b"]
    assert local.worker(["b", "node"]).queues == ["b", "node"]
    assert local.worker("b", concurrency=3).options.concurrency == 3
    assert local.worker().circuit_breaker_state("a") == "closed"
    assert local.worker().circuit_breaker_state("b") is None


def test_wrong_options_of_a_worker_are_refused(local: App) -> None:
    with pytest.raises(ConfigurationError, match="App local has no tasks"):
        local.worker()

    @local.task
    def work() -> None: ...

    misspelt: Any = {"concurency": 3}
    with pytest.raises(
        ConfigurationError,
        match=r"a worker has no option 'concurency' \(did you mean concurrency\?\)",
    ):
        local.worker(**misspelt)
    with pytest.raises(ConfigurationError, match="concurrency"):
        local.worker(concurrency=0)
    with pytest.raises(ConfigurationError, match="backend must be one of 'asyncio', 'trio'"):
        local.run(backend="curio")


PROGRAM = """
    import anyio, sys, time
    from taskbull import App, events

    app = App("program", redis=sys.argv[1], prefix=sys.argv[2])

    @app.task
    def slow(seconds: float) -> None:
        print("running", flush=True)
        time.sleep(seconds)
        print("done", flush=True)

    @app.lifespan
    async def around():
        print("begin", flush=True)
        if sys.argv[4] == "hang":
            await anyio.sleep_forever()
        yield
        print("end", flush=True)

    app.run(backend=sys.argv[3], burst=sys.argv[4] == "burst", shutdown_timeout=20)
    print("over", flush=True)
"""


def start(server: Reachable, prefix: str, backend: str, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), server.url, prefix, backend, mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def slow_job(server: Reachable, prefix: str, seconds: float) -> App:
    app = App("program", redis=server.url, prefix=prefix)
    app.sync_queue("default").add("slow", {"seconds": seconds})
    return app


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, in_full(signal.SIGINT)])
def test_a_signal_lets_jobs_end(
    server: Reachable, prefix: str, backend: str, number: signal.Signals
) -> None:
    app = slow_job(server, prefix, 0.5)
    with start(server, prefix, backend, "on") as process:
        assert [line(process), line(process)] == ["begin", "running"]
        process.send_signal(number)
        assert [line(process), line(process), line(process)] == ["done", "end", "over"]
        assert process.wait(LIMIT) == 0
    assert app.sync_queue("default").counts()["completed"] == 1
    app.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_ends_a_worker_whose_lifespan_hangs_in_its_start(
    server: Reachable, prefix: str, backend: str
) -> None:  # F23
    with start(server, prefix, backend, "hang") as process:
        try:
            assert line(process) == "begin"
            process.send_signal(signal.SIGTERM)
            assert line(process) == "over"
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_second_signal_gives_jobs_back_immediately(
    server: Reachable, prefix: str, backend: str
) -> None:
    app = slow_job(server, prefix, 15)
    with start(server, prefix, backend, "on") as process:
        assert [line(process), line(process)] == ["begin", "running"]
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert [line(process), line(process)] == ["end", "over"]
        process.kill()  # a thread cannot be stopped
    counts = app.sync_queue("default").counts()
    assert (counts["waiting"], counts["active"]) == (1, 0)
    app.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_burst_ends_when_there_is_nothing_left(
    server: Reachable, prefix: str, backend: str
) -> None:
    app = slow_job(server, prefix, 0.01)
    with start(server, prefix, backend, "burst") as process:
        assert [line(process) for _ in range(5)] == ["begin", "running", "done", "end", "over"]
        assert process.wait(LIMIT) == 0
    app.close()
