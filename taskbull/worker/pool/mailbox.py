"""News from other threads for the event loop: one wake-up for many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from taskbull.store.backend import poster


class Mailbox:
    """Has things done in the event loop in which it was made."""

    def __init__(self) -> None:
        self._actions: deque[Callable[[], object]] = deque()
        self._posted = False
        self._post = poster()

    def post(self, action: Callable[[], object]) -> None:
        """Have something done soon; from any thread. Nothing happens when the loop is over."""
        self._actions.append(action)
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the event loop is over
                self._post(self._empty)

    def _empty(self) -> None:
        self._posted = False
        while self._actions:
            self._actions.popleft()()
