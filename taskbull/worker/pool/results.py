"""What a job in a process asks of its worker, which alone has Redis and the lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.failure import reason_of
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Fail,
    Failure,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.errors import (
    PermanentError,
    ProcessDied,
    RaisedInProcess,
    RateLimited,
    Retry,
    Snooze,
    Steering,
    TaskbullError,
    TransientError,
    WaitForChildren,
)
from taskbull.store.backend import Waiter, wake
from taskbull.worker.pool.messages import (
    Ask,
    Done,
    Ended,
    Fate,
    FateKind,
    Fault,
    Order,
    Question,
    Raised,
    Reply,
    Standing,
    check_length,
    encode,
    pack_fault,
)
from taskbull.worker.run import JobPort, Run, Spawning
from taskbull.worker.running_job import RunningJob, clock_ahead_ms, port_of, run_of
from taskbull.worker.threads import Stoppable

# What a job in a process asks of its worker, which alone has Redis and the lock.


async def perform(ask: Ask, job: RunningJob) -> Reply:
    """Do what a job asks for; what goes wrong is part of the answer."""
    port = port_of(job)
    try:
        return Reply(ask.number, await _perform(ask, port, run_of(job)))
    except (WaitForChildren, PermanentError) as error:
        return Reply(ask.number, fault=Fault(type(error).__name__, str(error)))
    except TaskbullError as error:
        return Reply(ask.number, fault=pack_fault(error, of_redis=port.caused(error)))
    except Exception as error:  # noqa: BLE001 - the job is told, whatever it is
        return Reply(ask.number, fault=Fault(TaskbullError.__name__, reason_of(error)))


async def _perform(ask: Ask, port: JobPort, run: Run) -> Any:
    argument = ask.argument
    match ask.question:
        case Question.PROGRESS:
            await port.aprogress(argument)
            run.raw_progress = argument
        case Question.LOG:
            await port.alog(argument.decode())
        case Question.UPDATE_DATA:
            await port.aupdate_data(argument)
        case Question.CHILD_RESULTS:
            return await port.achild_results(argument.decode())
        case Question.CHILD_RESULTS_SO_FAR:
            return await port.achild_results_so_far(argument.decode())
        case Question.CHILD_FAILURES:
            failures = await port.achild_failures()
            return [[queue, job_id, reason] for (queue, job_id), reason in failures.items()]
        case Question.DROP_CHILDREN:
            return await port.adrop_children()
    return None


# One call of a function in a process of the pool: its jobs, on their way there and back.


_ROOM = 65_536
"""Bytes for what an order has besides the job's data."""

End: TypeAlias = list[Ended] | TaskbullError
"""How a call ends: as the process says of each job, or because there is no process any more."""


class Seat(ABC):
    """A process, as calls see it: it has one of them, or none.

    All is written under the lock of the roster.
    """

    def __init__(self) -> None:
        self.call: PoolCall | None = None
        """What the process runs."""
        self.dismissed = False
        """Whether it is given no other job."""
        self.halted = False
        """Whether that is so because its job is ended from outside."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a message, without waiting; from any thread."""

    @abstractmethod
    def tell(self, standing: Standing) -> None:
        """Let the process know how a job of its call stands; from any thread."""

    @abstractmethod
    def halt(self, call: PoolCall, reason: str) -> None:
        """End a call that runs here: the process is told, then killed after the call's grace."""


