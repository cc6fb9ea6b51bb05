"""What a job writes into Redis while it runs: its progress, lines of its log, its data.

And what it asks there of its children.

Redis may be full, read-only, or away. That is not the fault of the job, and costs it no attempt:

- Progress and log lines are worth less than the job. After a second they are lost, with one warning
  per job, and for a few seconds nobody waits with another.
- Data is worth waiting for. If Redis does not take it, the task gets the error, and if the job ends
  by that error it is given back, to run again soon.

Nothing is written for a job that is no longer ours, or whose attempt is over.
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
    LockLost,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
    Steering,
    TaskbullError,
)
from taskbull.observability.logs import cut, one_line
from taskbull.scripts.call import Operation, Request, Steps, again
from taskbull.scripts.change import add_log, note_unclaimed, update_data, update_progress
from taskbull.scripts.flow import Spawned
from taskbull.scripts.read import get_failures, get_results
from taskbull.scripts.removal import remove_unprocessed_children
from taskbull.worker.context import QueueContext
from taskbull.worker.run import Run, note_spawned, spawning

T = TypeVar("T")

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds for which nobody waits with what may be lost, after something was."""

_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

_PASSING: Final = frozenset({"OOM", "MISCONF"})
"""Codes of a server that executed nothing and may do so later, besides those it waits out."""


class WriteKind(Struct, frozen=True):
    """A kind of thing that jobs write."""

    name: str
    patience: float
    """Seconds for which Redis is given the chance to take it."""
    vital: bool = False
    """Whether the job must not go on without it."""
    repeatable: bool = True
    """Whether writing it twice is as good as once."""


PROGRESS: Final = WriteKind("progress", 1.0)
LOG_LINE: Final = WriteKind("log lines", 1.0, repeatable=False)
DATA: Final = WriteKind("data", 10.0, vital=True)

Tries: TypeAlias = Generator[float, None, None]
"""Gives the time of each try; thrown the error of one that failed, it gives the pause after it."""


class Writing:
    """Brings what one running job writes to Redis, in as many tries as it takes."""

    def __init__(self, run: Run, context: QueueContext) -> None:
        self._run = run
        self._context = context
        self._trouble: TaskbullError | None = None  # what the task was told
        self._warned = False
        self._waited = 0.0
        self._waits_since: float | None = None

    @property
    def held_up(self) -> float:
        """The seconds for which Redis has let the job wait."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else monotonic() - since)

    def caused(self, error: BaseException) -> bool:
        """Return whether an error of the task comes from Redis; a word of the task's own wins."""
        if self._trouble is None or isinstance(error, Steering):
            return False
        return any(one is self._trouble for one in causes(error))

    def progress(self, raw: bytes) -> None:
        """Write how far the job has come."""
        self._send(self._progress(raw), PROGRESS)

    async def aprogress(self, raw: bytes) -> None:
        """Write how far the job has come."""
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
        """Read what the job's children of a name returned."""
        return self._ask(self._results(name, so_far=self._run.spawned.new > 0))

    async def achild_results(self, name: str) -> list[bytes]:
        """Read what the job's children of a name returned."""
        return await self._aask(self._results(name, so_far=self._run.spawned.new > 0))

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Read what children of a name have returned, though others may be pending."""
        return await self._aask(self._results(name, so_far=True))

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        return self._ask(get_failures(self._context.keys, self._run.job.id))

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        return await self._aask(get_failures(self._context.keys, self._run.job.id))

    def spawn(self, children: Children) -> list[str]:
        """Add children of the job; return their ids."""
        steps = self._spawning(children)
        return note_spawned(self._run, self._ask(steps))

    async def aspawn(self, children: Children) -> list[str]:
        """Add children of the job; return their ids."""
        steps = self._spawning(children)
        return note_spawned(self._run, await self._aask(steps))

    def _spawning(self, children: Children) -> Steps[Spawned]:
        context = self._context
        return spawning(context.keys, self._run, children, context.clock.wall_ms())

    def drop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return self._ask(remove_unprocessed_children(self._context.keys, self._run.job.id))

    async def adrop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return await self._aask(remove_unprocessed_children(self._context.keys, self._run.job.id))

    async def aunclaimed(self, patience: float) -> float:
        """Note that nobody here can run the job; return for how many seconds that is known."""
        context = self._context
        now_ms = context.clock.wall_ms()
        note = note_unclaimed(context.keys, self._run.job.id, now_ms, to_ms(patience))
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
        # A name from the file system may have bytes that are not UTF-8: no line is worth the job.
        text = str(line).encode("utf-8", "backslashreplace").decode()
        return add_log(self._context.keys, job.id, text, keep=keep, token=token)

    def _data(self, raw: bytes) -> Request[None]:
        run = self._run
        return update_data(self._context.keys, run.job.id, raw, token=run.token)

    def _ask(self, question: Operation[T]) -> T:
        """Ask what the job cannot do without, from a thread; asking twice does no harm."""
        self._check()
        try:
            return self._context.sync_store.run(again(question), timeout=DATA.patience)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def _aask(self, question: Operation[T]) -> T:
        """Ask what the job cannot do without, from the event loop."""
        self._check()
        try:
            return await self._context.store.run(again(question), timeout=DATA.patience)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    def _send(self, call: Request[Any], kind: WriteKind) -> None:
        """Write, from a thread."""
        tries = self._tries(kind)
        for timeout in tries:
            try:
                self._context.sync_store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # it is lost
                    return
                time.sleep(pause)

    async def _asend(self, call: Request[Any], kind: WriteKind) -> None:
        """Write, from the event loop."""
        tries = self._tries(kind)
        for timeout in tries:
            try:
                await self._context.store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # it is lost
                    return
                await anyio.sleep(pause)

    def _tries(self, kind: WriteKind) -> Tries:
        began = monotonic()
        if not kind.vital and began < self._context.quiet_until:
            self._lose(kind, "Redis could not be reached a moment ago")
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
        """Return whether to try again; if not, raise what is vital, and lose the rest."""
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
                "Job %s (%s) of queue %s continues, but some of its %s may be lost: %s",
                cut(job.id),
                cut(job.name),
                self._context.keys.queue,
                kind.name,
                one_line(reason),
            )

    def _check(self) -> None:
        if self._run.lost is not None or self._run.decided:
            raise LockLost(self._context.keys.queue, self._run.job.id)
