"""The sync queue: the same operations for code without an event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar, Unpack

from taskbull.core.options import JobKeywords
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import TaskbullError
from taskbull.queue.add_bulk import Progress
from taskbull.queue.add_single import add_at_once
from taskbull.queue.any_queue import AnyQueue, JobEntry
from taskbull.queue.call_checks import check_last_id
from taskbull.queue.handle import JobHandle
from taskbull.queue.methods import Blocking
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Operation, again
from taskbull.scripts.events import last_event_id, read_events

T = TypeVar("T")


class SyncQueue(AnyQueue, Blocking):
    """The queue for code without an event loop, from any thread."""

    def add(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> JobHandle[Any]:
        """Add a job. Never twice, whatever happens to the connection; `EnqueueError` if not."""
        entry = self._single(name, data, **options)
        return add_at_once(entry, self._enqueue_timeout)

    def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs, in order; return their handles. `EnqueueError` tells what was not added.

        Of a list, nothing is written unless all jobs are valid. Any other iterable is streamed:
        its jobs are checked and sent as they come, and few are in memory at once. `progress` is
        called with the number of jobs added so far, after every 250 at the latest.
        """
        bulk = self._bulk(jobs, progress)
        return self._stores.perform(bulk, self._enqueue_timeout)

    def events(self, last_id: str = "$") -> Generator[QueueEvent, None, None]:
        """Follow what happens in the queue, from now on or from an event's id on."""
        check_last_id(last_id)
        store = self._stores.sync_store()  # without a limit: a reader waits until Redis is back
        if last_id == "$":
            last_id = store.run(again(last_event_id(self.keys)))
        while True:
            for event in store.run(again(read_events(self.keys, last_id))):
                last_id = event.id
                yield event

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._stores.close()

    def _run(self, operation: Operation[T]) -> T:
        try:
            return self._stores.sync_store().run(operation, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
