"""Run a worker as a whole program, and choose the size of its process pool."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import anyio
from anyio import CancelScope, create_task_group, open_signal_receiver
from msgspec.structs import replace

from taskbull.app.batch import is_batch
from taskbull.app.discovery import AppSource
from taskbull.app.task import Task
from taskbull.core.job import ExecutionMode
from taskbull.core.options import QueueOptions, WorkerOptions
from taskbull.store.backend import poster
from taskbull.worker.pool.pool import PoolPlan
from taskbull.worker.run import Shutdown, pressed
from taskbull.worker.worker import Worker

# Run a worker as a whole program: its event loop, its signals and its shutdown.


# Event loops


def backend_options(backend: str, *, uvloop: bool = False) -> dict[str, Any]:
    """Return the `anyio.run` options for running a worker on a backend."""
    return {"loop_factory": _exit_tolerant_loop(uvloop)} if backend == "asyncio" else {}


def _exit_tolerant_loop(uvloop: bool) -> Any:
    """Return an event loop class that keeps running when a task raises `SystemExit`.

    asyncio passes a task's `SystemExit` and `KeyboardInterrupt` to the awaiting code and also stops
    the loop. So `sys.exit()` in a task that a job started would stop the worker.
    """
    kind: Any = asyncio.SelectorEventLoop
    if uvloop:
        import uvloop as library  # noqa: PLC0415 - optional dependency

        kind = library.Loop

    class ExitTolerantLoop(kind):  # type: ignore[misc]
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

    return ExitTolerantLoop


# Signals, handled only in the process that received them.
#
# A byte in a pipe wakes the event loop on a signal, and asyncio and uvloop treat that byte as the
# signal. A forked child inherits the handlers and the pipe. A SIGTERM for the child would stop the
# parent and leave the child alive. So here the byte only wakes the loop. Python's own handler does
# the work, because it runs in the signalled process. A fork blocks the signals until the child has
# restored its previous handlers.


_Handler: TypeAlias = Any  # Result of signal.getsignal: a function, a constant, or None.

_before: dict[signal.Signals, _Handler] = {}
"""Previous handlers of the signals handled now. Signals belong to the whole process."""

_held = threading.local()


@contextmanager
def handle_signals(
    *numbers: signal.Signals, by: Callable[[signal.Signals], None]
) -> Generator[None]:
    """Call `by` in the event loop for each of these signals that this process receives.

    Only the main thread can handle signals. In other threads, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    post = poster()

    def note(number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # The event loop is closed.
            post(lambda: by(signal.Signals(number)))

    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with open_signal_receiver(*numbers):  # Its byte wakes the loop.
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


def _block_signals() -> None:
    if _before:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(_before))


def _unblock_signals() -> None:
    mask = getattr(_held, "mask", None)
    if mask is not None:
        _held.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore_handlers() -> None:
    """Restore the previous handlers in a forked child, then deliver blocked signals."""
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            # A SIGINT function belongs to an event loop, which the child does not run.
            loops = number == signal.SIGINT and callable(handler)
            _set(number, signal.default_int_handler if loops else handler)
        _before.clear()
    _unblock_signals()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(
        before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_handlers
    )


# The program


logger = logging.getLogger(__name__)


class Stop:
    """Stops a worker that is the whole program, in three steps."""

    def __init__(self, scope: CancelScope) -> None:
        self._scope = scope
        self._signals = 0
        self.shutdown: Shutdown | None = None
        """Shutdown of the running worker, or None before it runs."""

    def on_signal(self, _: signal.Signals) -> None:
        """Take the next step with each signal."""
        self._signals += 1
        self.reach(self._signals)

    def reach(self, step: int) -> None:
        """Go up to a step: 1 stops gracefully, 2 immediately, 3 exits the process."""
        shutdown = self.shutdown
        if step >= 3:
            os._exit(1)
        if shutdown is None:  # Not running yet.
            self._scope.cancel()
        elif step == 2 and not shutdown.urgent:
            logger.info("Stopping now: returning running jobs to their queues")
            shutdown.at_once()
        elif not shutdown.begun:
            logger.info("Stopping: waiting up to %g s for running jobs", shutdown.grace)
            shutdown.begin()

    def from_thread(self) -> Callable[[int], None]:
        """Return a thread-safe `reach`. It does nothing after the event loop is closed."""
        post = poster()

        def reach(step: int) -> None:
            with suppress(RuntimeError):  # The event loop is closed.
                post(lambda: self.reach(step))

        return reach


