"""Searching the keys of all servers for queues, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.queue.questions import LOST, Look, ask, ask_on, ask_queues, list_servers
from taskbull.scripts import browse, records, servers
from taskbull.store.address import Endpoint, Namespace

# Searching the keys of all servers for queues, piece by piece.


class SearchPlace(Struct, frozen=True):
    """How far a search for queues has come."""

    server: Endpoint
    cursor: bytes
    rest: tuple[Endpoint, ...]
    """The servers that come after this one."""
    before: int = 0
    """How many came before it."""

    @property
    def share(self) -> float:
        """About how much of all keys has been looked at; of several servers only whole ones count.

        Redis counts a cursor up from its highest bit: the lowest is set in the second half.
        """
        if self.before or self.rest:
            return self.before / (self.before + 1 + len(self.rest))
        bits = f"{int(self.cursor):b}"
        return int(bits[::-1], 2) / (1 << len(bits))

    def next_server(self) -> SearchPlace | None:
        """Return the beginning of the next server; None: there is no other."""
        if not self.rest:
            return None
        return SearchPlace(self.rest[0], b"0", self.rest[1:], self.before + 1)


def begin_search() -> Look[SearchPlace]:
    """Return where a search begins."""
    first, *rest = yield from list_servers()
    return SearchPlace(first, b"0", tuple(rest))


def find_queues(
    namespace: Namespace, place: SearchPlace | None
) -> Look[tuple[list[str], SearchPlace | None]]:
    """Look at the next piece of the keys; the place is where to go on, None at the end."""
    if place is None:
        place = yield from begin_search()
    scan = servers.find_queues(namespace.prefix, place.cursor)
    found: servers.FoundQueues = yield from ask_on(place.server, scan)
    names = sorted({plain_name(namespace, name) for name in found.names})
    if found.cursor != b"0":
        return names, replace(place, cursor=found.cursor)
    return names, place.next_server()


def all_queues(namespace: Namespace, known: frozenset[str]) -> Look[list[str]]:
    """Search all keys; return the names of queues, those known beforehand among them.

    If a node of a Cluster does not answer, those that were written down are among them, too.
    """
    found = set(known)
    place: SearchPlace | None = yield from begin_search()
    lost: TaskbullError | None = None
    answered = False
    while (here := place) is not None:
        try:
            names, place = yield from find_queues(namespace, here)
        except LOST as error:
            lost, place = error, here.next_server()
        else:
            found.update(names)
            answered = True
    if lost is not None:
        if not answered:
            raise lost
        with suppress(*LOST):  # they may be on that node
            found.update((yield from read_registered(namespace)))
    return sorted(found)


def read_registered(namespace: Namespace) -> Look[list[str]]:
    """Name the queues that were written down; none if that key is not ours, or may not be read."""
    try:
        return (yield from ask(records.get_registered(namespace.prefix)))
    except ServerRefused as error:
        if isinstance(error, ServerUnavailable):
            raise
        return []


def plain_name(namespace: Namespace, name: str) -> str:
    """Return a queue's name as code has it: without the hash tag that we add."""
    inner = name[1:-1]
    try:
        is_ours = name == f"{{{inner}}}" and inner and namespace.keys(inner).tagged == name
    except ConfigurationError:  # no queue of ours has such a name
        return name
    return inner if is_ours else name


# Which queues there are: by what is known, and by a search that goes on where it stopped.


_EVERY: Final = 60.0
"""Seconds between two searches through all keys."""

_SECONDS: Final = 0.05
"""For how long a search goes on in one round."""

_CALLS: Final = 40
"""And how often Redis is asked in it: with a round every other second, 20 times a second."""

_FORGOTTEN_MS: Final = 24 * 3_600_000
"""After how long a name is struck off that somebody wrote down, if there is no such queue."""


