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
from contextlib import contextmanager
from threading import get_ident
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar
from uuid import uuid4

import anyio
from anyio import to_thread
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Children
from taskbull.core.options import KEEP_LOGS
from taskbull.core.outcome import causes
from taskbull.core.steps import StepCall, StepKind
from taskbull.core.validation import from_ms, to_ms
from taskbull.errors import (
    ConnectionLost,
    JobControl,
    LockLost,
    MaybeExecuted,
    ServerRefused,
    TaskbullError,
)
from taskbull.observability.logs import cut, one_line
from taskbull.scripts import change
from taskbull.scripts.call import Operation, Request, Steps, again
from taskbull.scripts.groups import add_group_cost
from taskbull.scripts.read import get_failures, get_results
from taskbull.scripts.removal import remove_unprocessed_children
from taskbull.worker.context import QueueContext
from taskbull.worker.run import PortMethod, Run, spawning
from taskbull.worker.running_job import wait_record
from taskbull.worker.streaming import JobStream, is_passing

T = TypeVar("T")

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds that a queue's jobs drop progress and log lines, after a write timed out."""

_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


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
COST: Final = WriteKind("costs", 1.0, repeatable=False)

_OF_STREAMS: Final = frozenset({"open_stream", "emit", "flush_stream"})

STEPS: Final = WriteKind("steps", 10.0, vital=True)

_WRITES: Final = {
    "progress": PROGRESS,
    "log": LOG_LINE,
    "update_data": DATA,
    "add_cost": COST,
    "store_step": STEPS,
    "wait": STEPS,
}

Tries: TypeAlias = Generator[float, None, None]
"""A generator that yields the timeout of each try. Throw the error of a failed try into it to get
the pause before the next one."""


