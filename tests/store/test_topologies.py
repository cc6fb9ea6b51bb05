"""The clusters and Sentinel sets of the tests are real: they redirect, and they fail over."""

from __future__ import annotations

import pytest
import redis
from redis.cluster import RedisCluster

from tests.servers.cluster import Cluster, Node, slot_of
from tests.servers.kinds import REDIS_6, REDIS_7, binary
from tests.servers.sentinel import SentinelSet
from tests.servers.waiting import plain_client


def refusal(node: Node, *command: str) -> str:
    """Return the error that the node replies to a command."""
    with pytest.raises(redis.ResponseError) as error:
        node.run(*command)
    return type(error.value).__name__


def test_a_cluster_spreads_keys_over_its_masters(cluster: Cluster, prefix: str) -> None:
    first = cluster.masters[0]
    with RedisCluster(host="127.0.0.1", port=first.port) as client:
        for number in range(50):
            client.set(f"{prefix}:{number}", number)
        assert [client.get(f"{prefix}:{n}") for n in range(50)] == [b"%d" % n for n in range(50)]
    assert all(node.run("DBSIZE") > 0 for node in cluster.masters)


def test_a_key_of_another_master_is_answered_with_moved(cluster: Cluster, prefix: str) -> None:
    other = cluster.other_than(cluster.owner(prefix))
    assert refusal(other, "GET", prefix) == "MovedError"


def test_keys_of_two_slots_are_refused(cluster: Cluster) -> None:
    assert refusal(cluster.owner("a"), "MGET", "a", "b") == "ClusterCrossSlotError"


def test_a_slot_can_be_held_half_migrated(cluster: Cluster, prefix: str) -> None:
    gone, left = f"{{{prefix}}}:gone", f"{{{prefix}}}:left"
    source = cluster.owner(gone)
    target = cluster.other_than(source)
    for key in (gone, left):
        source.run("SET", key, "value")

    migration = cluster.migrate(slot_of(gone), source, target)
    migration.move(gone)
    assert migration.keys_at_source() == [left]
    assert refusal(source, "GET", gone) == "AskError"
    assert refusal(source, "MGET", gone, left) == "TryAgainError"
    assert source.run("GET", left) == "value"
    assert refusal(target, "GET", gone) == "MovedError"
    target.run("ASKING")
    assert target.run("GET", gone) == "value"

    migration.finish()
    assert refusal(source, "GET", left) == "MovedError"
    assert target.run("MGET", gone, left) == ["value", "value"]
    assert cluster.owner(gone) is target


def test_a_cluster_fails_over_by_command_and_by_death(cluster: Cluster) -> None:
    new, old = cluster.fail_over()
    assert new.is_master()
    assert not old.is_master()
    new, old = cluster.kill_master_with_replica()
    assert new.is_master()
    cluster.heal()
    assert cluster.replica is old


@pytest.mark.parametrize("kind", [REDIS_6, REDIS_7])
def test_other_kinds_of_servers_form_a_cluster_too(kind: str, prefix: str) -> None:
    with Cluster(binary(kind), with_replica=False) as cluster:
        source = cluster.owner(prefix)
        source.run("SET", prefix, "value")
        target = cluster.other_than(source)
        cluster.migrate(slot_of(prefix), source, target).finish()
        assert target.run("GET", prefix) == "value"


def test_sentinels_fail_over_by_command_and_by_death(sentinels: SentinelSet) -> None:
    first = sentinels.master
    second = sentinels.fail_over()
    assert second is not first
    third = sentinels.kill_master()
    assert third is not second
    with plain_client(third) as client:
        assert client.set("key", "value")


@pytest.mark.full
def test_an_older_server_has_sentinels_too() -> None:
    with SentinelSet(binary(REDIS_6)) as sentinels:
        first = sentinels.master
        assert sentinels.kill_master() is not first
