"""Workers in a real cluster: slots move and masters go under load, with a ledger of every job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import pytest
import redis
from anyio import Event, fail_after, to_thread

from taskbull.core import events
from taskbull.core.keys import QueueKeys
from taskbull.core.options import WorkerOptions
from taskbull.queue.queue import Queue
from taskbull.store import protocol
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker
from tests.servers.cluster import Cluster, Migration, Node, slot_of
from tests.servers.kinds import Reachable
from tests.worker.bed import Recorder, WorkerBed, until
from tests.worker.chores import Chores, HeldChores
from tests.worker.scale import SEED, scaled

SHORT: dict[str, Any] = {
    "lock_duration": 5,
    "heartbeat_interval": 0.4,
    "stalled_interval": 0.4,
    "drain_delay": 0.5,
    "concurrency": 20,
}
BEATS = scaled(14, 75)
"""While a slot is on its way: longer than a lock lives, or 30 s."""


@pytest.fixture
def bed(cluster: Cluster, prefix: str) -> Iterator[WorkerBed]:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port) as admin:
        yield WorkerBed(Reachable("cluster", cluster.url), admin, prefix)


def migration_of(cluster: Cluster, bed: WorkerBed) -> Migration:
    """Begin to move the queue's slot."""
    source = cluster.owner(bed.keys.meta)
    return cluster.migrate(slot_of(bed.keys.meta), source, cluster.other_than(source))


PARTS: dict[str, Callable[[str], bool]] = {
    "active": lambda key: key.endswith(":active"),
    "every other key": lambda key: sum(key.encode()) % 2 == 0,
    "nothing": lambda _: False,
    "all but the locks": lambda key: not key.endswith(":lock"),
}


