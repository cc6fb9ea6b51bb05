"""One run of a job, from being taken to being told; and all runs of a worker in one queue.

The life of a job in a worker:

1. *Taken.* A call of `Cycle` brings jobs, each locked in Redis with the token of the call.
   `Intake.deliver` makes a `Run` of each, which `Runs` holds until step 6.
2. *Leased.* The `Heartbeat` renews the lock of each run that is held, from a thread of its own,
   while the run waits in `ReadyJobs` for a slot.
3. *Attempted.* A slot of the `Runner` takes it, and `Executor.attempt` calls the function of the
   job's task, or leaves it to the threads (`Unattended`).
4. *Decided.* What the function returns or raises becomes an outcome. `Cycle.decided` frees the
   slot, and puts the run into the `Outbox`.
5. *Written.* The next call takes the outcome along, and Redis answers to each. Where the answer is
   lost, `Recovery` asks what is in Redis.
6. *Told.* `Intake` lets the run go, and the `Reporter` tells what became of the job.

The lock may turn out to be gone at any step: then nothing is written any more, and that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from anyio import CancelScope
from msgspec import Struct

from taskbull.core.cancelling import BY_REQUEST, cancelled
from taskbull.core.flow import Children
from taskbull.core.job import Job
from taskbull.core.outcome import AwaitChildren, Fail, GiveBack, LetGo, Written
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.errors import CancelRequested

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
