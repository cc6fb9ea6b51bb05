"""The async queue: every operation awaited, on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, TypeVar, Unpack

from taskbull.core.options import JobKeywords
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import TaskbullError
from taskbull.queue.add_bulk import Progress
from taskbull.queue.any_queue import AnyQueue, JobEntry
from taskbull.queue.call_checks import check_last_id
from taskbull.queue.handle import JobHandle
from taskbull.queue.methods import Awaited
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Operation, again
from taskbull.scripts.events import last_event_id, read_events

T = TypeVar("T")


class Queue(AnyQueue, Awaited):
    """The queue for asyncio and trio: every operation is awaited."""

    async def add(
        self, name: str, data: Any = None, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Add a job. Never twice, whatever happens to the connection; `EnqueueError` if not."""
        entry = self._single(name, data, **options)
        return await self._stores.loop.group(self._client, self._enqueue_timeout).add(entry)

    async def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs, in order; return their handles. `EnqueueError` tells what was not added.

        Of a list, nothing is written unless all jobs are valid. Any other iterable is streamed:
        its jobs are checked and sent as they come, and few are in memory at once. `progress` is
        called with the number of jobs added so far, after every 250 at the latest.
        """
        bulk = self._bulk(jobs, progress)
        return await self._stores.aperform(bulk, self._enqueue_timeout)

    async def events(self, last_id: str = "$") -> AsyncGenerator[QueueEvent, None]:
        """Follow what happens in the queue, from now on or from an event's id on."""
        check_last_id(last_id)
        store = self._stores.async_store()
        if last_id == "$":
            last_id = await store.run(again(last_event_id(self.keys)))
        connection = store.blocking(self.keys.events)
        try:
            while True:
                for event in await connection.run(read_events(self.keys, last_id)):
                    last_id = event.id
                    yield event
        finally:
            await connection.close()

    async def _run(self, operation: Operation[T]) -> T:
        try:
            return await self._stores.async_store().run(operation, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
