"""The async queue: every operation awaited, on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, TypeVar, Unpack

from taskbull.core.durations import Duration
from taskbull.core.job import Job
from taskbull.core.options import JobKeywords
from taskbull.core.states import JobState
from taskbull.errors import TaskbullError
from taskbull.queue.add_bulk import Progress
from taskbull.queue.any_queue import AnyQueue
from taskbull.queue.endings import again
from taskbull.queue.event_stream import (
    BLOCK,
    QueueEvent,
    check_last_id,
    events_of,
    last_event_id,
    read_events,
)
from taskbull.queue.handle import JobHandle
from taskbull.queue.operations import Finished, JobEntry
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Request, Steps
from taskbull.scripts.inspection import Logs, QueueMetrics
from taskbull.scripts.servers import ConnectedWorker

T = TypeVar("T")


class Queue(AnyQueue):
    """The queue for asyncio and trio: every operation is awaited."""

    async def add(
        self, name: str, data: Any = None, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Add a job. Never twice, whatever happens to the connection; `EnqueueError` if not."""
        job = self._operations.job(name, data, **options)
        return await self._stores.loop.add(self._entry(0, job), self._enqueue_timeout)

    async def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs, in order; give their handles. `EnqueueError` tells what was not added.

        Of a list, nothing is written unless all jobs are valid. Any other iterable is streamed:
        its jobs are checked and sent as they come, and few are in memory at once. `progress` is
        called with the number of jobs added so far, after every 250 at the latest.
        """
        bulk = self._bulk(jobs, progress)
        return await self._stores.aperform(bulk, self._enqueue_timeout)

    async def counts(self) -> dict[str, int]:
        """Count the jobs in each state."""
        return await self._look(self._operations.counts())

    async def get_job(self, job_id: str) -> Job | None:
        """Give a job as it stands in Redis, or None."""
        return await self._look(self._operations.get_job(job_id))

    async def get_jobs(self, state: JobState | str, start: int = 0, end: int = -1) -> list[Job]:
        """List jobs in a state: the next to run first, of finished ones the latest."""
        return await self._perform(self._operations.get_jobs(state, start, end))

    async def get_state(self, job_id: str) -> JobState:
        """Tell the state of a job; `unknown` if there is no such job."""
        return await self._look(self._operations.get_state(job_id))

    async def pause(self) -> None:
        """Let no worker take a job of this queue any more; those that run go on."""
        await self._perform(self._operations.pause())

    async def resume(self) -> None:
        """Let workers take jobs again."""
        await self._perform(self._operations.resume())

    async def is_paused(self) -> bool:
        """Tell whether the queue is paused."""
        return await self._look(self._operations.is_paused())

    async def drain(self, *, delayed: bool = False) -> int:
        """Remove all jobs that wait, and the delayed ones if asked; give how many."""
        return await self._perform(self._operations.drain(delayed=delayed))

    async def clean(self, grace: Duration, limit: int, state: JobState | str) -> list[str]:
        """Remove jobs of a state older than `grace`, at most `limit` (0: all); give their ids."""
        return await self._perform(self._operations.clean(grace, limit, state))

    async def obliterate(self, *, force: bool = False) -> None:
        """Remove the queue with everything in it; `force` also while jobs run."""
        await self._perform(self._operations.obliterate(force=force))

    async def remove(self, job_id: str) -> bool:
        """Remove a job and its children; False if one of them runs."""
        return await self._run(self._operations.remove(job_id))

    async def retry(self, job_id: str, state: Finished = "failed") -> None:
        """Let a finished job run once more."""
        await self._run(self._operations.retry(job_id, state))

    async def retry_all(self, state: Finished = "failed") -> int:
        """Let all jobs that failed (or completed) run once more; give how many."""
        return await self._perform(self._operations.retry_all(state))

    async def promote(self, job_id: str) -> None:
        """Let a delayed job run now."""
        await self._run(self._operations.promote(job_id))

    async def promote_all(self) -> int:
        """Let all delayed jobs run now; give how many."""
        return await self._perform(self._operations.promote_all())

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        """Give a job another priority; `lifo` puts it first among its equals."""
        await self._run(self._operations.change_priority(job_id, priority, lifo=lifo))

    async def change_delay(self, job_id: str, delay: Duration) -> None:
        """Let a delayed job run in `delay` from now."""
        await self._run(self._operations.change_delay(job_id, delay))

    async def logs(self, job_id: str, start: int = 0, end: int = -1) -> Logs:
        """Give the log lines of a job, oldest first."""
        return await self._look(self._operations.logs(job_id, start, end))

    async def workers(self) -> list[ConnectedWorker]:
        """List the workers that are connected to the queue, Node's among them."""
        return await self._look(self._operations.workers())

    async def set_global_concurrency(self, limit: int | None) -> None:
        """Let at most `limit` jobs of the queue run at once, over all workers; None: any number."""
        await self._run(self._operations.set_global_concurrency(limit))

    async def set_global_rate_limit(self, max: int | None, duration: Duration = 1) -> None:  # noqa: A002
        """Let at most `max` jobs start per `duration`, over all workers; None: any number."""
        await self._run(self._operations.set_global_rate_limit(max, duration))

    async def rate_limit(self, duration: Duration) -> None:
        """Let no job start for `duration`, where workers or the queue have a rate limit."""
        await self._run(self._operations.rate_limit(duration))

    async def metrics(self, state: Finished = "completed") -> QueueMetrics:
        """Give BullMQ's counts per minute, where a worker keeps them."""
        return await self._look(self._operations.metrics(state))

    async def trim_events(self, length: int) -> int:
        """Cut the event stream to about `length`; give how many events were removed."""
        return await self._run(self._operations.trim_events(length))

    async def events(self, last_id: str = "$") -> AsyncGenerator[QueueEvent, None]:
        """Follow what happens in the queue, from now on or from an event's id on."""
        check_last_id(last_id)
        store = self._stores.async_store()
        if last_id == "$":
            last_id = await store.run(again(last_event_id(self.keys)))
        connection = store.blocking(self.keys.events)
        try:
            while True:
                reply = await connection.execute(read_events(self.keys, last_id), BLOCK)
                for event in events_of(reply):
                    last_id = event.id
                    yield event
        finally:
            await connection.close()

    async def _look(self, call: Request[T]) -> T:
        return await self._perform(again(call))  # asking twice does no harm

    async def _run(self, call: Request[T]) -> T:
        try:
            return await self._stores.async_store().run(call, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def _perform(self, steps: Steps[T]) -> T:
        try:
            return await self._stores.async_store().run(steps, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
