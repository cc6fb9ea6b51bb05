"""A real cluster of three masters: calls find their node while slots move and nodes die."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
from anyio import create_task_group, fail_after, to_thread

from taskbull.errors import ConfigurationError, ConnectionLost, ServerRefused
from taskbull.scripts.call import Call
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import Change, ConnectionOptions, DialFailed
from tests.servers.cluster import Cluster, Node, slot_of
from tests.servers.kinds import REDIS_6, VALKEY_9, PrivateServers, Reachable, binary
from tests.store.load import Load
from tests.store.sample import COUNT, count, echo, script, unchanged

OPTIONS = ConnectionOptions(longest_delay=0.2, response_timeout=3.0)
CALLERS = 20


@pytest.fixture(scope="module", params=[VALKEY_9, REDIS_6])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(binary(request.param)) as made:
        yield made


def counted(node: Node, key: str) -> int:
    return sum(int(value) for value in node.run("HVALS", key))


def one_key_per_master(cluster: Cluster, prefix: str) -> list[str]:
    keys: dict[str, str] = {}
    for number in range(10_000):
        key = f"{prefix}:{number}"
        keys.setdefault(cluster.owner(key).id, key)
        if len(keys) == len(cluster.masters):
            return list(keys.values())
    raise AssertionError("unreachable: 10,000 keys and a master without one")


async def test_calls_find_the_node_of_their_key(cluster: Cluster, prefix: str) -> None:
    keys = one_key_per_master(cluster, prefix)
    async with open_store(parse(cluster.url), OPTIONS) as store:
        assert [await store.run(count(key)) for key in keys] == [1, 1, 1]
        assert await store.run_all([count(key) for key in keys]) == [2, 2, 2]
        assert await store.run(echo(keys[0], "there"), timeout=60) == "there"


async def test_one_named_node_is_enough_to_find_the_others(cluster: Cluster, prefix: str) -> None:
    keys = one_key_per_master(cluster, prefix)
    url = f"redis+cluster://127.0.0.1:{cluster.masters[1].port}"
    async with open_store(parse(url), OPTIONS) as store:
        assert [await store.run(count(key)) for key in keys] == [1, 1, 1]


async def test_a_blocking_command_goes_to_the_node_of_its_key(
    cluster: Cluster, prefix: str
) -> None:
    async with open_store(parse(cluster.url), OPTIONS) as store:
        for key in one_key_per_master(cluster, prefix):
            line = store.blocking(key)
            cluster.owner(key).run("ZADD", key, 0, "0")
            assert await line.execute(("BZPOPMIN", key, 1), 1) == [key.encode(), b"0", b"0"]
            await line.close()


async def test_keys_without_a_common_tag_are_refused(cluster: Cluster, prefix: str) -> None:
    keys = one_key_per_master(cluster, prefix)
    call = Call(COUNT, tuple(keys[:2]), ("runs",), int)
    async with open_store(parse(cluster.url), OPTIONS) as store:
        with pytest.raises(ServerRefused) as refused:  # FR-9
            await store.run(call)
    assert refused.value.code == "CROSSSLOT"


async def test_a_key_on_its_way_is_asked_for_at_its_new_node(cluster: Cluster, prefix: str) -> None:
    key, source = f"{{{prefix}}}:counts", cluster.owner(f"{{{prefix}}}:counts")
    target = cluster.other_than(source)
    async with open_store(parse(cluster.url), OPTIONS) as store:
        assert await store.run(count(key)) == 1
        migration = cluster.migrate(slot_of(key), source, target)
        migration.move(key)
        asked = _executed(target, "asking")
        assert await store.run(count(key)) == 2  # the source says ASK, the target NOSCRIPT
        assert _executed(target, "asking") > asked
        migration.finish()
        assert await store.run(count(key)) == 3
        assert cluster.owner(key) is target


async def test_a_call_waits_while_its_keys_are_on_both_sides(cluster: Cluster, prefix: str) -> None:
    here, there = f"{{{prefix}}}:here", f"{{{prefix}}}:there"
    both = Call(
        script("return redis.call('EXISTS', KEYS[1], KEYS[2])"), (here, there), (), unchanged
    )
    source = cluster.owner(here)
    target = cluster.other_than(source)
    results: list[int] = []
    async with open_store(parse(cluster.url), OPTIONS) as store:
        await store.run(count(here))
        await store.run(count(there))
        migration = cluster.migrate(slot_of(here), source, target)
        migration.move(there)
        with fail_after(60):
            async with create_task_group() as tasks:

                async def call() -> None:
                    results.append(await store.run(both))

                tasks.start_soon(call)  # TRYAGAIN, until the move has ended
                await to_thread.run_sync(migration.finish)
    assert results == [2]


async def test_a_slot_is_moved_under_load_and_no_run_is_lost_or_doubled(
    cluster: Cluster, prefix: str
) -> None:
    key = f"{{{prefix}}}:counts"
    source = cluster.owner(key)
    target = cluster.other_than(source)
    with fail_after(60):
        async with open_store(parse(cluster.url), OPTIONS) as store, create_task_group() as tasks:
            load = Load(store, key)
            for caller in range(CALLERS):
                tasks.start_soon(load.call, caller)
            await load.answered(500)
            migration = cluster.migrate(slot_of(key), source, target)
            await load.answered(500)
            await to_thread.run_sync(migration.move, key)
            await load.answered(500)  # met with ASK
            asked = _executed(target, "asking")
            await to_thread.run_sync(migration.finish)
            await load.answered(500)
            load.stop()
    print(f"a slot moved: callers saw {dict(load.seen)}")
    assert asked > 0
    assert load.seen["maybe executed"] == 0
    assert counted(target, key) == load.seen["answered"]


# On Valkey alone: a cluster of 6.2 refuses votes for a while after each, and is slow to settle.
@pytest.mark.parametrize("cluster", [VALKEY_9], indirect=True)
async def test_callers_go_to_the_new_master_after_a_failover(cluster: Cluster, prefix: str) -> None:
    key = _key_of(cluster, cluster.masters[0], prefix)
    with fail_after(60):
        async with open_store(parse(cluster.url), OPTIONS) as store, create_task_group() as tasks:
            load = Load(store, key)
            for caller in range(CALLERS):
                tasks.start_soon(load.call, caller)
            await load.answered(500)
            new, _ = await to_thread.run_sync(cluster.fail_over)
            await load.answered(500)
            load.stop()
    print(f"a failover: callers saw {dict(load.seen)}")
    runs = counted(new, key)
    assert load.seen["answered"] <= runs <= load.seen["answered"] + load.seen["maybe executed"]


# On Valkey alone: a cluster of 6.2 refuses votes for a while after each, and is slow to settle.
@pytest.mark.parametrize("cluster", [VALKEY_9], indirect=True)
async def test_callers_wait_for_a_dead_masters_heir(cluster: Cluster, prefix: str) -> None:
    key = _key_of(cluster, cluster.masters[0], prefix)
    with fail_after(60):
        async with open_store(parse(cluster.url), OPTIONS) as store, create_task_group() as tasks:
            load = Load(store, key)
            for caller in range(CALLERS):
                tasks.start_soon(load.call, caller)
            await load.answered(500)
            new, dead = await to_thread.run_sync(cluster.kill_master_with_replica)
            await load.answered(500)
            load.stop()
    print(f"a master killed: callers saw {dict(load.seen)}")
    assert counted(new, key) <= load.seen["answered"] + load.seen["maybe executed"]
    await to_thread.run_sync(dead.server.start)
    await to_thread.run_sync(cluster.await_ok)


async def test_a_blocking_connection_waits_for_a_node_that_is_full(
    cluster: Cluster, prefix: str
) -> None:  # F12
    node = cluster.owner(prefix)
    most = node.run("CONFIG", "GET", "maxclients")[1]
    refused = anyio.Event()
    replies: list[object] = []

    def notice(change: Change) -> None:
        if isinstance(change, DialFailed):
            refused.set()

    with fail_after(60):
        async with open_store(parse(cluster.url), OPTIONS, notice) as store:
            await store.run(count(f"{prefix}:count"))
            line = store.blocking(prefix)
            node.run("CONFIG", "SET", "maxclients", 1)
            try:
                async with create_task_group() as tasks:

                    async def wait() -> None:
                        replies.append(await line.execute(("BZPOPMIN", prefix, 5), 5))

                    tasks.start_soon(wait)
                    await refused.wait()
                    node.run("CONFIG", "SET", "maxclients", most)
                    node.run("ZADD", prefix, 0, "0")
            finally:
                node.run("CONFIG", "SET", "maxclients", most)
            await line.close()
    assert replies == [[prefix.encode(), b"0", b"0"]]


async def test_a_call_gives_up_on_a_node_after_as_long_as_its_attempts_take(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server({"cluster-enabled": "yes"})
    server.stop()
    options = ConnectionOptions(longest_delay=0.1, max_reconnect_attempts=4)
    changes: list[Change] = []
    url = f"redis+cluster://127.0.0.1:{server.port}"
    with fail_after(60):
        async with open_store(parse(url), options, changes.append) as store:
            with pytest.raises(ConnectionLost, match="no node of the cluster answers"):
                await store.run(count(prefix))
    parts = {one.part for one in changes if isinstance(one, DialFailed)}
    assert parts == {f"slot {slot_of(prefix)}"}


async def test_a_cluster_url_for_a_single_server_is_refused(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url.replace("redis:", "redis+cluster:"))) as store:
        with pytest.raises(ConfigurationError, match="is not a node of a Redis Cluster"):
            await store.run(count(prefix))


async def test_a_plain_url_for_a_cluster_is_refused(cluster: Cluster, prefix: str) -> None:
    keys = one_key_per_master(cluster, prefix)
    async with open_store(parse(f"redis://127.0.0.1:{cluster.masters[0].port}")) as store:
        with pytest.raises(ServerRefused, match=r"redis\+cluster://"):
            await store.run_all([count(key) for key in keys])


async def test_a_cluster_that_is_away_is_waited_for(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server({"cluster-enabled": "yes"})
    url = f"redis+cluster://127.0.0.1:{server.port}"
    server.stop()
    results: list[int] = []
    away = [anyio.Event(), anyio.Event()]

    def notice(change: Change) -> None:
        if isinstance(change, DialFailed):
            next((one for one in away if not one.is_set()), away[0]).set()

    with fail_after(60):
        async with open_store(parse(url), OPTIONS, notice) as store, create_task_group() as tasks:

            async def call() -> None:
                results.append(await store.run(count(prefix)))

            async def call_twice() -> None:
                results.extend(await store.run_all([count(prefix)] * 2))

            tasks.start_soon(call)
            await away[0].wait()
            tasks.start_soon(call_twice)  # a relative of F12
            await away[1].wait()
            await to_thread.run_sync(server.start)
            node = Node(server)
            node.run("CLUSTER", "ADDSLOTS", *range(16_384))
            node.close()
    assert sorted(results) == [1, 2, 3]


def _executed(node: Node, command: str) -> int:
    """Count how often a node has executed a command."""
    for line in node.run("INFO", "commandstats").splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def _key_of(cluster: Cluster, node: Node, prefix: str) -> str:
    return next(
        key for key in (f"{prefix}:{n}" for n in range(10_000)) if cluster.owner(key) is node
    )
