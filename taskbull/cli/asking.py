"""Asking Redis for a person who waits: nothing is retried for long; any server can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TypeVar

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.scripts.call import Request, Word
from taskbull.scripts.steps import Steps
from taskbull.store.address import Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.error_replies import read_refusal
from taskbull.store.pipeline import Reply, ReplyError, pack
from taskbull.store.sync_store import SyncStore

T = TypeVar("T")

CONNECT_LIMIT = 5.0
"""Seconds in which the first connection must be made."""

LIMIT = 8.0
"""Seconds that one call may take; a read of events is held by the server for five."""


class Asker(SyncStore):
    """A store that gives up after a few seconds, whoever asks and whatever for."""

    def run(self, call: Request[T], *, timeout: float | None = None, insist: bool = True) -> T:
        """Run one call and give its result, within `LIMIT` at the most."""
        return super().run(call, timeout=_limit(timeout), insist=insist)

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        """Run several calls in one trip, within `LIMIT` at the most."""
        return super().run_all(calls, timeout=_limit(timeout))

    def perform(
        self, steps: Steps[T], *, timeout: float | None = None, total: float | None = None
    ) -> T:
        """Run several calls, one after the other, each within `LIMIT` at the most."""
        return super().perform(steps, timeout=_limit(timeout), total=total)

    def knock(self) -> None:
        """Raise at once if Redis is not there; what comes later is tried for longer."""
        server = self.servers()[0]
        try:
            self.ask(server, "PING", limit=CONNECT_LIMIT)
        except (ConnectionLost, MaybeExecuted):
            self._pool.discard(server)
            self._server, self._slots = None, {}  # another may take over: look anew
            raise

    def servers(self) -> list[Endpoint]:
        """Give the servers that hold the data: one, or the masters of a Cluster."""
        # Any key does: on a Cluster, this draws the map of all slots.
        first = self._endpoint("", Deadline(CONNECT_LIMIT, monotonic))
        return list(dict.fromkeys(self._slots.values())) if self._clustered else [first]

    def server_of(self, key: str) -> Endpoint:
        """Give the server that holds a key."""
        return self._endpoint(key, Deadline(CONNECT_LIMIT, monotonic))

    def ask(self, server: Endpoint, *words: Word, limit: float = LIMIT) -> Reply:
        """Have one of the servers answer one command; `ServerRefused` if it will not."""
        [reply] = self._pool.exchange(server, [pack(words)], Deadline(limit, monotonic))
        if isinstance(reply, ReplyError):
            raise read_refusal(reply).error
        return reply


def _limit(timeout: float | None) -> float:
    return LIMIT if timeout is None else min(timeout, LIMIT)
