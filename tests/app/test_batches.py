"""Batch tasks: one job for each item, one call for many of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from functools import partial, wraps
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pydantic
import pytest
from anyio import create_task_group, fail_after

from taskbull import (
    App,
    Backoff,
    ConfigurationError,
    Every,
    InvalidArguments,
    JobFailed,
    JobHandle,
    JobState,
    PermanentError,
    Retry,
    RunningJob,
    Snooze,
    TaskbullError,
    current_batch,
    current_job,
    events,
    from_child,
    from_lifespan,
)

LIMIT = 60.0

AsyncNext = Callable[[RunningJob], Awaitable[Any]]
Next = Callable[[RunningJob], Any]


@dataclass
class Point:
    x: int
    y: int = 0


class Dated(msgspec.Struct, rename="camel"):
    the_day: date


class Pair(TypedDict):
    left: int
    right: int


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")


class Row(msgspec.Struct, array_like=True):
    x: int


class Root(pydantic.RootModel[list[int]]):
    pass


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_kind(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or the same as an `async def`."""
    if kind == "sync":
        return function

    @wraps(function)
    async def awaited(**arguments: Any) -> Any:
        return function(**arguments)

    return awaited


async def results_of(jobs: list[JobHandle[Any]]) -> list[Any]:
    """Wait for jobs; give what each returned, or why it failed."""
    found: list[Any] = []
    for job in jobs:
        try:
            found.append(await job.aresult())
        except JobFailed as failure:
            found.append(f"failed: {failure.reason}")
    return found


async def test_one_call_serves_many_jobs_and_each_has_its_own_result(app: App, kind: str) -> None:
    sizes: list[int] = []

    def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * number for number in numbers]

    task: Any = app.batch_task(size=10, wait=5, name="double")(as_kind(kind, double))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(number) for number in range(30)])
        async with app.worker(concurrency=10).running():
            assert await results_of(jobs) == [2 * number for number in range(30)]
    assert sizes == [10, 10, 10]
    info = await jobs[3].ainfo()
    assert (info.data, info.attempts_made) == ({"numbers": 3}, 1)


async def test_an_incomplete_batch_begins_when_the_first_has_waited(app: App, kind: str) -> None:
    sizes: list[int] = []

    def count(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        return [len(text) for text in texts]

    task: Any = app.batch_task(size=10, wait=0.05, name="count")(as_kind(kind, count))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job("abc"), task.job("a")])
        async with app.worker(concurrency=20).running():
            assert await results_of(jobs) == [3, 1]
    assert sizes == [2]


async def test_a_batch_begins_immediately_when_every_slot_waits_for_it(app: App) -> None:
    sizes: list[int] = []

    @app.batch_task(size=4, wait=3600)
    async def count(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        return [1] * len(texts)

    @app.task
    async def hold(started: int) -> None:
        held.set()
        await sleeping.wait()

    held, sleeping = anyio.Event(), anyio.Event()
    with fail_after(LIMIT):
        async with app.worker(concurrency=4).running():
            holder = await hold.adelay(1)
            await held.wait()  # one of four slots is elsewhere
            jobs = await app.aenqueue([count.job(text) for text in "abc"])
            await settled(app, active=4)
            assert sizes == []
            sleeping.set()
            await holder.aresult()
            jobs.append(await count.adelay("d"))
            assert await results_of(jobs) == [1] * 4
    assert sizes == [4]


async def settled(app: App, active: int) -> None:
    """Wait until this many jobs are fetched and the event loop is idle."""
    queue = app.queue("default")
    while (await queue.counts())["active"] < active:
        await anyio.wait_all_tasks_blocked()
    await anyio.wait_all_tasks_blocked()


async def test_an_async_function_may_be_called_with_one_item_by_one_slot(app: App) -> None:
    @app.batch_task(size=1, wait=3600)
    async def one(texts: list[str]) -> list[str]:
        assert len(texts) == 1
        return texts

    with fail_after(LIMIT):
        async with app.worker(concurrency=1).running():
            jobs = await app.aenqueue([one.job(text) for text in "abc"])
            assert await results_of(jobs) == ["a", "b", "c"]


@pytest.mark.parametrize("parallel", [1, 2])
async def test_calls_run_in_parallel_as_often_as_allowed(
    app: App, kind: str, parallel: int
) -> None:
    at_once, most = 0, 0
    both = threading.Barrier(2)
    lock = threading.Lock()

    def together(items: list[int]) -> list[int]:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        if parallel == 2:
            both.wait(LIMIT)
        with lock:
            at_once -= 1
        return items

    async def awaited(items: list[int]) -> list[int]:
        return await anyio.to_thread.run_sync(together, items)

    task: Any = app.batch_task(size=2, wait=5, parallel=parallel, name="work")(
        together if kind == "sync" else awaited
    )
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(number) for number in range(8)])
        async with app.worker(concurrency=8).running():
            assert await results_of(jobs) == list(range(8))
    assert most == parallel


