"""Silently dropped links, frozen servers, and calls that are merely slow."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after, to_thread

from taskbull.errors import MaybeExecuted, ServerUnavailable
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import Change, Connected, ConnectionOptions, LinkLost
from taskbull.store.protocol import FORGOTTEN
from taskbull.store.sync_store import SyncStore
from tests.servers.kinds import KINDS, PrivateServers, Reachable, SharedServers
from tests.servers.waiting import wait_until
from tests.store.sample import command, count, echo
from tests.store.test_connection import proxy_to

LIMIT = 60.0  # for a whole test: nothing here may hang

LONG = ConnectionOptions(response_timeout=LIMIT)
"""What is noticed before that is noticed by other signs."""

Run: TypeAlias = Callable[..., Any]


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.emptied(KINDS[0])


@pytest.fixture(params=["async", "sync"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def running(way: str, url: str) -> AsyncGenerator[Run, None]:
    """Give the `run` of a store, awaited, and in a thread where it is a sync one."""
    if way == "async":
        async with open_store(parse(url), LONG) as store:
            yield store.run
        return
    sync = SyncStore(parse(url))

    async def run(call: Any, timeout: float | None = None) -> Any:
        return await to_thread.run_sync(lambda: sync.run(call, timeout=timeout))

    yield run
    sync.close()


async def test_a_forgotten_link_is_replaced_when_the_server_answers_on_another(  # N2
    server: Reachable, way: str, admin: redis.Redis, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with running(way, proxy.url) as run:
            assert await run(count(prefix)) == 1
            await to_thread.run_sync(proxy.forget)
            with pytest.raises(MaybeExecuted, match=FORGOTTEN):
                await run(count(prefix))
            assert await run(count(prefix)) == 2
            assert admin.hget(prefix, "runs") == b"2"


async def test_what_comes_after_a_forgotten_command_is_not_sent_after_it(  # N2
    server: Reachable, prefix: str
) -> None:
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), LONG, changes.append) as store:
            assert await store.run(count(prefix)) == 1
            await to_thread.run_sync(proxy.forget)
            with pytest.raises(MaybeExecuted):
                await store.run(count(prefix), timeout=0.1)
            # The link is replaced because of the call that has left, and others get through.
            await to_thread.run_sync(
                wait_until, lambda: any(isinstance(one, LinkLost) for one in changes), "it is lost"
            )
            assert await store.run(count(prefix)) == 2
            assert changes[1] == LinkLost(f"127.0.0.1:{proxy.port}", FORGOTTEN)


async def test_a_server_that_stands_still_for_a_while_loses_nothing(
    private_server: PrivateServers, way: str, prefix: str
) -> None:
    server = private_server()
    with fail_after(LIMIT):
        async with running(way, server.url) as run:
            assert await run(count(prefix)) == 1
            # The pause is the server's: longer than what makes a link suspicious.
            await run(command("CLIENT", "PAUSE", 2500, "ALL"))
            results: list[int] = []

            async def call() -> None:
                results.append(await run(count(prefix)))

            async with create_task_group() as callers:
                for _ in range(3):
                    callers.start_soon(call)
            assert sorted(results) == [2, 3, 4]


async def test_what_is_sent_to_a_server_that_stands_still_is_held_back(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    changes: list[Change] = []
    options = ConnectionOptions(response_timeout=2.0, longest_delay=0.1)
    with fail_after(LIMIT):
        async with open_store(parse(server.url), options, changes.append) as store:
            assert await store.run(count(prefix)) == 1
            server.pause()
            outcomes: list[Any] = []

            async def call(number: int) -> None:
                try:
                    outcomes.append(await store.run(count(prefix, str(number))))
                except MaybeExecuted as error:
                    outcomes.append(error)

            async with create_task_group() as callers:
                callers.start_soon(call, 1)
                await to_thread.run_sync(
                    wait_until,
                    lambda: any(isinstance(one, LinkLost) for one in changes),
                    "given up",
                )
                callers.start_soon(call, 2)
                server.resume()
            assert isinstance(outcomes[0], MaybeExecuted)
            assert outcomes[1] == 1


BIG = 3 << 20
SLOW = 1.5e6  # bytes per second: twice as long as a link may be silent


async def test_a_large_reply_over_a_slow_network_arrives(  # F2
    server: Reachable, way: str, admin: redis.Redis, prefix: str
) -> None:
    admin.set(prefix, b"x" * BIG)
    options = ConnectionOptions(response_timeout=0.8)
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.throttle(SLOW)
        if way == "sync":
            sync = SyncStore(parse(proxy.url))
            reply = await to_thread.run_sync(sync.run, command("GET", prefix, key=prefix))
            sync.close()
        else:
            async with open_store(parse(proxy.url), options) as store:
                reply = await store.run(command("GET", prefix, key=prefix))
        # Without the first link it would be `MaybeExecuted`. A busy machine may be silent for a
        # second, and then a probe makes another.
        assert len(reply) == BIG


async def test_a_large_command_over_a_slow_network_arrives_and_so_do_those_behind_it(  # F2
    server: Reachable, prefix: str
) -> None:
    options = ConnectionOptions(response_timeout=0.8)
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), options) as store:
            assert await store.run(count(prefix)) == 1
            proxy.throttle(SLOW)
            results: list[int] = []

            async def large() -> None:
                assert len(await store.run(echo(prefix, "x" * BIG))) == BIG

            async def small() -> None:
                results.append(await store.run(count(prefix)))

            async with create_task_group() as callers:
                callers.start_soon(large)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                    callers.start_soon(small)
            assert sorted(results) == [2, 3, 4, 5, 6]
        assert proxy.accepted == 1


async def test_a_large_reply_to_a_blocking_command_may_take_longer_than_it_blocks(  # F2
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    admin.xadd(prefix, {"x": b"x" * BIG})
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.throttle(SLOW)
        async with open_store(parse(proxy.url)) as store:
            line = store.blocking(prefix)
            words = ("XREAD", "BLOCK", 100, "STREAMS", prefix, "0")
            [[_, [[_, [_, value]]]]] = await line.execute(words, 0.1)
            await line.close()
        assert len(value) == BIG


def test_idle_connections_after_a_burst_of_threads_are_few(  # F23
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    before = len(admin.client_list())
    store = SyncStore(parse(server.url))
    together = threading.Barrier(60)

    def call() -> None:
        together.wait()
        store.run(command("BLPOP", prefix, 1, key=prefix))

    threads = [threading.Thread(target=call) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(admin.client_list()) - before <= 16, "most of them are closed")
    store.close()


async def test_a_server_that_takes_no_writes_is_reported_with_the_reason_and_not_each_time(  # G10
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server({"replicaof": "127.0.0.1 1"})
    changes: list[Change] = []
    with fail_after(LIMIT):
        async with open_store(parse(server.url), LONG, changes.append) as store:
            with pytest.raises(ServerUnavailable, match="within 3 s: READONLY"):
                await store.run(count(prefix), timeout=3)
    reasons = [change.reason for change in changes if isinstance(change, LinkLost)]
    assert reasons
    assert all("READONLY You can't write" in reason for reason in reasons)
    assert len(reasons) < sum(isinstance(change, Connected) for change in changes)
