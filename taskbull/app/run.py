"""The event loops in which a worker is the whole program."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import anyio
from anyio import CancelScope, create_task_group, open_signal_receiver

from taskbull.store.backend import poster
from taskbull.worker.run import pressed
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.worker import Worker

# The event loops in which a worker is the whole program.


def backend_options(backend: str, *, uvloop: bool = False) -> dict[str, Any]:
    """Return the options that `anyio.run` needs to run a worker on a backend."""
    return {"loop_factory": _sturdy(uvloop)} if backend == "asyncio" else {}


def _sturdy(uvloop: bool) -> Any:
    """Return a class of event loops that keep running when a task raises `SystemExit`.

    asyncio gives a task's `SystemExit` and `KeyboardInterrupt` to whoever awaits the task, and
    stops the loop as well: so `sys.exit()` in a task that a job started would end the worker.
    """
    kind: Any = asyncio.SelectorEventLoop
    if uvloop:
        import uvloop as library  # noqa: PLC0415 - it is optional

        kind = library.Loop

    class Sturdy(kind):  # type: ignore[misc]
        _main: asyncio.Future[Any]

        def run_until_complete(self, future: Any) -> Any:
            self._main = asyncio.ensure_future(future, loop=self)
            return kind.run_until_complete(self, self._main)

        def run_forever(self) -> None:
            while True:
                try:
                    kind.run_forever(self)
                except (SystemExit, KeyboardInterrupt) as error:
                    if self._main.done() or pressed(error):
                        raise
                else:
                    return

    return Sturdy


# The signals that stop a program: heard in the process they were sent to, and nowhere else.
#
# An event loop learns of a signal by a byte in a pipe, and asyncio and uvloop take the byte for
# the signal. A forked child has the handlers and the pipe of its parent: a SIGTERM for the child
# would stop the parent, and leave the child alive. So the byte only wakes the loop here; what
# counts is Python's own handler, which runs in the process that was signalled. And a child is
# forked with the signals held back, until they mean again what they meant before.


_Handler: TypeAlias = Any  # what signal.getsignal gives: a function, a constant, or None

_before: dict[signal.Signals, _Handler] = {}
"""What the signals that are heard now meant before: signals belong to a whole process."""

_held = threading.local()


@contextmanager
def heard(*numbers: signal.Signals, by: Callable[[signal.Signals], None]) -> Generator[None]:
    """Call `by` in the event loop for each such signal that this process receives.

    Only the main thread can hear signals: in another one, nothing is heard.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    post = poster()

    def note(number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # the event loop is over
            post(lambda: by(signal.Signals(number)))

    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with open_signal_receiver(*numbers):  # its byte wakes the loop
            for number in numbers:
                signal.signal(number, note)
                signal.siginterrupt(number, False)
            _before.update(before)
            yield
    finally:
        for number, handler in before.items():
            _before.pop(number, None)
            _set(number, handler)


def _set(number: signal.Signals, handler: _Handler) -> None:
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _hold_back() -> None:
    if _before:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(_before))


def _let_go() -> None:
    mask = getattr(_held, "mask", None)
    if mask is not None:
        _held.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _give_back() -> None:
    """In a forked child: let signals mean what they did before; what was held back comes now."""
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            loops = number == signal.SIGINT and callable(
                handler
            )  # an event loop's, not the child's
            _set(number, signal.default_int_handler if loops else handler)
        _before.clear()
    _let_go()


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_give_back)


# Running a worker as the whole program: signals end it.


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