@pytest.mark.parametrize("moved", list(PARTS)[: scaled(2, 4)])
@pytest.mark.full
async def test_a_slot_that_is_on_two_nodes_for_long_costs_no_job_and_no_lock(
    cluster: Cluster,
    bed: WorkerBed,
    moved: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # F3, F4
    caplog.set_level(logging.CRITICAL, "taskbull")
    monkeypatch.setattr(protocol, "PATIENCE", 0.5)  # Each call is refused many times until then.
    chores = Chores(bed, Random(SEED))
    held = HeldChores(bed, chores)
    await held.add("during", 5)
    await held.add("after", 5)
    await chores.add(200)
    with fail_after(120):
        async with bed.worker(held.handler, record=chores, **SHORT).running():
            await chores.more(100)
            migration = await to_thread.run_sync(migration_of, cluster, bed)
            keys = [key for key in migration.keys_at_source() if PARTS[moved](key)]
            await to_thread.run_sync(migration.move, *keys)
            await chores.others_more(events.LocksRenewed, 2)
            held.open("during")
            await chores.others_more(events.LocksRenewed, BEATS)
            await to_thread.run_sync(migration.finish)
            held.open("after")
            await chores.at_most(0)
    assert held.running == 10
    assert chores.others[events.Lost] == 0
    chores.check()


async def test_a_slot_that_moves_in_one_go_costs_no_job_and_no_lock(
    cluster: Cluster, bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    chores = Chores(bed, Random(SEED))
    held = HeldChores(bed, chores)
    await held.add("after", 5)
    await chores.add(scaled(1000, 10_000))
    source, slot = cluster.owner(bed.keys.meta), slot_of(bed.keys.meta)
    target = cluster.other_than(source)
    with fail_after(120):
        async with bed.worker(held.handler, record=chores, **SHORT).running():
            await chores.more(100)
            source.run("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
            await until(lambda: target.serves(slot))
            await chores.others_more(events.LocksRenewed, 1)
            held.open("after")
            await chores.at_most(0)
    chores.check()


@pytest.fixture
def replicated(cluster: Cluster, prefix: str) -> Iterator[WorkerBed]:
    """A queue on the master that has a replica; the prefix says where."""
    prefixes = (f"{{{prefix}-{number}}}" for number in range(10_000))
    first = next(one for one in prefixes if cluster.owner(one) is cluster.masters[0])
    with redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port) as admin:
        yield WorkerBed(Reachable("cluster", cluster.url), admin, first)


async def test_a_failover_by_command_costs_no_job_and_no_lock(
    cluster: Cluster, replicated: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    bed = replicated
    chores = Chores(bed, Random(SEED))
    held = HeldChores(bed, chores)
    await held.add("after", 5)
    await chores.add(scaled(1000, 10_000))
    options = SHORT | {"lock_duration": 30}  # a busy machine takes its time for a failover
    with fail_after(120):
        async with bed.worker(held.handler, record=chores, **options).running():
            await chores.more(100)
            await to_thread.run_sync(cluster.fail_over)
            await chores.others_more(events.LocksRenewed, 1)
            held.open("after")
            await chores.at_most(0)
    chores.check()


async def test_a_killed_master_loses_no_job(
    cluster: Cluster, replicated: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    bed = replicated
    chores = Chores(bed, Random(SEED))
    held = HeldChores(bed, chores)
    await held.add("after", 5)
    await chores.add(scaled(1000, 10_000))
    await to_thread.run_sync(cluster.await_replicated)
    options = SHORT | {"max_stalled_count": 10}
    with fail_after(120):
        async with bed.worker(held.handler, record=chores, **options).running():
            await chores.more(100)
            await to_thread.run_sync(cluster.kill_master_with_replica)
            await chores.others_more(events.LocksRenewed, 1)
            begun = chores.begun()
            held.open("after")
            await until(chores.is_drained, 60)
    assert chores.others[events.RedisLost] == chores.others[events.RedisBack] == 1
    chores.check_after_failover(begun)


async def test_a_server_that_is_full_for_a_while_does_not_end_the_worker(
    cluster: Cluster, bed: WorkerBed
) -> None:  # F12
    node = cluster.owner(bed.keys.meta)
    most = node.run("CONFIG", "GET", "maxclients")[1]
    held = Event()

    async def handler(job: RunningJob) -> str:
        await held.wait()
        return job.name

    await bed.queue.add("before")
    try:
        async with bed.worker(handler, drain_delay=0.5).running():
            await bed.record.wait_for(events.Started)
            await until(lambda: "cmd=bzpopmin" in node.run("CLIENT", "LIST"))
            node.run("CONFIG", "SET", "maxclients", 1)
            _kill_waiting(node)
            await bed.record.wait_for(events.RedisLost)
            await bed.record.wait_for(events.ReconnectFailed, 3)
            node.run("CONFIG", "SET", "maxclients", most)
            await bed.record.wait_for(events.RedisBack)
            held.set()
            await bed.queue.add("after")
            await bed.record.wait_for(events.Completed, 2)
    finally:
        node.run("CONFIG", "SET", "maxclients", most)
    assert len(bed.record.of(events.RedisLost)) == len(bed.record.of(events.RedisBack)) == 1
    assert not bed.record.of(events.Lost)
    assert not bed.record.of(events.Released)


def _kill_waiting(node: Node) -> None:
    """Cut the connections that wait for a job."""
    for line in node.run("CLIENT", "LIST").splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if fields["cmd"] == "bzpopmin":
            node.run("CLIENT", "KILL", "ID", fields["id"])


async def test_locks_on_living_masters_survive_a_dead_one(
    cluster: Cluster, prefix: str, request: pytest.FixtureRequest
) -> None:  # F11
    """Many queues of a frozen node are due for renewal before the one whose node is up."""
    frozen, living = cluster.masters[1], cluster.masters[2]
    names = _queues_on(cluster, frozen, prefix, 6) + _queues_on(cluster, living, prefix, 1)
    last = names[-1]
    record = Recorder()
    go = Event()

    async def handler(job: RunningJob) -> None:
        await go.wait()

    options = WorkerOptions(lock_duration=3, heartbeat_interval=0.5, stalled_interval=1)
    worker = Worker(names, handler, redis=cluster.url, prefix=prefix, options=options)
    worker.on(events.Event, record)
    for name in names:
        await Queue(name, redis=cluster.url, prefix=prefix).add("work")
    for node in cluster.masters:  # the others serve without it
        node.run("CONFIG", "SET", "cluster-require-full-coverage", "no")
        request.addfinalizer(
            partial(node.run, "CONFIG", "SET", "cluster-require-full-coverage", "yes")
        )
    request.addfinalizer(frozen.server.resume)  # before that
    async with worker.running():
        await record.wait_for(events.Started, len(names))
        await record.wait_for(events.LocksRenewed, len(names))
        frozen.server.pause()
        before = len([one for one in record.of(events.LocksRenewed) if one.queue == last])
        await record.wait_for(events.LocksRenewed, before + 6, lambda one: one.queue == last)
        go.set()
        await record.wait_for(events.Completed, 1, lambda one: one.queue == last)
        frozen.server.resume()
        await record.wait_for(events.Completed, len(names))
    # How many queues of the frozen node are tried within that time depends on the machine.
    failed = {one.queue for one in record.of(events.HeartbeatFailed)}
    assert failed
    assert last not in failed | {one.queue for one in record.of(events.Lost)}


def _queues_on(cluster: Cluster, node: Node, prefix: str, count: int) -> list[str]:
    """Name queues whose keys are on a node."""
    names = (f"q{number}" for number in range(10_000))
    return list(
        islice(
            (n for n in names if cluster.owner(QueueKeys(n, prefix, cluster=True).meta) is node),
            count,
        )
    )
