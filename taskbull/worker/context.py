"""Hold the objects that the parts of a worker share for one queue."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from taskbull.core.keys import QueueKeys
from taskbull.core.options import WorkerOptions
from taskbull.core.retry import CircuitBreaker
from taskbull.store.async_store import Store
from taskbull.store.sync_store import SyncStore
from taskbull.worker.batch import Batches
from taskbull.worker.demand import Circuit, Quarantine
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.run import Alarm, Clock, ReadyJobs, Reporter, Runs
from taskbull.worker.running_job import no_resources
from taskbull.worker.streaming import StreamWriter
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
        started_ms: int = 0,
        options: WorkerOptions | None = None,
        streams: StreamWriter | None = None,
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
        self.streams = streams or StreamWriter(store)
        self.alarm = Alarm(clock)
        self.runs = Runs()
        self.ready = ReadyJobs()
        self.circuit = None if breaker is None else Circuit(breaker, reporter, clock, self.alarm)
        self.started_ms = started_ms
        """Time when the worker started, in milliseconds since 1970. All its queues have the same
        value."""
        self.is_quiet = False
        """True while the worker fetches no jobs on request."""
        self.thread = get_ident()
        """Id of the thread that runs the worker's event loop."""
        self.options = options or WorkerOptions()
        self.quiet_until = 0.0
        """Time until which jobs drop progress and log lines without waiting, by
        `time.monotonic`."""