async def test_an_exception_among_the_results_is_of_its_own_job(app: App, kind: str) -> None:
    calls: list[list[str]] = []
    seen: Counter[str] = Counter()

    def work(words: list[str]) -> list[str | Exception]:
        calls.append(words)
        seen.update(words)
        return [outcome(word) for word in words]

    def outcome(word: str) -> str | Exception:
        match word:
            case "never":
                return PermanentError("no such word")
            case "later" if seen[word] == 1:
                return Retry(after=0)
            case "snooze" if seen[word] == 1:
                return Snooze(0)
            case "often":
                return LookupError(word)
        return word

    task: Any = app.batch_task(size=5, wait=0.05, attempts=3, backoff=Backoff.none(), name="work")(
        as_kind(kind, work)
    )
    words = ["fine", "never", "later", "snooze", "often"]
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(word) for word in words])
        async with app.worker(concurrency=5).running():
            assert await results_of(jobs) == [
                "fine",
                "failed: no such word",
                "later",
                "snooze",
                "failed: LookupError: often",
            ]
            attempts = [(await job.ainfo()).attempts_made for job in jobs]
    assert attempts == [1, 1, 2, 1, 3]
    assert sorted(calls[0]) == sorted(words)


async def test_what_is_raised_is_decided_for_each(app: App, kind: str) -> None:
    calls: list[list[int]] = []

    def work(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        if 13 in numbers:
            raise LookupError("13")
        return numbers

    task: Any = app.batch_task(size=4, wait=0.05, backoff=Backoff.none(), name="work")(
        as_kind(kind, work)
    )
    with fail_after(LIMIT):
        jobs = await app.aenqueue(
            [
                task.job(1),
                task.options(attempts=2).job(2),
                task.options(attempts=1).job(3),
                task.options(attempts=2).job(13),
            ]
        )
        async with app.worker(concurrency=4).running():
            assert await results_of(jobs) == [
                1,
                2,
                "failed: LookupError: 13",
                "failed: LookupError: 13",
            ]
            stacks = [(await job.ainfo()).stacktrace for job in jobs]
    assert sorted(calls[0]) == [1, 2, 3, 13]
    # In the last of several attempts a job is alone.
    assert [2] in calls
    assert [13] in calls
    assert [len(each) for each in stacks] == [1, 1, 1, 2]
    assert all('raise LookupError("13")' in stack for each in stacks for stack in each)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda items: items[1:], "returned a list of 2 instead of 3 results"),
        (lambda items: [*items, 4], "returned a list of 4 instead of 3 results"),
        (lambda items: None, "returned a value of type NoneType, not a list of 3 results"),
        (lambda items: "abc", "returned a value of type str, not a list of 3 results"),
        (lambda items: {"a": 1}, "returned a value of type dict, not a list of 3 results"),
    ],
    ids=["too few", "too many", "None", "str", "dict"],
)
async def test_a_wrong_number_of_results_fails_all_for_good(
    app: App, kind: str, returned: Callable[..., Any], told: str
) -> None:
    def work(items: list[int]) -> Any:
        return returned(items)

    task: Any = app.batch_task(size=3, wait=5, attempts=5, name="work")(as_kind(kind, work))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(number) for number in range(3)])
        async with app.worker(concurrency=3).running():
            assert await results_of(jobs) == [f"failed: Batch task work {told}"] * 3
        assert [(await job.ainfo()).attempts_made for job in jobs] == [1, 1, 1]


