"""Watching the source: a change restarts the workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from anyio import sleep, to_thread

from taskbull.cli.worker.supervisor import Supervisor

logger = logging.getLogger(__name__)

_INTERVAL = 0.5
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}


class Reloader:
    """Looks at the Python files below a folder, and restarts when one has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def watch(self, supervisor: Supervisor) -> None:
        """Restart the children of `supervisor` after each change; for ever."""
        before = await to_thread.run_sync(self._look)
        while True:
            await sleep(_INTERVAL)
            now = await to_thread.run_sync(self._look)
            if changed := {path for path, _ in before.items() ^ now.items()}:
                logger.info("%s has changed: the workers are restarted", min(changed))
                supervisor.restart()
            before = now

    def _look(self) -> dict[str, float]:
        times: dict[str, float] = {}
        for path in self._sources():
            try:
                times[path] = os.stat(path).st_mtime
            except OSError:
                continue  # gone since it was listed
        return times

    def _sources(self) -> Iterator[str]:
        for folder, below, files in os.walk(self._folder):
            below[:] = [name for name in below if not name.startswith(".") and name not in _SKIPPED]
            for name in files:
                if name.endswith(".py"):
                    yield os.path.join(folder, name)
