"""Workers in a real cluster: slots move and masters go under load, with a ledger of every job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import redis
from anyio import Event, fail_after, to_thread

from taskbull.core import events
from taskbull.store import delivery
from taskbull.worker.running_job import RunningJob
from tests.servers.cluster import Cluster, Migration, slot_of
from tests.servers.kinds import Reachable
from tests.worker.bed import WorkerBed
from tests.worker.chores import Chores
from tests.worker.scale import SEED, scaled

SHORT: dict[str, Any] = {
    "lock_duration": 2,
    "heartbeat_interval": 0.4,
    "stalled_interval": 0.4,
    "drain_delay": 0.5,
    "concurrency": 20,
}
BEATS = scaled(7, 75)
"""While a slot is on its way: longer than a lock lives, or 30 s."""


@pytest.fixture
def bed(cluster: Cluster, prefix: str) -> Iterator[WorkerBed]:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port) as admin:
        yield WorkerBed(Reachable("cluster", cluster.url), admin, prefix)


class Held:
    """Runs chores, some of them not before the test says so."""

    def __init__(self, bed: WorkerBed, chores: Chores) -> None:
        self._bed = bed
        self._chores = chores
        self._gates: dict[str, Event] = {}
        self.running = 0

    async def add(self, gate: str, count: int) -> None:
        """Add jobs that run until their gate is opened."""
        self._gates[gate] = Event()
        data = {"plan": ["completed"], "gate": gate}
        handles = await self._bed.queue.add_bulk([("held", data)] * count)
        self._chores.plans.update({handle.id: ["completed"] for handle in handles})

    def open(self, gate: str) -> None:
        self._gates[gate].set()

    async def handler(self, job: RunningJob) -> str:
        if "gate" in job.data:
            self.running += 1
            await self._gates[job.data["gate"]].wait()
        return await self._chores.handler(job)


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
async def test_a_slot_that_is_on_two_nodes_for_long_costs_no_job_and_no_lock(
    cluster: Cluster,
    bed: WorkerBed,
    moved: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # F3, F4
    caplog.set_level(logging.CRITICAL, "taskbull")
    monkeypatch.setattr(delivery, "PATIENCE", 0.5)  # each call is refused many times meanwhile
    chores = Chores(bed, Random(SEED))
    held = Held(bed, chores)
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
