"""Track runs: one run is one job from the moment it is fetched until its outcome is reported.

The life of a job in a worker:

1. *Fetched.* A `Cycle` call returns jobs, each locked in Redis with the call's token.
   `Intake.deliver` creates a `Run` for each, and `Runs` holds it until step 6.
2. *Leased.* The `Heartbeat` thread renews the lock of each held run, including those that wait in
   `ReadyJobs` for a slot.
3. *Attempted.* A slot of the `Runner` takes the run. `Executor.attempt` calls the task's function,
   or hands it to a thread (`ThreadDispatcher`).
4. *Decided.* The function's result or error becomes an outcome. `Cycle.decided` frees the slot and
   puts the run into the `Outbox`.
5. *Written.* The next call sends the outcome, and Redis answers for each. If the reply is lost,
   `Recovery` asks Redis about its state.
6. *Reported.* `Intake` drops the run, and the `Reporter` emits the outcome.

The lock may be lost at any step. In that case no outcome is written, and the loss is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol
from uuid import uuid4

from anyio import CancelScope, current_effective_deadline, current_time, get_cancelled_exc_class
from msgspec import Struct

from taskbull.core.cancelling import BY_REQUEST, cancelled
from taskbull.core.failure import leaves
from taskbull.core.flow import Branch, Children, branches_of, queues_of
from taskbull.core.job import Job, NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import AwaitChildren, Discard, Fail, Release, Written
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.errors import CancelRequested
from taskbull.scripts.call import Steps
from taskbull.scripts.flow import Spawned, spawn
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.cluster import check_slots

# Exceptions: do they end only the job, or also the slot that runs it?


_SIGNAL_HANDLERS = frozenset({"asyncio.runners", "anyio._backends._asyncio", "trio._core._ki"})
"""Modules that raise `KeyboardInterrupt` for a real Ctrl-C."""


def ends_the_slot(error: BaseException, *, interrupted: bool = False) -> bool:
    """Return True if an exception must end the slot, not only the job.

    `interrupted` means that the job was cancelled. A handler can raise anything:
    `KeyboardInterrupt` without a Ctrl-C, or `CancelledError` on asyncio because it awaited
    something that was cancelled. Such exceptions are failures of the job.
    """
    # Check the type, because `isinstance` reads the error's `__class__`, which may raise.
    if issubclass(type(error), GeneratorExit):
        return _without_a_loop()
    cancelled = get_cancelled_exc_class()
    if all(issubclass(type(leaf), cancelled) for leaf in leaves(error)):  # A nursery groups them.
        return not interrupted and current_effective_deadline() == -inf
    return any(pressed(leaf) for leaf in leaves(error))


def pressed(error: BaseException) -> bool:
    """Return True if an error is the `KeyboardInterrupt` of a real Ctrl-C."""
    traceback = error.__traceback__
    if traceback is None or not issubclass(type(error), KeyboardInterrupt):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") in _SIGNAL_HANDLERS


def _without_a_loop() -> bool:
    """Return True if this coroutine is being closed because its event loop is gone."""
    try:
        current_time()
    except RuntimeError:
        return True
    return False


# Runs.


_GIVE_BACK = Release()


class JobPort(Protocol):
    """The storage that a running job writes to: Redis, or a test's memory.

    Methods that begin with `a` are async; their counterparts block.
    """

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for the storage."""
        ...

    def caused(self, error: BaseException) -> bool:
        """Return True if the storage caused a task's error. Steering exceptions do not count."""
        ...

    def progress(self, raw: bytes) -> None: ...
    async def aprogress(self, raw: bytes) -> None: ...
    def log(self, line: str) -> None: ...
    async def alog(self, line: str) -> None: ...
    def update_data(self, raw: bytes) -> None: ...
    async def aupdate_data(self, raw: bytes) -> None: ...

    def child_results(self, name: str) -> list[bytes]: ...
    async def achild_results(self, name: str) -> list[bytes]: ...
    async def achild_results_so_far(self, name: str) -> list[bytes]: ...
    def child_failures(self) -> dict[tuple[str, str], str]: ...
    async def achild_failures(self) -> dict[tuple[str, str], str]: ...
    def spawn(self, children: Children) -> list[str]: ...
    async def aspawn(self, children: Children) -> list[str]: ...
    def drop_children(self) -> int: ...
    async def adrop_children(self) -> int: ...

    async def arecord_unknown_task(self, patience: float) -> float:
        """Record that this worker cannot run the job.

        Return for how many seconds that has been known. When that reaches `patience`, the record is
        removed, and the job should fail.
        """
        ...


