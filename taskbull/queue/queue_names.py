"""Which queues there are: by what is known, and by a search that goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Collection
from math import inf
from typing import Final

from taskbull.errors import ServerRefused, ServerUnavailable
from taskbull.queue.questions import Look, ask
from taskbull.queue.queue_search import SearchPlace, find_queues
from taskbull.scripts import records, survey
from taskbull.store.namespace import Namespace

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
            names, self._place = yield from find_queues(namespace, self._place)
            calls -= 1
            self.found.update(names)
            self._round.update(names)
            if self._place is None:
                # What was not found is gone, unless somebody else still speaks of it.
                self.found, self._round = self._round, set()
                self.searched_once = self._is_whole = True
                self._rests_until = time.monotonic() + _EVERY
                return
            if calls <= 0 or time.monotonic() - start >= limit:
                return

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


def read_registered(namespace: Namespace) -> Look[list[str]]:
    """Name the queues that were written down; none if that key is not ours, or may not be read."""
    try:
        return (yield from ask(records.get_registered(namespace.prefix)))
    except ServerRefused as error:
        if isinstance(error, ServerUnavailable):
            raise
        return []


def find_names(
    namespace: Namespace, names: QueueNames, there: Collection[str], wanted: Collection[str]
) -> Look[list[str]]:
    """Return the names of all queues that are known by now, sorted.

    Those that are `there` are among them in any case, those that are wanted if they exist.
    """
    for name in list(names.changed):
        if not (yield from ask(survey.exists(namespace.keys(name)))):
            names.found.discard(name)
        names.changed.discard(name)
    if not (names.apart and names.begun):
        yield from names.search(namespace)
    names.written = set((yield from read_registered(namespace)))
    if names.searched_once:  # what is only written down may be gone, as after an obliterate
        for name in names.written.difference(names.found, there):
            if (yield from ask(survey.exists(namespace.keys(name)))):
                names.found.add(name)
            else:
                names.written.discard(name)
    known = {*names.found, *there, *names.written}
    for name in wanted:
        if name not in known and (yield from ask(survey.exists(namespace.keys(name)))):
            names.found.add(name)
            known.add(name)
    return sorted(known)
