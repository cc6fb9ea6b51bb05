"""Which queues there are: by what is known, and by a search that goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Collection
from math import inf
from typing import Final

from taskbull.queue.questions import Look, ask
from taskbull.queue.queue_search import SearchPlace, find_queues
from taskbull.scripts import records, survey
from taskbull.store.namespace import Namespace

_EVERY: Final = 60.0
"""Seconds between two searches through all keys."""

_SECONDS: Final = 0.05
"""For how long a search goes on in one round."""


class QueueNames:
    """The names that were found, and how far the search has come."""

    def __init__(self, patience: float = inf) -> None:
        self.found: set[str] = set()
        self.changed: set[str] = set()
        """Queues that may not be there any more."""
        self.searched_once = False
        """Whether all keys have been searched."""
        self._patience = patience
        self._round: set[str] = set()
        """What the search has found since it began anew."""
        self._place: SearchPlace | None = None
        self._rests_until = -inf

    def search(self, namespace: Namespace) -> Look[None]:
        """Go on with the search; a round per minute."""
        start = time.monotonic()
        if start < self._rests_until:
            return
        limit = _SECONDS if self.searched_once else self._patience
        while True:
            names, self._place = yield from find_queues(namespace, self._place)
            self.found.update(names)
            self._round.update(names)
            if self._place is None:
                # What was not found is gone, unless somebody else still speaks of it.
                self.found, self._round = self._round, set()
                self.searched_once = True
                self._rests_until = time.monotonic() + _EVERY
                return
            if time.monotonic() - start >= limit:
                return


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
    yield from names.search(namespace)
    written = yield from ask(records.get_registered(namespace.prefix))
    known = {*names.found, *there, *written}
    for name in wanted:
        if name not in known and (yield from ask(survey.exists(namespace.keys(name)))):
            names.found.add(name)
            known.add(name)
    return sorted(known)
