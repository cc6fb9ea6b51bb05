"""Results of children as arguments: types, order, and every failure policy.

Workers and `taskbull.testing` must behave the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date
from time import time
from typing import Any

import pytest
from anyio import fail_after

from taskbull import (
    App,
    ConfigurationError,
    JobFailed,
    JobHandle,
    JobState,
    Keep,
    LockLost,
    PermanentError,
    WaitForChildren,
    chain,
    current_job,
    from_child,
    from_children,
)
from taskbull.core.job import children_of
from taskbull.scripts import add as flow
from taskbull.testing import recorded
from taskbull.worker.run import spawning
from taskbull.worker.running_job import run_of

LIMIT = 60.0

Perform = Callable[[Callable[[], Awaitable[JobHandle[Any]]]], Awaitable[JobHandle[Any]]]
"""Adds a job, and runs all jobs until it has ended."""


@pytest.fixture(params=["worker", "box"])
def perform(request: pytest.FixtureRequest, app: App) -> Perform:
    async def by_worker(add: Callable[[], Awaitable[JobHandle[Any]]]) -> JobHandle[Any]:
        with fail_after(LIMIT):
            job = await add()
            await app.run_worker(["q"], burst=True, concurrency=3)
            return job

    async def in_box(add: Callable[[], Awaitable[JobHandle[Any]]]) -> JobHandle[Any]:
        with fail_after(LIMIT), recorded(app) as box:
            job = await add()
            await box.arun(check=False)
            return job

    return by_worker if request.param == "worker" else in_box


class Tasks:
    """A day, its weekday, and a report of several."""

    def __init__(self, app: App) -> None:
        @app.task(queue="q", attempts=1)
        async def day(number: int) -> date:
            if number == 0:
                raise PermanentError("there is no such day")
            return date(2020, 1, number)

        @app.task(queue="q", attempts=1)
        def weekday(of: date = from_child(day)) -> str:
            return of.strftime("%a")

        @app.task(queue="q", attempts=1)
        async def report(
            title: str, /, days: list[date] = from_children(day), *, names: list[str] | None = None
        ) -> list[Any]:
            job = current_job()
            assert await job.achildren(day) == days
            failed = await job.afailed_children()
            assert all(queue == "q" for queue, _ in failed)
            return [title, [each.day for each in days], sorted(failed.values())]

        self.day, self.weekday, self.report = day, weekday, report


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


async def test_results_come_typed_and_in_order(tasks: Tasks, perform: Perform) -> None:
    numbers = [7, 3, 30, 11, 2, 19]
    job = await perform(
        lambda: tasks.report.after(tasks.day.job(n) for n in numbers).adelay("days")
    )
    assert await job.aresult() == ["days", numbers, []]


async def test_only_a_task_or_its_name_selects_children(app: App, perform: Perform) -> None:
    @app.task(queue="q", attempts=1)
    async def gather() -> list[str]:
        job = current_job()
        problems: list[str] = []
        invalid: list[Any] = [None, 5, ""]
        for wrong in invalid:
            with pytest.raises(ConfigurationError) as refused:
                await job.achildren(wrong)
            problems.append(str(refused.value))
        return problems

    job = await perform(gather.adelay)
    assert await job.aresult() == [
        "the task of achildren() must be a task or the name of one, got None",
        "the task of achildren() must be a task or the name of one, got 5",
        "the task of achildren() must not be empty",
    ]


async def test_a_plain_function_gets_the_result_of_its_one_child(
    tasks: Tasks, perform: Perform
) -> None:
    job = await perform(lambda: chain(tasks.day.job(1), tasks.weekday.job()).adelay())
    assert await job.aresult() == "Wed"


async def test_children_that_are_not_kept_are_known_by_name(tasks: Tasks, perform: Perform) -> None:
    gone = tasks.day.options(keep_completed=Keep.none())
    children = [gone.job(3), tasks.weekday.after(gone.job(4)).job(), gone.job(5)]
    job = await perform(lambda: tasks.report.after(children).adelay("days"))
    assert await job.aresult() == ["days", [3, 5], []]


async def test_an_argument_that_is_given_wins(tasks: Tasks, perform: Perform) -> None:
    job = await perform(lambda: tasks.weekday.after(tasks.day.job(1)).adelay(date(2020, 1, 2)))
    assert await job.aresult() == "Thu"


async def test_a_failed_child_fails_its_parent(tasks: Tasks, perform: Perform) -> None:
    children = [tasks.day.options(job_id="bad").job(0), tasks.day.job(1)]
    job = await perform(lambda: tasks.report.after(children).adelay("days"))
    with pytest.raises(JobFailed, match=r"child .*:q:bad failed"):
        await job.aresult()


@pytest.mark.parametrize(
    ("on_failure", "told"),
    [("ignore", ["there is no such day"]), ("drop", [])],
)
async def test_a_failed_child_is_survived(
    tasks: Tasks, perform: Perform, on_failure: Any, told: list[str]
) -> None:
    children = [tasks.day.job(2), tasks.day.job(0), tasks.day.job(1)]
    job = await perform(lambda: tasks.report.after(children, on_failure=on_failure).adelay("days"))
    assert await job.aresult() == ["days", [2, 1], told]


async def test_a_parent_waits_for_a_child_that_failed(tasks: Tasks, perform: Perform) -> None:
    children = [tasks.day.options(on_failure="wait").job(0), tasks.day.job(1)]
    job = await perform(lambda: tasks.report.after(children).adelay("days"))
    assert await job.astate() is JobState.WAITING_CHILDREN


@pytest.mark.parametrize("drops", [True, False])
async def test_a_parent_that_continues_drops_its_pending_children_or_fails(
    app: App, tasks: Tasks, perform: Perform, drops: bool
) -> None:
    @app.task(queue="q", attempts=1)
    def goes_on() -> int:
        job = current_job()
        assert list(job.failed_children().values()) == ["there is no such day"]
        return job.drop_pending_children() if drops else 0

    late = tasks.day.options(delay=3600).job(1)
    job = await perform(
        lambda: goes_on.after(tasks.day.job(0), late, on_failure="continue").adelay()
    )
    if drops:
        assert await job.aresult() == 1
    else:
        with pytest.raises(JobFailed, match="has pending dependencies"):
            await job.aresult()


async def test_a_child_that_failed_is_none_where_that_is_allowed(
    app: App, tasks: Tasks, perform: Perform
) -> None:
    @app.task(queue="q", attempts=1)
    async def maybe(of: date | None = from_child(tasks.day)) -> str:
        return str(of)

    bad = tasks.day.options(on_failure="ignore").job(0)
    job = await perform(lambda: maybe.after(bad).adelay())
    assert await job.aresult() == "None"
    job = await perform(lambda: tasks.weekday.after(bad).adelay())
    with pytest.raises(
        JobFailed, match=r"argument 'of' needs the result of exactly one child 'day', got 0"
    ):
        await job.aresult()


async def test_a_result_of_another_type_is_reported(
    app: App, tasks: Tasks, perform: Perform
) -> None:
    @app.task(queue="q", attempts=1)
    async def number(of: int = from_child("day")) -> int:
        return of

    job = await perform(lambda: number.after(tasks.day.job(1)).adelay())
    with pytest.raises(JobFailed, match="argument 'of' must be int, got str"):
        await job.aresult()


async def test_children_of_other_languages_go_by_name(app: App) -> None:
    @app.task(queue="q", attempts=1)
    async def gather(texts: list[str] = from_children("translate")) -> list[Any]:
        return [texts, await current_job().achildren("translate")]

    @app.task(queue="q", name="translate")
    def translate(text: str) -> str:
        return text.upper()

    queue = app.queue("q")
    with fail_after(LIMIT):
        job = await gather.after(queue.job("translate", {"text": text}) for text in "ba").adelay()
        await app.run_worker(["q"], burst=True)
        assert await job.aresult() == [["B", "A"], ["B", "A"]]


def test_a_call_by_hand_must_give_what_a_worker_would(app: App) -> None:
    @app.task
    def fetch() -> str:
        return "a b"

    @app.task
    def count(text: str = from_child(fetch)) -> int:
        return len(text.split())

    assert count("a b") == 2
    assert count(text="a") == 1
    with pytest.raises(TypeError, match=r"count\(\) missing required argument: 'text'"):
        count()


async def test_children_found_at_run_time_are_waited_for(app: App, perform: Perform) -> None:
    runs: list[int] = []

    @app.task(queue="q", attempts=1)
    def square(number: int) -> int:
        return number * number

    @app.task(queue="q", attempts=1)
    async def gather(numbers: int) -> list[Any]:
        job = current_job()
        runs.append(job.attempt)
        done = await job.achildren(square)
        if len(done) < numbers:
            ids = await job.aspawn(square.job(n) for n in range(len(done), len(done) + 2))
            assert ids == [f"q-{job.id}-{len(done) + n}" for n in (1, 2)]
            raise WaitForChildren
        assert await job.aspawn([]) == []
        return done

    job = await perform(lambda: gather.adelay(4))
    assert await job.aresult() == [0, 1, 4, 9]
    assert runs == [1, 1, 1]


async def test_a_task_in_a_thread_spawns_trees(app: App, tasks: Tasks, perform: Perform) -> None:
    @app.task(queue="q", attempts=1)
    def gather() -> list[str]:
        job = current_job()
        names = job.children(tasks.weekday)
        if not names:
            job.spawn(tasks.weekday.after(tasks.day.job(n)).job() for n in (3, 1))
            raise WaitForChildren
        return names

    job = await perform(gather.adelay)
    assert await job.aresult() == ["Fri", "Wed"]


async def test_a_spawned_child_that_fails_fails_the_job(
    app: App, tasks: Tasks, perform: Perform
) -> None:
    @app.task(queue="q", attempts=1)
    async def gather() -> None:
        await current_job().aspawn([tasks.day.job(0)])
        raise WaitForChildren

    job = await perform(gather.adelay)
    with pytest.raises(JobFailed, match=r"child .*:q:q-.*-1 failed"):
        await job.aresult()


async def test_waiting_for_no_children_again_and_again_fails(app: App, perform: Perform) -> None:
    runs: list[int] = []

    @app.task(queue="q", attempts=3)
    async def waits() -> None:
        runs.append(1)
        raise WaitForChildren

    job = await perform(waits.adelay)
    with pytest.raises(JobFailed, match="WaitForChildren twice in a row, and had no new child"):
        await job.aresult()
    assert len(runs) == 2


async def test_a_spawn_that_is_repeated_adds_none_twice(app: App, tasks: Tasks) -> None:
    ran: list[int] = []
    crashes = iter([True, False])

    @app.task(queue="q", keep_completed=Keep.none())
    async def part(number: int) -> int:
        ran.append(number)
        return number

    @app.task(queue="q", attempts=3, backoff=None)
    async def gather() -> list[int]:
        job = current_job()
        done = await job.achildren(part)
        if len(done) < 300:
            await job.aspawn(part.job(n) for n in range(300))
            if next(crashes):
                raise ValueError("after the spawn")
            raise WaitForChildren
        return done

    with fail_after(LIMIT):
        job = await gather.adelay()
        await app.run_worker(["q"], burst=True, concurrency=3)
        assert await job.aresult() == list(range(300))
    assert sorted(ran) == list(range(300))


# H2
@pytest.mark.parametrize("calls", range(2, 6))
async def test_a_spawn_that_was_broken_off_gives_all_results(
    app: App, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PIECE", 3)  # 8 children are three pieces
    store = app.producer.stores.sync_store()

    @app.task(queue="q", attempts=1)
    def part(number: int) -> int:
        return number

    @app.task(queue="q", attempts=2, backoff=None)
    def gather() -> list[int]:
        job = current_job()
        if not (done := job.children(part)):
            parts = [part.job(n) for n in range(8)]
            if job.attempt == 1:
                keys = app.producer.namespace.keys("q")
                children = children_of("spawn()", parts, "fail")
                steps = spawning(keys, run_of(job), children, int(time() * 1000))
                request = next(steps)
                with suppress(StopIteration):
                    for _ in range(calls):
                        request = steps.send(store.run(request))
                raise ValueError("after some calls")
            job.spawn(parts)
            raise WaitForChildren
        return done

    with fail_after(LIMIT):
        job = await gather.adelay()
        await app.run_worker(["q"], burst=True, concurrency=1)
        assert await job.aresult() == [*range(8)]
    assert (await app.queue("q").counts())[JobState.COMPLETED] == 9


# H6
async def test_a_job_that_has_ended_spawns_nothing(app: App, tasks: Tasks) -> None:
    steps: list[Any] = []

    @app.task(queue="q", attempts=1)
    async def gather() -> None:
        job = current_job()
        keys = app.producer.namespace.keys("q")
        children = children_of("spawn()", [tasks.day.job(1)], "fail")
        steps.append(spawning(keys, run_of(job), children, int(time() * 1000)))

    with fail_after(LIMIT):
        job = await gather.adelay()
        await app.run_worker(["q"], burst=True)
        await job.aresult()
    with pytest.raises(LockLost):
        app.producer.stores.sync_store().run(steps[0])
    assert (await app.queue("q").counts())[JobState.WAITING] == 0
