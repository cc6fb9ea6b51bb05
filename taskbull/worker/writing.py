"""Write a running job's progress, log lines and data to Redis, and manage its children.

Redis may be full, read-only or unavailable. That is not the job's fault and costs no attempt:

- Progress and log lines matter less than the job. They are dropped after a second, with one warning
  per job. For the next few seconds, the queue's jobs drop them without waiting.
- Data is worth waiting for. If Redis does not accept it, the task gets the error. If the job fails
  with that error, it is delayed and soon runs again.

Nothing is written for a job that this worker no longer holds, or whose attempt is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

import anyio
from msgspec import Struct

from taskbull.core.failure import causes
from taskbull.core.flow import Children
from taskbull.core.options import KEEP_LOGS
from taskbull.core.validation import from_ms, to_ms
from taskbull.errors import (
    ConnectionLost,
    JobControl,
    LockLost,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.observability.logs import cut, one_line
from taskbull.scripts.call import Operation, Request, Steps, again
from taskbull.scripts.change import add_log, record_unknown_task, update_data, update_progress
from taskbull.scripts.flow import Spawned
from taskbull.scripts.read import get_failures, get_results
from taskbull.scripts.removal import remove_unprocessed_children
from taskbull.worker.context import QueueContext
from taskbull.worker.run import Run, note_spawned, spawning

T = TypeVar("T")

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds that a queue's jobs drop progress and log lines, after a write timed out."""

_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

_PASSING: Final = frozenset({"OOM", "MISCONF"})
"""Error codes of commands that were not executed and may succeed later, besides those of
`ServerUnavailable`."""


class WriteKind(Struct, frozen=True):
    """A kind of write, with its rules for retries."""

    name: str
    patience: float
    """Seconds to wait for Redis to accept it."""
    vital: bool = False
    """True if the job cannot continue without it."""
    repeatable: bool = True
    """True if writing it twice is harmless."""


PROGRESS: Final = WriteKind("progress", 1.0)
LOG_LINE: Final = WriteKind("log lines", 1.0, repeatable=False)
DATA: Final = WriteKind("data", 10.0, vital=True)

Tries: TypeAlias = Generator[float, None, None]
"""A generator that yields the timeout of each try. Throw the error of a failed try into it to get
the pause before the next one."""