async def test_a_result_that_is_not_json_fails_its_own_job(app: App, kind: str) -> None:
    def work(items: list[int]) -> list[Any]:
        return [object() if item == 1 else item for item in items]

    task: Any = app.batch_task(size=3, wait=5, attempts=1, name="work")(as_kind(kind, work))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(number) for number in range(3)])
        async with app.worker(concurrency=3).running():
            first, second, third = await results_of(jobs)
    assert (first, third) == (0, 2)
    assert second == "failed: result is of type object, which cannot be serialized to JSON"


async def test_data_that_do_not_fit_fail_their_own_job_before_it_joins(app: App) -> None:
    sizes: list[int] = []

    @app.batch_task(size=3, wait=0.05)
    async def work(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return numbers

    queue = app.queue("default")
    with fail_after(LIMIT):
        added: list[Any] = [{"numbers": 1}, {"numbers": "2"}, {}, {"numbers": 4}, {"number": 5}]
        jobs: list[JobHandle[Any]] = [await queue.add("work", data) for data in added]
        async with app.worker(concurrency=5).running():
            assert await results_of(jobs) == [
                1,
                "failed: work(): argument 'numbers' must be int, got str",
                "failed: work() missing required argument: 'numbers'",
                4,
                "failed: work() got an unexpected argument: 'number'; it takes numbers",
            ]
    assert sum(sizes) == 2


def points(items: list[Point]) -> list[Any]:
    return [item.x + item.y for item in items]


def days(items: list[Dated]) -> list[Any]:
    return [item.the_day.year for item in items]


def pairs(items: list[Pair]) -> list[Any]:
    return [item["left"] - item["right"] for item in items]


def models(items: list[Model]) -> list[Any]:
    return [item.name for item in items]


def either(items: list[Point | Pair]) -> list[Any]:
    return items


def rows(items: list[Row]) -> list[Any]:
    return [item.x for item in items]


def roots(items: list[Root]) -> list[Any]:
    return [item.root for item in items]


def maybe(items: list[Point | None]) -> list[Any]:
    return [item and item.x for item in items]


def mappings(items: list[dict[str, int]]) -> list[Any]:
    return items


def annotated(items: list[Annotated[Point, "a point"]]) -> list[Any]:
    return [item.x for item in items]


def untyped(items):  # type: ignore[no-untyped-def]
    return items


def bare(items: list) -> list[Any]:  # type: ignore[type-arg]
    return items


@pytest.mark.parametrize(
    ("function", "item", "data", "result"),
    [
        (points, Point(1, 2), {"x": 1, "y": 2}, 3),
        (points, {"x": 5}, {"x": 5}, 5),
        (annotated, Point(1), {"x": 1, "y": 0}, 1),
        (days, Dated(date(2020, 1, 2)), {"theDay": "2020-01-02"}, 2020),
        (pairs, {"left": 3, "right": 1}, {"left": 3, "right": 1}, 2),
        (models, Model(fullName="Ann"), {"fullName": "Ann"}, "Ann"),
        (rows, Row(7), {"items": [7]}, 7),
        (roots, Root([1, 2]), {"items": [1, 2]}, [1, 2]),
        (maybe, None, {"items": None}, None),
        (maybe, Point(4), {"items": {"x": 4, "y": 0}}, 4),
        (mappings, {"a": 1}, {"items": {"a": 1}}, {"a": 1}),
        (untyped, "text", {"items": "text"}, "text"),
        (bare, 5, {"items": 5}, 5),
    ],
)
async def test_items_with_fields_are_the_data_and_others_stand_under_the_name(
    app: App, function: Callable[..., Any], item: Any, data: Any, result: Any
) -> None:
    task: Any = app.batch_task(size=1, name="work")(function)
    with fail_after(LIMIT):
        job = await task.adelay(item)
        assert (await job.ainfo()).data == data
        async with app.worker(concurrency=1).running():
            assert await job.aresult() == result


def test_an_item_that_does_not_fit_is_refused_immediately(local: App) -> None:
    task: Any = local.batch_task(size=1)(points)
    with pytest.raises(InvalidArguments, match=r"points\(\): field 'x' must be int, got str"):
        task.job({"x": "1"})
    with pytest.raises(InvalidArguments, match=r"has no field 'y?x'"):
        task.job({"y": 1})
    with pytest.raises(InvalidArguments, match="an item must be object, got int"):
        task.delay(5)
    with pytest.raises(
        TypeError,
        match=r"points\(\) takes one item, or the fields of the item as keyword arguments",
    ):
        task.job(Point(1), Point(2))
    with pytest.raises(TypeError, match=r"points\(\) takes one item"):
        task.job()
    assert task.job(x=1).data == {"x": 1}

    @local.batch_task(size=1)
    def texts(texts: list[str]) -> list[str]:
        return texts

    wrong: Any = texts
    with pytest.raises(InvalidArguments, match="argument 'texts' must be str, got array"):
        wrong.job(["a"])
    with pytest.raises(TypeError, match=r"texts\(\) got too many positional arguments"):
        wrong.job("a", "b")
    with pytest.raises(TypeError, match=r"texts\(\) missing required argument"):
        wrong.delay()


class Reply(msgspec.Struct):
    text: str


async def test_a_result_has_the_type_of_one_result(app: App) -> None:
    task: Any = app.batch_task(size=1)(greet)
    with fail_after(LIMIT):
        async with app.worker(concurrency=1).running():
            assert await (await task.adelay("Ann")).aresult() == Reply("Hello Ann")


def greet(names: list[str]) -> list[Reply | LookupError]:
    return [Reply(f"Hello {name}") for name in names]


async def test_a_call_by_hand_takes_the_list(app: App) -> None:
    @app.batch_task(size=2)
    def plain(texts: list[str], prefix: str = from_lifespan()) -> list[str]:
        return [prefix + text for text in texts]

    @app.batch_task(size=2)
    async def awaited(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    assert plain(["a", "b"], ">") == [">a", ">b"]
    assert await awaited(["a", "bc"]) == [1, 2]
    with pytest.raises(TypeError, match=r"plain\(\) missing required argument: 'prefix'"):
        plain(["a"])


async def test_injected_parameters_stand_beside_the_list(app: App, kind: str) -> None:
    @app.lifespan
    async def model() -> AsyncIterator[dict[str, int]]:
        yield {"a": 1, "b": 2}

    def look(words: list[str], *, model: dict[str, int] = from_lifespan()) -> list[int]:
        return [model[word] for word in words]

    async def alook(model: dict[str, int] = from_lifespan(), *, words: list[str]) -> list[int]:
        assert current_batch()[0].resources is model
        return [model[word] for word in words]

    make: Any = app.batch_task(size=2, wait=5, name="look")
    task = make(look if kind == "sync" else alook)
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job("a"), task.job("b")])
        async with app.worker(concurrency=2).running():
            assert await results_of(jobs) == [1, 2]


