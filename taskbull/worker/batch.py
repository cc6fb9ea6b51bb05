"""Run many jobs of a batch task in one call of its function.

`BatchCollector` collects waiting jobs and starts calls. `BatchCall` gives each job its own result
or error. `Batches` holds the collectors of a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeAlias, TypeGuard

from anyio import (
    TASK_STATUS_IGNORED,
    CancelScope,
    Event,
    create_task_group,
    get_cancelled_exc_class,
    move_on_after,
)
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint
from msgspec import Struct, field

from taskbull.core.job import Job
from taskbull.errors import LockLost, PermanentError
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.worker.run import Alarm, Clock, NotStarted, Run, ends_the_slot
from taskbull.worker.running_job import RunningJob, enter_batch, run_of


class BatchRules(Struct, frozen=True):
    """The rules for gathering a task's jobs into batches."""

    size: int
    """Maximum number of items per call."""
    wait: float
    """Seconds that the first job waits for more jobs."""
    parallel: int
    """Maximum number of concurrent calls."""
    read: Callable[[bytes], Any]
    """Decoder that turns a job's raw data into an item."""


class Batch(Struct, frozen=True, eq=False):
    """The jobs of one call and their items, in the same order.

    For a function that runs in a pool process, every item is None, because the process decodes
    them.
    """

    jobs: list[RunningJob]
    items: list[Any]


Perform: TypeAlias = Callable[[Batch, float | None], Awaitable[Any]]
"""A function that calls the task's function with a batch and a timeout in seconds."""


class BatchMember(Struct, eq=False):
    """A job that waits for its share of a batch call."""

    job: RunningJob
    item: Any
    timeout: float | None
    perform: Perform
    waiter: Waiter
    due: float = 0.0
    """The latest time to start its call."""
    call: BatchCall | None = None
    left: bool = False
    """True if the job was cancelled while it waited."""
    ended: bool = False
    """True once the job has its result or error."""
    value: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Resume the job with its result or an error."""
        self.value, self.error, self.ended = value, error, True
        if error is not None:
            self.traceback = error.__traceback__
        wake(self.waiter)

    def result(self) -> Any:
        """Return the job's result, or raise its error."""
        if self.error is not None:
            # Several members may raise the same error; keep their tracebacks separate.
            raise self.error.with_traceback(self.traceback)
        return self.value


class BatchCall(Struct, eq=False):
    """One call of the function and the jobs that wait for it."""

    members: list[BatchMember]
    scope: CancelScope | None = None
    """The scope that the call runs in, or None while it is not running."""
    over: Event = field(default_factory=Event)
    """Set when the call has finished."""

    def batch(self) -> Batch:
        """Return the function's argument."""
        return Batch([one.job for one in self.members], [one.item for one in self.members])

    @property
    def timeout(self) -> float | None:
        """The time limit in seconds: the shortest timeout of any member."""
        return min((one.timeout for one in self.members if one.timeout is not None), default=None)

    def remaining(self) -> list[BatchMember]:
        """Return the members that are still waiting."""
        return [member for member in self.members if not (member.ended or member.left)]

    def end(self, results: Any, error: BaseException | None = None) -> None:
        """Give each member its result, or all of them the call's error.

        An exception among the results is one member's error. If the number of results is wrong, all
        members get an error. Members that left and wait for the call to finish still get a result,
        but not an error: the call may have been cancelled because of them.
        """
        parts: list[Any] = []
        if error is None:
            try:
                parts = checked_results(results, [one.job for one in self.members])
            except Exception as wrong:  # noqa: BLE001 - the list's class may be user code
                error = wrong
        if error is not None:
            parts = [error] * len(self.members)
        for member, part in zip(self.members, parts, strict=True):
            if member.ended or (member.left and error is not None):
                continue
            if isinstance(part, BaseException):
                member.end(error=part)
            else:
                member.end(part)


def checked_results(results: Any, jobs: Sequence[RunningJob]) -> list[Any]:
    """Return the results of a batch call as a list.

    Raises `PermanentError` unless there is exactly one result per job.
    """
    name, count = jobs[0].name, len(jobs)
    if not _is_list(results):
        kind = type(results).__qualname__
        raise PermanentError(
            f"Batch task {name} returned a value of type {kind}, not a list of {count} results"
        )
    found = [*results]
    if len(found) != count:
        raise PermanentError(
            f"Batch task {name} returned a list of {len(found)} instead of {count} results"
        )
    return found


