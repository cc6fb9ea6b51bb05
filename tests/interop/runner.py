"""Ways to run taskbull's calls: with the sync store, or with the async one on either loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from taskbull.scripts.call import Request, Steps
from taskbull.store import address
from taskbull.store.async_store import Store, open_store
from taskbull.store.sync_store import SyncStore

T = TypeVar("T")

WAYS = ("sync", "asyncio", "trio")


class Runner(Protocol):
    """Runs calls, seen from sync code; what can only be async runs in the loop of `portal`."""

    @property
    def url(self) -> str: ...
    @property
    def portal(self) -> BlockingPortal: ...
    def run(self, call: Request[T]) -> T: ...
    def perform(self, steps: Steps[T]) -> T: ...


class SyncRunner:
    """Runs calls with the sync store, and async code on asyncio."""

    def __init__(self, url: str, portal: BlockingPortal, store: SyncStore) -> None:
        self.url = url
        self.portal = portal
        self._store = store

    def run(self, call: Request[T]) -> T:
        return self._store.run(call)

    def perform(self, steps: Steps[T]) -> T:
        return self._store.run(steps)


class AsyncRunner:
    """Runs calls by a store that lives in an event loop in another thread."""

    def __init__(self, url: str, portal: BlockingPortal, store: Store) -> None:
        self.url = url
        self.portal = portal
        self._store = store

    def run(self, call: Request[T]) -> T:
        return self.portal.call(self._store.run, call)

    def perform(self, steps: Steps[T]) -> T:
        result: Any = self.portal.call(partial(self._store.run, steps))
        return result  # type: ignore[no-any-return]


@contextmanager
def running(way: str, url: str) -> Iterator[Runner]:
    """Give a runner while the block lasts."""
    where = address.parse(url)
    if way == "sync":
        with start_blocking_portal("asyncio") as portal:
            store = SyncStore(where)
            yield SyncRunner(url, portal, store)
            store.close()
        return
    with (
        start_blocking_portal(way) as portal,
        portal.wrap_async_context_manager(open_store(where)) as running_store,
    ):
        yield AsyncRunner(url, portal, running_store)
