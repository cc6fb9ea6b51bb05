"""Groups as users declare them: options, errors, limits of workers, settings at run time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from anyio import Event, fail_after, sleep, to_thread

from taskbull import App, ConfigurationError, Every, Groups, Limiter, current_job
from taskbull.testing import recorded
from tests.servers.kinds import Reachable


@pytest.fixture
def app(server: Reachable, prefix: str) -> App:
    return App("shop", redis=server.url, prefix=prefix, queue="q")


def group_of(app: App, job_id: str) -> Any:
    found = app.sync_queue("q").get_job(job_id)
    assert found is not None
    group = found.options.group
    return None if group is None else (group.id, group.cost)


def test_a_parameter_names_the_group(app: App) -> None:
    @app.task(group_by="tenant", cost="size")
    def work(tenant: str | int | None, size: int = 1) -> None: ...

    assert group_of(app, work.delay("acme").id) == ("acme", None)
    assert group_of(app, work.delay(42, size=3).id) == ("42", 3)
    assert group_of(app, work.delay(None).id) is None
    assert group_of(app, work.options(group="beta").delay("acme").id) == ("beta", None)
    assert group_of(app, work.options(group=None).delay("acme").id) is None
    assert group_of(app, work.options(cost=7).delay("acme").id) == ("acme", 7)
    bulk = app.enqueue([work.job("a"), work.job("b", 2)])
    assert [group_of(app, job.id) for job in bulk] == [("a", None), ("b", 2)]
    app.close()


def test_a_function_names_the_group(app: App) -> None:
    @app.task(group_by=lambda user: user["tenant"], cost=lambda text, **_: len(text))
    def work(user: dict[str, str], text: str = "abc") -> None: ...

    assert group_of(app, work.delay({"tenant": "x"}).id) == ("x", 3)
    app.close()


async def test_a_queue_takes_groups(app: App) -> None:
    queue = app.queue("q")
    job = await queue.add("complete", {"prompt": "Hi"}, group="acme", cost=2)
    [other] = await queue.add_bulk([("complete", {}, {"group": 7})])
    assert await to_thread.run_sync(group_of, app, job.id) == ("acme", 2)
    assert await to_thread.run_sync(group_of, app, other.id) == ("7", None)
    assert {info.id for info in await queue.groups()} == {"acme", "7"}
    app.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group must not be empty"),
        ({"group": "x" * 256}, "group must have at most 255 characters"),
        ({"group": 1.5}, "group must be a string"),
        ({"group": True}, "group must be a string"),
        ({"group": "a", "priority": 1}, "group and priority"),
        ({"group": "a", "cost": -1}, "cost must be"),
        ({"group": "a", "cost": 1.5}, "cost must be"),
    ],
)
def test_a_wrong_option_is_refused(app: App, options: dict[str, Any], message: str) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        work.options(**options).delay()
    with pytest.raises(ConfigurationError, match=message):
        app.sync_queue("q").add("work", {}, **options)
    assert sum(app.sync_queue("q").counts().values()) == 0
    app.close()


async def test_one_wrong_group_refuses_a_whole_bulk_flow_or_schedule(app: App) -> None:
    @app.task(group_by="tenant")
    async def work(tenant: str) -> None: ...

    queue, right, wrong = app.queue("q"), work.job("a"), "x" * 256
    for call in (
        lambda: app.aenqueue([right, work.job(wrong)]),
        lambda: queue.add_bulk([("work", {}), ("work", {}, {"group": "a", "priority": 1})]),
        lambda: work.after(right, work.job(wrong)).adelay("a"),
        lambda: queue.upsert_schedule("s", Every(60), queue.job("work", group="")),
    ):
        with pytest.raises(ConfigurationError, match="group"):
            await call()
    cost: Any
    for cost in ("size", len):
        with pytest.raises(ConfigurationError, match="cost must be"):
            await queue.add("work", {}, group="a", cost=cost)
    assert sum((await queue.counts()).values()) == 0
    app.close()


def test_wrong_rules_are_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="group_by of task 'a' uses 'nobody'"):
        app.task(group_by="nobody")(_named("a"))
    with pytest.raises(ConfigurationError, match="cost of task 'b' uses 'nothing'"):
        app.task(group_by="x", cost="nothing")(_named("b"))
    with pytest.raises(ConfigurationError, match="group and priority"):
        app.task(group_by="x", priority=3)(_named("c"))
    with pytest.raises(ConfigurationError, match="group concurrency must be"):
        Groups(concurrency=0)
    with pytest.raises(ConfigurationError, match="Limiter"):
        Groups(limiter=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="weight of group 'a'"):
        Groups(weights={"a": 0})
    with pytest.raises(ConfigurationError, match="groups must be"):
        app.queue_options("q", groups={"concurrency": 2})  # type: ignore[arg-type]
    work = app.task(group_by="x")(_named("d"))
    with pytest.raises(ConfigurationError, match="group must not be empty"):
        work.delay("")
    queue = app.sync_queue("q")
    wrong: Any
    for wrong in ({"concurrency": 0}, {"limiter": 3}, {"weight": 0}, {"paused": "yes"}):
        with pytest.raises(ConfigurationError, match="group"):
            queue.set_group("a", **wrong)
    with pytest.raises(ConfigurationError, match="group must not be empty"):
        queue.set_group("", concurrency=1)
    assert queue.groups() == []
    app.close()


def _named(name: str) -> Any:
    def function(x: str = "1") -> None: ...

    function.__name__ = name
    return function


async def test_group_limits_hold_across_several_workers(app: App) -> None:
    app.queue_options("q", groups=Groups(concurrency=2))
    running, most = Counter[str](), Counter[str]()

    @app.task(group_by="tenant", attempts=3, backoff=None)
    async def work(tenant: str, number: int) -> None:
        running[tenant] += 1
        most[tenant] = max(most[tenant], running[tenant])
        await sleep(0.001)
        running[tenant] -= 1
        if number % 7 == 0 and current_job().attempt == 1:
            raise ValueError

    await app.aenqueue([work.job(f"t{n % 3}", n) for n in range(120)])
    queue = app.queue("q")
    async with app.worker(concurrency=5).running(), app.worker(concurrency=5).running():
        with fail_after(60):
            while (await queue.counts())["completed"] < 120:  # noqa: ASYNC110
                await sleep(0.02)
    assert set(most.values()) == {2}
    assert (await queue.groups()) == []
    app.close()


async def test_a_new_group_does_not_wait_for_a_flood(app: App) -> None:
    order: list[str] = []
    gate = Event()

    @app.task(group_by="tenant")
    async def work(tenant: str) -> None:
        await gate.wait()
        order.append(tenant)

    await app.aenqueue([work.job("a") for _ in range(300)])
    async with app.worker(concurrency=1).running():
        newcomer = await work.adelay("b")
        gate.set()
        await newcomer.aresult(60)
    # The worker may hold one running job and those that it fetched ahead.
    assert order.index("b") < 20
    app.close()


async def test_a_limited_group_continues_in_the_next_window(app: App) -> None:
    app.queue_options("q", groups=Groups(limiter=Limiter(2, 0.3)))

    @app.task(group_by="tenant")
    async def work(tenant: str) -> None: ...

    jobs = [await work.adelay("a") for _ in range(5)]
    async with app.worker().running():
        for job in jobs:
            await job.aresult(60)
    app.close()


async def test_a_job_corrects_its_cost(app: App) -> None:
    app.queue_options("q", groups=Groups(limiter=Limiter(10, 600)))

    @app.task(group_by="tenant")
    async def work(tenant: str) -> None:
        await current_job().aadd_cost(9)

    @app.task(group_by="tenant")
    def plainly(tenant: str) -> None:
        current_job().add_cost(9)

    async with app.worker(concurrency=1).running():
        for task, tenant in ((work, "a"), (plainly, "b")):
            await (await task.adelay(tenant)).aresult(60)
            await task.adelay(tenant)
        found: dict[str, Any] = {}
        with fail_after(60):
            while len(found) < 2 or not all(info.held for info in found.values()):
                found = {info.id: info for info in await app.queue("q").groups()}
        assert all(info.limited_until is not None for info in found.values())
    app.close()


async def test_flows_and_schedules_have_groups(app: App) -> None:
    @app.task(group_by="tenant")
    async def child(tenant: str) -> str | None:
        return current_job().job.options.group_id

    @app.task(group_by="tenant", schedule=Every(3600))
    async def parent(tenant: str = "p") -> str | None:
        return current_job().job.options.group_id

    flow = await parent.after([child.job("x"), child.job("y")]).adelay("p")
    async with app.worker().running():
        assert await flow.aresult(60) == "p"
        [schedule] = await app.queue("q").schedules()
        assert schedule.id == "parent"
        with fail_after(60):
            while (await app.queue("q").counts())["completed"] < 4:  # noqa: ASYNC110
                await sleep(0.02)
    app.close()


def test_recorded_jobs_run_in_turns(app: App) -> None:
    order: list[str] = []

    @app.task(group_by="tenant")
    def work(tenant: str) -> None:
        order.append(tenant)
        current_job().add_cost(2)

    with recorded(app) as box:
        for tenant in "aaaabbc":
            work.delay(tenant)
        box.run()
    assert "".join(order) == "abcabaa"
    app.close()


def test_recorded_jobs_run_with_the_declared_weights(app: App) -> None:
    app.queue_options("q", groups=Groups(weights={"b": 2}))
    order: list[str] = []

    @app.task(group_by="tenant")
    def work(tenant: str) -> None:
        order.append(tenant)
        if order == ["a", "b"]:
            work.delay("c")

    with recorded(app) as box:
        for tenant in "aaabbbb":
            work.delay(tenant)
        box.run()
    assert "".join(order) == "abbacbba"
    app.close()


def test_recorded_batches_mix_groups_in_turns(app: App) -> None:
    batches: list[str] = []

    @app.batch_task(size=4, group_by=lambda letters: letters)
    def work(letters: list[str]) -> list[None]:
        batches.append("".join(letters))
        return [None] * len(letters)

    with recorded(app) as box:
        for letter in "aaaabb":
            work.delay(letter)
        box.run()
    assert batches == ["abab", "aa"]
    app.close()


def test_a_recorded_group_without_waiting_jobs_loses_its_turn(app: App) -> None:
    order: list[str] = []

    @app.task(group_by="tenant")
    async def work(tenant: str) -> None:
        order.append(tenant)
        if current_job().job.attempts_started == 1:
            await current_job().asleep(60)

    with recorded(app) as box:
        for tenant in "ab":
            work.delay(tenant)
        box.run()
        box.advance(60)
    assert "".join(order) == "abab"
    app.close()
