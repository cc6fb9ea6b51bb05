"""Lifespan values reach tasks as a parameter and as `current_job().resources`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, NewType, Protocol, TypedDict

import pytest
from anyio import create_task_group, fail_after

from taskbull import (
    App,
    ConfigurationError,
    Every,
    InvalidArguments,
    JobFailed,
    Worker,
    current_job,
    from_child,
    from_lifespan,
)
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import Reachable

LIMIT = 60.0


class Pool:
    """What tasks share."""

    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Named(Protocol):
    name: str


class Shape(TypedDict):
    name: str


Alias = NewType("Alias", Pool)


def yielding(app: App, value: object) -> None:
    @app.lifespan
    async def around() -> AsyncIterator[object]:
        yield value


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


async def test_tasks_get_what_the_lifespan_yields(app: App) -> None:
    pool = Pool()
    yielding(app, pool)
    got: list[object] = []

    @app.task
    async def awaited(number: int, resources: Pool = from_lifespan()) -> int:
        got.extend((resources, current_job().resources))
        return number

    @app.task
    def threaded(resources: Pool = from_lifespan(), /, *, number: int = 7) -> int:
        got.extend((resources, current_job().resources))
        return number

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await awaited.adelay(5)).aresult() == 5
            assert await (await threaded.adelay()).aresult() == 7
            assert await (await threaded.adelay(number=8)).aresult() == 8
    assert got == [pool] * 6


async def test_it_stands_beside_what_children_return(app: App) -> None:
    yielding(app, Pool("p"))

    @app.task
    def first() -> str:
        return "child"

    @app.task
    async def second(text: str = from_child(first), pool: Pool = from_lifespan()) -> str:
        return f"{text} {pool.name}"

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await second.after(first.job()).adelay()).aresult() == "child p"


async def test_two_workers_of_an_app_have_each_their_own(app: App) -> None:
    pools: list[Pool] = []

    @app.lifespan
    async def around() -> AsyncIterator[Pool]:
        pools.append(Pool(f"pool {len(pools)}"))
        yield pools[-1]

    @app.task(queue="a")
    async def a(pool: Pool = from_lifespan()) -> str:
        return pool.name

    @app.task(queue="b")
    async def b(pool: Pool = from_lifespan()) -> str:
        return pool.name

    with fail_after(LIMIT):
        async with app.worker("a").running(), app.worker("b").running():
            assert await (await a.adelay()).aresult() == "pool 0"
            assert await (await b.adelay()).aresult() == "pool 1"


async def test_without_a_lifespan_a_job_has_no_resources(app: App) -> None:
    @app.task
    async def work() -> bool:
        return current_job().resources is None

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await work.adelay()).aresult()


async def test_the_handler_of_a_raw_worker_has_them_too(
    app: App, server: Reachable, prefix: str
) -> None:
    @asynccontextmanager
    async def around() -> AsyncIterator[str]:
        yield "opened"

    async def handle(job: RunningJob) -> str:
        return f"{job.name} {job.resources}"

    worker = Worker("raw", handle, redis=server.url, prefix=prefix, lifespan=around)
    with fail_after(LIMIT):
        async with worker.running():
            job = await app.queue("raw").add("any", {})
            assert await job.aresult() == "any opened"


def test_a_job_cannot_have_it(local: App) -> None:
    @local.task
    def work(number: int, pool: Pool = from_lifespan()) -> None: ...

    @local.task
    def rest(pool: Pool = from_lifespan(), **rest: int) -> None: ...

    wrong: list[Callable[[], object]] = [
        lambda: work.delay(1, Pool()),
        lambda: work.job(1, pool=Pool()),
        lambda: rest.job(pool=Pool()),
        lambda: rest.options(delay=5).job(Pool()),
    ]
    for call in wrong:
        with pytest.raises(TypeError, match="argument 'pool' cannot be passed: the worker"):
            call()
    assert work.job(1).data == {"number": 1}
    assert rest.job(a=1).data == {"a": 1}


@pytest.mark.parametrize("name", ["work", "rest"])
async def test_data_of_others_cannot_have_it(app: App, name: str) -> None:
    yielding(app, Pool())

    @app.task(attempts=1)
    def work(pool: Pool = from_lifespan()) -> str:
        return pool.name

    @app.task(attempts=1)
    def rest(pool: Pool = from_lifespan(), **rest: int) -> str:
        return pool.name

    with fail_after(LIMIT):
        async with app.worker().running():
            good = await app.queue("default").add(name, {})
            assert await good.aresult() == "pool"
            bad = await app.queue("default").add(name, {"pool": 5})
            with pytest.raises(JobFailed, match=f"{name}.. got an unexpected argument: 'pool'"):
                await bad.aresult()


async def test_fields_that_are_ignored_do_not_replace_it(app: App) -> None:
    yielding(app, Pool())

    @app.task(extra="ignore")
    def work(pool: Pool = from_lifespan()) -> str:
        return pool.name

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await app.queue("default").add("work", {"pool": "other"})
            assert await job.aresult() == "pool"


def test_a_call_by_hand_must_give_it(local: App) -> None:
    @local.task
    def work(number: int, pool: Pool = from_lifespan()) -> str:
        return f"{pool.name} {number}"

    assert work(1, Pool("mine")) == "mine 1"
    assert work(number=2, pool=Pool("mine")) == "mine 2"
    with pytest.raises(
        TypeError, match=r"work\(\) missing required argument: 'pool'.* the lifespan"
    ):
        work(1)
    wrong: Any = work
    with pytest.raises(TypeError, match=r"work.. missing required argument: 'number'"):
        wrong(pool=Pool())


def test_it_needs_a_lifespan(local: App) -> None:
    @local.task
    def work(pool: Pool = from_lifespan()) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"Parameter 'pool' of task 'work' \(.*:\d+\) needs the value of a lifespan, but App "
        r"local has none: declare one with @app\.lifespan",
    ):
        local.worker()
    assert repr(work.function.__defaults__) == "(from_lifespan(),)"


def test_a_task_with_a_schedule_may_want_it(local: App) -> None:
    @local.task(schedule=Every(30))
    def work(pool: Pool = from_lifespan()) -> None: ...

    [declared] = local.declared_schedules.of("default")
    assert declared.job.data == {}


def with_pool(pool: Pool = from_lifespan()) -> None: ...
def with_maybe_pool(pool: Pool | None = from_lifespan()) -> None: ...
def with_either(pool: int | Pool = from_lifespan()) -> None: ...
def with_annotated(pool: Annotated[Pool, 5] = from_lifespan()) -> None: ...
def with_alias(pool: Alias = from_lifespan()) -> None: ...
def with_protocol(pool: Named = from_lifespan()) -> None: ...
def with_shape(pool: Shape = from_lifespan()) -> None: ...
def with_generic(pool: dict[str, int] = from_lifespan()) -> None: ...
def with_anything(pool=from_lifespan()) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (with_pool, "text"),
        (with_pool, None),
        (with_maybe_pool, "text"),
        (with_either, "text"),
        (with_annotated, "text"),
        (with_alias, "text"),
        (with_protocol, None),
        (with_generic, ["a"]),
        (with_anything, None),
    ],
)
async def test_what_does_not_fit_is_reported_at_the_start(
    local: App, function: Callable[..., None], value: object
) -> None:
    told: list[str] = []

    @local.lifespan
    async def around() -> AsyncIterator[object]:
        try:
            yield value
        finally:
            told.append("closed")

    local.task(name="work")(function)
    problem = "yields None" if value is None else f"yields a {type(value).__name__}"
    with (
        fail_after(LIMIT),
        pytest.raises(ConfigurationError, match=f"^Parameter 'pool' of task 'work' .*{problem}"),
    ):
        await local.run_worker()
    assert told == ["closed"]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (with_pool, Pool()),
        (with_maybe_pool, None),
        (with_maybe_pool, Pool()),
        (with_either, 5),
        (with_annotated, Pool()),
        (with_alias, Pool()),
        (with_protocol, Pool()),
        (with_shape, {"name": "a"}),
        (with_generic, {"a": 1}),
        (with_anything, "text"),
    ],
)
async def test_what_fits_is_accepted(
    app: App, function: Callable[..., None], value: object
) -> None:
    yielding(app, value)
    task = app.task(name="work")(function)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(app.run_worker)
            await (await task.adelay()).aresult()
            tasks.cancel_scope.cancel()


def test_a_type_that_json_does_not_know_is_no_obstacle(local: App) -> None:
    yielding(local, Pool())

    @local.task
    def work(number: int, pool: Pool = from_lifespan()) -> None: ...

    local.worker()
    with pytest.raises(InvalidArguments, match="argument 'number'"):
        work.job("5")  # type: ignore[arg-type]


@pytest.mark.parametrize("process", [True, False])
def test_a_lifespan_without_async_is_refused(process: bool) -> None:
    app = App("shop", redis="redis://localhost:1")

    def plain() -> Generator[int]:
        yield 1

    refused: list[Any] = [plain, contextmanager(plain)]
    for wrong in refused:
        with pytest.raises(ConfigurationError, match="async generator"):
            app.lifespan(process=process)(wrong)
