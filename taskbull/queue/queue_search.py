"""Searching the keys of all servers for queues, piece by piece."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.queue.questions import LOST, Look, ask, ask_on, list_servers
from taskbull.scripts import records, servers
from taskbull.store.address import Endpoint
from taskbull.store.namespace import Namespace


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
