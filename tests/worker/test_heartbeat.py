"""The cost of heartbeats and records for a worker with many queues."""  # H1

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any, cast

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.options import WorkerOptions
from taskbull.scripts.records import get_records
from taskbull.store.address import address_of
from taskbull.store.async_store import Store, open_store
from taskbull.store.sync_store import SyncStore
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import Quarantine
from taskbull.worker.heartbeat import Heartbeat, Watchdog
from taskbull.worker.records import FailedAttempts, Recorder
from taskbull.worker.run import Clock, Listeners, Reporter, Run
from taskbull.worker.threads import ThreadPool
from tests.servers.kinds import VALKEY_9, SharedServers

RUNNING = 3
"""Queues with a running job."""


def contexts_of(
    store: Store, sync_store: SyncStore, reporter: Reporter, prefix: str, queues: int
) -> list[QueueContext]:
    threads = ThreadPool(1)
    return [
        QueueContext(
            keys=QueueKeys(f"q{number}", prefix),
            worker_id="w",
            store=store,
            sync_store=sync_store,
            threads=threads,
            reporter=reporter,
            clock=Clock(),
            quarantine=Quarantine(),
        )
        for number in range(queues)
    ]


class Trips:
    """A store that counts how often Redis is waited for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.count = 0

    async def run(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        return await self._store.run(*args, **options)

    async def run_each(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        return await self._store.run_each(*args, **options)


async def calls_of_a_round(url: str, prefix: str, queues: int) -> Counter[str]:
    """Count the function calls of one heartbeat that renews all locks."""
    address = address_of(url)
    reporter = Reporter(Listeners(), "w", "")
    posted: list[Any] = []
    async with open_store(address) as store:
        sync_store = SyncStore(address)
        contexts = contexts_of(store, sync_store, reporter, prefix, queues)
        for context in contexts[:: queues // RUNNING][:RUNNING]:
            context.runs.add(Run(Job(id="1"), "token", 0.0))
        watchdog = Watchdog(posted.append, reporter, "w")
        beat = Heartbeat(contexts, sync_store, WorkerOptions(), watchdog, posted.append)
        beat._due = 0.0
        for queue in beat._queues:
            queue.due = 0.0
        calls: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                calls[frame.f_code.co_name] += 1

        while calls["_extend"] < RUNNING:
            sys.setprofile(count)
            beat._tick()
            sys.setprofile(None)
        sync_store.close()
    return calls


async def test_a_round_over_many_queues_costs_a_few_steps_for_each(
    shared_servers: SharedServers, prefix: str
) -> None:
    url = shared_servers.emptied(VALKEY_9).url
    few = await calls_of_a_round(url, prefix, 10)
    many = await calls_of_a_round(url, prefix, 1000)
    assert many["_extend"] == RUNNING  # the others have nothing to renew
    assert many.total() < few.total() + 10 * 1000


async def test_records_of_many_queues_are_written_in_few_trips(
    shared_servers: SharedServers, prefix: str
) -> None:  # H1
    address, queues = address_of(shared_servers.emptied(VALKEY_9).url), 100
    async with open_store(address) as store:
        trips, sync_store = Trips(store), SyncStore(address)
        reporter = Reporter(Listeners(), "w", "")
        contexts = contexts_of(cast("Store", trips), sync_store, reporter, prefix, queues)
        options = {context.keys.queue: WorkerOptions() for context in contexts}
        recorder = Recorder(contexts, options, "w", {}, FailedAttempts())
        await recorder._write(stopping=False)
        assert trips.count <= queues / 10
        found = await store.run_all([get_records(context.keys) for context in contexts])
        assert [len(seen) for seen in found] == [1] * queues
        await recorder._write(stopping=False)
        assert trips.count <= queues / 10  # nothing is due
