"""The work of a server from its own statistics, exact under any load of the machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import add, sub
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs

from taskbull.scripts.call import Command, Request
from taskbull.store.address import Address
from taskbull.store.protocol import Deadline, pack
from taskbull.store.sync_store import SyncPendingOperation, SyncPipeline, SyncStore

T = TypeVar("T")
C = TypeVar("C")

_ASK = ("INFO", "ALL")
_COMMAND = re.compile(rb"^cmdstat_([^:]+):calls=(\d+)", re.MULTILINE)
_BYTES = re.compile(rb"^total_net_(input|output)_bytes:(\d+)", re.MULTILINE)
_SCRIPTS = {b"eval", b"evalsha"}
_OF_THE_COUNTER = {b"info"}


class Counts(Struct, frozen=True):
    """Counts: commands, including those in scripts; script calls; bytes."""

    commands: int = 0
    scripts: int = 0
    received: int = 0
    sent: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, structs.astuple(self), structs.astuple(other)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(sub, structs.astuple(self), structs.astuple(other)))


class Counter:
    """Counts what a server does between two looks; the looks themselves are not counted."""

    def __init__(self, address: Address) -> None:
        self._store = SyncStore(address)
        self._looks = Counts(received=len(pack(_ASK)))  # The cost of a reading before its reply.
        self._last = Counts()
        self.count()

    def count(self) -> Counts:
        """Give what was done since the last look."""
        text = self._store.run(Command(_ASK, "", bytes))
        found = _read(text) - self._looks
        done, self._last = found - self._last, found
        answer = len(b"$%d\r\n" % len(text)) + len(text) + 2
        self._looks += Counts(received=len(pack(_ASK)), sent=answer)
        return done

    def close(self) -> None:
        self._store.close()


def _read(text: bytes) -> Counts:
    commands = {
        name: int(calls) for name, calls in _COMMAND.findall(text) if name not in _OF_THE_COUNTER
    }
    moved = {way: int(size) for way, size in _BYTES.findall(text)}
    scripts = sum(calls for name, calls in commands.items() if name in _SCRIPTS)
    return Counts(sum(commands.values()), scripts, moved[b"input"], moved[b"output"])


class CountedStore(SyncStore, Generic[C]):
    """A store that remembers, of each call, what was counted since the one before.

    It must be the only one that the server hears from.
    """

    def __init__(self, address: Address, count: Callable[[], C]) -> None:
        super().__init__(address)
        self.calls: list[C] = []
        self._count = count
        self.run(Command(("PING",), "", bytes))  # connects, which is no part of a call
        self.calls.clear()

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        return [self.run(call, timeout=timeout) for call in calls]

    def run_within(self, call: Request[T], deadline: Deadline, *, keep_trying: bool = True) -> T:
        try:
            return super().run_within(call, deadline, keep_trying=keep_trying)
        finally:
            self.calls.append(self._count())

    def _send_first(self, begun: SyncPendingOperation[Any], former: SyncPipeline | None) -> None:
        """Send nothing ahead: each call is counted by itself, when it is finished."""
