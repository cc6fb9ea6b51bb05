"""Run functions of the application after jobs have ended: coroutines and blocking functions.

Listeners of `Listeners` are called where an event happens and must not block. A hook may take its
time: it is queued and runs beside the jobs, after Redis has accepted the outcome.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    suppress,
)
from typing import Any, Protocol, TypeAlias, TypeVar

from anyio import Event, create_task_group, move_on_after
from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.events import FailureHook, SuccessHook
from taskbull.core.job import Job
from taskbull.core.outcome import cancelled
from taskbull.core.validation import is_async
from taskbull.errors import TaskbullError
from taskbull.observability.logs import cut
from taskbull.scripts.change import register_hooks, take_ended
from taskbull.scripts.read import get_job
from taskbull.worker.context import QueueContext
from taskbull.worker.run import ends_the_slot
from taskbull.worker.threads import ThreadPool

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=events.Event)

AROUND_HOOKS: list[Callable[[], AbstractContextManager[object]]] = []
"""Context managers around each plain hook, in its thread. A framework such as Django adds them."""

AROUND_ASYNC_HOOKS: list[Callable[[], AbstractAsyncContextManager[object]]] = []
"""Context managers around each async hook."""

AT_ONCE = 10
"""Number of hooks that run concurrently."""

_MANY = 1000
"""Number of queued hooks that causes a warning, repeated each time it doubles."""

_PATIENCE = 2.0
"""Seconds that a starting worker waits for Redis to register its hooks."""

_RETRY = 30.0
"""Seconds until the next check if Redis refused the last one."""

_REFRESH = 3600.0
"""Seconds between checks for jobs that ended without a worker, if no request arrives."""

Args: TypeAlias = tuple[Any, ...]


class HookSettings(Protocol):
    """The hooks that a task declares."""

    @property
    def on_success(self) -> SuccessHook | None: ...
    @property
    def on_failure(self) -> FailureHook | None: ...


class Hooked(Protocol):
    """A task, as far as its hooks need it."""

    @property
    def settings(self) -> HookSettings: ...
    def read_result(self, raw: bytes) -> Any: ...


Call: TypeAlias = tuple[Callable[..., Any], Callable[[], Args]]
"""A hook, and a function that returns its arguments. Reading a result may raise."""


def task_hook(tasks: Mapping[str, Hooked], event: events.Ended) -> Call | None:
    """Return the hook that the job's task declares for an event, or None."""
    task = tasks.get(event.job.name)
    if task is None:
        return None
    hooks = task.settings
    if isinstance(event, events.Completed) and hooks.on_success is not None:
        raw = event.raw_value
        return hooks.on_success, lambda: (_job_of(event), task.read_result(raw))
    if isinstance(event, events.Failed) and hooks.on_failure is not None:
        failure = event.failure
        return hooks.on_failure, lambda: (_job_of(event), failure)
    return None


def _job_of(event: events.Ended) -> Job:
    return event.job if event.job.queue else replace(event.job, queue=event.queue)


def log_failure(hook: Callable[..., Any], event: events.Event, error: BaseException) -> None:
    """Log the exception of a hook, with the job. Ignore a log filter that raises."""
    job = event.job if isinstance(event, events.JobEvent) else None
    with suppress(BaseException):
        logger.error(
            "Hook %s failed for job %s (%s) in queue %s",
            getattr(hook, "__qualname__", hook),
            "-" if job is None else cut(job.id),
            type(event).__name__ if job is None else cut(job.name),
            event.queue,
            exc_info=error,
        )


