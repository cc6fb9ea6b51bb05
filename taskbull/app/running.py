"""Running a worker as the whole program: signals end it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from anyio import CancelScope, create_task_group

from taskbull.app.signals import heard
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.worker import Worker

logger = logging.getLogger(__name__)

Watcher: TypeAlias = Callable[[Shutdown], Coroutine[Any, Any, None]]
"""Runs beside the worker, and may stop it."""


async def run_until_signal(
    worker: Worker, *, burst: bool = False, watchers: Sequence[Watcher] = ()
) -> None:
    """Run a worker until SIGTERM or SIGINT, which is a graceful stop; a second one: at once.

    A third ends the process, whatever its jobs do about being cancelled. `burst`: only until its
    queues are empty.
    """
    failure: Exception | None = None
    async with create_task_group() as tasks:
        stop = _Stop(tasks.cancel_scope)
        with heard(signal.SIGTERM, signal.SIGINT, by=stop.heed):
            try:
                async with worker.running() as stop.shutdown:
                    for watch in watchers:
                        tasks.start_soon(watch, stop.shutdown)
                    if burst:
                        tasks.start_soon(stop.when_empty, worker)
                    await stop.shutdown.wait()
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Stop:
    """What ends a worker that is the whole program."""

    def __init__(self, scope: CancelScope) -> None:
        self._scope = scope
        self.shutdown: Shutdown | None = None

    def heed(self, _: signal.Signals) -> None:
        """Go one step further with each signal."""
        if self.shutdown is None:  # not yet running
            self._scope.cancel()
        elif not self.shutdown.begun:
            logger.info("Stopping: running jobs have %g s to end", self.shutdown.grace)
            self.shutdown.begin()
        elif not self.shutdown.working.cancel_called:
            logger.info("Stopping at once: running jobs are given back")
            self.shutdown.at_once()
        else:
            os._exit(1)

    async def when_empty(self, worker: Worker) -> None:
        await worker.empty()
        if self.shutdown is not None:
            self.shutdown.begin()
