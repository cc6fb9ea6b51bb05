"""Asking one server among several: which there are, and what each of them says."""

from __future__ import annotations

from contextlib import closing

import pytest

from taskbull.errors import ConnectionLost, ServerRefused
from taskbull.scripts.call import Command, text
from taskbull.store.address import Endpoint, parse
from taskbull.store.async_store import open_store
from taskbull.store.sync_store import SyncStore
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.store.sample import count

NODE_ID = Command(("CLUSTER", "MYID"), "", text)
PING = Command(("PING",), "", text)
UNKNOWN = Command(("NOSUCH",), "", text)
NOBODY = Endpoint("127.0.0.1", 1)


async def test_the_masters_of_a_cluster_can_be_asked_one_by_one(
    cluster: Cluster, prefix: str
) -> None:
    ids = {node.id for node in cluster.masters}
    async with open_store(parse(cluster.url)) as store:
        servers = await store.servers(timeout=60)
        assert {await store.run_on(server, NODE_ID, timeout=60) for server in servers} == ids
        owner = await store.server_of(prefix, timeout=60)
        assert owner.port == cluster.owner(prefix).port
        assert await store.run_on(owner, count(prefix), timeout=60) == 1


def test_the_masters_of_a_cluster_can_be_asked_one_by_one_by_sync_code(
    cluster: Cluster, prefix: str
) -> None:
    ids = {node.id for node in cluster.masters}
    with closing(SyncStore(parse(cluster.url))) as store:
        assert {store.run_on(server, NODE_ID, timeout=60) for server in store.servers()} == ids
        owner = store.server_of(prefix, timeout=60)
        assert owner.port == cluster.owner(prefix).port
        assert store.run_on(owner, count(prefix), timeout=60) == 1


async def test_a_single_server_is_the_only_one(server: Reachable) -> None:
    address = parse(server.url)
    async with open_store(address) as store:
        [only] = await store.servers(timeout=60)
        assert only == await store.server_of("any") == address.endpoints[0]
        with pytest.raises(ServerRefused):
            await store.run_on(only, UNKNOWN, timeout=60)
        assert await store.run_on(only, PING, timeout=60) == "PONG"


def test_a_single_server_is_the_only_one_for_sync_code(server: Reachable) -> None:
    address = parse(server.url)
    with closing(SyncStore(address)) as store:
        [only] = store.servers(timeout=60)
        assert only == store.server_of("any") == address.endpoints[0]
        with pytest.raises(ServerRefused):
            store.run_on(only, UNKNOWN, timeout=60)
        assert store.run_on(only, PING, timeout=60) == "PONG"


def test_sync_code_gets_an_error_immediately_if_a_server_is_unavailable() -> None:
    store = SyncStore(parse("redis://127.0.0.1:1"))
    with pytest.raises(ConnectionLost, match="refused"):
        store.run_on(store.servers()[0], PING)


async def test_async_code_gets_an_error_in_time_if_a_server_is_unavailable() -> None:
    async with open_store(parse("redis://127.0.0.1:1")) as store:
        with pytest.raises(ConnectionLost, match="refused"):
            await store.run_on(NOBODY, PING, timeout=1.0)
