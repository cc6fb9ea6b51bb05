"""What the heartbeat costs a worker of many queues."""  # H1

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.worker_options import WorkerOptions
from taskbull.store.async_store import open_store
from taskbull.store.clients import address_of
from taskbull.store.sync_store import SyncStore
from taskbull.worker.clock import Clock
from taskbull.worker.context import QueueContext
from taskbull.worker.heartbeat import Heartbeat
from taskbull.worker.listeners import Listeners
from taskbull.worker.quarantine import Quarantine
from taskbull.worker.reporter import Reporter
from taskbull.worker.run import Run
from taskbull.worker.threads import ThreadPool
from taskbull.worker.watchdog import Watchdog
from tests.servers.kinds import VALKEY_9, SharedServers

RUNNING = 3
"""Queues with a running job."""


async def calls_of_a_round(url: str, prefix: str, queues: int) -> Counter[str]:
    """Count the calls of functions in which a heartbeat renews all locks once."""
    address, threads = address_of(url), ThreadPool(1)
    reporter = Reporter(Listeners(), "w", "")
    posted: list[Any] = []
    async with open_store(address) as store:
        sync_store = SyncStore(address)
        contexts = [
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
        for context in contexts[:: queues // RUNNING][:RUNNING]:
            context.runs.add(Run(Job(id="1"), "token", 0.0))
        watchdog = Watchdog(posted.append, reporter, "w")
        beat = Heartbeat(contexts, sync_store, WorkerOptions(), watchdog, posted.append)
        beat._due = 0.0
        for pulse in beat._pulses:
            pulse.due = 0.0
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
