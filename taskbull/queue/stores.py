"""The connections that queues share: one async store per event loop, one sync store per process."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from anyio.lowlevel import current_token

from taskbull.store.address import Address, default_url, parse
from taskbull.store.aio import Store, ambient_store
from taskbull.store.dialing import ConnectionOptions
from taskbull.store.sync import SyncStore

# A producer's callers have deadlines of a few seconds: it must notice soon that Redis is back.
_PRODUCER = ConnectionOptions(longest_delay=1.0)


class Stores:
    """Gives the store that fits where it is asked for; made when first needed."""

    def __init__(self, redis: str | None = None) -> None:
        self.address: Address = parse(redis or default_url())
        self._by_loop: WeakKeyDictionary[Any, Store] = WeakKeyDictionary()
        self._sync: SyncStore | None = None

    def running(self) -> Store:
        """Give the store of the running event loop."""
        loop = current_token().native_token
        if (store := self._by_loop.get(loop)) is None:
            store = self._by_loop[loop] = ambient_store(self.address, _PRODUCER)
        return store

    def sync(self) -> SyncStore:
        """Give the store for code without an event loop."""
        if self._sync is None:
            self._sync = SyncStore(self.address)
        return self._sync

    def close(self) -> None:
        """Close the sync connections that are not in use; the others end with their event loop."""
        if self._sync is not None:
            self._sync.close()