class QueueNames:
    """The names that were found, and how far the search has come.

    `apart`: a round only begins the first search, which somebody else carries on.
    """

    def __init__(self, patience: float = inf, *, apart: bool = False) -> None:
        self.apart = apart
        self.found: set[str] = set()
        self.written: set[str] = set()
        """What was written down when a round last looked."""
        self.may_write = True
        self.changed: set[str] = set()
        """Queues that may not be there any more."""
        self.searched_once = False
        """Whether all keys have been searched."""
        self._patience = patience
        self._round: set[str] = set()
        """What the search has found since it began anew."""
        self._is_whole = False
        """Whether a search has ended since names were last struck off."""
        self._place: SearchPlace | None = None
        self._answered = False
        self._lost: TaskbullError | None = None
        """Why a node of a Cluster could not be searched this time, and whether another could."""
        self._rests_until = -inf

    @property
    def searched(self) -> float:
        """About how much of the keys has been searched; 1: all of them, at least once."""
        if self.searched_once:
            return 1.0
        return 0.0 if self._place is None else self._place.share

    @property
    def begun(self) -> bool:
        """Whether the search has begun."""
        return self.searched_once or self._place is not None

    def search(self, namespace: Namespace) -> Look[None]:
        """Go on with the search; a round per minute."""
        start = time.monotonic()
        if start < self._rests_until:
            return
        is_first = not self.searched_once and not (self.apart and self.begun)
        limit, calls = (self._patience, inf) if is_first else (_SECONDS, _CALLS)
        while True:
            if (here := self._place) is None:
                here = yield from begin_search()
                self._lost, self._answered = None, False
            try:
                names, self._place = yield from find_queues(namespace, here)
            except LOST as error:
                self._lost, self._place = error, here.next_server()
            else:
                self._answered = True
                self.found.update(names)
                self._round.update(names)
            calls -= 1
            if self._place is None:
                self._end()
                return
            if calls <= 0 or time.monotonic() - start >= limit:
                return

    def _end(self) -> None:
        """Note that all keys have been searched."""
        found, self._round = self._round, set()
        if self._lost is None:
            # What was not found is gone, unless somebody else still speaks of it.
            self.found, self._is_whole = found, True
        elif not self._answered:
            raise self._lost
        self.searched_once = True
        self._rests_until = time.monotonic() + _EVERY

    def write(self, namespace: Namespace, there: Collection[str]) -> Look[None]:
        """Write down what was found; strike off what nobody has used for a day, and is not there.

        Names that were written down stay as they are. A user who may not write tries it once.
        """
        now_ms = int(time.time() * 1000)
        try:
            if new := sorted(self.found - self.written):
                yield from ask(records.register_found(namespace.prefix, new, now_ms))
                self.written.update(new)
            absent = self.written - self.found - set(there)
            if self._is_whole and absent:
                self._is_whole = False
                old_ms = now_ms - _FORGOTTEN_MS
                old = yield from ask(records.get_registered_before(namespace.prefix, old_ms))
                for name in absent.intersection(old):
                    yield from ask(records.unregister_queue(namespace.prefix, name))
        except ServerRefused:
            self.may_write = False


def find_names(
    namespace: Namespace, names: QueueNames, there: Collection[str], wanted: Collection[str]
) -> Look[list[str]]:
    """Return the names of all queues that are known by now, sorted.

    Those that are `there` are among them in any case, those that are wanted if they exist.
    """
    changed = yield from ask_queues(namespace, names.changed, browse.exists)
    names.changed = {name for name, exists in changed.items() if isinstance(exists, TaskbullError)}
    names.found -= {name for name, exists in changed.items() if exists is False}
    if not (names.apart and names.begun):
        yield from names.search(namespace)
    with suppress(*LOST):  # the node that has them is down: they are still the same
        names.written = set((yield from read_registered(namespace)))
    if names.searched_once:  # what is only written down may be gone, as after an obliterate
        written = names.written.difference(names.found, there)
        asked = yield from ask_queues(namespace, written, browse.exists)
        names.found |= {name for name, exists in asked.items() if exists is True}
        names.written -= {name for name, exists in asked.items() if exists is False}
    known = {*names.found, *there, *names.written}
    missing = [name for name in wanted if name not in known]
    asked = yield from ask_queues(namespace, missing, browse.exists)
    names.found |= {name for name, exists in asked.items() if exists is True}
    # One that cannot be read is shown as such.
    return sorted(known | {name for name, exists in asked.items() if exists is not False})
