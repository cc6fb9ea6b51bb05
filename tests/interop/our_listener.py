"""taskbull's event listener behind BullMQ's interface."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from taskbull.core.wire.job import QueueEvent
from taskbull.queue.queue import Queue
from tests.interop.our_worker import DEADLINE, JobEnvironment

_JSON: Final = {("completed", "returnvalue"), ("progress", "data")}


class OurListener:
    """A reader of `Queue.events()`, from the beginning of the stream on."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[QueueEvent] = queue.SimpleQueue()

    async def follow(self, followed: Queue) -> None:
        """Read until the listener is closed."""
        async for event in followed.events("0-0"):
            self._arrived.put(event)

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        while True:
            try:
                arrived = self._arrived.get(timeout=DEADLINE)
            except queue.Empty:
                raise AssertionError(f"no event {event} {fields} in {DEADLINE} s") from None
            found = {
                name: json.loads(value) if (arrived.name, name) in _JSON else value
                for name, value in arrived.fields.items()
            }
            if arrived.name == event and fields.items() <= found.items():
                return found


@contextmanager
def following(place: JobEnvironment) -> Iterator[OurListener]:
    """Follow a queue's events while the block lasts."""
    listener = OurListener()
    followed = Queue(place.keys.queue, redis=place.runner.url, prefix=place.keys.prefix)
    reading = place.runner.portal.start_task_soon(listener.follow, followed)
    try:
        yield listener
    finally:
        reading.cancel()
