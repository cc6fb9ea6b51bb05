"""Search for queues: a scan of the keys of all servers in chunks, and the names found so far."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.queue.questions import LOST, ask, ask_on, ask_queues, list_servers
from taskbull.scripts import browse, records
from taskbull.scripts.call import AnySteps
from taskbull.store.address import Endpoint, Namespace

# One search through all keys, in chunks.


class SearchPlace(Struct, frozen=True):
    """The progress of a search for queues."""

    server: Endpoint
    cursor: bytes
    rest: tuple[Endpoint, ...]
    """Servers to search after this one."""
    before: int = 0
    """Number of servers searched before this one."""

    @property
    def share(self) -> float:
        """The approximate share of all keys that has been searched.

        With several servers, only completed ones count. Redis increments a cursor from its highest
        bit, so reversing the bits yields the progress.
        """
        if self.before or self.rest:
            return self.before / (self.before + 1 + len(self.rest))
        bits = f"{int(self.cursor):b}"
        return int(bits[::-1], 2) / (1 << len(bits))

    def next_server(self) -> SearchPlace | None:
        """Return the start of the next server, or None if this is the last one."""
        if not self.rest:
            return None
        return SearchPlace(self.rest[0], b"0", self.rest[1:], self.before + 1)


def begin_search() -> AnySteps[SearchPlace]:
    """Return the start of a search."""
    first, *rest = yield from list_servers()
    return SearchPlace(first, b"0", tuple(rest))


def find_queues(
    namespace: Namespace, place: SearchPlace | None
) -> AnySteps[tuple[list[str], SearchPlace | None]]:
    """Search the next chunk of the keys. Return the queue names and the next place.

    The next place is None at the end of the search.
    """
    if place is None:
        place = yield from begin_search()
    scan = browse.find_queues(namespace.prefix, place.cursor)
    found: browse.FoundQueues = yield from ask_on(place.server, scan)
    names = sorted({plain_name(namespace, name) for name in found.names})
    if found.cursor != b"0":
        return names, replace(place, cursor=found.cursor)
    return names, place.next_server()


def all_queues(namespace: Namespace, known: frozenset[str]) -> AnySteps[list[str]]:
    """Search all keys. Return the sorted names of all queues, including the `known` ones.

    If a Cluster node does not answer, registered queues are included as well.
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
        with suppress(*LOST):  # The registry may be on the lost node.
            found.update((yield from read_registered(namespace)))
    return sorted(found)


def read_registered(namespace: Namespace) -> AnySteps[list[str]]:
    """Return the registered queue names.

    The list is empty if the key has another type or the Redis user may not read it.
    """
    try:
        return (yield from ask(records.get_registered(namespace.prefix)))
    except ServerRefused as error:
        if isinstance(error, ServerUnavailable):
            raise
        return []


def plain_name(namespace: Namespace, name: str) -> str:
    """Return the name of a queue without the hash tag that taskbull adds."""
    inner = name[1:-1]
    try:
        is_ours = name == f"{{{inner}}}" and inner and namespace.keys(inner).tagged == name
    except ConfigurationError:  # taskbull does not allow this name.
        return name
    return inner if is_ours else name


# The names of all queues, from the registry and from a search that continues over many rounds.

_EVERY: Final = 60.0
"""Seconds between two searches through all keys."""

_SECONDS: Final = 0.05
"""Maximum duration of the search in one round, in seconds."""

_CALLS: Final = 40
"""Maximum number of calls per round. With a round every 2 s, that is 20 calls per second."""

_FORGOTTEN_MS: Final = 24 * 3_600_000
"""Minimum age for unregistering the name of a missing queue, in milliseconds."""


