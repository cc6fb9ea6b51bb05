"""How a job has ended: asking for it, and reading it from the queue's event stream.

Three facts make a wait sure. The place in the stream is taken *before* the job is looked at, so an
ending falls either before the look or behind the place. A job that was removed when it ended is not
to be looked at any more, but its event stands in the stream for a while. And whoever waits looks
again now and then, because a stream is trimmed, and some ways of removing a job say nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from threading import TIMEOUT_MAX, Event, Lock
from time import monotonic
from typing import Any, Final, TypeAlias

from taskbull.core.cancelling import is_cancelled
from taskbull.core.job import Ending, Job
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import is_expired
from taskbull.core.states import JobState
from taskbull.errors import (
    ConnectionLost,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    MaybeExecuted,
    ServerUnavailable,
)
from taskbull.scripts.call import Call, Steps, again
from taskbull.scripts.events import BLOCK, Ends, find_ending, last_event_id, read_ends
from taskbull.scripts.read import get_ending, get_job
from taskbull.store.sync_store import SyncStore

# How a job has ended: asking for it, and reading it from the queue's event stream.
#
# Three facts make a wait sure. The place in the stream is taken *before* the job is looked at, so
# an ending falls either before the look or behind the place. A job that was removed when it ended
# is not to be looked at any more, but its event stands in the stream for a while. And whoever
# waits looks again now and then, because a stream is trimmed, and some ways of removing a job say
# nothing.


Told: TypeAlias = Ending | JobNotFound
"""What can be told about a job that runs no more."""

LOOK_AGAIN = 30.0
"""Seconds between two looks at a job whose events may have been missed."""

_GONE: Final = (
    "it was never added, or it has ended and was removed since. How many ended jobs stay, and for "
    "how long, is said by keep_completed and keep_failed (of an app: the last 10,000 completed "
    "ones, for a day)"
)


def look(queue: QueueKeys, job_id: str) -> Call[Told | None]:
    """Find out how a job has ended, or that it is not there; None: not yet ended."""
    call = get_ending(queue, job_id)

    def read(reply: Any) -> Told | None:
        try:
            return call.parse(reply)
        except JobNotFound as error:
            return error

    return Call(call.script, call.keys, call.args, read)


def told_by(queue: QueueKeys, ends: Ends) -> list[tuple[str, Told]]:
    """Return what the ends that were read tell of each job."""
    return [
        (job_id, JobNotFound(queue.queue, job_id) if ending is None else ending)
        for job_id, ending in ends.endings
    ]


def gone(queue: QueueKeys, job_id: str) -> JobNotFound:
    """Return the error of a job whose end nobody can tell any more."""
    return JobNotFound(queue.queue, job_id, _GONE)


def settle(queue: QueueKeys, job_id: str, told: Told) -> Steps[Ending]:
    """Return the ending, also of a job that was removed when it ended; raise `JobNotFound`."""
    if isinstance(told, Ending):
        return told
    ending: Ending | None = yield from again(find_ending(queue, job_id))
    if ending is None:
        raise gone(queue, job_id)
    return ending


def failure(queue: QueueKeys, job_id: str, reason: str) -> Steps[JobFailed]:
    """Return the error of a job that failed, with what is still known of it."""
    kind = failure_kind(reason)
    job: Job | None = yield from again(get_job(queue, job_id))
    if job is None:
        return kind(queue.queue, job_id, reason)
    return kind(queue.queue, job_id, reason, job.stacktrace, job.attempts_made)


def failure_kind(reason: str) -> type[JobFailed]:
    """Return the class of the error of a job that failed for this reason."""
    if is_cancelled(reason):
        return JobCancelled
    return JobExpired if is_expired(reason) else JobFailed


def not_in_time(queue: QueueKeys, job_id: str, timeout: float | None) -> TimeoutError:
    """Return the error of a wait that took too long."""
    limit = "" if timeout is None else f" within {timeout:g} s"
    return TimeoutError(f"Job {job_id} in queue {queue.queue} has not ended{limit}")


# Threads that wait for the ends of jobs: one of them reads the queue's stream for all.
#
# Whoever waits either reads or sleeps. The reader tells the others what it finds, and when its own
# wait is over, however that came, it wakes one of them to go on from the same place. So there is
# no thread of ours that could hang, be forked away or outlive the program, a single wait costs no
# more than it would alone, and each has its own deadline and its own errors. Whatever else has to
# be asked is asked by one thread at a time: any number of threads use two connections.


class _Waiter:
    """One thread that waits for one job."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.told: Told | None = None
        self.news = Event()  # it was told, or is to read