class NotBegun(Exception):
    """The job's function was not called, because its outcome is already decided."""

    def __init__(self, outcome: Fail) -> None:
        super().__init__(outcome.failure.reason)
        self.outcome = outcome


class CancellableCall(Protocol):
    """A function call that waits for a thread or runs in one."""

    def withdraw(self, error: Exception) -> None:
        """Withdraw the call with this error if no thread has started it; otherwise do nothing."""
        ...


class Spawning(Struct, frozen=True):
    """The number of children that a job has added: in earlier runs, and in this one."""

    before: int = 0
    new: int = 0


NONE_SPAWNED = Spawning()


class Run(Struct, eq=False):
    """One run of a job and its current state.

    The fields are listed in the order of a run's life. The event loop writes all of them. The
    heartbeat thread also writes `renewed` and `cancelled`. A thread that runs a sync function also
    writes `port`, `raw_progress`, `spawned`, and the flag that it has seen the cancellation. Each
    thread writes one field at a time, and no thread waits for another.
    """

    job: Job
    token: str
    """The token of the call that fetched the job: its lock in Redis."""
    renewed: float
    """Last time when the lock was certainly valid, by `time.monotonic`. Written by the
    heartbeat."""
    lost: Discard | None = None
    """The reason for losing the lock, if it is lost. Written by `Runs.revoke`."""
    cancelled: str | None = None
    """The reason for stopping the job, if it was cancelled. See `cancel`."""
    cancel_seen: bool = False
    """True if the function has seen the cancellation. Written by its `RunningJob` or the pool."""
    interrupted: bool = False
    """True if its scope was cancelled because of the cancellation."""
    began: float = 0.0
    """Time when a slot started it, by `time.monotonic`. Written by the runner."""
    policy: RetryPolicy = NO_POLICY
    """The retry policy, once its route is known. Written by the executor."""
    scope: CancelScope | None = None
    """The scope that its function runs in, once called. Written by the executor."""
    call: CancellableCall | None = None
    """The call in a thread, or waiting for one. Written by the thread pool or
    `ThreadDispatcher`."""
    notify: Callable[[], object] | None = None
    """Callback that notifies the pool process of a cancellation or lost lock. Written by the
    pool."""
    port: JobPort | None = None
    """The storage, once the job has used it. Written by its `RunningJob`."""
    raw_progress: bytes | None = None
    """The last progress that the job reported. Written by its `RunningJob` or the pool."""
    spawned: Spawning = NONE_SPAWNED
    """The number of children that it has added. Written by `note_spawned`."""
    halted_at: str = ""
    """The stack where its pool process was stopped, if it was. Written by the pool."""
    duration: float = 0.0
    """Run time in seconds. Written by the runner, `ThreadDispatcher`, or, if the lock is lost, the
    reporter."""
    outcome: Written = _GIVE_BACK
    """The outcome. Until it is decided, the job would be released. Written by `Intake`, or by
    `pack` if an outcome cannot be encoded."""
    decided: bool = False
    """True once the outcome is decided; Redis may not have it yet. Written by `Intake`."""
    written_ms: int = 0
    """Time of sending the outcome in ms, as stored in Redis. Written by `pack`."""
    refusals: int = 0
    """Number of failures to send the outcome alone. Written by the recovery."""

    def awaiting_children(self) -> AwaitChildren:
        """Return the outcome of a run that waits for its children, with their number."""
        spawned = self.spawned
        return AwaitChildren(spawned.before + spawned.new, spawned.new)

    def cancel(self, reason: str) -> None:
        """Stop the job unless its outcome is decided.

        This cancels an async function, and withdraws a sync function that still waits for a thread.
        A function that already runs in a thread is not stopped, but can check for cancellation.
        """
        if self.decided:
            return
        self.cancelled = reason
        if self.notify is not None:
            self.notify()
        if self.call is not None:
            self.call.withdraw(NotBegun(self.stopped()))
        elif self.scope is not None:
            self.interrupted = True
            self.scope.cancel()

    def stopped(self, error: BaseException | None = None) -> Fail:
        """Return the outcome of a cancelled job; `error` is the function's exception, if any."""
        reason = self.cancelled or BY_REQUEST
        if self.halted_at:  # The stack of the process is more useful than the error raised here.
            error = CancelRequested(reason)
            error.add_note(f"Its process was ended here:\n{self.halted_at}")
        return cancelled(reason, error)


