"""Searching the keys of all servers for queues, piece by piece."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError
from taskbull.queue.questions import Look, ask_on, list_servers
from taskbull.scripts import servers
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


def find_queues(
    namespace: Namespace, place: SearchPlace | None
) -> Look[tuple[list[str], SearchPlace | None]]:
    """Look at the next piece of the keys; the place is where to go on, None at the end."""
    if place is None:
        first, *rest = yield from list_servers()
        place = SearchPlace(first, b"0", tuple(rest))
    scan = servers.find_queues(namespace.prefix, place.cursor)
    found: servers.FoundQueues = yield from ask_on(place.server, scan)
    names = sorted({plain_name(namespace, name) for name in found.names})
    if found.cursor != b"0":
        return names, replace(place, cursor=found.cursor)
    if place.rest:
        return names, SearchPlace(place.rest[0], b"0", place.rest[1:], place.before + 1)
    return names, None


def all_queues(namespace: Namespace, known: frozenset[str]) -> Look[list[str]]:
    """Search all keys; return the names of queues, those known beforehand among them."""
    found = set(known)
    names, place = yield from find_queues(namespace, None)
    found.update(names)
    while place is not None:
        names, place = yield from find_queues(namespace, place)
        found.update(names)
    return sorted(found)


def plain_name(namespace: Namespace, name: str) -> str:
    """Return a queue's name as code has it: without the hash tag that we add."""
    inner = name[1:-1]
    try:
        is_ours = name == f"{{{inner}}}" and inner and namespace.keys(inner).tagged == name
    except ConfigurationError:  # no queue of ours has such a name
        return name
    return inner if is_ours else name
