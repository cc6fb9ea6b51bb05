"""Whose end an exception is: that of one job, or that of the slot in which the job ran."""

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
from taskbull.core.outcome import AwaitChildren, Fail, GiveBack, LetGo, Written
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.errors import CancelRequested
from taskbull.scripts.call import Steps
from taskbull.scripts.flow import Spawned, spawn
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.cluster import check_slots

# Whose end an exception is: that of one job, or that of the slot in which the job ran.


_SIGNAL_HANDLERS = frozenset({"asyncio.runners", "anyio._backends._asyncio", "trio._core._ki"})
"""The modules whose functions raise `KeyboardInterrupt` when Ctrl-C was really pressed."""


def ends_the_slot(error: BaseException, *, interrupted: bool = False) -> bool:
    """Return whether a job ends for reasons that are not its own; `interrupted`: it was cancelled.

    A handler can raise anything: `KeyboardInterrupt` without a Ctrl-C, or, on asyncio,
    `CancelledError` although nobody cancels us, for it may have awaited something that was
    cancelled. Those are failures of the job.
    """
    # By its type: `isinstance` would ask the error for its class, which may raise.
    if issubclass(type(error), GeneratorExit):
        return _without_a_loop()
    cancelled = get_cancelled_exc_class()
    if all(issubclass(type(leaf), cancelled) for leaf in leaves(error)):  # a nursery groups them
        return not interrupted and current_effective_deadline() == -inf
    return any(pressed(leaf) for leaf in leaves(error))


def pressed(error: BaseException) -> bool:
    """Return whether it is the interrupt of a real Ctrl-C."""
    traceback = error.__traceback__
    if traceback is None or not issubclass(type(error), KeyboardInterrupt):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") in _SIGNAL_HANDLERS


def _without_a_loop() -> bool:
    """Return whether our coroutine is being closed because its event loop is gone."""
    try:
        current_time()
    except RuntimeError:
        return True
    return False


# One run of a job, from being taken to being told; and all runs of a worker in one queue.
#
# The life of a job in a worker:
#
# 1. *Taken.* A call of `Cycle` brings jobs, each locked in Redis with the token of the call.
# `Intake.deliver` makes a `Run` of each, which `Runs` holds until step 6. 2. *Leased.* The
# `Heartbeat` renews the lock of each run that is held, from a thread of its own, while the run
# waits in `ReadyJobs` for a slot. 3. *Attempted.* A slot of the `Runner` takes it, and
# `Executor.attempt` calls the function of the job's task, or leaves it to the threads
# (`Unattended`). 4. *Decided.* What the function returns or raises becomes an outcome.
# `Cycle.decided` frees the slot, and puts the run into the `Outbox`. 5. *Written.* The next call
# takes the outcome along, and Redis answers to each. Where the answer is lost, `Recovery` asks
# what is in Redis. 6. *Told.* `Intake` lets the run go, and the `Reporter` tells what became of
# the job.
#
# The lock may turn out to be gone at any step: then nothing is written any more, and that is told.


_GIVE_BACK = GiveBack()


class JobPort(Protocol):
    """What a running job writes to: Redis, or the memory of a test.

    Of each pair of methods the one that begins with `a` is awaited; the other blocks.
    """

    @property
    def held_up(self) -> float:
        """The seconds for which the job had to wait for it."""
        ...

    def caused(self, error: BaseException) -> bool:
        """Return whether an error of the task comes from here; a word of the task's own wins."""
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

    async def aunclaimed(self, patience: float) -> float:
        """Note that nobody here can run the job; return for how many seconds that is known.

        When that is longer than `patience`, it is forgotten: then the job is to fail.
        """
        ...


class NotBegun(Exception):
    """A job's function was not called, for there is an outcome already."""

    def __init__(self, outcome: Fail) -> None:
        super().__init__(outcome.failure.reason)
        self.outcome = outcome


class ThreadCall(Protocol):
    """A function's call on its way through a thread."""

    def withdraw(self, error: Exception) -> None:
        """Take it back if no thread has begun it, and let it raise this; else leave it alone."""
        ...


class Spawning(Struct, frozen=True):
    """How many jobs a run has added below its own: before it began, and since."""

    before: int = 0
    new: int = 0


NONE_SPAWNED = Spawning()


