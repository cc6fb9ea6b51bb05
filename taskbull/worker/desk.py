"""What all running jobs of one queue share."""

from __future__ import annotations

from taskbull.core.keys import QueueKeys
from taskbull.store.async_store import Store
from taskbull.store.sync_store import SyncStore
from taskbull.worker.threads import ThreadPool


class Desk:
    """What all running jobs of one queue share."""

    def __init__(
        self,
        keys: QueueKeys,
        worker_id: str,
        store: Store,
        sync_store: SyncStore,
        threads: ThreadPool,
    ) -> None:
        self.keys = keys
        self.worker_id = worker_id
        self.store = store
        self.sync_store = sync_store
        self.threads = threads
        self.quiet_until = 0.0
        """Until when nobody waits for Redis with what may be lost, by `time.monotonic`."""
