"""Those who want to know what happens in a worker."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from taskbull.core.checks import refusal
from taskbull.core.events import Event
from taskbull.worker.interruption import pressed

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)

Listener: TypeAlias = Callable[[E], object]


def _check(kind: object, listener: object) -> None:
    if not _is_event(kind):
        raise refusal("event", "be a class of taskbull.events", kind)
    if not callable(listener) or inspect.iscoroutinefunction(listener):
        raise refusal("listener", "be a plain function that takes the event", listener)


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)


class Listeners:
    """Tells events to whoever listens to their class, or to a base of it.

    A listener sees and cannot change; what it raises is logged and goes no further. It is called in
    the event loop, so it must not block.
    """

    def __init__(self) -> None:
        self._all: list[tuple[type[Event], Listener[Any]]] = []
        self._by_kind: dict[type[Event], tuple[Listener[Any], ...]] = {}

    def on(self, kind: type[E], listener: Listener[E]) -> None:
        """Let `listener` hear the events of a kind."""
        _check(kind, listener)
        self._all.append((kind, listener))
        self._by_kind.clear()

    def tell(self, event: Event) -> None:
        """Tell an event."""
        kind = type(event)
        listeners = self._by_kind.get(kind)
        if listeners is None:
            listeners = tuple(one for wanted, one in self._all if issubclass(kind, wanted))
            self._by_kind[kind] = listeners
        for listener in listeners:
            try:
                listener(event)
            except BaseException as error:
                if pressed(error):
                    raise
                logger.exception("A listener failed at %s", kind.__name__)
