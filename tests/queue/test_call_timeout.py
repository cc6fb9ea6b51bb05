"""Every call has a time limit, whatever the problem with Redis.  # G3"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from anyio import create_task_group, current_time, fail_after, to_thread

from taskbull import App, ConfigurationError, ConnectionLost, Every, JobFailed, MaybeExecuted
from taskbull.core.job import NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.store.server_process import ServerProcess
from tests.servers.cluster import Cluster
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy
from tests.servers.sentinel import SentinelSet
from tests.servers.waiting import plain_client

LIMIT = 60.0  # for a whole test: nothing here may hang

CHANGES: list[tuple[Any, ...]] = [
    *(("pause",), ("resume",), ("drain",), ("clean", 0, 0, "completed"), ("obliterate",)),
    *(("remove", "1"), ("retry", "1"), ("retry_all",), ("promote", "1"), ("promote_all",)),
    *(("change_priority", "1", 2), ("change_delay", "1", 2), ("set_global_concurrency", 1)),
    *(("set_global_rate_limit", 1), ("rate_limit", 1), ("trim_events", 1)),
    *(("upsert_schedule", "s", Every(1), NewJob("n")), ("remove_schedule", "s")),
    *(("signal", "1", "go"), ("set_group", "g"), ("remove_group", "g"), ("retry_group", "g")),
]
LOOKS: list[tuple[Any, ...]] = [
    *(("counts",), ("get_job", "1"), ("get_jobs", "waiting"), ("get_state", "1")),
    *(("is_paused",), ("logs", "1"), ("workers",), ("metrics",)),
    *(("schedules",), ("get_schedule", "s"), ("steps", "1"), ("groups",)),
]
OF_HANDLES = ("state", "info", "logs", "steps")


def calls(url: str, operations: list[tuple[Any, ...]]) -> dict[str, Callable[[], Any]]:
    """Give every way to ask, as a coroutine function."""
    app = App("x", redis=url, call_timeout=1)
    queue, sync, job = app.queue("q"), app.sync_queue("q"), app.job("q", "1")
    ways: dict[str, Callable[[], Any]] = {}
    for name, *arguments in operations:
        ways[f"Queue.{name}"] = partial(getattr(queue, name), *arguments)
        ways[f"SyncQueue.{name}"] = partial(
            to_thread.run_sync, partial(getattr(sync, name), *arguments)
        )
    if operations is LOOKS:
        for name in OF_HANDLES:
            ways[f"job.{name}"] = partial(to_thread.run_sync, getattr(job, name))
            ways[f"job.a{name}"] = getattr(job, f"a{name}")
    return ways


async def connect(ways: dict[str, Callable[[], Any]]) -> None:
    """Call each until it succeeds: on a busy machine, connecting may take longer than a call."""
    with fail_after(LIMIT):
        for way in ways.values():
            while True:
                with suppress(ConnectionLost):
                    await way()
                    break


async def errors_of(ways: dict[str, Callable[[], Any]]) -> dict[str, BaseException]:
    """Call all at once; give what each of them raised."""
    raised: dict[str, BaseException] = {}

    async def call(name: str, way: Callable[[], Any]) -> None:
        try:
            await way()
        except (ConnectionLost, MaybeExecuted) as error:
            raised[name] = error

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for name, way in ways.items():
                tasks.start_soon(call, name, way)
    return raised


def assert_told(raised: dict[str, BaseException], ways: Any, *words: str) -> None:
    assert raised.keys() == set(ways)
    for name, error in raised.items():
        for word in ("Redis at ", " 1 s", *words):
            assert word in str(error), f"{name}: {error}"


@pytest.fixture
def away() -> str:
    with Proxy(("127.0.0.1", 1)) as proxy:
        return proxy.url


async def test_a_server_that_is_away(away: str) -> None:
    ways = calls(away, LOOKS + CHANGES) | calls(away, LOOKS)
    raised = await errors_of(ways)
    assert_told(raised, ways, "Connection refused", parse_port(away))
    assert all(isinstance(error, ConnectionLost) for error in raised.values())


def parse_port(url: str) -> str:
    return url.rpartition("/")[0].rpartition(":")[2]


async def test_a_server_that_stands_still(private_server: PrivateServers) -> None:
    server = private_server()
    ways = calls(server.url, LOOKS + CHANGES) | calls(server.url, LOOKS)
    await ways["Queue.counts"]()
    await ways["SyncQueue.counts"]()
    server.pause()
    assert_told(await errors_of(ways), ways)
    server.resume()


@pytest.fixture(params=["READONLY", "NOREPLICAS"])
def refusing(request: pytest.FixtureRequest, private_server: PrivateServers) -> ServerProcess:
    server = private_server()
    with plain_client(server) as client:
        if request.param == "READONLY":
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        else:
            client.execute_command("CONFIG", "SET", "min-replicas-to-write", "1")
    server.code = request.param  # type: ignore[attr-defined]
    return server


async def test_a_server_that_takes_no_writes(refusing: Any) -> None:
    ways = calls(refusing.url, [("pause",), ("set_global_concurrency", 1), ("rate_limit", 1)])
    raised = await errors_of(ways)
    assert_told(raised, ways, refusing.code, str(refusing.port))
    assert all(isinstance(error, ConnectionLost) for error in raised.values())


async def test_a_primary_that_is_away(sentinels: SentinelSet) -> None:
    master = sentinels.master
    ways = calls(sentinels.url, [("counts",), ("pause",)])
    await connect(ways)
    master.pause()
    try:
        raised = await errors_of(ways)  # unless a new primary is there in time
    finally:
        master.resume()
    assert all(" 1 s" in str(error) for error in raised.values())


async def test_a_node_that_is_away(cluster: Cluster) -> None:
    ways = calls(cluster.url, [("counts",), ("pause",)])
    await connect(ways)
    node = cluster.owner(QueueKeys("q", "bull", True).meta)
    node.server.pause()
    try:
        raised = await errors_of(ways)
    finally:
        node.server.resume()
    assert all(" 1 s" in str(error) for error in raised.values())


async def test_a_long_operation_may_take_longer_while_it_gets_on(
    private_server: PrivateServers,
) -> None:
    server = private_server()
    with Proxy(("127.0.0.1", server.port)) as proxy, fail_after(LIMIT):
        await Queue("q", redis=server.url).add_bulk([("x", None)] * 1500)
        queue = Queue("q", redis=proxy.url, call_timeout=2)
        await queue.counts()
        proxy.slow_down(0.1)
        begun = current_time()
        assert await queue.drain() == 1500
        assert current_time() - begun > 2  # else this has shown nothing


@pytest.mark.parametrize("limit", [0, -1, "soon", True])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="call_timeout"):
        App("x", call_timeout=limit)
    with pytest.raises(ConfigurationError, match="call_timeout"):
        SyncQueue("x", call_timeout=limit)


async def test_without_a_limit_a_call_waits(private_server: PrivateServers) -> None:
    server = private_server()
    app = App("x", redis=server.url, call_timeout=None)
    server.stop()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            results: list[JobState] = []

            async def ask() -> None:
                results.append(await app.job("q", "1").astate())

            tasks.start_soon(ask)
            await to_thread.run_sync(server.start)
    assert results == [JobState.UNKNOWN]


@pytest.mark.parametrize("kind", [Queue, SyncQueue])
async def test_looking_and_adding_get_through_a_link_that_was_forgotten(  # N2
    private_server: PrivateServers, kind: Any
) -> None:
    server = private_server()

    async def call(method: Any, *arguments: Any) -> Any:
        if kind is Queue:
            return await method(*arguments)
        return await to_thread.run_sync(method, *arguments)

    with Proxy(("127.0.0.1", server.port)) as proxy, fail_after(LIMIT):
        queue = kind("q", redis=proxy.url, enqueue_timeout=20, call_timeout=20)
        await call(queue.add, "x")
        await to_thread.run_sync(proxy.forget)
        await call(queue.add, "x")
        await to_thread.run_sync(proxy.forget)
        assert (await call(queue.counts))["waiting"] == 2


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_the_timeout_of_a_result_is_for_all_of_the_wait(  # N3
    private_server: PrivateServers, way: str
) -> None:
    server = private_server()
    with Proxy(("127.0.0.1", server.port)) as proxy, fail_after(LIMIT):
        through = App("x", redis=proxy.url)
        app = App("x", redis=server.url)

        @app.task(queue="q", attempts=1)
        async def fail() -> None:
            raise ValueError("no")

        async with app.worker().running():
            job = await fail.adelay()
            with pytest.raises(JobFailed):
                await job.aresult()
        handle = through.job("q", job.id)
        proxy.black_hole_at(b"HGETALL")  # the question for the stack

        async def ask() -> None:
            await to_thread.run_sync(lambda: handle.result(timeout=1))

        wait: Any = partial(handle.aresult, timeout=1) if way == "async" else ask
        with pytest.raises(TimeoutError, match="within 1 s"):
            await wait()
