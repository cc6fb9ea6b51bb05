"""The lifespans of an app in a process of the pool: in an event loop of their own thread.

The main thread belongs to the functions, which a signal is to reach.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import anyio

from taskbull.app.resources import Resources, Yielded
from taskbull.store.backend import poster


class ProcessLifespan:
    """Enters lifespans, and leaves them when told to."""

    def __init__(self, resources: Resources, backend: str) -> None:
        self._resources = resources
        self._backend = backend
        self._yielded: Yielded = {}
        self._news: SimpleQueue[BaseException | None] = SimpleQueue()
        self._leave: Callable[[], object] = bool
        self._thread = Thread(target=self._run, name="lifespan", daemon=True)

    def enter(self) -> None:
        """Wait until all are entered; raise what one of them raises."""
        if not self._resources:
            return
        self._thread.start()
        error = self._news.get()
        if error is not None:
            raise error

    def resources_of(self, name: str) -> Any:
        """Return what the jobs of a task are given."""
        return self._resources.of(self._yielded, name)

    def leave(self) -> None:
        """Wait until all are left."""
        if self._thread.is_alive():
            self._leave()
            self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            if self._news.empty():
                self._news.put(error)
            traceback.print_exception(error)

    async def _serve(self) -> None:
        done = anyio.Event()
        post = poster()
        self._leave = lambda: post(done.set)
        async with self._resources.open() as self._yielded:
            self._news.put(None)
            await done.wait()
