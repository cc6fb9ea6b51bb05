"""Steps in a worker: stored under the job's lock, loaded in reruns, in the loop and in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
import trio
from anyio import fail_after

from taskbull import (
    App,
    Backoff,
    ConfigurationError,
    JobFailed,
    JobHandle,
    Keep,
    LockLost,
    SerializationError,
    current_job,
    events,
    step,
)
from taskbull.core.keys import QueueKeys
from tests.worker.bed import until

LIMIT = 60.0


@dataclass
class Receipt:
    order: str
    total: int
    at: datetime


def monitored(admin: redis.Redis, key: str) -> Callable[[], int]:
    """Give a function that counts the calls of a command so far."""

    def count() -> int:
        stats: dict[str, Any] = admin.info("commandstats")
        return int(stats.get(f"cmdstat_{key}", {}).get("calls", 0))

    return count


async def finish(app: App, job: JobHandle[Any], **options: Any) -> Any:
    with fail_after(LIMIT):
        async with app.worker(**options).running():
            return await job.aresult()


class Orders:
    """A task of three steps that fails once after the second."""

    def __init__(self, app: App) -> None:
        self.calls: list[str] = []

        @step
        async def charge(order: str) -> Receipt:
            self.calls.append("charge")
            return Receipt(order, 5, datetime.fromisoformat("2026-01-01T00:00:00+00:00"))

        @step(name="print label")
        async def label(receipt: Receipt, number: int) -> dict[str, int]:
            self.calls.append(f"label {number}")
            return {receipt.order: number}

        @app.task(attempts=3, backoff=Backoff.none())
        async def fulfil(order: str) -> list[Any]:
            receipt = await charge(order)
            assert type(receipt) is Receipt
            assert receipt.at.year == 2026
            first = await label(receipt, 1)
            if current_job().attempt == 1:
                raise ConnectionError("the warehouse is away")
            return [first, await label(receipt, number=2)]

        self.fulfil = fulfil


async def test_a_retry_continues_after_the_finished_steps(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    orders = Orders(app)
    job = await orders.fulfil.adelay("o1")
    assert await finish(app, job) == [{"o1": 1}, {"o1": 2}]
    assert orders.calls == ["charge", "label 1", "label 2"]
    steps = await job.asteps()
    assert [(one.name, one.number, one.status) for one in steps] == [
        ("charge", 1, "done"),
        ("print label", 1, "done"),
        ("print label", 2, "done"),
    ]
    assert all(one.duration is not None and one.duration >= 0 for one in steps)
    assert steps[0].result["total"] == 5
    week = timedelta(days=7).total_seconds() * 1000
    assert week - LIMIT * 1000 < admin.pttl(keys.steps(job.id)) <= week
    assert [one.name for one in await app.queue("default").steps(job.id)] == [
        one.name for one in steps
    ]


async def test_a_plain_task_has_steps_in_its_thread(app: App) -> None:
    calls: list[tuple[str, bool]] = []

    @step
    def load(name: str) -> list[int]:
        calls.append((name, threading.current_thread() is threading.main_thread()))
        return [1, 2]

    @app.task(attempts=3, backoff=Backoff.none())
    def run() -> list[int]:
        found = [*load("a"), *load("b")]
        if current_job().attempt < 3:
            raise ConnectionError
        return found

    assert await finish(app, await run.adelay()) == [1, 2, 1, 2]
    assert calls == [("a", False), ("b", False)]


async def test_a_job_that_reuses_an_id_does_not_reuse_its_steps(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    """BullMQ removes a job without its steps, and producers can use an id again."""
    calls: list[str] = []

    @step
    async def greet(name: str) -> str:
        calls.append(name)
        return f"{name} {current_job().data['number']}"

    @app.task(attempts=2, backoff=Backoff.none())
    async def run(number: int) -> list[str]:
        if number == 2 and current_job().attempt == 1:
            raise ConnectionError
        return [await greet("ann"), await current_job().await_signal("go", str)]

    job = await run.options(job_id="a").adelay(1)
    await job.asignal("go", "yes")
    assert await finish(app, job) == ["ann 1", "yes"]
    admin.delete(keys.job("a"))
    admin.zrem(keys.completed, "a")

    again = await run.options(job_id="a").adelay(2)
    assert await again.asteps() == []
    async with app.worker().running():
        await until(lambda: admin.zscore(keys.waiting_children, "a") is not None)
        assert [one.status for one in await again.asteps()] == ["done", "waiting"]
        await again.asignal("go", "no")
        assert await again.aresult(timeout=LIMIT) == ["ann 2", "no"]
    assert calls == ["ann", "ann"]


async def test_a_signal_is_not_for_a_later_job_with_the_same_id(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    @app.task
    async def run(number: int) -> int:
        value: int = await current_job().await_signal("go", int)
        return value

    job = await run.options(job_id="a").adelay(1)
    await job.asignal("go", 1)
    admin.delete(keys.job("a"))
    admin.lrem(keys.wait, 0, "a")
    again = await run.options(job_id="a").adelay(2)
    await again.asignal("go", 2)
    assert await finish(app, again) == 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("run", [asyncio.run, trio.run])
async def test_a_plain_task_runs_an_event_loop_of_its_own(app: App, run: Any) -> None:
    calls: list[str] = []

    @step
    async def load(name: str) -> str:
        await anyio.lowlevel.checkpoint()
        calls.append(name)
        return name.upper()

    async def agent() -> list[str]:
        job = current_job()
        found = [await load("a"), await load("b")]
        await job.aprogress(50)
        if job.attempt == 1:
            raise ConnectionError
        return [*found, await job.await_signal("go", str)]

    @app.task(attempts=2, backoff=Backoff.none())
    def research() -> list[str]:
        found: list[str] = run(agent) if run is trio.run else run(agent())
        return found

    job = await research.adelay()
    await job.asignal("go", "yes")
    assert await finish(app, job) == ["A", "B", "yes"]
    assert calls == ["a", "b"]
    assert (await job.ainfo()).progress == 50


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_concurrent_steps_keep_their_results(app: App) -> None:
    calls: list[int] = []

    @step
    async def label(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        if number == 2 and current_job().attempt == 1:
            raise ConnectionError
        calls.append(number)
        return number * 10

    @step
    async def price(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        calls.append(number + 100)
        return number

    async def one_after_another(number: int, found: list[int]) -> None:
        found.append(await price(number) + await label(number + 10))

    @app.task(attempts=3, backoff=Backoff.none())
    async def run() -> list[int]:
        found: list[int] = []
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(one_after_another, number, found)
        results: list[int] = [0] * 5

        async def keep(place: int, coroutine: Any) -> None:
            results[place] = await coroutine

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(keep, number, label(number))
        return [*sorted(found), *results]

    job = await run.adelay()
    assert await finish(app, job) == [100, 111, 122, 133, 0, 10, 20, 30, 40]
    once = [10, 11, 12, 13, 100, 101, 102, 103]
    assert sorted(number for number in calls if number >= 10) == once
    assert all(calls.count(number) <= 2 for number in range(5))


async def test_a_job_without_steps_makes_no_more_calls_and_a_first_run_loads_nothing(
    app: App, admin: redis.Redis
) -> None:
    orders = Orders(app)
    count = monitored(admin, "hgetall")

    @step
    async def one() -> int:
        return 1

    @app.task
    async def once() -> int:
        return await one() + await one()

    before = count()
    assert await finish(app, await once.adelay()) == 2
    assert count() == before
    await finish(app, await orders.fulfil.adelay("o1"))
    assert count() == before + 1


async def test_an_attempt_that_lost_its_lock_stores_no_step(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    seen: list[type[Exception]] = []
    effects: list[str] = []

    @step
    async def first() -> int:
        return 1

    @step
    async def second() -> int:
        effects.append("second")
        return 2

    @step
    async def third() -> int:
        effects.append("third")
        return 3

    @app.task(attempts=1)
    async def run() -> int:
        await first()
        admin.set(keys.lock(current_job().id), "of another worker")
        for one in (second, third):
            try:
                await one()
            except LockLost as error:
                seen.append(type(error))
        raise ConnectionError

    lost = anyio.Event()
    app.on(events.Lost)(lambda _: lost.set())
    job = await run.adelay()
    with fail_after(LIMIT):
        async with app.worker().running():
            await lost.wait()
            assert seen == [LockLost, LockLost]
            assert [one.name for one in await job.asteps()] == ["first"]
            admin.delete(keys.lock(job.id))


async def test_a_result_that_does_not_fit_raises_at_the_call(app: App) -> None:
    raised: list[str] = []

    @step
    async def large() -> str:
        return "x" * 11_000_000

    @step
    async def odd() -> object:
        return object()

    @step(name="count")
    async def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    @app.task(attempts=1)
    async def run() -> int:
        for one in (large, odd, wrong):
            try:
                await one()
            except SerializationError as error:
                raised.append(str(error))
        return len(raised)

    assert await finish(app, await run.adelay()) == 3
    assert raised[0] == "Step 'large': Result 11.0 MB exceeds limit of 10 MB"
    assert "Step 'odd': result is of type object" in raised[1]
    assert raised[2].startswith("Step 'count' returned a value that does not fit its annotation: ")


async def test_reset_steps_starts_from_the_beginning(app: App) -> None:
    orders = Orders(app)

    @app.task(attempts=1)
    async def broken() -> None:
        await orders_step()
        raise ConnectionError

    @step
    async def orders_step() -> None:
        orders.calls.append("called")

    job = await broken.adelay()
    queue = app.queue("default")
    for reset, calls in ((False, 1), (False, 1), (True, 2)):
        if (await job.astate()) == "failed":
            await queue.retry(job.id, reset_steps=reset)
        with pytest.raises(JobFailed):
            await finish(app, job)
        assert orders.calls.count("called") == calls
    with pytest.raises(ConfigurationError, match="reset_steps"):
        await queue.retry(job.id, reset_steps="yes")  # type: ignore[arg-type]


async def test_steps_are_removed_with_their_job(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    orders = Orders(app)
    not_kept = orders.fulfil.options(keep_completed=Keep.none())
    job = await orders.fulfil.adelay("o1")
    with fail_after(LIMIT):
        async with app.worker().running():
            await job.aresult()
            assert admin.exists(keys.steps(job.id))
            other = await not_kept.adelay("o2")
            await other.aresult()
            assert not admin.exists(keys.steps(other.id))
            last = await orders.fulfil.options(keep_completed=Keep(count=1)).adelay("o3")
            await last.aresult()
            assert not admin.exists(keys.steps(job.id))
    await app.queue("default").remove(last.id)
    assert not admin.keys(f"{keys.base}*:tb:steps")


async def test_a_step_has_attempts_and_a_timeout(app: App) -> None:
    tries: list[str] = []
    release = threading.Event()

    @step(attempts=3, backoff=Backoff.fixed(0.01))
    async def flaky() -> int:
        tries.append("flaky")
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    @step(timeout=0.05)
    async def slow() -> None:
        await anyio.sleep(LIMIT)

    @step(timeout=timedelta(milliseconds=50))
    def blocked() -> None:
        release.wait(LIMIT)

    @app.task(attempts=1)
    async def run() -> list[str]:
        found = [str(await flaky())]
        try:
            await slow()
        except TimeoutError as error:
            found.append(str(error))
        return found

    @app.task(attempts=1)
    def run_plainly() -> str:
        try:
            blocked()
        except TimeoutError as error:
            return str(error)
        return ""

    job = await run.adelay()
    assert await finish(app, job) == ["3", "Step 'slow' took longer than its timeout of 0.05 s"]
    said = await finish(app, await run_plainly.adelay())
    release.set()
    assert said == "Step 'blocked' took longer than its timeout of 0.05 s"


async def test_steps_of_a_step_belong_to_it(app: App) -> None:
    @step
    async def inner() -> int:
        return 1

    @step
    async def outer() -> int:
        return await inner() + await inner()

    @app.task(attempts=2, backoff=Backoff.none())
    async def run() -> int:
        value = await outer()
        if current_job().attempt == 1:
            raise ConnectionError
        return value + await inner()

    job = await run.adelay()
    assert await finish(app, job) == 3
    assert [(one.name, one.number) for one in await job.asteps()] == [("outer", 1), ("inner", 1)]


async def test_a_mismatch_fails_a_task_that_catches_all_exceptions(app: App) -> None:
    effects: list[str] = []

    @step
    async def charge(amount: int) -> None:
        effects.append("charged")

    @step
    async def refund() -> None:
        effects.append("refunded")

    @app.task(attempts=3, backoff=Backoff.none())
    async def run() -> str:
        try:
            await charge(current_job().attempt)
            raise ConnectionError
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - as careless tasks do
            await refund()
            return "refunded"

    job = await run.adelay()
    with pytest.raises(JobFailed, match="step 'charge' with other arguments"):
        await finish(app, job)
    assert effects == ["charged"]
    assert (await job.ainfo()).attempts_made == 2


async def test_arguments_without_a_json_form_are_distinguished_by_class(app: App) -> None:
    class Client:
        pass

    @step
    async def ask(client: object, question: str) -> str:
        return question

    @app.task(attempts=2, backoff=Backoff.none())
    async def run() -> str:
        found = await ask(Client(), "why")
        if current_job().attempt == 1:
            raise ConnectionError
        return found

    assert await finish(app, await run.adelay()) == "why"


@pytest.mark.parametrize("options", [{"attempts": 0}, {"timeout": 0}, {"name": ""}])
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        step(**options)(lambda: None)


def test_only_functions_that_return_once_can_be_steps() -> None:
    def generator() -> Any:
        yield 1

    def plain() -> None: ...

    above: Any = classmethod
    for wrong in (generator, int, "f", max, staticmethod(plain), above(plain)):
        with pytest.raises(ConfigurationError, match="@step"):
            step(wrong)  # type: ignore[arg-type]