class QueueNames:
    """The queue names found so far, and the progress of the search.

    With `separate_search`, a round only starts the first search. Another caller of `search`
    continues it.
    """

    def __init__(self, patience: float = inf, *, separate_search: bool = False) -> None:
        self.separate_search = separate_search
        self.found: set[str] = set()
        self.written: set[str] = set()
        """Registered names, as of the last round."""
        self.may_write = True
        """False after Redis refused a write to the registry."""
        self.changed: set[str] = set()
        """Queues that may no longer exist."""
        self.searched_once = False
        """True if all keys have been searched at least once."""
        self._patience = patience
        self._round: set[str] = set()
        """Names found by the current search."""
        self._is_complete = False
        """True if a search has finished since names were last removed from the registry."""
        self._place: SearchPlace | None = None
        self._answered = False
        """True if at least one node answered in the current search."""
        self._lost: TaskbullError | None = None
        """Error of a Cluster node that could not be searched in the current search."""
        self._paused_until = -inf

    @property
    def searched(self) -> float:
        """The approximate share of keys searched. 1 means that all were searched at least once."""
        if self.searched_once:
            return 1.0
        return 0.0 if self._place is None else self._place.share

    @property
    def begun(self) -> bool:
        """True if a search has started."""
        return self.searched_once or self._place is not None

    def search(self, namespace: Namespace) -> AnySteps[None]:
        """Continue the search. After a complete search, the next one starts a minute later."""
        start = time.monotonic()
        if start < self._paused_until:
            return
        is_first = not self.searched_once and not (self.separate_search and self.begun)
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
        found, self._round = self._round, set()
        if self._lost is None:
            # Queues that were not found no longer exist, unless another source lists them.
            self.found, self._is_complete = found, True
        elif not self._answered:
            raise self._lost
        self.searched_once = True
        self._paused_until = time.monotonic() + _EVERY

    def write(self, namespace: Namespace, there: Collection[str]) -> AnySteps[None]:
        """Register the names found. Unregister missing queues that were not used for a day.

        The times of registered names are not changed. If Redis refuses the write, `may_write` is
        set to False.
        """
        now_ms = int(time.time() * 1000)
        try:
            if new := sorted(self.found - self.written):
                yield from ask(records.register_found(namespace.prefix, new, now_ms))
                self.written.update(new)
            absent = self.written - self.found - set(there)
            if self._is_complete and absent:
                self._is_complete = False
                old_ms = now_ms - _FORGOTTEN_MS
                old = yield from ask(records.get_registered_before(namespace.prefix, old_ms))
                for name in absent.intersection(old):
                    yield from ask(records.unregister_queue(namespace.prefix, name))
        except ServerRefused:
            self.may_write = False


def find_names(
    namespace: Namespace, names: QueueNames, there: Collection[str], wanted: Collection[str]
) -> AnySteps[list[str]]:
    """Continue the search and return the sorted names of all known queues.

    Names in `there` are always included. Names in `wanted` are included unless they do not exist.
    """
    changed = yield from ask_queues(namespace, names.changed, browse.exists)
    names.changed = {name for name, exists in changed.items() if isinstance(exists, TaskbullError)}
    names.found -= {name for name, exists in changed.items() if exists is False}
    if not (names.separate_search and names.begun):
        yield from names.search(namespace)
    with suppress(*LOST):  # If the node with the registry is down, keep the names from before.
        names.written = set((yield from read_registered(namespace)))
    # A queue that is only registered may no longer exist, for example after an obliterate.
    if names.searched_once:
        written = names.written.difference(names.found, there)
        asked = yield from ask_queues(namespace, written, browse.exists)
        names.found |= {name for name, exists in asked.items() if exists is True}
        names.written -= {name for name, exists in asked.items() if exists is False}
    known = {*names.found, *there, *names.written}
    missing = [name for name in wanted if name not in known]
    asked = yield from ask_queues(namespace, missing, browse.exists)
    names.found |= {name for name, exists in asked.items() if exists is True}
    # Include queues that cannot be read. They are shown with their error.
    return sorted(known | {name for name, exists in asked.items() if exists is not False})
