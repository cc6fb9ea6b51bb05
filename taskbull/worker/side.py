"""What a worker has for each of its queues."""

from __future__ import annotations

from taskbull.core.breaker import CircuitBreaker
from taskbull.core.keys import QueueKeys
from taskbull.store.async_store import Store
from taskbull.worker.circuit import Circuit
from taskbull.worker.clock import Alarm, Clock
from taskbull.worker.lease import Leases
from taskbull.worker.quarantine import Quarantine
from taskbull.worker.ready import ReadyJobs
from taskbull.worker.reporter import Reporter


class QueueSide:
    """A worker's side of one queue: what its parts share while the worker runs."""

    def __init__(
        self,
        keys: QueueKeys,
        store: Store,
        reporter: Reporter,
        clock: Clock,
        breaker: CircuitBreaker | None,
        quarantine: Quarantine,
    ) -> None:
        self.keys = keys
        self.store = store
        self.reporter = reporter
        self.clock = clock
        self.alarm = Alarm(clock)
        self.leases = Leases()
        self.ready = ReadyJobs()
        self.quarantine = quarantine
        self.circuit = None if breaker is None else Circuit(breaker, reporter, clock, self.alarm)