async def test_current_batch_gives_the_jobs_and_current_job_says_so(app: App, kind: str) -> None:
    def work(items: list[str]) -> list[Any]:
        with pytest.raises(
            TaskbullError, match=r"in a batch task.*current_batch\(\), which returns them"
        ):
            current_job()
        jobs = current_batch()
        assert [job.data["items"] for job in jobs] == items
        if kind == "sync":
            for job in jobs:
                job.log(f"{job.id} of {len(jobs)}")
        return [[job.id, job.attempt, job.queue] for job in jobs]

    task: Any = app.batch_task(size=3, wait=5, name="work")(as_kind(kind, work))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(text) for text in "abc"])
        async with app.worker(concurrency=3).running():
            assert await results_of(jobs) == [[job.id, 1, "default"] for job in jobs]
        if kind == "sync":
            assert (await jobs[1].alogs()).lines == [f"{jobs[1].id} of 3"]
    with pytest.raises(
        TaskbullError, match=r"current_batch\(\) called outside a running batch task"
    ):
        current_batch()


async def test_async_layers_surround_each_job_and_plain_ones_each_call(app: App, kind: str) -> None:
    told: list[str] = []

    @app.middleware
    async def each(job: RunningJob, call_next: AsyncNext) -> Any:
        assert current_job() is job
        return f"each({await call_next(job)})"

    @app.middleware
    def once(job: RunningJob, call_next: Next) -> Any:
        told.append(job.id)
        return [f"once({result})" for result in call_next(job)]

    first = ""

    def work(items: list[str]) -> list[str]:
        nonlocal first
        first = current_batch()[0].id
        return items

    task: Any = app.batch_task(size=3, wait=5, name="work")(as_kind(kind, work))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(text) for text in "abc"])
        async with app.worker(concurrency=3).running():
            results = await results_of(jobs)
    if kind == "sync":
        assert results == [f"each(once({text}))" for text in "abc"]
        assert told == [first]
    else:
        assert results == [f"each({text})" for text in "abc"]
        assert told == []