def _is_list(results: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(results, Sequence) and not isinstance(results, str | bytes | bytearray)


class Joinable(Protocol):
    """A gatherer that a job can join."""

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any: ...


class Gathering(Protocol):
    """A registry of collectors by task."""

    def of(self, task: str, rules: BatchRules) -> Joinable: ...


# Gathering. The rules:
#
# - Each job keeps its own slot, lock and policy, and finishes here with its own result or error.
# - A call runs in its own task, so cancelling one job does not affect the others. A cancelled job
#   leaves; when all jobs have left, the call is cancelled. Jobs that leave together, as in a
#   shutdown, wait for the call to finish. No other worker may run them before, and they still get a
#   late result.
# - A call starts when `size` jobs are waiting, or when the first has waited for `wait` seconds. It
#   starts immediately if waiting jobs occupy all slots of a queue, so that no other job can come.
# - A job that has stalled, or is in its last of several attempts, is called alone. A job that
#   breaks every call it is in then finally breaks only its own.


Start: TypeAlias = Callable[[Callable[[BatchCall], Coroutine[Any, Any, None]], BatchCall], object]
"""A function that starts a task for a call."""

_ENDING = 600.0
"""Seconds to wait for a cancelled call. A pool process is killed long before, after its own
grace."""


class BatchCollector:
    """Gathers one task's jobs and calls its function with many of them at a time."""

    def __init__(
        self,
        rules: BatchRules,
        slots: Mapping[str, int],
        start: Start,
        clock: Clock,
        alarm: Alarm,
    ) -> None:
        """Create a gatherer; `slots` is the concurrency of each queue.

        The owner of `alarm` must call `check` when it goes off.
        """
        self._rules = rules
        self._slots = slots
        self._start = start
        self._clock = clock
        self._alarm = alarm
        self._new_waiter = waiters()
        self._together: dict[BatchMember, None] = {}
        self._alone: dict[BatchMember, None] = {}
        self._waiting: Counter[str] = Counter()  # members of `_together`, by queue
        self._here: Counter[str] = Counter()  # members that wait or are in a call, by queue
        self._calls = 0

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any:
        """Wait for a batch call that includes the job, and return the job's own result."""
        member = BatchMember(job, item, timeout, perform, self._new_waiter(), self._clock.now())
        if is_called_alone(job):
            self._alone[member] = None
        else:
            member.due += self._rules.wait
            self._together[member] = None
            self._waiting[job.queue] += 1
        self._here[job.queue] += 1
        try:
            self.check()
            await member.waiter
        except get_cancelled_exc_class():
            if not await self._finishes_within_grace(member):
                raise
        finally:
            self._leave(member)
        return member.result()

    def check(self) -> None:
        """Start the calls that are due."""
        while self._calls < self._rules.parallel and self._is_due():
            call = BatchCall([member for member in self._next() if self._may_begin(member)])
            if call.members:
                self._calls += 1
                for member in call.members:
                    member.call = call
                self._start(self._run, call)
        if self._together and self._calls < self._rules.parallel:
            self._alarm.set(next(iter(self._together)).due)

    def _is_due(self) -> bool:
        if self._alone or len(self._together) >= self._rules.size:
            return True
        first = next(iter(self._together), None)
        if first is None:
            return False
        if self._clock.now() >= first.due:
            return True
        return any(
            count and self._here[queue] >= self._slots[queue]
            for queue, count in self._waiting.items()
        )

    def _next(self) -> list[BatchMember]:
        """Remove and return the members of the next call."""
        alone = next(iter(self._alone), None)
        first = next(iter(self._together), None)
        if alone is not None and (first is None or alone.due <= first.due):
            del self._alone[alone]
            return [alone]
        members = list(islice(self._together, self._rules.size))
        for member in members:
            del self._together[member]
            self._waiting[member.job.queue] -= 1
        return members

    def _may_begin(self, member: BatchMember) -> bool:
        """Return True if the job may still run.

        If it expired while it waited, or lost its lock, finish it with an error instead.
        """
        job = member.job
        error: Exception | None = None
        if job.lost:
            error = LockLost(job.queue, job.id)
        elif (late := job.too_late()) is not None:
            error = NotStarted(late)
        if error is not None:
            self._here[job.queue] -= 1
            member.end(error=error)
        return error is None

    async def _finishes_within_grace(self, member: BatchMember) -> bool:
        """Remove a cancelled job, and return True if its result arrived anyway.

        The result may have arrived at the same instant, or from a function that was cancelled.
        """
        self._leave(member)
        if member.call is not None and not member.ended:
            await _until_over(member.call)
        was_ended, member.ended = member.ended, True
        return was_ended

    def _leave(self, member: BatchMember) -> None:
        if member.ended or member.left:
            return
        member.left = True
        self._here[member.job.queue] -= 1
        self._alone.pop(member, None)
        if member in self._together:
            del self._together[member]
            self._waiting[member.job.queue] -= 1
        call = member.call
        if call is not None and call.scope is not None and not call.remaining():
            call.scope.cancel()

    async def _run(self, call: BatchCall) -> None:
        try:
            with CancelScope() as call.scope:
                # Some members may have left before the call started.
                call.members = call.remaining()
                if call.members:
                    await self._perform(call)
        finally:
            call.scope = None
            call.over.set()
            self._calls -= 1
            self.check()

    async def _perform(self, call: BatchCall) -> None:
        batch = call.batch()
        enter_batch(batch.jobs)
        error: BaseException | None = None
        results: Any = None
        try:
            results = await call.members[0].perform(batch, call.timeout)
        except BaseException as raised:
            if ends_the_slot(raised):
                raise
            error = raised
        self._here.subtract(member.job.queue for member in call.remaining())
        call.end(results, error)

    @classmethod
    def runs(cls, frame: FrameType, run: Run) -> bool:
        """Return True if a frame runs a batch with this job."""
        if frame.f_code is not cls._perform.__code__:
            return False
        call: BatchCall = frame.f_locals["call"]
        return any(run_of(member.job) is run for member in call.members)

    @classmethod
    def job_in(cls, frame: FrameType) -> Job | None:
        """Return the first job of the call that a frame runs, if any. For the watchdog."""
        if frame.f_code is not cls._perform.__code__:
            return None
        call: BatchCall = frame.f_locals["call"]
        return call.members[0].job.job


async def _until_over(call: BatchCall) -> None:
    """Wait for a call to finish if all its jobs have left it."""
    with move_on_after(_ENDING, shield=True):
        await checkpoint()  # Let jobs that were cancelled at the same time leave first.
        if not call.remaining():
            await call.over.wait()


def is_called_alone(job: RunningJob) -> bool:
    """Return True if a job must not share its call: it has stalled, or this is its last attempt.

    A job with only one attempt may share its call.
    """
    return job.job.stalled_count > 0 or 1 < job.attempts <= job.attempt


class Batches:
    """A worker's collectors, one per task, and the task group that runs their calls."""

    def __init__(self, clock: Clock, slots: Mapping[str, int]) -> None:
        """Create the registry; `slots` is the concurrency of each queue."""
        self._clock = clock
        self._alarm = Alarm(clock)
        self._slots = slots
        self._gatherers: dict[str, BatchCollector] = {}
        self._start: Start | None = None

    def of(self, task: str, rules: BatchRules) -> BatchCollector:
        """Return the task's gatherer, creating it on first use. `run` must be running."""
        gatherer = self._gatherers.get(task)
        if gatherer is None:
            assert self._start is not None  # noqa: S101 - `run` starts before the first job
            gatherer = BatchCollector(rules, self._slots, self._start, self._clock, self._alarm)
            self._gatherers[task] = gatherer
        return gatherer

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Run the calls until cancelled, each in a context without a current job."""
        context = copy_context()
        async with create_task_group() as calls:
            self._start = lambda run, call: context.run(lambda: calls.start_soon(run, call))
            task_status.started()
            await self._alarm.run(self._check)

    def _check(self) -> None:
        for gatherer in self._gatherers.values():
            gatherer.check()
