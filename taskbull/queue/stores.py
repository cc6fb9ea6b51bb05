"""Connections that queues share, and waiting for results."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import inf
from threading import TIMEOUT_MAX, Event, Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field

from taskbull.core.job import Ending, Job, NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.outcome import is_cancelled, is_expired
from taskbull.core.validation import command
from taskbull.errors import (
    ConnectionLost,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    MaybeExecuted,
    NotRecorded,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts.call import AnySteps, Call, Request, Steps, again
from taskbull.scripts.read import (
    BLOCK,
    Ends,
    find_ending,
    get_ending,
    get_job,
    last_event_id,
    read_ends,
)
from taskbull.store.address import Where, address_of
from taskbull.store.credentials import AskCredentials
from taskbull.store.sync_store import SyncStore

if TYPE_CHECKING:
    from taskbull.queue.event_loops import EventLoops, LoopContext
    from taskbull.store.async_store import Store


# Wait for the results of jobs in sync code, and read how a job finished.
#
# Three rules make a wait reliable:
#
# - The position in the event stream is read before the job. So a job finishes either before it is
#   read, or after that position.
# - A job that is removed when it finishes can no longer be read. Its event stays in the stream for
#     a while.
# - A waiter reads the job again now and then. Streams are trimmed, and some ways to remove a job
#     emit no event.


# Reading how a job finished


Found: TypeAlias = Ending | JobNotFound
"""Final state of a job, or the error for a job that does not exist."""


class Endings(Protocol):
    """Ends of jobs of one queue."""

    async def ending(self, job_id: str) -> Ending:
        """Wait until a job finishes."""
        ...


CHECK_INTERVAL = 30.0
"""Seconds between two reads of a job whose events may have been missed."""

_GONE: Final = (
    "it was never added, or it finished and was removed (by default, an app keeps completed jobs "
    "for one day, 10,000 at most; see keep_completed and keep_failed)"
)


def read_ending(queue: QueueKeys, job_id: str) -> Call[Found | None]:
    """Return a call that reads how a job finished.

    The reply is `JobNotFound` if the job does not exist, and None if it has not finished.
    """
    call = get_ending(queue, job_id)

    def read(reply: Any) -> Found | None:
        try:
            return call.parse(reply)
        except JobNotFound as error:
            return error

    return Call(call.script, call.keys, call.args, read)


def endings_in(queue: QueueKeys, ends: Ends) -> list[tuple[str, Found]]:
    """Return the final states in a batch of events, by job."""
    return [
        (job_id, JobNotFound(queue.queue, job_id) if ending is None else ending)
        for job_id, ending in ends.endings
    ]


def gone(queue: QueueKeys, job_id: str) -> JobNotFound:
    """Return the error for a job whose final state is no longer stored."""
    return JobNotFound(queue.queue, job_id, _GONE)


def settle(queue: QueueKeys, job_id: str, found: Found) -> Steps[Ending]:
    """Return the final state of a job, even if it was removed when it finished.

    Raises:
        JobNotFound: If the event stream no longer contains it.
    """
    if isinstance(found, Ending):
        return found
    ending: Ending | None = yield from again(find_ending(queue, job_id))
    if ending is None:
        raise gone(queue, job_id)
    return ending


def failure(queue: QueueKeys, job_id: str, reason: str) -> Steps[JobFailed | None]:
    """Return the error for a failed job, with the details that are still stored.

    Returns None if the job has been retried since. The reader of events is shared, so a wait that
    begins after the retry may still receive the event of the failure before it.
    """
    kind = failure_kind(reason)
    job: Job | None = yield from again(get_job(queue, job_id))
    if job is None:
        return kind(queue.queue, job_id, reason)
    if job.finished_on is None or job.failed_reason is None:
        return None
    return kind(queue.queue, job_id, reason, job.stacktrace, job.attempts_made)


def failure_kind(reason: str) -> type[JobFailed]:
    """Return the error class for a failure reason."""
    if is_cancelled(reason):
        return JobCancelled
    return JobExpired if is_expired(reason) else JobFailed


def not_in_time(
    queue: QueueKeys, job_id: str, timeout: float | None, problem: str = ""
) -> TimeoutError:
    """Return the error for a wait that timed out. A `problem` with Redis is named as the cause."""
    limit = "" if timeout is None else f" within {timeout:g} s"
    if problem:
        return TimeoutError(
            f"Job '{job_id}' in queue '{queue.queue}' did not finish{limit}, as far as is known: "
            f"{problem}"
        )
    return TimeoutError(
        f"Job '{job_id}' in queue '{queue.queue}' did not finish{limit}. Is a worker running for "
        f"this queue? To find out: {command('why', queue.queue, job_id)}"
    )


# Threads that wait for jobs. One of them reads the queue's event stream for all.
#
# A waiting thread either reads or sleeps. The reader passes the events to the other threads. When
# its own wait is over, for any reason, it wakes another thread to continue from the same position.
# So there is no background thread that could hang, get lost in a fork or outlive the program. A
# single wait costs no extra work, and each has its own deadline and errors. All other calls are
# made by one thread at a time, so any number of threads use two connections.


class _Waiter(Struct, eq=False):
    """One thread that waits for one job."""

    job_id: str
    found: Found | None = None
    news: Event = field(default_factory=Event)
    """Set when the result is known, or when this thread becomes the reader."""


class SyncResultWatch:
    """Waits for the jobs of one queue, for all threads of a process."""

    def __init__(self, keys: QueueKeys, store: SyncStore) -> None:
        self._keys = keys
        self._store = store
        self._asking = Lock()  # Held during a call. Acquire it before `_state`.
        self._state = Lock()  # Held only briefly.
        self._waiting: dict[str, list[_Waiter]] = {}
        self._reader: _Waiter | None = None
        self._place = ""  # Last position read. Empty if no thread waits.
        self._look_at = 0.0  # Time for the reader to read all jobs again.

    def ending(self, job_id: str, timeout: float | None) -> Ending:
        """Wait in this thread until a job has completed.

        Args:
            job_id: Id of the job.
            timeout: Time limit in seconds for the whole wait.

        Raises:
            JobFailed: If the job failed.
            JobNotFound: If the job does not exist.
            TimeoutError: If the job did not finish in time.
        """
        steps = self._completed(job_id, inf if timeout is None else monotonic() + timeout)
        try:
            return self._store.run(steps, total=timeout)
        except ConnectionLost as error:
            problem = str(error) if str(error).startswith("cannot connect") else ""
            raise not_in_time(self._keys, job_id, timeout, problem) from None
        finally:
            # Another thread takes over the reading immediately, even after a KeyboardInterrupt.
            steps.close()

    def _completed(self, job_id: str, deadline: float) -> Steps[Ending]:
        while True:
            waiter = _Waiter(job_id)
            try:
                found = yield from self._await_ending(waiter, deadline)
            finally:
                self._leave(waiter)
            if isinstance(found, Ending) and found.state is JobState.COMPLETED:
                return found
            with self._alone(deadline):
                ending = yield from settle(self._keys, job_id, found)
                if ending.state is not JobState.FAILED:
                    return ending
                error = yield from failure(self._keys, job_id, ending.failed_reason or "")
            if error is not None:
                raise error

    def _await_ending(self, waiter: _Waiter, deadline: float) -> Steps[Found]:
        with self._alone(deadline):
            with self._state:
                self._waiting.setdefault(waiter.job_id, []).append(waiter)
            if not self._place:  # No other thread waits.
                self._place = yield from again(last_event_id(self._keys))
                self._look_at = monotonic() + CHECK_INTERVAL
            found: Found | None = yield from again(read_ending(self._keys, waiter.job_id))
            if found is not None and (waiter.found is None or isinstance(found, Ending)):
                return found
        while waiter.found is None:
            if self._reads(waiter):
                yield from self._read(deadline)
            elif not waiter.news.wait(_left(deadline)):
                raise _late()
            waiter.news.clear()
        return waiter.found

    @contextmanager
    def _alone(self, deadline: float) -> Generator[None]:
        """Make this the only thread that sends calls."""
        if not self._asking.acquire(timeout=_left(deadline)):
            raise _late()
        try:
            yield
        finally:
            self._asking.release()

    def _reads(self, waiter: _Waiter) -> bool:
        """Return True if this waiter is the reader. It becomes the reader if there is none."""
        with self._state:
            if self._reader is None:
                self._reader = waiter
            return self._reader is waiter

    def _leave(self, waiter: _Waiter) -> None:
        """Stop waiting, and hand over the reading if this waiter was the reader."""
        with self._state:
            others = self._waiting.get(waiter.job_id, [])
            if waiter in others:
                others.remove(waiter)
                if not others:
                    del self._waiting[waiter.job_id]
            if not self._waiting:
                self._place = ""
            if self._reader is waiter:
                left = (one for each in self._waiting.values() for one in each)
                self._reader = next((one for one in left if one.found is None), None)
                if self._reader is not None:
                    self._reader.news.set()

    def _read(self, deadline: float) -> Steps[None]:
        """Read the stream once and notify the waiters of finished jobs."""
        if monotonic() >= self._look_at:
            yield from self._look()
            return
        block = min(BLOCK, deadline - monotonic())
        if block <= 0:
            raise _late()
        try:
            ends: Ends = yield read_ends(self._keys, self._place, block)
        except (MaybeExecuted, ServerUnavailable):
            self._look_at = 0.0  # The stream may have been trimmed by the time of the reconnect.
            return
        self._place = ends.place
        for job_id, found in endings_in(self._keys, ends):
            self._notify(job_id, found)

    def _look(self) -> Steps[None]:
        """Read all jobs that have waiters."""
        with self._state:
            waiting = list(self._waiting)
        for job_id in waiting:
            found: Found | None = yield from again(read_ending(self._keys, job_id))
            if found is not None:
                self._notify(job_id, found)
        self._look_at = monotonic() + CHECK_INTERVAL

    def _notify(self, job_id: str, found: Found) -> None:
        with self._state:
            for waiter in self._waiting.get(job_id, ()):
                if waiter.found is None:
                    waiter.found = found
                    waiter.news.set()


def _left(deadline: float) -> float:
    """Return the remaining seconds, limited to the range that locks accept."""
    return min(max(0.0, deadline - monotonic()), TIMEOUT_MAX)


def _late() -> ConnectionLost:
    return ConnectionLost("the time is over")


# Connections that queues share, and the code that runs operations on them.


# Errors without taskbull's internal tracebacks


_OF_REDIS = (ConnectionLost, MaybeExecuted, ServerRefused)

T = TypeVar("T")
E = TypeVar("E", bound=TaskbullError)


def stripped(error: E) -> E:
    """Return an error without its internal traceback, to be raised again.

    The message is complete. Forty lines of internal calls and previous errors would hide it. Raise
    the result `from error.__cause__`. A cause from the caller's code is kept. A Redis error moves
    from the cause to `__context__`, where it can still be inspected.
    """
    cause = error.__cause__
    if isinstance(cause, _OF_REDIS):
        error.__cause__, error.__context__ = None, cause
    return error.with_traceback(None)


# Stores: one async store per event loop, one sync store per process


class Detour(Protocol):
    """Takes jobs in place of Redis."""

    refusal: str
    """Message of the error for all other calls."""

    def add(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[Any]:
        """Take the jobs of a queue and return their handles."""
        ...

    async def aadd(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[Any]:
        """Take the jobs of a queue and return their handles."""
        ...


class Stores:
    """Provides the store for the current context. Stores are created when needed."""

    def __init__(
        self, redis: Where | None = None, credentials: AskCredentials | None = None
    ) -> None:
        self.address = address_of(redis, credentials)
        self._loops: EventLoops | None = None
        self._sync: SyncStore | None = None
        self._sync_result_watches: tuple[int, dict[str, SyncResultWatch]] = (os.getpid(), {})
        self.detour: Detour | None = None
        """Takes the place of Redis in tests and in inline mode."""

    @property
    def loop(self) -> LoopContext:
        """The context of the running event loop."""
        if self.detour is not None:
            raise NotRecorded(self.detour.refusal)
        if self._loops is None:
            # Importing asyncio and anyio takes a third as long again as the rest of taskbull.
            from taskbull.queue.event_loops import EventLoops  # noqa: PLC0415

            self._loops = EventLoops(self.address)
        return self._loops.running()

    def async_store(self) -> Store:
        """Return the store of the running event loop."""
        return self.loop.store

    def sync_store(self) -> SyncStore:
        """Return the store for code without an event loop."""
        if self.detour is not None:
            raise NotRecorded(self.detour.refusal)
        if self._sync is None:
            self._sync = SyncStore(self.address)
        return self._sync

    def sync_result_watch(self, keys: QueueKeys) -> SyncResultWatch:
        """Return the result watch of a queue, which all threads of this process share."""
        process, watches = self._sync_result_watches
        if process != os.getpid():  # After a fork, the reading thread does not exist here.
            process, watches = self._sync_result_watches = (os.getpid(), {})
        watch = watches.get(keys.base)
        return watch or watches.setdefault(keys.base, SyncResultWatch(keys, self.sync_store()))

    def run(self, operation: Request[T] | AnySteps[T], timeout: float | None) -> T:
        """Run an operation without an event loop. `timeout` applies to each of its requests."""
        try:
            return self.sync_store().run(operation, timeout=timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def arun(self, operation: Request[T] | AnySteps[T], timeout: float | None) -> T:
        """Run an operation in the running event loop. `timeout` applies to each request."""
        try:
            return await self.loop.store.run(operation, timeout=timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def close(self) -> None:
        """Close idle sync connections. Async connections are closed with their event loop."""
        if self._sync is not None:
            self._sync.close()