Watcher: TypeAlias = Callable[[Stop], Coroutine[Any, Any, None]]
"""Coroutine function that runs beside the worker and may stop it."""


async def run_until_signal(
    worker: Worker, *, burst: bool = False, watchers: Sequence[Watcher] = ()
) -> None:
    """Run a worker until SIGTERM or SIGINT stops it gracefully.

    A second signal stops it immediately. A third exits the process, even if jobs do not react to
    being cancelled.

    Args:
        worker: The worker to run.
        burst: Return when all jobs are done.
        watchers: Coroutine functions to run beside the worker.
    """
    failure: Exception | None = None
    async with create_task_group() as tasks:
        stop = Stop(tasks.cancel_scope)
        with handle_signals(signal.SIGTERM, signal.SIGINT, by=stop.on_signal):
            try:
                async with worker.running() as shutdown:
                    stop.shutdown = shutdown
                    for watch in watchers:
                        tasks.start_soon(watch, stop)
                    if burst:
                        tasks.start_soon(_stop_when_done, worker, shutdown)
                    await shutdown.wait()
            except Exception as error:  # noqa: BLE001 - raised below, outside the task group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_when_done(worker: Worker, shutdown: Shutdown) -> None:
    await worker.until_done()
    shutdown.begin()


def run_as_program(worker: Worker, *, backend: str, uvloop: bool, burst: bool) -> None:
    """Run a worker in a new event loop until a signal stops it."""
    work = partial(run_until_signal, worker, burst=burst)
    loop = backend_options(backend, uvloop=uvloop)
    anyio.run(work, backend=backend, backend_options=loop)


# The size of a worker's process pool, and the concurrency of the queues that use it.


def plan_pool(
    tasks: Iterable[Task[..., Any]],
    queues: Collection[str],
    options: WorkerOptions,
    source: Callable[[Iterable[str]], AppSource],
) -> PoolPlan | None:
    """Return the pool configuration for a worker of these queues.

    Return `None` if no task has `process=True`. The processes start with the worker if one of its
    queues is the home queue of such a task, otherwise with the first job.
    """
    wanted = [task for task in tasks if task.execution_mode is ExecutionMode.PROCESS]
    if not wanted:
        return None
    found = source(task.function.__module__ for task in wanted)
    return PoolPlan(
        size=options.process_pool or pool_size(1),
        app=found.app,
        modules=found.modules,
        script=found.script,
        redis=found.redis,
        tasks=[task.name for task in wanted],
        at_once=any(task.queue in queues for task in wanted),
        max_jobs=options.process_max_jobs,
        max_memory=options.process_max_memory,
        memory_limit=options.process_memory_limit,
        env=options.process_env or {},
    )


def pool_size(workers: int) -> int:
    """Return the default pool size: the available cores divided by the number of workers."""
    affinity = getattr(os, "sched_getaffinity", None)  # not available on macOS
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores // workers)


def with_pool(
    rules: Mapping[str, QueueOptions],
    options: WorkerOptions,
    tasks: Collection[Task[..., Any]],
    size: int,
) -> dict[str, QueueOptions]:
    """Return the queue options with concurrency limited by the pool size.

    The limit applies to queues that only have process tasks. Without it, jobs would wait here for a
    process while another worker could run them. Batch tasks may fetch jobs for one more call.
    """
    found = dict(rules)
    for name, rule in rules.items():
        here = [task for task in tasks if task.queue == name]
        if here and all(task.execution_mode is ExecutionMode.PROCESS for task in here):
            most = max(_most_of(task, size) for task in here)
            concurrency = min(rule.over(options).concurrency, most)
            found[name] = replace(rule, concurrency=concurrency)
    return found


def _most_of(task: Task[..., Any], size: int) -> int:
    """Return how many jobs of a task the pool can use, with one more batch for batch tasks."""
    if not is_batch(task):
        return size
    return task.batch.size * (min(task.batch.parallel, size) + 1)
