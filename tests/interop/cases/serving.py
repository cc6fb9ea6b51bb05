"""Running a worker in a case until it has nothing left to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.interop.actor import Behaviour, Running
from tests.interop.stage import Stage

NAME: Final = "w"
WORK: Final[Behaviour] = {"*": [[["return", "done"]]]}


def throws(message: str = "broke", **more: Any) -> list[Any]:
    """Give the steps of an attempt that fails."""
    return [["throw", {"message": message, **more}]]


class Serving:
    """A worker that runs: `b`'s, named, one job at a time unless it says otherwise."""

    def __init__(self, stage: Stage, worker: Running, queue: str) -> None:
        self._stage = stage
        self._queue = queue
        self.worker = worker

    def rest(self) -> None:
        """Wait until nothing is left to do."""
        self._stage.until_idle(NAME, self._queue)

    def later(self, ms: int) -> None:
        """Let time pass, and wait until nothing is left to do."""
        self.rest()
        self._stage.tick(ms)
        self._stage.wake(self._queue)
        self.rest()


@contextmanager
def serving(
    s: Stage, behaviour: Behaviour = WORK, queue: str = "q", **options: Any
) -> Iterator[Serving]:
    """Let a worker run while the block lasts."""
    actor = s.b if queue == s.b.queue else s.b.beside(queue)
    with actor.running(behaviour, name=NAME, **options) as worker:
        yield Serving(s, worker, queue)


def serve(s: Stage, behaviour: Behaviour = WORK, queue: str = "q", **options: Any) -> None:
    """Let a worker run until nothing is left to do."""
    with serving(s, behaviour, queue, **options) as served:
        served.rest()
