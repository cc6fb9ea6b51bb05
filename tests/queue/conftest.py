"""A test's own queue, in an async and a sync form with the same interface."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from taskbull.queue.queue import Queue, SyncQueue
from tests.servers.kinds import Reachable


class Both:
    """Calls the async or the sync queue. The test awaits the call either way."""

    def __init__(self, queue: Queue | SyncQueue) -> None:
        self.queue = queue
        self.keys = queue.keys

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.queue, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return await result if isinstance(result, Awaitable) else result

        return method if name in {"job", "name"} else call


@pytest.fixture(params=["async", "sync"])
def queue(request: pytest.FixtureRequest, server: Reachable, prefix: str) -> Iterator[Both]:
    if request.param == "async":
        yield Both(Queue("q", redis=server.url, prefix=prefix))
        return
    sync = SyncQueue("q", redis=server.url, prefix=prefix)
    yield Both(sync)
    sync.close()


def signatures(kind: type) -> dict[str, inspect.Signature]:
    """Return the public methods of a class with their parameters."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(f) for name, f in methods if not name.startswith("_")}