class Writing:
    """The storage of one running job in Redis, which retries failed writes."""

    def __init__(self, run: Run, context: QueueContext) -> None:
        self._run = run
        self._context = context
        self._trouble: TaskbullError | None = None  # the error raised in the task
        self._warned = False
        self._waited = 0.0
        self._waits_since: float | None = None

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for Redis."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else monotonic() - since)

    def caused(self, error: BaseException) -> bool:
        """Return True if Redis caused a task's error. Steering exceptions do not count."""
        if self._trouble is None or isinstance(error, JobControl):
            return False
        return any(one is self._trouble for one in causes(error))

    def progress(self, raw: bytes) -> None:
        """Write the job's progress."""
        self._send(self._progress(raw), PROGRESS)

    async def aprogress(self, raw: bytes) -> None:
        """Write the job's progress."""
        await self._asend(self._progress(raw), PROGRESS)

    def log(self, line: str) -> None:
        """Append a line to the job's log."""
        self._send(self._log(line), LOG_LINE)

    async def alog(self, line: str) -> None:
        """Append a line to the job's log."""
        await self._asend(self._log(line), LOG_LINE)

    def update_data(self, raw: bytes) -> None:
        """Replace the payload."""
        self._send(self._data(raw), DATA)

    async def aupdate_data(self, raw: bytes) -> None:
        """Replace the payload."""
        await self._asend(self._data(raw), DATA)

    def child_results(self, name: str) -> list[bytes]:
        """Return the results of the job's children of a name."""
        return self._ask(self._results(name, so_far=self._run.spawned.new > 0))

    async def achild_results(self, name: str) -> list[bytes]:
        """Return the results of the job's children of a name."""
        return await self._aask(self._results(name, so_far=self._run.spawned.new > 0))

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Return the results of children of a name, even if others are pending."""
        return await self._aask(self._results(name, so_far=True))

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Return the errors of the job's failed children."""
        return self._ask(get_failures(self._context.keys, self._run.job.id))

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        """Return the errors of the job's failed children."""
        return await self._aask(get_failures(self._context.keys, self._run.job.id))

    def spawn(self, children: Children) -> list[str]:
        """Add children to the job, and return their ids."""
        steps = self._spawning(children)
        return note_spawned(self._run, self._ask(steps))

    async def aspawn(self, children: Children) -> list[str]:
        """Add children to the job, and return their ids."""
        steps = self._spawning(children)
        return note_spawned(self._run, await self._aask(steps))

    def _spawning(self, children: Children) -> Steps[Spawned]:
        context = self._context
        return spawning(context.keys, self._run, children, context.clock.wall_ms())

    def drop_children(self) -> int:
        """Remove the pending children that no worker runs, and return their number."""
        return self._ask(remove_unprocessed_children(self._context.keys, self._run.job.id))

    async def adrop_children(self) -> int:
        """Remove the pending children that no worker runs, and return their number."""
        return await self._aask(remove_unprocessed_children(self._context.keys, self._run.job.id))

    async def arecord_unknown_task(self, patience: float) -> float:
        """Record that this worker cannot run the job. See `JobPort.aunclaimed`."""
        context = self._context
        now_ms = context.clock.wall_ms()
        note = record_unknown_task(context.keys, self._run.job.id, now_ms, to_ms(patience))
        return from_ms(await context.store.run(note, timeout=1.0))

    def _results(self, name: str, *, so_far: bool) -> Steps[list[bytes]]:
        return get_results(self._context.keys, self._run.job.id, name, so_far=so_far)

    def _progress(self, raw: bytes) -> Request[None]:
        run = self._run
        return update_progress(self._context.keys, run.job.id, raw, token=run.token)

    def _log(self, line: str) -> Request[int]:
        job, token = self._run.job, self._run.token
        kept = job.options.keep_logs
        keep = KEEP_LOGS if kept is None else int(kept)
        # File names may contain bytes that are not UTF-8. A log line must not fail the job.
        text = str(line).encode("utf-8", "backslashreplace").decode()
        return add_log(self._context.keys, job.id, text, keep=keep, token=token)

    def _data(self, raw: bytes) -> Request[None]:
        run = self._run
        return update_data(self._context.keys, run.job.id, raw, token=run.token)

    def _ask(self, question: Operation[T]) -> T:
        """Run a vital request from a thread. It must be safe to repeat."""
        self._check()
        try:
            return self._context.sync_store.run(again(question), timeout=DATA.patience)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def _aask(self, question: Operation[T]) -> T:
        """Run a vital request from the event loop. It must be safe to repeat."""
        self._check()
        try:
            return await self._context.store.run(again(question), timeout=DATA.patience)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    def _send(self, call: Request[Any], kind: WriteKind) -> None:
        tries = self._tries(kind)
        for timeout in tries:
            try:
                self._context.sync_store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # Best effort: give up on this write.
                    return
                time.sleep(pause)

    async def _asend(self, call: Request[Any], kind: WriteKind) -> None:
        tries = self._tries(kind)
        for timeout in tries:
            try:
                await self._context.store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # Best effort: give up on this write.
                    return
                await anyio.sleep(pause)

    def _tries(self, kind: WriteKind) -> Tries:
        began = monotonic()
        if not kind.vital and began < self._context.quiet_until:
            self._lose(kind, "Redis was unavailable a moment ago")
            return
        deadline = began + kind.patience
        pause = _SHORTEST_PAUSE
        at_once = False
        self._waits_since = began
        try:
            while True:
                self._check()
                try:
                    yield max(deadline - monotonic(), _SHORTEST_PAUSE)
                except (ConnectionLost, MaybeExecuted, ServerRefused) as error:
                    if not self._goes_on(kind, error, late=monotonic() + pause >= deadline):
                        return
                else:
                    at_once = pause == _SHORTEST_PAUSE
                    return
                yield pause
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._waits_since = None
            if not at_once:
                self._waited += monotonic() - began

    def _goes_on(self, kind: WriteKind, error: TaskbullError, *, late: bool) -> bool:
        """Return True to try again. Otherwise raise the error of a vital write, or drop it."""
        self._check()
        passing = not isinstance(error, ServerRefused) or (
            isinstance(error, ServerUnavailable) or error.code in _PASSING
        )
        if kind.vital:
            if not passing:
                raise error
            if late:
                self._trouble = error
                raise error
            return True
        doubtful = isinstance(error, MaybeExecuted) and not kind.repeatable
        if late or doubtful or isinstance(error, ServerRefused):
            if late:
                self._context.quiet_until = monotonic() + _QUIET
            self._lose(kind, str(error))
            return False
        return True

    def _lose(self, kind: WriteKind, reason: str) -> None:
        if not self._warned:
            self._warned = True
            job = self._run.job
            logger.warning(
                "Job %s (%s) in queue %s continues, but some of its %s may be lost: %s",
                cut(job.id),
                cut(job.name),
                self._context.keys.queue,
                kind.name,
                one_line(reason),
            )

    def _check(self) -> None:
        if self._run.lost is not None or self._run.decided:
            raise LockLost(self._context.keys.queue, self._run.job.id)
