"""What both queues are made of."""

from __future__ import annotations

from typing import Any

from taskbull.core import payload
from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.observability.tracing import in_this_span
from taskbull.queue.handle import JobHandle, Source, handle
from taskbull.queue.operations import Batch, Operations
from taskbull.queue.stores import Stores
from taskbull.scripts.add import Added


class AnyQueue:
    """A BullMQ queue, to be filled and looked after.

    `redis` is a URL; without one, the environment (`TASKBULL_REDIS_URL`, `REDIS_URL`) or the
    server on this machine is used. `enqueue_timeout` is for an `add` in all, None: no limit.
    """

    def __init__(
        self,
        name: str,
        *,
        redis: str | Stores | None = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        enqueue_timeout: float | None = 5.0,
    ) -> None:
        self._stores = redis if isinstance(redis, Stores) else Stores(redis)
        clustered = self._stores.address.topology == "cluster"
        self.keys = QueueKeys(name, prefix, clustered, hash_tag)
        self._operations = Operations(self.keys)
        self._source = Source(self.keys, self._stores)
        self._enqueue_timeout = enqueue_timeout

    @property
    def name(self) -> str:
        """The queue's name, as it was given."""
        return self.keys.queue

    def job(self, name: str, data: Any = None, **options: Any) -> NewJob:
        """Make a job for `add_bulk`; the options are those of `JobOptions`."""
        return in_this_span(self._operations.job(name, data, **options))

    def _handles(self, batch: Batch, added: list[Added]) -> list[JobHandle[Any]]:
        return [
            handle(self._source, job.name, one, payload.decode)
            for job, one in zip(batch.jobs, added, strict=True)
        ]
