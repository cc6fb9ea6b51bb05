"""Running a worker as the whole program: signals end it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import anyio
from anyio import CancelScope, create_task_group

from taskbull.app.loops import backend_options
from taskbull.app.signals import heard
from taskbull.store.backend import poster
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.worker import Worker

logger = logging.getLogger(__name__)


class Stop:
    """What ends a worker that is the whole program, step by step."""

    def __init__(self, scope: CancelScope) -> None:
        self._scope = scope
        self._signals = 0
        self.shutdown: Shutdown | None = None
        """That of the worker, when it runs."""

    def heed(self, _: signal.Signals) -> None:
        """Go one step further with each signal."""
        self._signals += 1
        self.reach(self._signals)

    def reach(self, step: int) -> None:
        """Go as far as a step: 1 is gracefully, 2 at once, 3 without another word."""
        shutdown = self.shutdown
        if step >= 3:
            os._exit(1)
        if shutdown is None:  # not yet running
            self._scope.cancel()
        elif step == 2 and not shutdown.urgent:
            logger.info("Stopping at once: running jobs go back to their queues")
            shutdown.at_once()
        elif not shutdown.begun:
            logger.info("Stopping: running jobs have %g s to end", shutdown.grace)
            shutdown.begin()

    def from_thread(self) -> Callable[[int], None]:
        """Return `reach` for another thread; nothing happens when the event loop is over."""
        post = poster()

        def reach(step: int) -> None:
            with suppress(RuntimeError):  # the event loop is over
                post(lambda: self.reach(step))

        return reach


Watcher: TypeAlias = Callable[[Stop], Coroutine[Any, Any, None]]
"""Runs beside the worker, and may stop it."""


async def run_until_signal(
    worker: Worker, *, burst: bool = False, watchers: Sequence[Watcher] = ()
) -> None:
    """Run a worker until SIGTERM or SIGINT, which is a graceful stop; a second one: at once.

    A third ends the process, whatever its jobs do about being cancelled. `burst`: only until all
    is done.
    """
    failure: Exception | None = None
    async with create_task_group() as tasks:
        stop = Stop(tasks.cancel_scope)
        with heard(signal.SIGTERM, signal.SIGINT, by=stop.heed):
            try:
                async with worker.running() as shutdown:
                    stop.shutdown = shutdown
                    for watch in watchers:
                        tasks.start_soon(watch, stop)
                    if burst:
                        tasks.start_soon(_stop_when_done, worker, shutdown)
                    await shutdown.wait()
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_when_done(worker: Worker, shutdown: Shutdown) -> None:
    await worker.until_done()
    shutdown.begin()


def run_as_program(worker: Worker, *, backend: str, uvloop: bool, burst: bool) -> None:
    """Run a worker in an event loop of its own, until a signal stops it."""
    work = partial(run_until_signal, worker, burst=burst)
    loop = backend_options(backend, uvloop=uvloop)
    anyio.run(work, backend=backend, backend_options=loop)