class Hooks:
    """Queues the hooks of one worker and runs them in its event loop and in threads."""

    def __init__(self) -> None:
        self._queued: deque[tuple[events.Event, Callable[..., Any], Callable[[], Args]]] = deque()
        self._warn_at = _MANY
        self._active = 0
        self._changed: Event | None = None
        self._news: Event | None = None
        self.is_used = False
        """True if there is a hook."""

    def listener(self, function: Callable[[E], object]) -> Callable[[E], None]:
        """Return a listener that queues a call of `function` with the event."""
        return lambda event: self._put(event, function, lambda: (event,))

    def of_tasks(self, tasks: Mapping[str, Hooked]) -> Callable[[events.Ended], None]:
        """Return a listener that queues the hooks that tasks declare for their own jobs."""

        def queue(event: events.Ended) -> None:
            call = task_hook(tasks, event)
            if call is not None:
                self._put(event, *call)

        return queue

    async def run(self) -> None:
        """Run queued hooks until cancelled."""
        threads = ThreadPool(AT_ONCE)
        try:
            async with create_task_group() as tasks:
                while True:
                    self._changed = Event()
                    while self._queued and self._active < AT_ONCE:
                        self._active += 1
                        tasks.start_soon(self._call, threads, *self._queued.popleft())
                    await self._changed.wait()
        finally:
            self._changed = None
            threads.close()

    def wake(self) -> None:
        """Look for jobs that have ended without a worker."""
        if self._news is not None:
            self._news.set()

    async def register(self, contexts: Sequence[QueueContext]) -> None:
        """Ask for jobs that end without a worker, before this one counts as started."""
        if self.is_used:
            with suppress(TaskbullError), move_on_after(_PATIENCE):  # `take_ended` tries again.
                for context in contexts:
                    await context.store.run(register_hooks(context.keys))

    async def take_ended(self, contexts: Sequence[QueueContext]) -> None:
        """Report jobs that were cancelled before a worker started them, until cancelled.

        Other workers do the same. Each job is reported by one of them.
        """
        while True:
            self._news = Event()
            pause = _REFRESH
            for context in contexts:
                try:
                    await context.store.run(register_hooks(context.keys))
                    await _report_ended(context)
                except TaskbullError:  # For example, Redis is full.
                    pause = _RETRY
            with move_on_after(pause):
                await self._news.wait()

    async def flush(self) -> None:
        """Wait until all queued hooks have finished."""
        while self._changed is not None and (self._queued or self._active):
            await self._changed.wait()

    def log_left(self) -> None:
        """Log the number of hooks that have not finished."""
        if left := len(self._queued) + self._active:
            logger.warning("Worker stopped before hooks of ended jobs finished (left: %d)", left)

    def _put(
        self, event: events.Event, function: Callable[..., Any], args: Callable[[], Args]
    ) -> None:
        self._queued.append((event, function, args))
        if len(self._queued) >= self._warn_at:
            self._warn_at *= 2
            logger.warning("Hooks run more slowly than jobs end (waiting: %d)", len(self._queued))
        if self._changed is not None:
            self._changed.set()

    async def _call(
        self,
        threads: ThreadPool,
        event: events.Event,
        function: Callable[..., Any],
        args: Callable[[], Args],
    ) -> None:
        try:
            if is_async(function):
                async with AsyncExitStack() as around:
                    for enter in AROUND_ASYNC_HOOKS:
                        await around.enter_async_context(enter())
                    await function(*args())
            else:
                await threads.run(_call_plain, function, args())
        except BaseException as error:
            if ends_the_slot(error):
                raise
            log_failure(function, event, error)
        finally:
            self._active -= 1
            if self._changed is not None:
                self._changed.set()


def _call_plain(function: Callable[..., Any], args: Args) -> None:
    with ExitStack() as around:
        for enter in AROUND_HOOKS:
            around.enter_context(enter())
        function(*args)


async def _report_ended(context: QueueContext) -> None:
    keys, store = context.keys, context.store
    while ended := await store.run(take_ended(keys)):
        for one in ended:
            stored = await store.run(get_job(keys, one.id))
            job = stored or Job(id=one.id, name=one.name, raw_data=one.raw_data)
            context.reporter.emit(
                events.Failed,
                job=replace(job, attempt_over=job.attempts_made > 0),
                duration=0.0,
                outcome=cancelled(one.reason),
            )
