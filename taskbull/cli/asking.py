"""Asking Redis for a person who waits: nothing is retried for long; any server can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from taskbull.scripts.call import Command, Operation, Request, Word
from taskbull.scripts.replies import nothing
from taskbull.store.address import Endpoint
from taskbull.store.pipeline import Reply
from taskbull.store.sync_store import SyncStore

T = TypeVar("T")

CONNECT_LIMIT = 5.0
"""Seconds in which the first connection must be made."""

LIMIT = 8.0
"""Seconds that one call may take; a read of events is held by the server for five."""


class Asker(SyncStore):
    """A store that gives up after a few seconds, whoever asks and whatever for."""

    def run(
        self,
        operation: Operation[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
        insist: bool = True,
    ) -> T:
        """Run one call, or several, and return the result; each within `LIMIT` at the most."""
        return super().run(operation, timeout=_limit(timeout), total=total, insist=insist)

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        """Run several calls in one trip, within `LIMIT` at the most."""
        return super().run_all(calls, timeout=_limit(timeout))

    def knock(self) -> None:
        """Raise at once if Redis is not there; what comes later is tried for longer."""
        ping = Command(("PING",), "", nothing)
        self.run_on(self.servers()[0], ping, timeout=CONNECT_LIMIT)

    def servers(self, *, timeout: float | None = CONNECT_LIMIT) -> list[Endpoint]:
        """Return the servers that hold the data: one, or the masters of a Cluster."""
        return super().servers(timeout=timeout)

    def server_of(self, key: str, *, timeout: float | None = CONNECT_LIMIT) -> Endpoint:
        """Return the server that holds a key."""
        return super().server_of(key, timeout=timeout)

    def ask(self, server: Endpoint, *words: Word, limit: float = LIMIT) -> Reply:
        """Have one of the servers answer one command; `ServerRefused` if it will not."""
        return self.run_on(server, Command(words, "", as_it_is), timeout=limit)


def as_it_is(reply: Reply) -> Reply:
    return reply


def _limit(timeout: float | None) -> float:
    return LIMIT if timeout is None else min(timeout, LIMIT)
