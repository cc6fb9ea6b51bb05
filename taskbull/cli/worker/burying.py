"""As process 1 of a container: burying orphans, whose parent is gone and who have us for one.

The supervisor starts nothing but its worker processes: whoever else ends is a stranger, and buried
at once. A worker without a supervisor has children that its pool, its tasks or its event loop wait
for; an end that is taken away from them they would take for a success. So it buries only those that
have been dead for a while: then nobody asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from anyio import sleep

from taskbull.app.running import Stop
from taskbull.worker.worker import Worker

_INTERVAL = 5.0
_PROC = Path("/proc")

PATIENCE = 60.0
"""Seconds for which a dead process is left to whoever may wait for it."""


async def bury_strangers(own: Callable[[], set[int]]) -> None:
    """Collect all processes that end, but for our own; for ever."""
    while True:
        await sleep(_INTERVAL)
        bury_all_but(own())


def bury_all_but(own: set[int]) -> None:
    """Collect the processes that have ended and are waited for by nobody else."""
    for pid in list(_dead()):
        if pid not in own:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Undertaker:
    """Buries orphans beside a worker that is process 1 itself."""

    def __init__(self, worker: Worker, patience: float = PATIENCE) -> None:
        self._worker = worker
        self._patience = patience
        self._seen: dict[int, float] = {}

    async def watch(self, stop: Stop) -> None:
        """Look again and again."""
        while True:
            await sleep(_INTERVAL)
            self.look()

    def look(self) -> None:
        """Bury those that have been dead for long, and are not the pool's."""
        now = monotonic()
        self._seen = {pid: self._seen.get(pid, now) for pid in _dead()}
        fresh = {pid for pid, since in self._seen.items() if now - since < self._patience}
        bury_all_but(fresh | self._worker.pids)


def _dead() -> Iterator[int]:
    """Find our children that have ended and are not buried."""
    parent = str(os.getpid())
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone meanwhile
                state, its_parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state == "Z" and its_parent == parent:
                    yield int(entry.name)