class Writing:
    """The storage of one running job in Redis, which retries failed writes."""

    is_virtual = False

    def __init__(self, run: Run, context: QueueContext) -> None:
        self._run = run
        self._context = context
        self._trouble: TaskbullError | None = None  # the error raised in the task
        self._warned = False
        self._waited = 0.0
        self._waits_since: float | None = None
        self._stream: JobStream | None = None

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for Redis."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else monotonic() - since)

    @property
    def has_stream(self) -> bool:
        """True if the job has begun to yield items."""
        return self._stream is not None

    def caused(self, error: BaseException) -> bool:
        """Return True if Redis caused a task's error. Steering exceptions do not count."""
        if self._trouble is None or isinstance(error, JobControl):
            return False
        return any(one is self._trouble for one in causes(error))

    def call(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write in a thread."""
        if method == "hold" and self._is_held():
            return None
        if method in _OF_STREAMS:
            return self._call_stream(method, *arguments)
        operation = getattr(self, f"_{method}")(*arguments)
        kind = _WRITES.get(method)
        return self._ask(operation) if kind is None else self._send(operation, kind)

    async def acall(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write in the event loop."""
        if method == "hold" and self._is_held():
            return None
        if get_ident() != self._context.thread:  # A sync function runs its own event loop.
            return await to_thread.run_sync(self.call, method, *arguments)
        if method in _OF_STREAMS:
            return await self._acall_stream(method, *arguments)
        operation = getattr(self, f"_{method}")(*arguments)
        kind = _WRITES.get(method)
        return await (self._aask(operation) if kind is None else self._asend(operation, kind))

    async def arecord_unknown_task(self, patience: float) -> float:
        """Record that this worker cannot run the job. See `JobPort`."""
        context = self._context
        now_ms = context.clock.wall_ms()
        note = change.record_unknown_task(context.keys, self._run.job.id, now_ms, to_ms(patience))
        return from_ms(await context.store.run(note, timeout=1.0))

    # The operations of `PortMethod`.

    def _child_results(self, name: str) -> Steps[list[bytes]]:
        so_far = self._run.spawned.new > 0
        return get_results(self._context.keys, self._run.job.id, name, so_far=so_far)

    def _child_results_so_far(self, name: str) -> Steps[list[bytes]]:
        return get_results(self._context.keys, self._run.job.id, name, so_far=True)

    def _child_failures(self) -> Operation[dict[tuple[str, str], str]]:
        return get_failures(self._context.keys, self._run.job.id)

    def _spawn(self, children: Children) -> Steps[list[str]]:
        context = self._context
        return spawning(context.keys, self._run, children, context.clock.wall_ms())

    def _drop_children(self) -> Operation[int]:
        return remove_unprocessed_children(self._context.keys, self._run.job.id)

    def _progress(self, raw: bytes) -> Request[None]:
        run = self._run
        return change.update_progress(self._context.keys, run.job.id, raw, token=run.token)

    def _log(self, line: str) -> Request[int]:
        job, token = self._run.job, self._run.token
        kept = job.options.keep_logs
        keep = KEEP_LOGS if kept is None else int(kept)
        # File names may contain bytes that are not UTF-8. A log line must not fail the job.
        text = str(line).encode("utf-8", "backslashreplace").decode()
        return change.add_log(self._context.keys, job.id, text, keep=keep, token=token)

    def _update_data(self, raw: bytes) -> Request[None]:
        run = self._run
        return change.update_data(self._context.keys, run.job.id, raw, token=run.token)

    def _load_steps(self) -> Request[dict[str, bytes]]:
        return change.get_steps(self._context.keys, self._run.job.id)

    def _store_step(self, field: str, record: bytes) -> Request[None]:
        self._run.stored_steps += 1
        return change.store_step(self._context.keys, self._holder(), field, record)

    def _wait(
        self,
        kind: StepKind,
        name: str,
        number: int,
        place: int,
        begun: tuple[int, int | None] | None,
        timeout_ms: int | None,
    ) -> Request[change.WaitReply | None]:
        run, context = self._run, self._context
        now_ms = context.clock.wall_ms()
        return change.begin_wait(
            context.keys,
            self._holder(),
            StepCall(kind, name, number, place),
            wait_record(begun, place, timeout_ms, now_ms),
            run.job.expires_ms,
            now_ms,
        )

    def _holder(self) -> change.Holder:
        run = self._run
        return change.Holder(run.job.id, run.token, to_ms(self._context.options.step_ttl))

    def _hold(self) -> Request[None]:
        return change.check_held(self._context.keys, self._run.job.id, self._run.token)

    def _is_held(self) -> bool:
        """Return True if the lock was renewed recently enough to be held without asking Redis."""
        self._check()
        return monotonic() - self._run.renewed <= self._context.options.lock_duration

    def _send_signal(self, job_id: str, name: str, raw: bytes) -> Steps[None]:
        now_ms = self._context.clock.wall_ms()
        signal = change.Signal(name, raw, uuid4().hex)
        return change.send_signal(self._context.keys, job_id, signal, now_ms)

    # The stream of a job that yields items.

    def _call_stream(self, method: PortMethod, *arguments: Any) -> None:
        stream, writer = self._open(*arguments), self._context.streams
        with self._waiting_for_redis():
            if method == "emit":
                writer.put(stream, *arguments)
            elif method == "flush_stream":
                writer.flush(stream)

    async def _acall_stream(self, method: PortMethod, *arguments: Any) -> None:
        stream, writer = self._open(*arguments), self._context.streams
        with self._waiting_for_redis():
            if method == "emit":
                await writer.aput(stream, *arguments)
            elif method == "flush_stream":
                await writer.aflush(stream)

    def _open(self, *limits: Any) -> JobStream:
        if self._stream is None:
            run = self._run
            # Redis ends the stream together with the job, which the fast path for new jobs omits.
            run.job = replace(run.job, fresh=False)
            self._stream = JobStream(run, self._context.keys, *limits)
            self._context.streams.add(self._stream)
        return self._stream

    @contextmanager
    def _waiting_for_redis(self) -> Generator[None]:
        began = self._waits_since = monotonic()
        try:
            yield
        except TaskbullError as error:
            if is_passing(error):
                self._trouble = error
            raise
        finally:
            self._waits_since = None
            self._waited += monotonic() - began

    def _add_cost(self, cost: int) -> Request[bool]:
        group, context = self._run.job.options.group_id or "", self._context
        return add_group_cost(context.keys, group, cost, context.clock.wall_ms())

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

    def _send(self, call: Request[Any], kind: WriteKind) -> Any:
        tries, reply = self._tries(kind), None
        for timeout in tries:
            try:
                reply = self._context.sync_store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # Best effort: give up on this write.
                    return None
                time.sleep(pause)
        return reply

    async def _asend(self, call: Request[Any], kind: WriteKind) -> Any:
        tries, reply = self._tries(kind), None
        for timeout in tries:
            try:
                reply = await self._context.store.run(call, timeout=timeout)
            except TaskbullError as error:
                try:
                    pause = tries.throw(error)
                except StopIteration:  # Best effort: give up on this write.
                    return None
                await anyio.sleep(pause)
        return reply

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
                    if not self._may_retry(kind, error, late=monotonic() + pause >= deadline):
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

    def _may_retry(self, kind: WriteKind, error: TaskbullError, *, late: bool) -> bool:
        """Return True to try again. Otherwise raise the error of a vital write, or drop it."""
        self._check()
        passing = is_passing(error)
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
