"""Calls that are sent before the caller gives way, and whose replies no task waits for."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from anyio import Event, fail_after

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.address import parse
from taskbull.store.async_store import Store, open_store
from taskbull.store.connection import ConnectionOptions
from tests.servers.cluster import Cluster
from tests.servers.kinds import PrivateServers, Reachable
from tests.store.sample import count, echo
from tests.store.test_connection import proxy_to

LIMIT = 60.0
QUICK = ConnectionOptions(longest_delay=0.1, response_timeout=0.8)


class Taker:
    """Takes one reply, or why there is none."""

    def __init__(self) -> None:
        self.reply: Any = None
        self._arrived = Event()

    def done(self) -> bool:
        return False

    def set_result(self, value: Any, /) -> None:
        self.reply = value
        self._arrived.set()

    def set_exception(self, error: BaseException, /) -> None:
        self.set_result(error)

    async def wait(self) -> Any:
        with fail_after(LIMIT):
            await self._arrived.wait()
        return self.reply


async def settled(store: Store, call: Any) -> tuple[Taker, Any]:
    """Start a call and give its first reply."""
    taker = Taker()
    way = store.start(call, taker)
    assert way is not None
    await taker.wait()
    return taker, way


async def test_a_reply_goes_to_whoever_was_named(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url)) as store:
        await store.run(count(prefix))
        taker, way = await settled(store, call := count(prefix))
        assert taker.reply == 2
        assert await store.finish(call, way, taker.reply) == 2


async def test_a_call_is_at_the_server_though_nobody_gives_way(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    async with open_store(parse(server.url)) as store:
        await store.run(count(prefix))
        store.start(count(prefix), Taker())
        runs = 1
        for _ in range(10_000):  # The event loop is blocked.
            runs = int(admin.hget(prefix, "runs") or 0)
            if runs == 2:
                break
        assert runs == 2


@pytest.mark.parametrize("size", [1 << 17, 3_000_000])
async def test_what_the_socket_does_not_take_at_once_follows(
    server: Reachable, prefix: str, size: int
) -> None:
    texts = [letter * size for letter in "abc"]
    async with open_store(parse(server.url)) as store:
        await store.run(echo(prefix, "known"))
        takers = [Taker() for _ in texts]
        for text, taker in zip(texts, takers, strict=True):
            assert store.start(echo(prefix, text), taker) is not None
        assert [await taker.wait() for taker in takers] == [text.encode() for text in texts]


async def test_a_script_that_the_server_does_not_know_is_loaded(
    private_server: PrivateServers, prefix: str
) -> None:
    async with open_store(parse(private_server().url)) as store:
        taker, way = await settled(store, call := count(prefix))
        assert "NOSCRIPT" in str(taker.reply)
        assert await store.finish(call, way, taker.reply) == 1


async def test_a_call_that_is_cut_off_may_have_been_executed(
    server: Reachable, prefix: str
) -> None:
    with proxy_to(server) as proxy:
        async with open_store(parse(proxy.url), QUICK) as store:
            await store.run(count(prefix))
            proxy.cut_before_reply(prefix.encode())
            taker, way = await settled(store, call := count(prefix))
            with pytest.raises(MaybeExecuted):
                await store.finish(call, way, taker.reply)
            assert await store.run(count(prefix)) == 3


async def test_a_call_without_a_connection_is_sent_when_there_is_one(
    server: Reachable, prefix: str
) -> None:
    async with open_store(parse(server.url)) as store:
        taker, way = await settled(store, call := count(prefix))
        assert await store.finish(call, way, taker.reply) == 1


async def test_a_call_is_not_started_when_the_store_is_closed(
    server: Reachable, prefix: str
) -> None:
    async with open_store(parse(server.url)) as store:
        await store.run(call := count(prefix))
    assert store.start(call, Taker()) is None
    with pytest.raises(ConnectionLost):
        await store.finish(call, None, None)


async def test_in_a_cluster_it_is_started_where_the_node_is_known(
    cluster: Cluster, prefix: str
) -> None:
    async with open_store(parse(cluster.url)) as store:
        call = count(prefix)
        assert store.start(call, Taker()) is None
        assert await store.finish(call, None, None) == 1
        taker, way = await settled(store, call)
        assert await store.finish(call, way, taker.reply) == 2