class PoolCall:
    """A call of a function, until its end is known.

    `seat` is written under the lock of the roster, `ends` by the thread of the process; `inbox` and
    `waiter` belong to the event loop.
    """

    __slots__ = (
        "clock",
        "context",
        "ends",
        "grace",
        "inbox",
        "is_halted",
        "jobs",
        "number",
        "order",
        "seat",
        "waiter",
        "was_returned",
    )

    def __init__(
        self,
        number: int,
        jobs: Sequence[RunningJob],
        context: Context,
        grace: float,
        clock: Stoppable | None,
    ) -> None:
        self.number = number
        self.jobs = jobs
        more = len(jobs)
        self.order = b"".join([encode(_order(number, more := more - 1, job)) for job in jobs])
        self.context = context
        """That of the running job, or jobs; what the process logs gets the job's fields from it."""
        self.grace = grace
        self.clock = clock
        """What is stopped until a process is free."""
        self.seat: Seat | None = None
        """Where it is: None while it waits for a process."""
        self.ends: list[Ended] = []
        """How its jobs have ended, in their order."""
        self.is_halted = False
        """Whether it is to end."""
        self.was_returned = False
        """Whether a process died before it began the call."""
        self.inbox: deque[Ask | End] = deque()
        self.waiter: Waiter | None = None

    def listen(self) -> None:
        """Let the process know of each job that is cancelled, or whose lock is lost."""
        for place, job in enumerate(self.jobs):
            run_of(job).notify = partial(self._tell, place)

    def late_order(self) -> bytes:
        """Return the order of a call that had to wait; before it, what has happened meanwhile.

        By the same line: the function may ask as soon as it is called.
        """
        return b"".join((*map(encode, self.standings()), self.order))

    def standings(self) -> Iterator[Standing]:
        """Give what the process has to know of its jobs so far."""
        for place, job in enumerate(self.jobs):
            run = run_of(job)
            if run.cancelled is not None or run.lost is not None:
                yield self._standing(place)

    def _standing(self, place: int) -> Standing:
        run = run_of(self.jobs[place])
        return Standing(self.number, place, run.cancelled, run.lost is not None)

    def _tell(self, place: int) -> None:
        # It is noted in the run first, and a call gets its seat before its order is made: one of
        # the two tells.
        if self.seat is not None:
            self.seat.tell(self._standing(place))

    def deliver(self, message: Ask | End) -> None:
        """Take in what was told; in the event loop."""
        self.inbox.append(message)
        if self.waiter is not None:
            wake(self.waiter)

    def wait(self) -> None:
        """Note that it waits for a process again; in the event loop."""
        if self.clock is not None:
            self.clock.stop()

    def begin(self) -> None:
        """Note that a process has it, after it had to wait; in the event loop."""
        if self.clock is not None:
            self.clock.go_on()


def check_size(job: RunningJob) -> None:
    """Refuse a job that no process could be given, before others are called with it."""
    check_length(len(job.job.raw_data) + _ROOM)


def _order(number: int, more: int, running: RunningJob) -> Order:
    job = running.job
    return Order(
        number,
        more,
        running.queue,
        job.id,
        job.name,
        job.raw_data,
        msgspec.json.encode(job.options),
        job.created_ms,
        job.delay_ms,
        job.priority,
        job.attempts_made,
        job.attempts_started,
        job.stalled_count,
        job.previous_delay_ms,
        job.processed_ms,
        job.dedup_key,
        job.scheduler_id,
        job.parent_key,
        job.expiry_lifted,
        run_of(running).token,
        clock_ahead_ms(running),
    )


# What is to become of a job whose function raised in a process: told there, followed here.


PUT_OFF = Fate(FateKind.PUT_OFF)
TERMINATED = Fate(FateKind.TERMINATED)


def fate_of(outcome: Written) -> Fate:
    """Return an outcome as it is told: without its error, which stays where it is."""
    match outcome:
        case Fail(failure, verdict):
            return Fate(FateKind.FAIL, failure.category, verdict)
        case RetryAfter(failure, delay, remembered):
            return Fate(FateKind.RETRY, failure.category, "", delay, remembered)
        case SnoozeFor(delay):
            return Fate(FateKind.SNOOZE, delay=delay)
        case LimitQueue(delay):
            return Fate(FateKind.LIMIT, delay=delay)
        case AwaitChildren():
            return Fate(FateKind.AWAIT_CHILDREN)
        case _:
            raise TypeError(f"an error does not end in {outcome!r}")


def error_of(raised: Raised) -> Exception:
    """Return what is raised here for an error there: a steering word as itself."""
    error = RaisedInProcess(raised.kind, raised.reason, raised.stack, raised.fate)
    word = _word(raised)
    if word is None:
        return error
    word.__cause__ = error
    error.word = word
    return word