class Runs:
    """The unfinished runs of one queue, by job id."""

    def __init__(self) -> None:
        self._held: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> int:
        """Return the number of started jobs. Thread-safe."""
        return sum(run.began > 0 for run in self.copy())

    def find(self, job_id: str, token: str) -> Run | None:
        """Return the unfinished run of a job with this token, if any."""
        run = self._held.get(job_id)
        return run if run is not None and run.token == token else None

    def add(self, run: Run) -> None:
        """Add a run. It replaces an older run of the same job, whose lock must already be lost."""
        self._held[run.job.id] = run

    def add_all(self, runs: Iterable[Run]) -> None:
        """Add several runs."""
        for run in runs:
            self.add(run)

    def drop(self, run: Run) -> None:
        """Remove a run, unless a newer one has replaced it."""
        if self._held.get(run.job.id) is run:
            del self._held[run.job.id]

    def copy(self) -> list[Run]:
        """Return a snapshot of all runs. Thread-safe."""
        return list(self._held.copy().values())

    def revoke(self, run: Run, outcome: Discard) -> bool:
        """Record that a running job has lost its lock. Return False if it is already over.

        If the run is over, only the reply to its outcome shows whether it still had the lock. The
        heartbeat may have checked just after that call released it.
        """
        if run.decided or self._held.get(run.job.id) is not run:
            return False
        run.lost = outcome
        if run.notify is not None:
            run.notify()
        self.drop(run)
        return True


# The hand-over of jobs to slots.


class ReadyJobs:
    """A queue's fetched jobs, which wait for a free slot.

    A slot that finds a job takes it without yielding to other tasks. A slot that is woken wakes two
    more while there are jobs. A hundred slots thus all start within a few passes of the event loop.
    If the first one can do all the work alone, few wake up for nothing.
    """

    def __init__(self) -> None:
        self.jobs: deque[Run] = deque()
        """The waiting jobs. A slot may take one from the left, and calls `wait` if there are
        none."""
        self._slots: list[Waiter] = []
        self._closed = False
        self._new_waiter = waiters()

    def put(self, runs: Iterable[Run]) -> None:
        """Add jobs and wake slots to take them."""
        self.jobs.extend(runs)
        self._wake()

    async def wait(self) -> Run | None:
        """Wait for the next job and return it, or None after `close`."""
        jobs = self.jobs
        while not jobs:
            if self._closed:
                return None
            waiter = self._new_waiter()
            self._slots.append(waiter)
            await waiter
        job = jobs.popleft()
        if jobs:
            self._wake()
        return job

    def close(self) -> list[Run]:
        """Stop the slots, and return the jobs that none of them has taken."""
        self._closed = True
        left = list(self.jobs)
        self.jobs.clear()
        for waiter in self._slots:
            wake(waiter)
        self._slots.clear()
        return left

    def _wake(self) -> None:
        if not (self.jobs and self._slots):
            return
        for _ in range(min(2, len(self.jobs), len(self._slots))):
            wake(self._slots.pop())


# Children that a running job adds, in the worker or in a pool process.


def spawning(keys: QueueKeys, run: Run, children: Children, now_ms: int) -> Steps[Spawned]:
    """Return the operation that adds children to a run's job."""
    parent = Branch(keys, NewJob("parent"), branches_of([children]))
    check_slots(queues_of(parent))
    return spawn(parent, run.job.id, run.spawned.new, now_ms, uuid4().hex, run.token)


def note_spawned(run: Run, spawned: Spawned) -> list[str]:
    """Record added children in a run, and return their ids."""
    run.spawned = Spawning(spawned.before, run.spawned.new + spawned.count)
    return spawned.ids