async def test_an_async_layer_may_keep_a_job_out(app: App) -> None:
    sizes: list[int] = []

    @app.middleware
    async def sieve(job: RunningJob, call_next: AsyncNext) -> Any:
        return "kept out" if job.data["items"] == "b" else await call_next(job)

    @app.batch_task(size=3, wait=0.05)
    async def work(items: list[str]) -> list[str]:
        sizes.append(len(items))
        return items

    with fail_after(LIMIT):
        jobs = await app.aenqueue([work.job(text) for text in "abc"])
        async with app.worker(concurrency=3).running():
            assert await results_of(jobs) == ["a", "kept out", "c"]
    assert sizes == [2]


async def test_the_shortest_timeout_limits_the_call(app: App, kind: str) -> None:
    calls: list[int] = []
    over = threading.Event()

    async def asleep(items: list[str]) -> list[str]:
        calls.append(len(items))
        if len(calls) == 1:
            await anyio.sleep_forever()
        return items

    def blocked(items: list[str]) -> list[str]:
        calls.append(len(items))
        if len(calls) == 1:
            over.wait(LIMIT)
        return items

    task: Any = app.batch_task(size=2, wait=5, backoff=Backoff.none(), name="work")(
        blocked if kind == "sync" else asleep
    )
    retried: list[str] = []
    stacks: list[str] = []
    app.on(events.Retried)(lambda event: retried.append(event.failure.reason))
    app.on(events.Retried)(lambda event: stacks.append(event.failure.stack))
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job("a"), task.options(timeout=0.5).job("b")])
        async with app.worker(concurrency=2).running():
            assert await results_of(jobs) == ["a", "b"]
            over.set()
    assert calls == [2, 2]
    reason = "TimeoutError: the batch took longer than 0.5 s, the shortest timeout of its jobs"
    assert retried == [reason] * 2
    if kind == "sync":  # U36
        assert all("over.wait(LIMIT)" in stack for stack in stacks)


async def test_waiting_for_a_call_costs_no_time(app: App) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    @app.task(timeout=0.5, attempts=1)
    async def tick() -> None:
        await anyio.sleep_forever()

    @app.batch_task(size=1, wait=0, attempts=1)
    async def work(items: list[str]) -> list[str]:
        if items == ["first"]:
            begun.set()
            await go_on.wait()
        return items

    with fail_after(LIMIT):
        async with app.worker(concurrency=4).running():
            first = await work.adelay("first")
            await begun.wait()
            second = await work.options(timeout=0.5).adelay("second")
            for _ in range(2):  # its time passes, and more
                with pytest.raises(JobFailed, match="timeout"):
                    await (await tick.adelay()).aresult()
            assert await second.astate() is JobState.ACTIVE
            go_on.set()
            assert await results_of([first, second]) == ["first", "second"]


def test_a_worker_must_have_slots_for_a_batch(local: App) -> None:
    @local.batch_task(size=32, queue="gpu")
    def embed(texts: list[str]) -> list[int]:
        return [1 for _ in texts]

    @local.task(queue="other")
    def other() -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"Batch task 'embed' \(.*\) has size 32, .* queue 'gpu' in this worker is 10"
        r".*at least 32, better 64",
    ):
        local.worker()
    with pytest.raises(ConfigurationError, match="queue 'gpu' in this worker is 31"):
        local.worker({"gpu": 31, "other": None})
    local.worker("other")
    local.worker({"gpu": 32})
    local.queue_options("gpu", concurrency=64)
    local.worker()


def test_what_cannot_be_a_batch_task_is_refused(local: App) -> None:
    make: Any = local.batch_task(size=2)
    for function in (nothing, two, default, star, stars, child):
        with pytest.raises(ConfigurationError, match="cannot be a batch task: it must have one"):
            make(function)
    for other in (of_text, of_mapping):
        with pytest.raises(
            ConfigurationError, match=r"'texts' .* must be annotated as a list of items, such as"
        ):
            make(other)
    with pytest.raises(ConfigurationError, match=r"Cannot resolve .*NameError.*Adding a job needs"):
        make(unknown)
    with pytest.raises(ConfigurationError, match="it yields"):
        make(yielding)
    assert local.tasks == {}


