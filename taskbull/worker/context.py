"""Hold the objects that the parts of a worker share for one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskbull.core.breaker import CircuitBreaker
from taskbull.core.keys import QueueKeys
from taskbull.store.async_store import Store
from taskbull.store.sync_store import SyncStore
from taskbull.worker.batch import Batches
from taskbull.worker.clock import Alarm, Clock
from taskbull.worker.limits import Circuit, Quarantine
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.reporting import Reporter
from taskbull.worker.run import ReadyJobs, Runs
from taskbull.worker.running_job import no_resources
from taskbull.worker.threads import ThreadPool

PAUSE_PER_QUEUE = 0.05
"""Minimum seconds per queue between a worker's periodic checks. With more than 100 queues, it
checks each of them less often, so that an idle worker stays idle."""


class QueueContext:
    """One queue of a running worker, shared by the parts that serve it."""

    def __init__(  # noqa: PLR0913 - keyword-only, called in one place
        self,
        *,
        keys: QueueKeys,
        worker_id: str,
        store: Store,
        sync_store: SyncStore,
        threads: ThreadPool,
        processes: ProcessPool | None = None,
        reporter: Reporter,
        clock: Clock,
        quarantine: Quarantine,
        batches: Batches | None = None,
        resources_of: Callable[[str], Any] = no_resources,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.keys = keys
        self.worker_id = worker_id
        self.store = store
        self.sync_store = sync_store
        self.threads = threads
        self.processes = processes
        self.reporter = reporter
        self.clock = clock
        self.quarantine = quarantine
        self.batches = batches or Batches(clock, {})
        self.resources_of = resources_of
        self.alarm = Alarm(clock)
        self.runs = Runs()
        self.ready = ReadyJobs()
        self.circuit = None if breaker is None else Circuit(breaker, reporter, clock, self.alarm)
        self.quiet_until = 0.0
        """Time until which jobs drop progress and log lines without waiting, by
        `time.monotonic`."""
