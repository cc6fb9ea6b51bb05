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

import logging
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)
from uuid import uuid4

from anyio import (
    CancelScope,
    Event,
    current_effective_deadline,
    current_time,
    get_cancelled_exc_class,
    sleep,
    sleep_forever,
)
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.events import Listener as Listener
from taskbull.core.job import Branch, Children, Job, NewJob, branches_of, queues_of
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import (
    BY_REQUEST,
    AwaitChildren,
    Complete,
    Discard,
    Fail,
    Outcome,
    Release,
    RetryAfter,
    SnoozeFor,
    Written,
    cancelled,
    leaves,
)
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.core.validation import to_ms
from taskbull.errors import CancelRequested, ServerRefused, TaskbullError
from taskbull.scripts.add import spawn
from taskbull.scripts.call import Steps
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.cluster import check_slots
from taskbull.store.connection import Change, Connected, DialFailed, LinkLost, log_change

# Provide a worker's clock and alarm; tests replace the clock with one that they set by hand.


logger = logging.getLogger(__name__)

SKEW = 1.0
"""Maximum difference in seconds between this machine's clock and Redis's that is not corrected."""

_COMPARE = 300.0
"""Seconds between comparisons with Redis's clock."""

_LOOK = 10.0
"""Seconds between checks for a change of this machine's clock."""

_ACCURATE = 0.5
"""Seconds that Redis may take to reply with its time; a slower reply is ignored."""

_TRIES = 5
"""Maximum number of requests for one comparison."""


def loop_offset() -> float:
    """Return how far the event loop's clock is ahead of `time.monotonic`. Call it in a task.

    A callback of the event loop cannot ask anyio for the loop's time. No task is current there, and
    anyio then knows only loops that it started itself. With this offset, a callback can compute the
    deadline of a cancel scope.
    """
    return current_time() - monotonic()


class Clock:
    """A monotonic clock for waiting, and a wall clock that agrees with Redis's.

    Producers, Redis and workers run on several machines. If this machine's clock differs from
    Redis's by `SKEW` or more, the worker uses Redis's time. Otherwise it would fail jobs that have
    not expired, and run delayed and scheduled jobs too early or too late.
    """

    _local: Callable[[], float] = staticmethod(time.time)
    # relative to `time.monotonic`; None if the local clock is right
    _server_ahead: float | None = None
    _warned_skew = 0.0
    skew = 0.0
    """Seconds that this machine's clock is ahead of Redis's, at the last comparison."""
    _local_ahead = 0.0  # relative to `time.monotonic`, at the last comparison

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        """Create a clock; `local` returns this machine's wall-clock time."""
        self._local = local

    def now(self) -> float:
        """Return the monotonic time in seconds. Thread-safe."""
        return monotonic()

    def wall_ms(self) -> int:
        """Return the wall-clock time in ms since 1970, corrected to Redis's clock. Thread-safe."""
        ahead = self._server_ahead
        return int((self._local() if ahead is None else ahead + monotonic()) * 1000)

    def compare(self, server: float, asked: float, answered: float) -> bool:
        """Correct the wall clock by a server time. Return False if the reply was too slow.

        `asked` and `answered` are the times of the request and the reply, by `time.monotonic`.
        """
        if answered - asked > _ACCURATE:
            return False
        now = monotonic()
        self._local_ahead = self._local() - now
        server_ahead = server - (asked + answered) / 2
        self.skew = skew = self._local_ahead - server_ahead
        is_skewed = abs(skew) >= SKEW
        self._server_ahead = server_ahead if is_skewed else None
        if is_skewed and abs(skew - self._warned_skew) >= max(SKEW, abs(self._warned_skew) / 2):
            self._warned_skew = skew
            logger.warning(
                "The clock of this machine is %.1f s %s the clock of Redis. The worker uses the "
                "time of Redis; synchronize the clocks, for example with NTP",
                abs(skew),
                "ahead of" if skew > 0 else "behind",
            )
        elif not is_skewed and self._warned_skew:
            self._warned_skew = 0.0
            logger.info("The clocks of this machine and Redis agree again")
        return True

    async def follow(self, ask: Callable[[], Awaitable[float]], compared: Event) -> None:
        """Compare the clocks periodically, until cancelled.

        `ask` returns the server's time. `compared` is set after the first comparison, even a failed
        one. A slow reply is asked for again, because the first one may wait for the connection. If
        the server refuses the command, the method returns.
        """
        due = 0.0
        while True:
            was_set = abs(self._local() - monotonic() - self._local_ahead) >= SKEW
            if was_set or monotonic() >= due:
                try:
                    for _ in range(_TRIES):
                        asked = monotonic()
                        if self.compare(await ask(), asked, monotonic()):
                            due = monotonic() + _COMPARE
                            break
                except ServerRefused as error:
                    logger.debug("Cannot compare the clocks of this machine and Redis: %s", error)
                    return
                except TaskbullError as error:
                    logger.debug("Cannot read the time from Redis: %s", error)
                finally:
                    compared.set()
            await sleep(_LOOK)

    async def sleep_until(self, at: float) -> None:
        """Wait until `now()` reaches `at`."""
        if at == inf:
            await sleep_forever()
        await sleep(max(0.0, at - monotonic()))