def told_by(error: BaseException) -> RaisedInProcess | None:
    """Return what a process has told, unless a middleware has made another error of it."""
    if isinstance(error, RaisedInProcess):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, RaisedInProcess) and cause.word is error else None


def outcome_of(raised: RaisedInProcess, run: Run) -> Outcome | None:
    """Return what is to become of the job; None: Redis did not take what it had to write."""
    fate: Fate = raised.fate
    match fate.kind:
        case FateKind.FAIL:
            return Fail(_failure(raised, fate), Verdict(fate.verdict))
        case FateKind.RETRY:
            return RetryAfter(_failure(raised, fate), fate.delay, fate.remembered_delay)
        case FateKind.SNOOZE:
            return SnoozeFor(fate.delay)
        case FateKind.LIMIT:
            return LimitQueue(fate.delay)
        case FateKind.AWAIT_CHILDREN:
            return run.awaiting_children()
        case FateKind.PUT_OFF | FateKind.TERMINATED:
            return None


def _failure(raised: RaisedInProcess, fate: Fate) -> Failure:
    return Failure(Category(fate.category), str(raised), raised.stack, raised.word or raised)


def _word(raised: Raised) -> Steering | None:
    """Return the word by which the task steers its worker, if it was one of ours."""
    make = _WORDS.get(raised.kind)
    return None if make is None else make(raised.reason, raised.fate.delay)


def _retry(reason: str, delay: float) -> Steering:
    return Retry(reason, after=delay)


def _permanent(reason: str, _: float) -> Steering:
    return PermanentError(reason)


def _transient(reason: str, _: float) -> Steering:
    return TransientError(reason)


def _snooze(_: str, delay: float) -> Steering:
    return Snooze(delay)


def _rate_limited(_: str, delay: float) -> Steering:
    return RateLimited(delay)


def _wait_for_children(_: str, __: float) -> Steering:
    return WaitForChildren()


_WORDS: dict[str, Callable[[str, float], Steering]] = {
    f"{kind.__module__}.{kind.__qualname__}": make
    for kind, make in (
        (Retry, _retry),
        (Snooze, _snooze),
        (RateLimited, _rate_limited),
        (WaitForChildren, _wait_for_children),
        (PermanentError, _permanent),
        (TransientError, _transient),
    )
}


# What came of the jobs of a call in a process, when that is over.


Result: TypeAlias = bytes | Exception | None
"""What came of a job: its result as JSON (None: null), or what was raised for it."""


class Json(Struct, frozen=True):
    """A result that is JSON already, and was checked where it was made."""

    raw: bytes


def results_of(jobs: Sequence[RunningJob], end: End) -> list[Result]:
    """Return what came of each job; raise what has ended the process."""
    if isinstance(end, TaskbullError):
        raise end
    return [_result(each, run_of(job)) for each, job in zip(end, jobs, strict=True)]


def has_value(end: End | None) -> TypeGuard[list[Ended]]:
    """Return whether a function that was to be ended has returned a result before."""
    return isinstance(end, list) and any(isinstance(each, Done) for each in end)


def note_halted(jobs: Sequence[RunningJob], end: End | None) -> None:
    """Note where a function was when it was ended, if that is known."""
    if isinstance(end, list):
        stack = next((each.stack for each in end if isinstance(each, Raised)), "")
    else:
        stack = "\n".join(getattr(end, "__notes__", ()))
    for job in jobs:
        run_of(job).halted_at = stack


def opened(result: Result, *, read: bool) -> Any:
    """Return a result as those who surround the job see it: if nobody does, it stays JSON."""
    if not isinstance(result, bytes):
        return result
    return payload.decode(result) if read else Json(result)


def _result(end: Ended, run: Run) -> Result:
    if any(end.spawned):
        run.spawned = Spawning(*end.spawned)
    if isinstance(end, Done):
        run.heeded = run.heeded or end.heeded
        return end.value
    if end.fate.kind is FateKind.TERMINATED:
        return ProcessDied(f"the process was told to end, not by its worker: {end.reason}")
    return error_of(end)
