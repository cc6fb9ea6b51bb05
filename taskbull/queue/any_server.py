"""What both servers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from taskbull.core.durations import Duration, limit_of
from taskbull.core.job import Job
from taskbull.core.retry import attempts_of
from taskbull.queue.board_operations import BoardOperations
from taskbull.queue.handle import CALL_TIMEOUT
from taskbull.queue.hidden_errors import HiddenLooks
from taskbull.queue.job_looks import JobLooks
from taskbull.queue.overview import ServerOverview
from taskbull.queue.questions import Outages, Rights
from taskbull.queue.schedule_looks import ScheduleLooks
from taskbull.queue.server_operations import Node, ServerOperations
from taskbull.queue.stores import Stores
from taskbull.scripts.servers import escape_pattern
from taskbull.store.clients import Where
from taskbull.store.namespace import Namespace

__all__ = ["AnyServer", "Namespace", "Node", "Where"]


class AnyServer(
    ServerOperations, ServerOverview, JobLooks, HiddenLooks, ScheduleLooks, BoardOperations
):
    """All queues under one prefix of a Redis server, Sentinel or Cluster, whoever made them.

    `redis`, `prefix` and `hash_tag` are those of a queue. Every call reads a bounded part of what
    is there, and ends within `call_timeout` seconds if Redis is away; None: no limit. What works in
    pieces may take longer in all, as long as the pieces are answered in time. `queues` are there
    even if Redis does not have them yet; `attempts_of` tells how often workers try a job.
    """

    def __init__(
        self,
        redis: Where | Stores | None = None,
        *,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        call_timeout: Duration | None = CALL_TIMEOUT,
        queues: Iterable[str] = (),
        attempts_of: Callable[[Job], int] = attempts_of,
    ) -> None:
        self._stores = redis if isinstance(redis, Stores) else Stores(redis)
        self._call_timeout = limit_of("call_timeout", call_timeout)
        self.namespace = Namespace(self._stores.address, prefix, hash_tag)
        self._known = frozenset(queues)
        self._attempts_of = attempts_of
        self._rights = Rights()
        self._outages = Outages()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}, prefix {self.prefix}>"

    @property
    def address(self) -> str:
        """Where Redis is, without its password."""
        return str(self.namespace.address)

    @property
    def known_queues(self) -> frozenset[str]:
        """The queues that are there even if Redis does not have them yet."""
        return self._known

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self.namespace.prefix

    def key_pattern(self, queue: str | None = None) -> str:
        """Return the pattern that matches all keys of a queue, or of all queues, and no others."""
        if queue is None:
            return f"{escape_pattern(self.namespace.prefix)}:*"
        return f"{escape_pattern(self.namespace.keys(queue).base)}*"
