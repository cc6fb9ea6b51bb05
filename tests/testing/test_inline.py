"""Jobs that run in the caller, and tests that cannot reach a real queue by accident."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from taskbull import (
    App,
    Backoff,
    Failure,
    Job,
    JobState,
    Queue,
    current_job,
    events,
    from_child,
)
from taskbull.cli.main import commands
from taskbull.errors import ConfigurationError, JobFailed, NotRecorded
from taskbull.testing import Server, connected, recorded
from taskbull.testing import server as server

NOWHERE = "redis://localhost:1"


class Shop:
    """An app with tasks of each kind."""

    def __init__(self, **options: Any) -> None:
        self.app = app = App("shop", redis=NOWHERE, **options)
        self.log: list[str] = []

        @app.task(attempts=3, backoff=Backoff.fixed(3600))
        def flaky(fails: int) -> int:
            self.log.append(f"attempt {current_job().attempt}")
            if current_job().attempt <= fails:
                raise KeyError(fails)
            return current_job().attempt

        @app.task
        async def double(number: int) -> int:
            await anyio.lowlevel.checkpoint()
            return 2 * number

        @app.task
        def outer(number: int) -> int:
            return double.delay(number).result() + 1

        @app.task
        async def aouter(number: int) -> int:
            return await (await double.adelay(number)).aresult() + 1

        @app.task
        def plus(number: int = from_child(double)) -> int:
            return number + 10

        @app.middleware
        async def note(job: Any, call_next: Any) -> Any:
            self.log.append(f"around {job.name}")
            return await call_next(job)

        self.flaky, self.double, self.outer, self.aouter = flaky, double, outer, aouter
        self.plus = plus


def test_a_job_runs_when_it_is_enqueued() -> None:
    shop = Shop(inline=True)
    job = shop.flaky.delay(1)
    assert (job.state(), job.result()) == (JobState.COMPLETED, 2)
    assert shop.log == ["around flaky", "attempt 1", "around flaky", "attempt 2"]
    assert shop.double.options(delay=3600).delay(4).result() == 8
    assert shop.outer.delay(5).result() == 11
    assert shop.plus.after(shop.double.job(6)).delay().result() == 22
    assert [one.result() for one in shop.app.enqueue([shop.double.job(1)] * 2)] == [2, 2]
    assert shop.app.sync_queue("default").add("double", {"number": 3}).result() == 6
    assert shop.app.job(job.ref).info().name == "flaky"


async def test_a_job_runs_when_it_is_enqueued_in_an_event_loop() -> None:
    shop = Shop(inline=True)
    assert await (await shop.double.adelay(4)).aresult() == 8
    assert await (await shop.aouter.adelay(4)).aresult() == 9
    assert await (await shop.flaky.adelay(2)).aresult() == 3
    assert await (await shop.app.queue("default").add("double", {"number": 3})).aresult() == 6
    with pytest.warns(match="blocks the running event loop"):
        assert shop.double.delay(5).result() == 10


def test_a_failure_is_in_the_handle_or_raised() -> None:
    job = Shop(inline=True).flaky.delay(9)
    assert job.state() is JobState.FAILED
    with pytest.raises(JobFailed, match="KeyError: 9"):
        job.result()
    shop = Shop(inline="raise")
    with pytest.raises(KeyError):
        shop.flaky.delay(9)
    assert shop.flaky.delay(1).result() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.sync_queue("default").counts(),
        lambda app: app.sync_queue("default").pause(),
        lambda app: app.sync_server().survey(),
        lambda app: app.job("default", "no-such").state(),
        lambda app: app.job("default", "no-such").cancel(),
        lambda app: app.worker(),
        lambda app: app.run(burst=True),
        lambda app: next(app.sync_queue("default").events()),
        lambda app: anyio.run(app.queue("default").get_job, "1"),
        lambda app: anyio.run(app.server().survey),
        lambda app: anyio.run(app.run_worker),
        lambda app: app.unknown_names("default"),
    ],
)
@pytest.mark.parametrize("is_inline", [True, False])
def test_everything_that_needs_redis_is_refused(
    call: Callable[[App], Any], is_inline: bool
) -> None:
    if is_inline:
        with pytest.raises(NotRecorded, match="runs its jobs inline"):
            call(Shop(inline=True).app)
    else:
        shop = Shop()
        with recorded(shop.app), pytest.raises(NotRecorded, match="records its jobs"):
            call(shop.app)


def test_queues_and_handles_from_before_cannot_reach_redis_either() -> None:
    shop = Shop()
    queue, handle = shop.app.sync_queue("default"), shop.app.job("default", "7")
    with recorded(shop.app) as box:
        job = queue.add("double", {"number": 4})
        queue.add_bulk([("double", {"number": 5}), queue.job("double", {"number": 6})])
        with pytest.raises(NotRecorded):
            handle.info()
        box.run()
        assert job.result() == 8
    assert [one.data for one in box.jobs] == [{"number": 4}, {"number": 5}, {"number": 6}]


def test_a_recorded_job_is_found_by_its_id() -> None:
    shop = Shop()
    with recorded(shop.app) as box:
        job = shop.double.options(delay=60).delay(4)
        same = shop.app.job("default", job.id)
        assert same.state() is JobState.DELAYED
        same.cancel("not needed")
        box.run()
        with pytest.raises(JobFailed, match="not needed"):
            shop.app.job(job.ref).result()


async def test_recorded_jobs_can_run_inline() -> None:
    shop = Shop()
    with recorded(shop.app, inline=True) as box:
        assert await (await shop.aouter.adelay(3)).aresult() == 7
        assert [one.name for one in box.jobs] == ["aouter", "double"]
    with recorded(shop.app, inline="raise"), pytest.raises(KeyError):
        await shop.flaky.adelay(9)


async def test_hooks_run_in_a_box() -> None:
    calls: list[Any] = []
    app = App("shop", redis=NOWHERE, attempts=1)

    def completed(job: Job, result: int) -> None:
        calls.append(("completed", job.name, result))

    async def failed(job: Job, failure: Failure) -> None:
        calls.append(("failed", job.name, failure.reason))

    @app.task(on_success=completed, on_failure=failed)
    def work(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number

    @app.on(events.Failed, thread=True)
    def heard(event: events.Failed) -> None:
        calls.append(("heard", event.job.attempt))
        raise RuntimeError("no database")

    expected = [
        ("completed", "work", 1),
        ("heard", 1),
        ("failed", "work", "ValueError: -1"),
    ]
    with recorded(app) as box:
        await app.aenqueue([work.job(1), work.job(-1)])
        await box.arun(check=False)
    assert calls == expected
    calls.clear()
    with recorded(app) as box:
        await app.aenqueue([work.job(1), work.job(-1)])
        await anyio.to_thread.run_sync(lambda: box.run(check=False))
    assert calls == expected


def test_hooks_run_for_jobs_that_are_cancelled_in_a_box() -> None:
    calls: list[Any] = []
    app = App("shop", redis=NOWHERE)

    def failed(job: Job, failure: Failure) -> None:
        calls.append((job.data["number"], failure.reason))
        if job.data["number"] == 1:
            work.delay(5)

    @app.task(on_failure=failed)
    def work(number: int) -> None:
        if number == 3:
            others[0].cancel("by a job")

    app.on(events.Failed)(lambda event: calls.append((event.job.id, event.job.attempt_over)))
    with recorded(app) as box:
        parent = work.options(job_id="p").after(work.options(job_id="c").job(2)).delay(0)
        parent.cancel()
        work.options(job_id="x", delay=60).delay(1).cancel("too late")
        box.run()
        assert {("c", False), ("p", False), ("x", False)} <= set(calls)
        assert (1, "cancelled: too late") in calls
        assert [one.state for one in box.of(work) if one.data == {"number": 5}] == ["completed"]
        calls.clear()
        others = [work.options(delay=9).delay(4)]
        work.delay(3)
        box.run()
        box.run()
    assert [one for one in calls if one[0] == 4] == [(4, "cancelled: by a job")]


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_task_that_exits_fails_its_job(is_async: bool, is_batch: bool) -> None:
    app = App("shop", redis=NOWHERE, attempts=1)

    def leave(number: list[int]) -> list[int]:
        raise SystemExit(3)

    async def leave_later(number: list[int]) -> list[int]:
        raise SystemExit(3)

    function = leave_later if is_async else leave
    work = app.batch_task(size=2)(function) if is_batch else app.task(function)
    number: Any = 1 if is_batch else [1]
    with recorded(app) as box:
        job = await work.adelay(number)
        await anyio.to_thread.run_sync(lambda: box.run(check=False))
        with pytest.raises(JobFailed, match="SystemExit: 3"):
            job.result()
        job = await work.adelay(number)
        await box.arun(check=False)
        with pytest.raises(JobFailed, match="SystemExit: 3"):
            job.result()


def test_the_error_of_a_child_is_raised() -> None:
    shop = Shop(inline="raise")
    flow = shop.plus.after(shop.double.after(shop.flaky.job(9)).job(2)).job()
    with pytest.raises(KeyError):
        shop.app.enqueue([shop.double.job(1), flow])


def test_a_job_that_runs_inline_finds_itself_and_its_parent() -> None:
    app = App("shop", redis=NOWHERE, inline=True)

    @app.task
    def outer() -> str:
        return inner.delay(current_job().ref).result()

    @app.task
    def inner(parent: str) -> str:
        current_job().log("here")
        return f"{app.job(parent).info().name} {app.job(current_job().ref).logs().lines}"

    assert outer.delay().result() == "outer ['here']"


@pytest.mark.parametrize(("text", "is_inline"), [("1", True), ("true", True), ("0", False)])
def test_the_environment_chooses_the_mode(
    monkeypatch: pytest.MonkeyPatch, text: str, is_inline: bool
) -> None:
    monkeypatch.setenv("TASKBULL_INLINE", text)
    assert (App("shop").producer.detour is not None) is is_inline
    assert App("shop", inline=False).producer.detour is None


@pytest.mark.parametrize("wrong", ["yes", 3, "Raise "])
def test_a_wrong_mode_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="inline must be"):
        App("shop", inline=wrong)
    monkeypatch.setenv("TASKBULL_INLINE", str(wrong))
    with pytest.raises(ConfigurationError, match="inline must be"):
        App("shop")


def test_a_test_server_takes_the_place_of_inline_mode(server: Server) -> None:
    shop = Shop(inline=True)
    with connected(shop.app, server.url):
        assert shop.double.delay(4).state() is JobState.WAITING
    assert shop.double.delay(4).result() == 8


def test_a_bare_queue_is_not_recorded() -> None:
    shop = Shop()
    with recorded(shop.app):
        assert Queue("default", redis=NOWHERE).name == "default"


@pytest.mark.parametrize("is_inline", [True, False])
def test_commands_cannot_reach_redis_either(
    monkeypatch: pytest.MonkeyPatch, is_inline: bool
) -> None:
    shop = Shop(inline=is_inline)
    module = ModuleType("recorded_shop")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "app", shop.app, raising=False)

    def run(*words: str) -> str:
        return CliRunner().invoke(commands, [*words, "-A", "recorded_shop:app"]).output

    with ExitStack() as stack:
        if not is_inline:
            stack.enter_context(recorded(shop.app, inline=True))
        assert run("call", "double", "number=4", "--wait").splitlines()[-1] == "8"
        assert "KeyError: 9" in run("call", "flaky", "fails=9", "--wait")
        for words in (["queues"], ["drain", "default", "--yes"], ["why", "default"], ["doctor"]):
            assert "This call needs Redis, but the app" in run(*words)


def test_inline_mode_needs_neither_redis_nor_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from taskbull import App\n"
        "app = App('x', redis='redis://localhost:1')\n"
        "@app.task\n"
        "async def double(n: int) -> int: return 2 * n\n"
        "print(double.delay(4).result())"
    )
    environment = {**os.environ, "TASKBULL_INLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "8\n"