class Alarm:
    """An alarm that goes off once, at the earliest time set.

    Code that waits for a later time must set it again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = inf
        self._sleep = CancelScope()

    def set(self, at: float) -> None:
        """Go off at `at` or earlier."""
        if at < self._at:
            self._at = at
            self._sleep.cancel()

    async def run(self, ring: Callable[[], None]) -> None:
        """Call `ring` each time the alarm goes off, until cancelled."""
        while True:
            with CancelScope() as self._sleep:
                await self._clock.sleep_until(self._at)
            if self._clock.now() >= self._at:
                self._at = inf
                ring()


# Stop a worker in two steps: stop fetching, then give up on jobs that are still running.


class Shutdown:
    """A handle that stops a worker, for example from a signal handler or a test.

    Its methods may also be called in a callback of the event loop, such as a signal handler.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        """Seconds that running jobs have to finish."""
        self._begun = Event()
        self.urgent = False
        """True once the worker must stop immediately."""
        self._hurry: list[Callable[[], object]] = []
        self.working = CancelScope()
        """The scope that the slots run in."""
        self._loop_offset = loop_offset()

    @property
    def begun(self) -> bool:
        """True once the worker has stopped fetching jobs."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Wait until the shutdown begins."""
        await self._begun.wait()

    def begin(self) -> None:
        """Stop fetching. Running jobs have the grace period to finish."""
        if not self.begun:
            self._begun.set()
            self.working.deadline = monotonic() + self._loop_offset + self.grace

    def when_urgent(self, hurry: Callable[[], object]) -> None:
        """Register a callback for an immediate stop."""
        self._hurry.append(hurry)

    def at_once(self) -> None:
        """Stop immediately, and release running jobs.

        Jobs that are already being stopped have only a moment left.
        """
        self._begun.set()
        self.urgent = True
        for hurry in self._hurry:
            hurry()
        self.working.cancel()


# Exit a child process that a task forked and that returns from the task.
#
# It would otherwise continue as a second copy of the worker, with the same connections and jobs. It
# exits as a program does after its last line.


def end_child_of(process: int, error: BaseException | None = None) -> None:
    """Exit unless this process is `process`; `error` is the exception that the task raised."""
    if os.getpid() != process:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    with suppress(Exception):
        sys.stderr.write(f"{error.code}\n")
    return 1


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


PortMethod: TypeAlias = Literal[
    "progress",
    "log",
    "update_data",
    "add_cost",
    "child_results",
    "child_results_so_far",
    "child_failures",
    "spawn",
    "drop_children",
    "load_steps",
    "store_step",
    "wait",
    "hold",
    "send_signal",
    "open_stream",
    "emit",
    "flush_stream",
]
"""A read or write of a running job. `child_results_so_far` ignores pending children. `hold` raises
`LockLost` unless this worker holds the job."""