class Run(Struct, eq=False):
    """One run of a job, as far as it has come.

    Its fields stand in the order of its life. All of them are written in the event loop, but for
    `renewed` and `cancelled` (by the thread of the heartbeat, too), `port`, `raw_progress` and
    `heeded` (by the thread of a function that blocks). Each thread writes one field at a time, and
    none waits for another.
    """

    job: Job
    token: str
    """That of the call which has taken the job: its lock in Redis."""
    renewed: float
    """When the lock was surely alive, by `time.monotonic`; the heartbeat writes it."""
    lost: LetGo | None = None
    """Why the lock is gone, if it is; `Runs.revoke` writes it."""
    cancelled: str | None = None
    """Why the job is to stop, if somebody has cancelled it; see `cancel`."""
    heeded: bool = False
    """Whether its function has asked and knows that; of its `RunningJob`."""
    interrupted: bool = False
    """Whether its scope was cancelled because of that."""
    began: float = 0.0
    """When a slot has started it, by `time.monotonic`; written by the runner."""
    policy: RetryPolicy = NO_POLICY
    """The rules for its errors, as soon as its route is known; written by the executor."""
    scope: CancelScope | None = None
    """What its function runs in, once it was called; of the executor, too."""
    call: ThreadCall | None = None
    """Its function's call in a thread, which may still be waiting for one; of the thread pool."""
    notify: Callable[[], object] | None = None
    """Told when the job is cancelled, or its lock lost: leads to the process; of the pool."""
    port: JobPort | None = None
    """What the job writes to, as soon as it has written something; of its `RunningJob`."""
    raw_progress: bytes | None = None
    """The progress that the job has told last; of its `RunningJob`, too."""
    spawned: Spawning = NONE_SPAWNED
    """What it has spawned; of its `RunningJob`, too."""
    halted_at: str = ""
    """The stack at which its process was ended, if it ran in one; of the pool."""
    duration: float = 0.0
    """Seconds for which it ran; written by the runner, or by the reporter if the lock is lost."""
    outcome: Written = _GIVE_BACK
    """What is to become of the job: until that is decided, it goes back. Intake writes it, and the
    outbox if it cannot be sent."""
    decided: bool = False
    """Whether that was decided; Redis may not know yet. Written by intake."""
    written_ms: int = 0
    """When its outcome was sent, as it stands in Redis; written by the outbox."""
    refusals: int = 0
    """How often its outcome did not get through, sent by itself; written by the recovery."""

    def awaiting_children(self) -> AwaitChildren:
        """Return the outcome of a run that waits for its children, with what it has spawned."""
        spawned = self.spawned
        return AwaitChildren(spawned.before + spawned.new, spawned.new)

    def cancel(self, reason: str) -> None:
        """Stop it, unless it is decided: its function is cancelled, or withdrawn from the threads.

        A function that runs in a thread is not stopped, but can ask.
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
        """Return the outcome of a job that was cancelled; `error` is what its function raised."""
        reason = self.cancelled or BY_REQUEST
        if self.halted_at:  # of a process its stack says more than what was raised here
            error = CancelRequested(reason)
            error.add_note(f"Its process was ended here:\n{self.halted_at}")
        return cancelled(reason, error)


class Runs:
    """All runs of one queue that are not over, by the ids of their jobs."""

    def __init__(self) -> None:
        self._held: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> int:
        """Count the jobs that were started; may be called from any thread."""
        return sum(run.began > 0 for run in self.copy())

    def find(self, job_id: str, token: str) -> Run | None:
        """Return the run of a job under a lock, if it is not over."""
        run = self._held.get(job_id)
        return run if run is not None and run.token == token else None

    def add(self, run: Run) -> None:
        """Hold a run; an older one of the same job is lost already, only not yet known to be."""
        self._held[run.job.id] = run

    def add_all(self, runs: Iterable[Run]) -> None:
        """Hold several runs."""
        for run in runs:
            self.add(run)

    def drop(self, run: Run) -> None:
        """Hold a run no longer."""
        if self._held.get(run.job.id) is run:
            del self._held[run.job.id]

    def copy(self) -> list[Run]:
        """Return all of them as they are now; may be called from any thread."""
        return list(self._held.copy().values())

    def revoke(self, run: Run, outcome: LetGo) -> bool:
        """Note that a lock is gone while its job runs; return False if that says nothing new.

        Where the run is over, its script call alone tells whether the lock was still there: the
        heartbeat may have looked just after that call had released it.
        """
        if run.decided or self._held.get(run.job.id) is not run:
            return False
        run.lost = outcome
        if run.notify is not None:
            run.notify()
        self.drop(run)
        return True


# Where jobs wait for a slot, and slots for a job.


class ReadyJobs:
    """Hands the jobs that were taken to the slots of a queue.

    A slot that finds a job waiting takes it without giving way to others. Of the slots that wait,
    each that is woken wakes two more while there are jobs: all of a hundred start within a few
    turns of the event loop, and if the first one can do all the work alone, few wake for nothing.
    """

    def __init__(self) -> None:
        self.jobs: deque[Run] = deque()
        """Those that wait. A slot may take one from the left; where there is none, it waits."""
        self._slots: list[Waiter] = []
        self._closed = False
        self._new_waiter = waiters()

    def put(self, runs: Iterable[Run]) -> None:
        """Hand jobs to the slots that wait, or to the next ones that are free."""
        self.jobs.extend(runs)
        self._wake()

    async def wait(self) -> Run | None:
        """Return the next job, as soon as there is one; None: there will be no more."""
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
        """End the slots; return the jobs that none of them has taken."""
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


# Children that a running job adds, wherever it runs.


def spawning(keys: QueueKeys, run: Run, children: Children, now_ms: int) -> Steps[Spawned]:
    """Return the operation that adds children to the job of a run."""
    parent = Branch(keys, NewJob("parent"), branches_of([children]))
    check_slots(queues_of(parent))
    return spawn(parent, run.job.id, run.spawned.new, now_ms, uuid4().hex, run.token)


def note_spawned(run: Run, spawned: Spawned) -> list[str]:
    """Note in a run what it has added; return the ids of the children."""
    run.spawned = Spawning(spawned.before, run.spawned.new + spawned.count)
    return spawned.ids
