"""Adding flows with tasks: atomically, once, and as BullMQ's flow producer does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest
import redis
from anyio import fail_after, to_thread

from taskbull import (
    App,
    ConfigurationError,
    EnqueueError,
    JobFailed,
    JobState,
    TaskbullError,
    chain,
    from_child,
    from_children,
)
from taskbull.core.job import Ticket
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.flow import decode_order
from taskbull.queue import add_bulk
from taskbull.scripts import add as flow_calls
from taskbull.scripts.add import undo_flows
from taskbull.scripts.call import Separate
from taskbull.store.address import parse
from taskbull.store.cluster import check_slots
from tests.app.conftest import written
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy

LIMIT = 60.0


class Tasks:
    """The tasks of the example in the documentation."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.task(queue="pages")
        async def fetch(url: str) -> str:
            return url

        @app.task(queue="q")
        def count(text: str = from_child(fetch)) -> int:
            return len(text)

        @app.task(queue="q")
        async def report(title: str, counts: list[int] = from_children(count)) -> str:
            return f"{title}: {counts}"

        self.fetch, self.count, self.report = fetch, count, report

    def with_id(self, job_id: str) -> Any:
        return self.fetch.options(job_id=job_id)

    def tree(self, urls: int) -> Any:
        return self.report.after(
            self.count.after(self.fetch.job(str(url))).job() for url in range(urls)
        )


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


def stored(admin: redis.Redis, prefix: str, queue: str = "q") -> dict[str, int]:
    """Count the jobs by name, wherever they wait."""
    keys = QueueKeys(queue, prefix)
    raw: Any = admin
    ids = [*raw.lrange(keys.wait, 0, -1), *raw.zrange(keys.waiting_children, 0, -1)]
    names = [raw.hget(keys.job(job_id.decode()), "name").decode() for job_id in ids]
    return {name: names.count(name) for name in names}


def test_a_tree_is_added_over_queues_and_gives_the_handle_of_its_root(
    tasks: Tasks, admin: redis.Redis, prefix: str
) -> None:
    job = tasks.tree(3).delay("Words")
    assert (job.name, job.queue, job.deduplicated) == ("report", "q", False)
    assert job.state() is JobState.WAITING_CHILDREN
    assert stored(admin, prefix) == {"report": 1, "count": 3}
    assert stored(admin, prefix, "pages") == {"fetch": 3}
    assert job.info().data == {"title": "Words"}
    raw: Any = admin
    order = decode_order(raw.hget(f"{prefix}:q:{job.id}", "tbch"))
    assert order is not None
    assert [(name, base) for name, base, _ in order] == [("count", f"{prefix}:q:")] * 3
    waited = {key.decode() for key in raw.smembers(f"{prefix}:q:{job.id}:dependencies")}
    assert waited == {base + job_id for _, base, job_id in order}


async def test_a_tree_is_added_by_async_code(tasks: Tasks, admin: redis.Redis, prefix: str) -> None:
    job = await tasks.tree(3).adelay("Words")
    assert await job.astate() is JobState.WAITING_CHILDREN
    assert stored(admin, prefix, "pages") == {"fetch": 3}


def test_a_chain_is_one_job_after_the_other(tasks: Tasks, admin: redis.Redis, prefix: str) -> None:
    job = chain(tasks.fetch.job("a"), tasks.count.job()).delay()
    assert (job.name, job.state()) == ("count", JobState.WAITING_CHILDREN)
    assert stored(admin, prefix, "pages") == {"fetch": 1}
    one = chain(tasks.fetch.job("a")).delay()
    assert one.state() is JobState.WAITING


def test_jobs_of_other_languages_are_children_and_links_of_chains(
    tasks: Tasks, app: App, admin: redis.Redis, prefix: str
) -> None:
    translate = app.sync_queue("node").job("translate", {"text": "a"}, on_failure="ignore")
    job = tasks.report.after(translate).delay("t")
    assert job.state() is JobState.WAITING_CHILDREN
    [child] = app.sync_queue("node").get_jobs("waiting")
    assert (child.name, child.options.ignore_dependency) == ("translate", True)
    last = chain(tasks.fetch.job("a"), translate, tasks.report.job("t")).delay()
    assert last.state() is JobState.WAITING_CHILDREN
    assert stored(admin, prefix, "node") == {"translate": 2}
    assert stored(admin, prefix, "pages") == {"fetch": 1}