class JobPort(Protocol):
    """The storage that a running job writes to: Redis, or a test's memory."""

    is_virtual: bool
    """True if time is virtual, so that nothing sleeps."""

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for the storage."""
        ...

    @property
    def has_stream(self) -> bool:
        """True if the job has begun to yield items."""
        ...

    def caused(self, error: BaseException) -> bool:
        """Return True if the storage caused a task's error. Steering exceptions do not count."""
        ...

    def call(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write, and block until it is done."""
        ...

    async def acall(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write in the event loop."""
        ...

    async def arecord_unknown_task(self, patience: float) -> float:
        """Record that this worker cannot run the job.

        Return the seconds since a worker first recorded it. Once that reaches `patience`, the
        record is removed, and the job should fail.
        """
        ...


class NotStarted(Exception):
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


ResultCheck: TypeAlias = tuple[frozenset[type], Callable[[bytes], None]]
"""Classes of results that need no check, and a function that raises if other JSON does not fit."""


class Run(Struct, eq=False):
    """One run of a job and its current state.

    The fields are listed in the order of a run's life. The event loop writes all of them. The
    heartbeat thread also writes `renewed` and `cancelled`. A thread that runs a sync function also
    writes `port`, `raw_progress`, `spawned`, `stored_steps`, and the flag that it has seen the
    cancellation. Each thread writes one field at a time, and no thread waits for another.
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
    check_result: ResultCheck | None = None
    """The check for its result, once its route is known. Written by the executor."""
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
    """The number of children that it has added. Written by `spawning`."""
    stored_steps: int = 0
    """The number of steps that it has stored. Written by its storage."""
    yielded_items: int = 0
    """The number of items of its stream that Redis has. Written by the `StreamWriter`."""
    steps: Any = None
    """Its `JobSteps`, once the job has called a step or waited. Written by its `RunningJob`."""
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
            self.call.withdraw(NotStarted(self.stopped()))
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
        self._lost: set[Run] = set()

    @property
    def lost(self) -> int:
        """Number of runs that lost their lock but have not ended, so they still use a slot."""
        return len(self._lost)

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> int:
        """Return the number of started jobs. Thread-safe."""
        return sum(run.began > 0 for run in self.copy())

    def find(self, job_id: str, token: str) -> Run | None:
        """Return the unfinished run of a job with this token, if any."""
        run = self._held.get(job_id)
        return run if run is not None and run.token == token else None

    def add(self, *runs: Run) -> None:
        """Add runs. One replaces an older run of the same job, whose lock must already be lost."""
        for run in runs:
            self._held[run.job.id] = run

    def drop(self, run: Run) -> None:
        """Remove a run, unless a newer one has replaced it."""
        if self._held.get(run.job.id) is run:
            del self._held[run.job.id]
        elif run.lost is not None:
            self._lost.discard(run)

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
        self._lost.add(run)
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


def spawning(keys: QueueKeys, run: Run, children: Children, now_ms: int) -> Steps[list[str]]:
    """Add children to a run's job, record their number in the run, and return their ids."""
    parent = Branch(keys, NewJob("parent"), branches_of([children]))
    check_slots(queues_of(parent))
    spawned = yield from spawn(parent, run.job.id, run.spawned.new, now_ms, uuid4().hex, run.token)
    run.spawned = Spawning(spawned.before, run.spawned.new + spawned.count)
    return spawned.ids


# Report a worker's events to its listeners.
#
# `Listeners` holds the subscribers. `Reporter` emits the events of one queue. `Availability` turns
# connection changes into events.


# Listeners.


E = TypeVar("E", bound=events.Event)


class JobCounter(Protocol):
    """A subscriber that counts jobs in bulk and needs no event per job."""

    def count_started(self, worker_id: str, queue: str, started: Sequence[Run]) -> None: ...
    def count_ended(self, worker_id: str, queue: str, ended: Sequence[Run]) -> None: ...


class Listeners:
    """The subscribers to a worker's events, by event class or base class.

    A listener cannot change an event. If it raises, the error is logged and ignored. It is called
    in the event loop, so it must not block. A listener may have a `wants` method that returns False
    for event classes that it currently ignores.
    """

    def __init__(self) -> None:
        self.counters: list[JobCounter] = []
        """Subscribers that count jobs in bulk."""
        self._all: list[tuple[type[events.Event], Listener[Any]]] = []
        self._by_kind: dict[type[events.Event], _Subscribers] = {}

    def on(self, kind: type[E], listener: Listener[E]) -> None:
        """Call `listener` with every event of a class."""
        self._all.append((kind, listener))
        self._by_kind.clear()

    def wanted(self, kind: type[events.Event]) -> bool:
        """Return True if any listener wants events of a class; if not, skip creating them.

        Creating and emitting a job's two events without a listener took 3.2 µs of 26. This check
        takes 0.4.
        """
        subscribers = self._by_kind.get(kind) or self._subscribers(kind)
        if subscribers.surely:
            return True
        try:
            for wants in subscribers.asked:  # `any` would take twice as long.
                if wants(kind):
                    return True
        except BaseException as error:
            if pressed(error):
                raise
            _log("A listener failed on %s", kind.__name__)
            return True
        return False

    def emit(self, event: events.Event) -> None:
        """Emit an event to its listeners."""
        kind = type(event)
        subscribers = self._by_kind.get(kind) or self._subscribers(kind)
        for listener in subscribers.listeners:
            try:
                listener(event)
            except BaseException as error:
                if pressed(error):
                    raise
                _log("A listener failed on %s", kind.__name__)

    def count_started(self, worker_id: str, queue: str, started: Sequence[Run]) -> None:
        """Count jobs that have started."""
        for counter in self.counters:
            _safely(counter.count_started, worker_id, queue, started)

    def count_ended(self, worker_id: str, queue: str, ended: Sequence[Run]) -> None:
        """Count jobs that have finished."""
        for counter in self.counters:
            _safely(counter.count_ended, worker_id, queue, ended)

    def _subscribers(self, kind: type[events.Event]) -> _Subscribers:
        listeners = tuple(one for wanted, one in self._all if issubclass(kind, wanted))
        found = (getattr(one, "wants", None) for one in listeners)
        asked = tuple(wants for wants in found if wants is not None)
        subscribers = _Subscribers(listeners, len(asked) < len(listeners), asked)
        self._by_kind[kind] = subscribers
        return subscribers


def _safely(count: Callable[..., None], *about: object) -> None:
    try:
        count(*about)
    except BaseException as error:
        if pressed(error):
            raise
        _log("Could not count jobs")


def _log(message: str, *about: str) -> None:
    """Log the current error, and ignore a user's log filter that raises."""
    with suppress(BaseException):
        logger.error(message, *about, exc_info=sys.exc_info())


class _Subscribers(Struct, frozen=True):
    """The listeners of one event class."""

    listeners: tuple[Listener[Any], ...]
    surely: bool
    """True if a listener always wants the events."""
    asked: tuple[Callable[[type[events.Event]], bool], ...]
    """The `wants` methods of the other listeners."""


# Events of one queue.


P = ParamSpec("P")

_COMPLETED = events.event_class_for(Complete.kind)


class Reporter:
    """Emits one queue's events to the worker's listeners."""

    def __init__(self, listeners: Listeners, worker_id: str, queue: str) -> None:
        self._listeners = listeners
        self._worker_id = worker_id
        self._queue = queue
        self._started: list[Run] = []  # not yet counted

    def emit(
        self,
        kind: Callable[Concatenate[str, str, P], events.Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        """Emit an event; `fields` are its fields besides `worker_id` and `queue`."""
        self._listeners.emit(kind(self._worker_id, self._queue, *args, **fields))

    def started(self, run: Run) -> None:
        """Report that a job starts. It is counted in bulk, within a second."""
        listeners = self._listeners
        if listeners.counters:
            self._started.append(run)
        if listeners.wanted(events.Started):
            listeners.emit(events.Started(self._worker_id, self._queue, job=run.job))

    def lost(self, run: Run, outcome: Discard) -> None:
        """Report that a job's lock is lost."""
        if not run.decided and run.began:
            run.duration = monotonic() - run.began
        self._listeners.emit(self._event(run, outcome))

    def written(self, runs: Sequence[Run]) -> None:
        """Report jobs whose outcomes Redis has written."""
        listeners = self._listeners
        if listeners.counters:
            self.count_started()
            listeners.count_ended(self._worker_id, self._queue, runs)
        completed = listeners.wanted(_COMPLETED)
        for run in runs:
            if completed or type(run.outcome) is not Complete:
                listeners.emit(self._event(run, run.outcome))

    def count_started(self) -> None:
        """Count the jobs that have started since the last call."""
        if self._started:
            started, self._started = self._started, []
            self._listeners.count_started(self._worker_id, self._queue, started)

    def _event(self, run: Run, outcome: Outcome) -> events.Ended:
        return events.event_class_for(outcome.kind)(
            self._worker_id,
            self._queue,
            job=_after(run, outcome, self._queue),
            duration=run.duration,
            outcome=outcome,
        )


def _after(run: Run, outcome: Outcome, queue: str) -> Job:
    """Return the job as stored in Redis after an attempt, as far as this worker knows."""
    job, failure = run.job, outcome.failure
    if outcome.kind.succeeded is None:  # No attempt was used.
        return (
            replace(job, delay_ms=to_ms(outcome.delay)) if isinstance(outcome, SnoozeFor) else job
        )
    is_over = not isinstance(outcome, RetryAfter)
    return replace(  # takes 0.2 µs
        job,
        queue=queue,
        attempts_made=job.attempts_made + 1,
        attempt_over=True,
        processed_ms=job.processed_ms or run.written_ms - round(run.duration * 1000),
        raw_progress=run.raw_progress or job.raw_progress,
        finished_ms=run.written_ms if is_over else job.finished_ms,
        raw_returnvalue=outcome.value if isinstance(outcome, Complete) else job.raw_returnvalue,
        delay_ms=to_ms(outcome.delay) if isinstance(outcome, RetryAfter) else job.delay_ms,
        failed_reason=job.failed_reason if failure is None else failure.reason,
    )


# Availability of Redis, reported once per change rather than once per connection.


class Availability:
    """Turns connection changes into events, and into log lines at growing intervals."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._unreachable: set[str] = set()  # the server, or parts of a Cluster
        self._lost_at = 0.0
        self._attempts = 0
        self._quiet_until = 0.0

    @property
    def lost(self) -> bool:
        """True if Redis is currently unavailable."""
        return bool(self._unreachable)

    def notice(self, change: Change) -> None:
        """Handle a connection change.

        A lost connection is not an outage yet. It may be replaced immediately, and an idle
        connection may notice long after the others. In a Cluster, all parts must be back.
        """
        match change:
            case LinkLost():
                self._log(change, 0.1)
            case DialFailed(reason, attempts, delay, part):
                self._log(change, delay)
                self._attempts = max(self._attempts, attempts)
                if not self._unreachable:
                    self._lost_at = monotonic()
                    self._reporter.emit(events.RedisLost, reason=reason)
                self._unreachable.add(part)
                self._reporter.emit(events.ReconnectFailed, reason=reason, delay=delay)
            case Connected(part=part):
                self._return(part)

    def _log(self, change: Change, quiet: float) -> None:
        now = monotonic()
        if now >= self._quiet_until:
            log_change(change)
            self._quiet_until = now + quiet

    def _return(self, part: str) -> None:
        if part not in self._unreachable:
            return
        self._unreachable.remove(part)
        if self._unreachable:  # Other parts of the Cluster are still unavailable.
            return
        duration = monotonic() - self._lost_at
        attempts, self._attempts = self._attempts, 0
        self._quiet_until = 0.0
        self._reporter.emit(events.RedisBack, duration=duration, attempts=attempts)
