"""Workers under a real Sentinel set: the primary changes under load, with a ledger of every job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from anyio import fail_after, to_thread

from taskbull.core import events
from tests.servers.kinds import Reachable
from tests.servers.sentinel import SentinelSet, primary_client
from tests.worker.bed import WorkerBed, until
from tests.worker.chores import Chores, HeldChores
from tests.worker.scale import SEED, scaled

OPTIONS: dict[str, Any] = {
    "lock_duration": 2,
    "heartbeat_interval": 0.4,
    "stalled_interval": 0.4,
    "drain_delay": 0.5,
    "max_stalled_count": 10,
    "concurrency": 20,
}


@pytest.fixture
def bed(sentinels: SentinelSet, prefix: str) -> Iterator[WorkerBed]:
    with primary_client(sentinels) as admin:
        yield WorkerBed(Reachable("sentinel", sentinels.url), admin, prefix)


@pytest.mark.parametrize("how", ["fail_over", "kill_master"])
async def test_a_failover_loses_no_job(
    sentinels: SentinelSet, bed: WorkerBed, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    # All events are looked at in the end, and jobs that have stalled bring many.
    bed.admin.hset(bed.keys.meta, "opts.maxLenEvents", 1_000_000)
    chores = Chores(bed, Random(SEED))
    held = HeldChores(bed, chores)
    await held.add("after", 5)
    await chores.add(scaled(1000, 10_000))
    await to_thread.run_sync(sentinels.await_replicated)
    with fail_after(180):
        async with bed.worker(held.handler, record=chores, **OPTIONS).running():
            await chores.more(100)
            await to_thread.run_sync(getattr(sentinels, how))
            await to_thread.run_sync(sentinels.await_ready)  # the old one accepts nothing more
            # Otherwise it would continue to ask the old one.
            bed.admin.connection_pool.disconnect()
            await chores.others_more(events.LocksRenewed, 1)
            begun = chores.begun()
            held.open("after")
            await until(chores.is_drained, 60)
    chores.check_after_failover(begun)