def nothing() -> Any: ...
def two(a: list[int], b: list[int]) -> Any: ...
def default(a: list[int] = []) -> Any: ...  # noqa: B006
def star(*a: int) -> Any: ...
def stars(**a: int) -> Any: ...
def child(a: list[int], b: int = from_child("x")) -> Any: ...
def of_text(texts: str) -> Any: ...
def of_mapping(texts: dict[str, int]) -> Any: ...
def unknown(texts: list[Nowhere]) -> Any: ...  # type: ignore[name-defined]  # noqa: F821


def yielding(items: list[int]) -> Any:
    yield from items


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"size": 0}, "size"),
        ({"size": 1.5}, "size"),
        ({"size": 2, "wait": -1}, "wait"),
        ({"size": 2, "wait": "1 s"}, "wait"),
        ({"size": 2, "parallel": 0}, "parallel"),
        ({"size": 2, "atempts": 1}, "@app.batch_task has no option 'atempts'"),
        ({"size": 2, "schedule": Every(5)}, "cannot have schedule="),
    ],
)
def test_wrong_options_of_a_batch_are_refused(
    local: App, wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        local.batch_task(**wrong)


async def test_a_schedule_may_add_an_item(app: App) -> None:
    got: list[str] = []
    done = anyio.Event()

    @app.batch_task(size=1)
    async def work(items: list[str]) -> list[None]:
        got.extend(items)
        done.set()
        return [None]

    app.schedule("hourly", Every(3600), work.job("hour"))
    with fail_after(LIMIT):
        async with app.worker(concurrency=1).running():
            await done.wait()
    assert got == ["hour"]


async def test_a_batch_cannot_wait(app: App) -> None:
    async def doze(items: list[int]) -> list[int]:
        await current_batch()[0].asleep(1)
        return items

    def wait(items: list[int]) -> list[int]:
        return [current_batch()[0].wait_signal("go", int) for _ in items]

    made: list[Any] = [app.batch_task(size=2, attempts=1)(each) for each in (doze, wait)]
    with fail_after(LIMIT):
        async with app.worker().running():
            for task in made:
                with pytest.raises(JobFailed, match="A batch task cannot wait or sleep"):
                    await (await task.adelay(1)).aresult()


async def test_stopping_gives_items_back(app: App, kind: str) -> None:
    begun = anyio.Event()
    cancelled: list[str] = []
    over = threading.Event()

    async def asleep(items: list[str]) -> list[str]:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("call")
        return items

    def blocked(items: list[str]) -> list[str]:
        anyio.from_thread.run_sync(begun.set, token=token)
        over.wait(LIMIT)
        return items

    token = anyio.lowlevel.current_token()
    task: Any = app.batch_task(size=2, wait=0.01, name="work")(
        blocked if kind == "sync" else asleep
    )
    with fail_after(LIMIT):
        jobs = await app.aenqueue([task.job(text) for text in "abc"])
        async with create_task_group() as tasks:
            tasks.start_soon(partial(app.run_worker, shutdown_timeout=0))
            await begun.wait()
            tasks.cancel_scope.cancel()
        counts = await app.queue("default").counts()
    over.set()
    assert (counts["waiting"], counts["active"]) == (3, 0)
    assert cancelled == (["call"] if kind == "async" else [])
    assert [(await job.ainfo()).attempts_made for job in jobs] == [0, 0, 0]


async def test_jobs_are_counted_each(app: App) -> None:
    told: Counter[str] = Counter()
    app.on(events.JobEvent)(lambda event: told.update([type(event).__name__]))

    @app.batch_task(size=5, wait=5, attempts=1)
    async def work(items: list[int]) -> list[int | Exception]:
        return [LookupError() if item == 0 else item for item in items]

    with fail_after(LIMIT):
        jobs = await app.aenqueue([work.job(number) for number in range(10)])
        async with app.worker(concurrency=5).running():
            await results_of(jobs)
    assert told == {"Started": 10, "Completed": 9, "Failed": 1}