class SyncResultWatch:
    """Watches how the jobs of one queue end, for all threads of a process."""

    def __init__(self, keys: QueueKeys, store: SyncStore) -> None:
        self._keys = keys
        self._store = store
        self._asking = Lock()  # held while something is asked; before `_state`
        self._state = Lock()  # held for moments
        self._waiting: dict[str, list[_Waiter]] = {}
        self._reader: _Waiter | None = None
        self._place = ""  # read up to here; empty while nobody waits
        self._look_at = 0.0  # when the reader has to look at all jobs

    def ending(self, job_id: str, timeout: float | None) -> Ending:
        """Wait in this thread until a job has completed; the timeout is for all of it.

        Raises `JobFailed` for one that failed, `JobNotFound`, or `TimeoutError`.
        """
        steps = self._completed(job_id, inf if timeout is None else monotonic() + timeout)
        try:
            return self._store.run(steps, total=timeout)
        except ConnectionLost:
            raise not_in_time(self._keys, job_id, timeout) from None
        finally:
            steps.close()  # after a KeyboardInterrupt, too, another is to read at once

    def _completed(self, job_id: str, deadline: float) -> Steps[Ending]:
        waiter = _Waiter(job_id)
        try:
            told = yield from self._told(waiter, deadline)
        finally:
            self._leave(waiter)
        if isinstance(told, Ending) and told.state is JobState.COMPLETED:
            return told
        with self._alone(deadline):
            ending = yield from settle(self._keys, job_id, told)
            if ending.state is JobState.FAILED:
                raise (yield from failure(self._keys, job_id, ending.failed_reason or ""))
            return ending

    def _told(self, waiter: _Waiter, deadline: float) -> Steps[Told]:
        with self._alone(deadline):
            with self._state:
                self._waiting.setdefault(waiter.job_id, []).append(waiter)
            if not self._place:  # nobody else waits
                self._place = yield from again(last_event_id(self._keys))
                self._look_at = monotonic() + LOOK_AGAIN
            found: Told | None = yield from again(look(self._keys, waiter.job_id))
            if found is not None and (waiter.told is None or isinstance(found, Ending)):
                return found
        while waiter.told is None:
            if self._reads(waiter):
                yield from self._read(deadline)
            elif not waiter.news.wait(_left(deadline)):
                raise _late()
            waiter.news.clear()
        return waiter.told

    @contextmanager
    def _alone(self, deadline: float) -> Generator[None]:
        """Be the only thread that asks."""
        if not self._asking.acquire(timeout=_left(deadline)):
            raise _late()
        try:
            yield
        finally:
            self._asking.release()

    def _reads(self, waiter: _Waiter) -> bool:
        """Return whether it is this one who reads; it is if nobody else does."""
        with self._state:
            if self._reader is None:
                self._reader = waiter
            return self._reader is waiter

    def _leave(self, waiter: _Waiter) -> None:
        """Wait no more; let another read if this one did."""
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
                self._reader = next((one for one in left if one.told is None), None)
                if self._reader is not None:
                    self._reader.news.set()

    def _read(self, deadline: float) -> Steps[None]:
        """Read once, and tell what has ended."""
        if monotonic() >= self._look_at:
            yield from self._look()
            return
        block = min(BLOCK, deadline - monotonic())
        if block <= 0:
            raise _late()
        try:
            ends: Ends = yield read_ends(self._keys, self._place, block)
        except (MaybeExecuted, ServerUnavailable):
            self._look_at = 0.0  # the stream may have been trimmed until we are back
            return
        self._place = ends.place
        for job_id, told in told_by(self._keys, ends):
            self._tell(job_id, told)

    def _look(self) -> Steps[None]:
        """Look at all jobs that somebody waits for."""
        with self._state:
            waiting = list(self._waiting)
        for job_id in waiting:
            told: Told | None = yield from again(look(self._keys, job_id))
            if told is not None:
                self._tell(job_id, told)
        self._look_at = monotonic() + LOOK_AGAIN

    def _tell(self, job_id: str, told: Told) -> None:
        with self._state:
            for waiter in self._waiting.get(job_id, ()):
                if waiter.told is None:
                    waiter.told = told
                    waiter.news.set()


def _left(deadline: float) -> float:
    """Return the seconds that are left, in the range that locks take."""
    return min(max(0.0, deadline - monotonic()), TIMEOUT_MAX)


def _late() -> ConnectionLost:
    return ConnectionLost("the time is over")