def test_flows_stand_among_jobs(tasks: Tasks, app: App) -> None:
    specs = [tasks.fetch.job("x"), tasks.tree(2).job("a"), tasks.fetch.job("y")]
    told: list[int] = []
    handles = app.enqueue(specs, progress=told.append)
    assert [job.name for job in handles] == ["fetch", "report", "fetch"]
    assert handles[1].state() is JobState.WAITING_CHILDREN
    assert told[-1] == 3


def test_of_a_list_with_a_wrong_flow_nothing_is_written(
    tasks: Tasks, app: App, admin: redis.Redis, prefix: str
) -> None:
    wrong = tasks.report.after(tasks.count.job()).job("a")
    with pytest.raises(ConfigurationError, match="needs exactly one child 'fetch'"):
        app.enqueue([tasks.fetch.job("x"), tasks.tree(2).job("a"), wrong])
    assert written(admin, prefix) == set()


WRONG_FLOWS: dict[str, tuple[Callable[[Tasks], Any], str]] = {
    "its own child": (
        lambda tasks: tasks.with_id("x").after(tasks.with_id("x").job("a")).job("a"),
        "job x of queue pages would wait for itself: it is its own ancestor in the flow",
    ),
    "its own grandchild": (
        lambda tasks: (
            tasks.with_id("x")
            .after(tasks.with_id("y").after(tasks.with_id("x").job("a")).job("a"))
            .job("a")
        ),
        "job x of queue pages would wait for itself: it is its own ancestor in the flow",
    ),
    "two children of one id": (
        lambda tasks: tasks.report.after(tasks.with_id("x").job(url) for url in "ab").job("t"),
        "job x of queue pages is in the flow twice",
    ),
    "a parameter without its child, below": (
        lambda tasks: tasks.report.after(tasks.fetch.job("a"), tasks.count.job()).job("t"),
        "Parameter 'text' of task 'count' needs exactly one child 'fetch', but the job has none",
    ),
    "a parameter with two children": (
        lambda tasks: tasks.count.after(tasks.fetch.job(url) for url in "ab").job(),
        "needs exactly one child 'fetch', but the job has 2: use from_children",
    ),
    "a dedup key": (
        lambda tasks: tasks.report.after(tasks.fetch.options(dedup="k").job("a")).job("t"),
        "Job 'fetch' of a flow cannot have a dedup key",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_FLOWS)
async def test_a_wrong_flow_is_refused_and_nothing_is_written(
    wrong: str, tasks: Tasks, admin: redis.Redis, prefix: str
) -> None:
    make, told = WRONG_FLOWS[wrong]
    jobs = [tasks.fetch.job("first"), make(tasks)]
    with pytest.raises(ConfigurationError, match=told):
        await to_thread.run_sync(tasks.app.enqueue, jobs)
    with pytest.raises(ConfigurationError, match=told):
        await tasks.app.aenqueue(jobs)
    assert written(admin, prefix) == set()


def test_a_job_after_an_empty_iterable_is_a_plain_one(tasks: Tasks) -> None:
    job = tasks.report.after(tasks.count.job(str(n)) for n in range(0)).delay("t")
    assert (job.id, job.state()) == ("1", JobState.WAITING)


def test_after_is_refused_what_are_not_jobs(tasks: Tasks) -> None:
    wrong: Any
    with pytest.raises(ConfigurationError, match=r"report.after\(\) needs jobs"):
        tasks.report.after()
    for wrong in (5, tasks.fetch, "text", [tasks.fetch.delay]):
        with pytest.raises(ConfigurationError, match="must be created with task"):
            tasks.report.after(wrong)
    wrong = "perhaps"
    with pytest.raises(ConfigurationError, match="on_failure must be one of 'fail', 'ignore'"):
        tasks.report.after(tasks.fetch.job("a"), on_failure=wrong)
    with pytest.raises(ConfigurationError, match="on_failure must be one of"):
        tasks.fetch.options(on_failure=wrong)
    with pytest.raises(ConfigurationError, match=r"chain\(\) needs at least one job"):
        cast("Any", chain)()
    wrong = tasks.app.sync_queue("node").job("x")
    with pytest.raises(ConfigurationError, match="the last job of chain"):
        chain(tasks.fetch.job("a"), wrong)


def test_a_parameter_of_a_child_needs_one_or_its_value(tasks: Tasks) -> None:
    with pytest.raises(ConfigurationError, match="the job has none"):
        tasks.count.delay()
    assert tasks.count.delay("by hand").info().data == {"text": "by hand"}
    assert tasks.count("by hand") == 7
    assert tasks.report.delay("no children").state() is JobState.WAITING


def test_after_keeps_options_and_groups(tasks: Tasks, app: App) -> None:
    one, other = tasks.fetch.options(job_id="one").job("a"), tasks.fetch.job("b")
    kept = tasks.report.options(priority=3).after(one, on_failure="ignore").after([other])
    job = kept.options(job_id="root").delay("t")
    assert (job.id, job.info().priority) == ("root", 3)
    policies = {
        child.id == "one": (child.options.ignore_dependency, child.options.fail_parent)
        for child in app.sync_queue("pages").get_jobs("waiting")
    }
    assert policies == {True: (True, False), False: (False, True)}
    assert repr(kept) == "<report after 2 jobs, in queue q>"


def test_a_child_that_has_another_parent_refuses_the_flow(
    tasks: Tasks, app: App, admin: redis.Redis, prefix: str
) -> None:
    child = tasks.fetch.options(job_id="one").job("a")
    tasks.report.after(child).delay("first")
    before = stored(admin, prefix)
    with pytest.raises(Exception, match="job 'one' in queue 'pages' has another parent"):
        tasks.report.after(tasks.fetch.job("b"), child).delay("second")
    assert stored(admin, prefix) == before
    assert stored(admin, prefix, "pages") == {"fetch": 1}


def test_a_bulk_names_the_flow_that_redis_refused(tasks: Tasks, app: App) -> None:
    child = tasks.fetch.options(job_id="one").job("a")
    tasks.report.after(child).delay("first")
    refused = tasks.report.after(child).job("second")
    with pytest.raises(EnqueueError) as error:
        app.enqueue([tasks.report.after(tasks.fetch.job("b")).job("good"), refused])
    assert "1 of 2 jobs was not added: job 'one' in queue 'pages' has another" in str(error.value)
    assert len(error.value.added) == len(error.value.spec) == 1


def test_ten_thousand_children_are_added_in_pieces(
    tasks: Tasks, admin: redis.Redis, prefix: str
) -> None:
    job = tasks.report.after(tasks.fetch.job(str(n)) for n in range(10_000)).delay("t")
    assert job.state() is JobState.WAITING_CHILDREN
    raw: Any = admin
    assert raw.llen(f"{prefix}:pages:wait") == 10_000
    assert raw.scard(f"{prefix}:q:{job.id}:dependencies") == 10_000
    assert raw.exists(f"{prefix}:q:tb:flows") == 0
    order = decode_order(raw.hget(f"{prefix}:q:{job.id}", "tbch")) or []
    with raw.pipeline(transaction=False) as pipe:
        for _, base, own in order:
            pipe.hget(base + own, "data")
        urls = [json.loads(data)["url"] for data in pipe.execute()]
    assert urls == [str(n) for n in range(10_000)]


def test_a_cluster_wants_the_queues_of_a_flow_in_one_slot() -> None:
    queues = [QueueKeys(name, cluster=True) for name in ("a", "b")]
    with pytest.raises(ConfigurationError, match=r"common hash tag, such as \{shop\}-a and"):
        check_slots(queues)
    check_slots([QueueKeys(f"{{shop}}-{name}", cluster=True) for name in "ab"])
    check_slots([QueueKeys(name) for name in "ab"])


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running:
        yield running


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[Tasks]:
    """The tasks of an app that sees the server through the proxy."""
    app = App("far", redis=proxy.url, prefix=prefix, enqueue_timeout=20)
    yield Tasks(app)
    app.close()


@pytest.fixture(params=[250, 4])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of jobs per chunk: all of them, or some."""
    monkeypatch.setattr(flow_calls, "PIECE", request.param)
    return int(request.param)


@pytest.mark.parametrize("cut", ["before_reply", "before_request"])
async def test_a_flow_is_there_once_wherever_the_connection_is_cut(
    far: Tasks, proxy: Proxy, admin: redis.Redis, prefix: str, size: int, cut: str
) -> None:
    cut_next = getattr(proxy, f"cut_{cut}")
    with fail_after(LIMIT):
        for number in range(10):
            await to_thread.run_sync(cut_next, prefix.encode())
            if number % 2:
                await far.tree(5).adelay(str(number))
            else:
                await to_thread.run_sync(far.tree(5).delay, str(number))
    assert stored(admin, prefix) == {"report": 10, "count": 50}
    assert stored(admin, prefix, "pages") == {"fetch": 50}
    assert admin.exists(f"{prefix}:q:tb:flows") == 0


async def test_a_flow_is_there_once_after_how_many_bytes_the_connection_is_cut(
    far: Tasks, proxy: Proxy, admin: redis.Redis, prefix: str, size: int
) -> None:
    random = Random(size)
    with fail_after(LIMIT):
        for number in range(20):
            cut = proxy.cut_after if number % 2 else proxy.cut_after_requests
            await to_thread.run_sync(cut, random.randrange(1, 200 if number % 2 else 9000))
            await far.tree(5).adelay(str(number))
    assert stored(admin, prefix) == {"report": 20, "count": 100}
    assert stored(admin, prefix, "pages") == {"fetch": 100}


@pytest.mark.usefixtures("size")
def test_a_flow_that_was_not_added_is_added_by_its_spec(
    proxy: Proxy, admin: redis.Redis, prefix: str
) -> None:
    short = App("short", redis=proxy.url, prefix=prefix, enqueue_timeout=1.5)
    tasks = Tasks(short)
    tasks.fetch.delay("connects")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(EnqueueError) as failed:
        tasks.tree(5).delay("kept")
    [spec] = failed.value.spec
    proxy.accept()
    [job] = short.enqueue([spec])
    [same] = short.enqueue([spec])
    assert (job.id, job.name) == (same.id, "report")
    assert stored(admin, prefix) == {"report": 1, "count": 5}
    assert stored(admin, prefix, "pages") == {"fetch": 6}
    [other] = short.enqueue([spec.without_ticket()])
    assert other.id != job.id
    short.close()


@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("then", ["sent again", "swept"])
def test_a_producer_that_breaks_off_leaves_nothing_or_all_of_it(
    tasks: Tasks, admin: redis.Redis, calls: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_calls, "PIECE", 3)  # 11 jobs are 4 pieces
    app, prefix = tasks.app, tasks.app.producer.namespace.prefix
    client, store = app.producer.client("q"), app.producer.stores.sync_store()
    spec = tasks.tree(5).job("t")
    flow = add_bulk.Flow(client.adder, spec.branch(), None)
    stages = flow.send()
    stage = next(stages)
    for _ in range(calls):
        assert isinstance(stage, Separate)
        stage = stages.send(store.run(stage.steps))
    if then == "sent again":
        ticket = Ticket(flow.seed, 0, 1, flow.seed[:16], 1, int(time.time() * 1000), flow.seed)
        for _ in range(2):
            app.enqueue([spec.with_ticket(ticket)])
        assert stored(admin, prefix) == {"report": 1, "count": 5}
        assert stored(admin, prefix, "pages") == {"fetch": 5}
    else:
        late = int(time.time() * 1000) + add_bulk.FLOW_LIFE_MS + 1
        undone = store.run(undo_flows(client.keys, late))
        assert len(undone) == (1 if calls else 0)
        assert (stored(admin, prefix), stored(admin, prefix, "pages")) == ({}, {})
    assert admin.exists(f"{prefix}:q:tb:flows") == 0


class Family:
    """A parent with a custom id, whose result shows the children that it received."""

    def __init__(self, app: App) -> None:
        @app.task(queue="q", attempts=1)
        async def kid(n: int) -> int:
            return n

        @app.task(queue="q", attempts=1)
        async def mid(of: list[int] = from_children(kid)) -> int:
            return len(of)

        @app.task(queue="q", attempts=1)
        async def top(
            kids: list[int] = from_children(kid), mids: list[int] = from_children(mid)
        ) -> list[list[int]]:
            return [kids, mids]

        self.app, self.kid, self.mid, self.top = app, kid, mid, top

    def flow(self, kids: int) -> Any:
        return self.top.options(job_id="one").after(self.kid.job(n) for n in range(kids))

    def nested(self, kids: int) -> Any:
        below = self.mid.options(job_id="mid").after(self.kid.job(n) for n in range(kids)).job()
        return self.top.options(job_id="one").after(below)


def pieces_of(app: App, spec: Any, chunks: int) -> Any:
    """Send pieces of a flow, and return its stages, which the producer can continue."""
    store = app.producer.stores.sync_store()
    stages = add_bulk.Flow(app.producer.client("q").adder, spec.branch(), None).send()
    stage = next(stages)
    for _ in range(chunks):
        assert isinstance(stage, Separate)
        stage = stages.send(store.run(stage.steps))
    return stages, stage


@pytest.fixture
def family(app: App, monkeypatch: pytest.MonkeyPatch) -> Family:
    monkeypatch.setattr(flow_calls, "PIECE", 3)
    return Family(app)


async def work_off(app: App) -> None:
    with fail_after(LIMIT):
        await app.run_worker(["q"], burst=True, concurrency=3)


# H2
@pytest.mark.parametrize("some_ran", [False, True])
@pytest.mark.parametrize("kind", ["flow", "nested"])
async def test_a_flow_that_was_broken_off_is_continued_by_the_same_flow(
    family: Family, kind: str, some_ran: bool
) -> None:
    flow = getattr(family, kind)(8)
    pieces_of(family.app, flow.job(), 2)
    if some_ran:
        await work_off(family.app)
    job = await flow.adelay()
    await work_off(family.app)
    assert await job.aresult() == ([[*range(8)], []] if kind == "flow" else [[], [8]])
    counts = await family.app.queue("q").counts()
    assert counts[JobState.COMPLETED] == (9 if kind == "flow" else 10)  # none ran twice


# H2
@pytest.mark.parametrize("second", [2, 20])
async def test_another_flow_waits_until_one_that_was_broken_off_is_undone(
    family: Family, second: int, admin: redis.Redis, prefix: str
) -> None:
    pieces_of(family.app, family.flow(8).job(), 2)
    with pytest.raises(TaskbullError, match="job 'one' in queue 'q' is in another flow"):
        await family.flow(second).adelay()
    admin.zadd(f"{prefix}:q:tb:flows", {f"{prefix}:q:one": 1})  # five minutes later
    job = await family.flow(second).adelay()
    await work_off(family.app)
    assert await job.aresult() == [[*range(second)], []]


# H2
@pytest.mark.parametrize("order", ["first", "second"])
async def test_two_producers_add_one_flow_together(family: Family, order: str) -> None:
    stages, stage = pieces_of(family.app, family.flow(8).job(), 1)
    store = family.app.producer.stores.sync_store()

    def end_first() -> None:
        nonlocal stage
        with suppress(StopIteration):
            while True:
                stage = stages.send(store.run(stage.steps))

    if order == "first":
        end_first()
    job = await family.flow(8).adelay()
    if order == "second":
        end_first()
    await work_off(family.app)
    assert (await job.aresult())[0] == [*range(8)]


# H2
def test_a_slow_producer_adds_nothing_to_a_flow_that_was_undone_or_replaced(
    family: Family, admin: redis.Redis, prefix: str
) -> None:
    _, stage = pieces_of(family.app, family.flow(8).job(), 1)
    admin.zadd(f"{prefix}:q:tb:flows", {f"{prefix}:q:one": 1})
    family.flow(20).delay()
    with pytest.raises(TaskbullError, match="is in another flow"):
        family.app.producer.stores.sync_store().run(stage.steps)
    assert stored(admin, prefix) == {"top": 1, "kid": 20}


# H2
@pytest.mark.parametrize("place", ["its root", "its inner parent"])
def test_a_job_of_an_unfinished_flow_refuses_other_trees(family: Family, place: str) -> None:
    pieces_of(family.app, family.nested(8).job(), 1)
    job_id = "one" if place == "its root" else "mid"
    child = family.mid.options(job_id=job_id).after(family.kid.job(1)).job()
    with pytest.raises(TaskbullError, match="is in another flow that is still being added"):
        family.app.enqueue([child])


# H2
@pytest.mark.parametrize("how", ["lost", "removed", "dropped"])
async def test_a_parent_is_not_given_a_part_of_its_results(
    family: Family, admin: redis.Redis, prefix: str, how: str
) -> None:
    kids = [family.kid.options(job_id=f"k{n}", on_failure="drop").job(n) for n in range(3)]
    job = await family.top.after(kids).adelay()
    queue = family.app.queue("q")
    if how == "removed":
        await queue.remove("k1")
    elif how == "dropped":
        admin.hset(f"{prefix}:q:k1", mapping={"data": "[]", "opts": '{"removeOnFail":true}'})
    else:
        admin.srem(f"{prefix}:q:{job.id}:dependencies", f"{prefix}:q:k1")
        admin.lrem(f"{prefix}:q:wait", 0, "k1")
        admin.delete(f"{prefix}:q:k1")
    await work_off(family.app)
    if how == "lost":
        with pytest.raises(JobFailed, match="1 of the job's children 'kid' have no result"):
            await job.aresult()
    else:
        assert await job.aresult() == [[0, 2], []]
