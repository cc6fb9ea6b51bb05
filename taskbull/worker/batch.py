"""Many jobs in one call of their function: who is in it, and how its end becomes theirs."""

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
from taskbull.worker.clock import Alarm, Clock
from taskbull.worker.run import NotBegun, ends_the_slot
from taskbull.worker.running_job import RunningJob, enter_batch

# Many jobs in one call of their function: who is in it, and how its end becomes theirs.


class BatchRules(Struct, frozen=True):
    """How the jobs of a task are gathered."""

    size: int
    """How many items one call has, at the most."""
    wait: float
    """Seconds for which the first one waits for others."""
    parallel: int
    """How many calls may run at once."""
    read: Callable[[bytes], Any]
    """Reads the data of a job as an item."""


class Batch(Struct, frozen=True, eq=False):
    """The jobs of one call, and the items that they bring, in the same order.

    In a worker, those of a function in a process have none: it reads them there.
    """

    jobs: list[RunningJob]
    items: list[Any]


Perform: TypeAlias = Callable[[Batch, float | None], Awaitable[Any]]
"""Calls the function with a batch, which has so many seconds."""


class Gathered(Struct, eq=False):
    """A job that waits for its part of a call."""

    job: RunningJob
    item: Any
    timeout: float | None
    perform: Perform
    waiter: Waiter
    due: float = 0.0
    """When its call is to begin, at the latest."""
    call: BatchCall | None = None
    left: bool = False
    """Whether it was cancelled while it waited."""
    ended: bool = False
    """Whether it waits no longer."""
    value: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Let the job go on with its part of the result, or with an error."""
        self.value, self.error, self.ended = value, error, True
        if error is not None:
            self.traceback = error.__traceback__
        wake(self.waiter)

    def result(self) -> Any:
        """Return its part, or raise its error."""
        if self.error is not None:
            # Others may raise the same one: what each adds to the traceback stays apart.
            raise self.error.with_traceback(self.traceback)
        return self.value


class BatchCall(Struct, eq=False):
    """One call of the function, and who waits for it."""

    members: list[Gathered]
    scope: CancelScope | None = None
    """While it runs."""
    over: Event = field(default_factory=Event)
    """Set when it has ended."""

    def batch(self) -> Batch:
        """Return what the function is called with."""
        return Batch([one.job for one in self.members], [one.item for one in self.members])

    @property
    def timeout(self) -> float | None:
        """The seconds that it has: the shortest time that one of its members has."""
        return min((one.timeout for one in self.members if one.timeout is not None), default=None)

    def remaining(self) -> list[Gathered]:
        """Return those who have not left."""
        return [member for member in self.members if not (member.ended or member.left)]

    def end(self, results: Any, error: BaseException | None = None) -> None:
        """Give each member its part of the results, or all of them the error of the call.

        An exception among the results is the error of one member. If they are not as many as the
        members, that is an error of all. Those who have left and wait for the end get a result that
        comes all the same, but not the error of a call that was cancelled because of them.
        """
        parts: list[Any] = []
        if error is None:
            try:
                parts = checked_results(results, [one.job for one in self.members])
            except Exception as wrong:  # noqa: BLE001 - foreign code: a list may be of any kind
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
    """Return what a function has returned for a batch, if that is one result for each job."""
    name, count = jobs[0].name, len(jobs)
    if not _is_list(results):
        kind = type(results).__qualname__
        raise PermanentError(
            f"Batch task {name} returned a value of type {kind}, not a list of {count} results"
        )
    found = [*results]
    if len(found) != count:
        raise PermanentError(f"Batch task {name} returned {len(found)} results for {count} items")
    return found


def _is_list(results: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(results, Sequence) and not isinstance(results, str | bytes | bytearray)


class Joinable(Protocol):
    """Where the jobs of a task wait for each other."""

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any: ...


class Gathering(Protocol):
    """Knows where the jobs of each task wait for each other."""

    def of(self, task: str, rules: BatchRules) -> Joinable: ...


# Where jobs wait for each other that one call runs, and when that call begins.
#
# Its rules:
#
# - Each job keeps its own slot, lock and policy, and finishes here with its own result or error.
# - A call is a task of its own: whoever cancels a job cannot hurt its neighbours. A job that is
#   cancelled leaves; when all jobs of a call have left, the call is cancelled. Those who leave
#   together, as they do when their worker stops, wait for its end: until then no other worker is to
#   run them, and a result that still comes is theirs.
# - A call starts when `size` jobs are waiting, when the first has waited for `wait` seconds, or
#   immediately if waiting jobs occupy all slots of a queue, so that no other job can come.
# - A job in its last attempt of several is called alone, and so is one that has stalled: one that
#   ruins each call it is in ruins only its own in the end.


Start: TypeAlias = Callable[[Callable[[BatchCall], Coroutine[Any, Any, None]], BatchCall], object]
"""Starts the task of a call."""

_ENDING = 600.0
"""Seconds that a call has to end: a process is killed after its own grace, long before."""


class Gatherer:
    """Gathers the jobs of one task, and calls its function with many at a time."""

    def __init__(
        self,
        rules: BatchRules,
        slots: Mapping[str, int],
        start: Start,
        clock: Clock,
        alarm: Alarm,
    ) -> None:
        """Make one for queues with so many slots; when the alarm rings, somebody must `look`."""
        self._rules = rules
        self._slots = slots
        self._start = start
        self._clock = clock
        self._alarm = alarm
        self._new_waiter = waiters()
        self._together: dict[Gathered, None] = {}
        self._alone: dict[Gathered, None] = {}
        self._waiting: Counter[str] = Counter()  # those of `_together`, by queue
        self._here: Counter[str] = Counter()  # all of a queue that wait or are in a call
        self._calls = 0

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any:
        """Wait for the call that the job becomes part of; return its own part of the result."""
        member = Gathered(job, item, timeout, perform, self._new_waiter(), self._clock.now())
        if is_called_alone(job):
            self._alone[member] = None
        else:
            member.due += self._rules.wait
            self._together[member] = None
            self._waiting[job.queue] += 1
        self._here[job.queue] += 1
        try:
            self.look()
            await member.waiter
        except get_cancelled_exc_class():
            if not await self._ends_all_the_same(member):
                raise
        finally:
            self._leave(member)
        return member.result()

    def look(self) -> None:
        """Begin the calls that are due."""
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

    def _next(self) -> list[Gathered]:
        """Take out the members of the next call."""
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

    def _may_begin(self, member: Gathered) -> bool:
        """Let a job go that expired while it waited, or whose lock is gone: another may run it."""
        job = member.job
        error: Exception | None = None
        if job.lost:
            error = LockLost(job.queue, job.id)
        elif (late := job.too_late()) is not None:
            error = NotBegun(late)
        if error is not None:
            self._here[job.queue] -= 1
            member.end(error=error)
        return error is None

    async def _ends_all_the_same(self, member: Gathered) -> bool:
        """Let a job leave that is cancelled; return whether its part of the result has come.

        It may have come at the same instant, or from a function that was cancelled.
        """
        self._leave(member)
        if member.call is not None and not member.ended:
            await _until_over(member.call)
        came, member.ended = member.ended, True
        return came

    def _leave(self, member: Gathered) -> None:
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
        """BatchCall the function, and give each job its part."""
        try:
            with CancelScope() as call.scope:
                call.members = call.remaining()  # some may have left before it could begin
                if call.members:
                    await self._perform(call)
        finally:
            call.scope = None
            call.over.set()
            self._calls -= 1
            self.look()

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
    def job_in(cls, frame: FrameType) -> Job | None:
        """Return the first job of the call that a frame runs: the watchdog asks."""
        if frame.f_code is not cls._perform.__code__:
            return None
        call: BatchCall = frame.f_locals["call"]
        return call.members[0].job.job


async def _until_over(call: BatchCall) -> None:
    """Wait for the end of a call that all its jobs have left; if some remain, do not wait."""
    with move_on_after(_ENDING, shield=True):
        await checkpoint()  # whoever is cancelled at the same time leaves now
        if not call.remaining():
            await call.over.wait()


def is_called_alone(job: RunningJob) -> bool:
    """Return whether a job is not to share its call with others: its last chance is its own."""
    return job.job.stalled_count > 0 or 1 < job.attempts <= job.attempt


class Batches:
    """The gatherers of a worker, one for each task, and the tasks in which their calls run."""

    def __init__(self, clock: Clock, slots: Mapping[str, int]) -> None:
        """Make them for queues of which so many jobs run at once."""
        self._clock = clock
        self._alarm = Alarm(clock)
        self._slots = slots
        self._gatherers: dict[str, Gatherer] = {}
        self._start: Start | None = None

    def of(self, task: str, rules: BatchRules) -> Gatherer:
        """Return the gatherer of a task, always the same; while `run` runs."""
        gatherer = self._gatherers.get(task)
        if gatherer is None:
            assert self._start is not None  # noqa: S101 - `run` begins before the first job
            gatherer = Gatherer(rules, self._slots, self._start, self._clock, self._alarm)
            self._gatherers[task] = gatherer
        return gatherer

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Run the calls, until cancelled; each in a context in which no job runs."""
        context = copy_context()
        async with create_task_group() as calls:
            self._start = lambda run, call: context.run(lambda: calls.start_soon(run, call))
            task_status.started()
            await self._alarm.run(self._look)

    def _look(self) -> None:
        for gatherer in self._gatherers.values():
            gatherer.look()
