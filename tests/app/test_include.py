"""Including the tasks of groups and other apps in an app."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import fail_after

from taskbull import (
    App,
    CircuitBreaker,
    ConfigurationError,
    Cron,
    Every,
    TaskGroup,
    current_job,
    from_lifespan,
)
from taskbull.testing import recorded
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import Reachable

LIMIT = 60.0

AsyncNext = Callable[[RunningJob], Awaitable[Any]]
Next = Callable[[RunningJob], Any]


@pytest.fixture
def group() -> TaskGroup:
    return TaskGroup("shop.emails", queue="emails", attempts=5)


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


async def test_a_group_is_part_of_the_app_that_includes_it(app: App, group: TaskGroup) -> None:
    @group.task
    async def send(to: str) -> str:
        return f"sent to {to} at attempt 1 of {current_job().attempts}"

    app.include(group)

    @group.task(queue="late")
    def later(to: str) -> str:
        return f"later to {to}"

    assert app.tasks == {"send": send, "later": later}
    assert app.queues == ["emails", "late"]
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await send.adelay("Ann")
            assert job.queue == "emails"
            assert await job.aresult() == "sent to Ann at attempt 1 of 5"
            sync = await anyio.to_thread.run_sync(later.delay, "Bob")
            assert await sync.aresult() == "later to Bob"
            [bulk] = await app.aenqueue([send.options(delay=0).job("Cid")])
            assert await bulk.aresult() == "sent to Cid at attempt 1 of 5"


def test_before_that_its_jobs_have_nowhere_to_go(group: TaskGroup) -> None:
    @group.task
    def send(to: str) -> str:
        return to

    assert send("Ann") == "Ann"
    spec = send.options(queue="others").job("Ann")
    assert (spec.queue, spec.data) == ("others", {"to": "Ann"})
    with pytest.raises(
        ConfigurationError,
        match=r"TaskGroup 'shop\.emails' is not included in an app.*app\.include\(group\)",
    ):
        send.delay("Ann")
    with pytest.raises(ConfigurationError, match="must not contain ':'"):
        send.options(queue="a:b")
    with pytest.raises(ConfigurationError, match="must not contain ':'"):
        group.task(queue="a:b")(send.function)


async def test_before_that_its_jobs_have_nowhere_to_go_async(group: TaskGroup) -> None:
    @group.task
    async def send(to: str) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"TaskGroup 'shop\.emails' is not included in an app"
    ):
        await send.adelay("Ann")


@pytest.mark.parametrize("kind", ["app", "group"])
def test_names_that_collide_are_refused_naming_both_places(local: App, kind: str) -> None:
    other = App("other", redis="redis://localhost:1") if kind == "app" else TaskGroup("other")

    @local.task(name="send")
    def ours() -> None: ...

    @other.task(name="first")
    def fine() -> None: ...

    @other.task(name="send")
    def theirs() -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"App local has two tasks named 'send': at .*test_include\.py:\d+ and at "
        r".*test_include\.py:\d+\. Rename one",
    ):
        local.include(other)
    assert list(local.tasks) == ["send"]  # all or nothing
    assert local.tasks["send"] is ours


def test_a_name_that_collides_later_is_refused_in_both(local: App, group: TaskGroup) -> None:
    local.include(group)

    @local.task(name="send")
    def ours() -> None: ...

    with pytest.raises(ConfigurationError, match="App local has two tasks named 'send'"):
        group.task(name="send")(lambda: None)
    assert group.tasks == {}

    @group.task(name="other")
    def theirs() -> None: ...

    with pytest.raises(ConfigurationError, match="App local has two tasks named 'other'"):
        local.task(name="other")(lambda: None)
    assert local.tasks["other"] is theirs


def test_two_breakers_of_a_queue_are_refused(local: App, group: TaskGroup) -> None:
    @local.task(queue="emails", circuit_breaker=CircuitBreaker(threshold=1, duration=1))
    def ours() -> None: ...

    @group.task(circuit_breaker=CircuitBreaker(threshold=2, duration=1))
    def theirs() -> None: ...

    with pytest.raises(ConfigurationError, match="two different circuit breakers"):
        local.include(group)
    assert list(local.tasks) == ["ours"]


def test_schedules_are_included(local: App, group: TaskGroup) -> None:
    @group.task(schedule=Cron("0 3 * * *"))
    def nightly() -> None: ...

    local.include(group)
    group.schedule("often", Every(30), nightly.job())
    declared = local.declared_schedules
    assert declared.app == "local"
    assert [each.id for each in declared.of("emails")] == ["nightly", "often"]

    with pytest.raises(ConfigurationError, match="two schedules with id 'often'"):
        local.schedule("often", Every(5), nightly.job())
    rival = TaskGroup("rival", queue="emails")

    @rival.task
    def work() -> None: ...

    rival.schedule("often", Every(5), work.job())
    with pytest.raises(ConfigurationError, match="two schedules with id 'often'"):
        local.include(rival)
    assert "work" not in local.tasks


async def test_a_schedule_of_a_group_runs(app: App, group: TaskGroup) -> None:
    ran = anyio.Event()

    @group.task(schedule=Every(3600))
    async def hourly() -> None:
        ran.set()

    app.include(group)
    with fail_after(LIMIT):
        async with app.worker().running():
            await ran.wait()


async def test_middleware_of_a_group_surrounds_its_own_tasks_inside_of_the_apps(
    app: App, group: TaskGroup
) -> None:
    def awaited(name: str) -> Callable[[RunningJob, AsyncNext], Awaitable[Any]]:
        async def layer(job: RunningJob, call_next: AsyncNext) -> Any:
            return f"{name}({await call_next(job)})"

        return layer

    def plain(name: str) -> Callable[[RunningJob, Next], Any]:
        def layer(job: RunningJob, call_next: Next) -> Any:
            return f"{name}({call_next(job)})"

        return layer

    @app.task
    def own() -> str:
        return "own"

    @group.task
    def theirs() -> str:
        return "theirs"

    group.middleware(awaited("group"))
    group.middleware(plain("plain group"))
    app.include(group)
    app.middleware(plain("plain app"))
    app.middleware(awaited("app"))
    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await own.adelay()).aresult() == "app(plain app(own))"
            result = await (await theirs.adelay()).aresult()
            assert result == "app(group(plain app(plain group(theirs))))"
            group.middleware(plain("late"))
            result = await (await theirs.adelay()).aresult()
            assert result == "app(group(plain app(plain group(late(theirs)))))"


async def test_each_task_gets_what_the_lifespan_of_its_own_app_yields(
    app: App, server: Reachable, prefix: str, group: TaskGroup
) -> None:
    other = App("other", redis=server.url, prefix=prefix)
    told: list[str] = []

    @app.lifespan
    async def ours() -> AsyncIterator[str]:
        told.append("app")
        yield "of the app"
        told.append("/app")

    @other.lifespan
    async def theirs(given: App) -> AsyncIterator[int]:
        assert given is other
        told.append("other")
        yield 7
        told.append("/other")

    @app.task
    async def own(value: str = from_lifespan()) -> list[Any]:
        return [value, current_job().resources]

    @other.task
    async def foreign(value: int = from_lifespan()) -> list[Any]:
        return [value, current_job().resources]

    @group.task  # It has no lifespan.
    def grouped(value: str = from_lifespan()) -> list[Any]:
        return [value, current_job().resources]

    app.include(other)
    app.include(group)
    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await own.adelay()).aresult() == ["of the app"] * 2
            assert await (await foreign.adelay()).aresult() == [7, 7]
            assert await (await grouped.adelay()).aresult() == ["of the app"] * 2
    assert told == ["app", "other", "/other", "/app"]


def test_a_group_that_wants_a_lifespan_that_nobody_has_is_refused(
    local: App, group: TaskGroup
) -> None:
    @group.task
    def work(value: str = from_lifespan()) -> None: ...

    local.include(group)
    with pytest.raises(ConfigurationError, match=r"lifespan, but TaskGroup shop\.emails has none"):
        local.worker()

    @group.lifespan
    async def around() -> AsyncIterator[str]:
        yield "here"

    local.worker()


def test_an_app_with_another_redis_is_refused(local: App) -> None:
    elsewhere = App("elsewhere", redis="redis://:secret@localhost:2", prefix="mine")
    with pytest.raises(ConfigurationError, match="Cannot include App elsewhere: it uses") as told:
        local.include(elsewhere)
    assert "localhost:2, prefix mine" in str(told.value)
    assert "localhost:1, prefix bull" in str(told.value)
    assert "secret" not in str(told.value)


def test_an_app_without_a_redis_moves(local: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKBULL_REDIS_URL", "redis://localhost:3")
    library = App("library")
    inner = TaskGroup("inner")
    library.include(inner)

    @inner.task
    def work() -> int:
        return 5

    local.include(library)
    assert library.producer is inner.producer is local.producer
    with recorded(local) as box:
        job = work.delay()
        box.run()
        assert job.result() == 5


def test_what_cannot_be_included_is_refused(local: App, group: TaskGroup) -> None:
    wrong: Any = local
    with pytest.raises(ConfigurationError, match="must be an App or a TaskGroup"):
        wrong.include("shop.emails")
    with pytest.raises(ConfigurationError, match="App local cannot include itself"):
        local.include(local)
    local.include(group)
    local.include(group)  # again: nothing new
    with pytest.raises(ConfigurationError, match=r"App local cannot include itself"):
        group.include(local)
    second = App("second", redis="redis://localhost:1")
    with pytest.raises(
        ConfigurationError, match=r"TaskGroup shop\.emails: it is already included in App local"
    ):
        second.include(group)


def test_wrong_settings_of_a_group_are_refused() -> None:
    wrong: Any = TaskGroup
    with pytest.raises(TypeError, match=r"TaskGroup\(\) got an unexpected .*'redis'"):
        wrong("a", redis="redis://localhost")
    with pytest.raises(TypeError, match=r"'atempts' \(did you mean attempts\?\)"):
        wrong("a", atempts=5)
    with pytest.raises(ConfigurationError, match="group name"):
        wrong("")
    with pytest.raises(ConfigurationError, match="queue name"):
        wrong("a", queue="a:b")
    with pytest.raises(ConfigurationError, match="attempts"):
        wrong("a", attempts=0)


def test_modules_of_an_included_app_are_imported(
    local: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library_for_include.py").write_text(
        "from taskbull import App\nlibrary = App('library', include=['tasks_for_include'])\n"
    )
    (tmp_path / "tasks_for_include.py").write_text(
        "from library_for_include import library\n@library.task\ndef late(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        from library_for_include import library  # type: ignore[import-not-found]  # noqa: PLC0415

        local.include(library)
        assert "late" not in local.tasks
        local.worker()
        assert "late" in local.tasks
    finally:
        for name in ("library_for_include", "tasks_for_include"):
            sys.modules.pop(name, None)
