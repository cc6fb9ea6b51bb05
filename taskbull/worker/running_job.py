"""The running job as its function sees it, with its steps and waits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import datetime
from random import random
from threading import Event, Lock, Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

import anyio
from msgspec import Raw, Struct

from taskbull.core import payload
from taskbull.core.backoff import Backoff
from taskbull.core.celery import JOB, no_attribute
from taskbull.core.groups import check_added_cost
from taskbull.core.job import Growing, Job, Source, children_of, current, source_name
from taskbull.core.keys import job_ref
from taskbull.core.options import OnFailure
from taskbull.core.outcome import Fail, expired
from taskbull.core.payload import converter
from taskbull.core.retry import attempts_of
from taskbull.core.steps import (
    StepCall,
    StepKind,
    StepLog,
    StepRecord,
    WaitEnd,
    WaitRecord,
    check_signal_name,
    encode_record,
    read_wait_end,
)
from taskbull.core.validation import Duration, seconds, to_ms
from taskbull.core.wire.job import encode_data, encode_progress, encode_value
from taskbull.errors import (
    CancelRequested,
    ConfigurationError,
    JobControl,
    LockLost,
    PermanentError,
    SerializationError,
    SignalTimeout,
    StepMismatch,
    TaskbullError,
    WaitForChildren,
)
from taskbull.observability.provider import step_span
from taskbull.store.backend import on_trio
from taskbull.worker.run import Clock, JobPort, Run

# Run the steps and waits of a job, and store their results.
#
# A step is executed and then stored with one call. Nothing is loaded in a job's first run. A later
# run loads everything with one call, at its first step or wait.
#
# The number of a call is taken when the step is called, not when its coroutine first runs. So the
# calls in `gather(label(1), label(2))` have the same numbers in each run, on trio as well.


T = TypeVar("T")

# The order of calls. Only the task or thread that runs a job's function calls steps in the same
# order in each run.


_slot_task: ContextVar[int] = ContextVar("taskbull_slot_task")
"""Id of the task that runs the functions of jobs. Tasks started by a job inherit it."""

_job_threads: set[int] = set()
"""Ids of the threads that run sync functions of jobs."""


def enter_slot() -> None:
    """Record that the current task runs the functions of jobs."""
    _slot_task.set(_current_task())


@contextmanager
def job_thread() -> Generator[None]:
    """Record that this thread runs the functions of jobs during the block."""
    thread = get_ident()
    is_new = thread not in _job_threads
    _job_threads.add(thread)
    try:
        yield
    finally:
        if is_new:
            _job_threads.discard(thread)


def _is_in_order() -> bool:
    task = _current_task()
    return get_ident() in _job_threads if task == 0 else _slot_task.get(-1) == task


def _current_task() -> int:
    """Return an id of the current task, or 0 if this thread runs no event loop."""
    if on_trio():
        return id(sys.modules["trio"].lowlevel.current_task())
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return 0


# The steps of one run.


_inside: ContextVar[str] = ContextVar("taskbull_inside_step", default="")
"""Name of the step that is being executed. Steps that it calls belong to it."""


class StepSpec(Struct, frozen=True):
    """A function that is a step."""

    name: str
    function: Callable[..., Any]
    attempts: int
    backoff: Backoff
    timeout: float | None
    read: Callable[[bytes], Any]
    """Function that reads a stored result."""


class JobSteps:
    """The steps and waits of a running job."""

    def __init__(self, run: Run, port: JobPort) -> None:
        self._run = run
        self._port = port
        self._log = StepLog()
        if run.job.fresh:
            self._log.load({})
        self._loading = Lock()
        self._aloading: anyio.Lock | None = None
        self.stopped: JobControl | None = None
        """The wait or the `StepMismatch` that ends this run, even if the function catches it."""

    def begin(self, kind: StepKind, name: str, args: str = "") -> StepCall:
        """Number the next call.

        Raises:
            TaskbullError: If a step waits.
            WaitForChildren: If the function has caught the exception of a wait.
            StepMismatch: If the function has caught this exception.
        """
        if kind != "step" and (step := _inside.get()):
            raise TaskbullError(
                f"Step '{step}' cannot wait for a signal or sleep: wait between steps instead"
            )
        in_order = _is_in_order()
        if self.stopped is not None and (in_order or kind == "step"):  # Waits may be concurrent.
            raise self.stopped
        return self._log.next_call(kind, name, args, in_order=in_order)

    def load(self) -> StepLog:
        """Load the steps of earlier runs, once."""
        with self._loading:
            if self._log.stored is None:
                self._log.load(self._port.call("load_steps"))
        return self._log

    async def aload(self) -> StepLog:
        """Load the steps of earlier runs, once."""
        if self._log.stored is None:
            if self._aloading is None:
                self._aloading = anyio.Lock()
            async with self._aloading:
                if self._log.stored is None:
                    self._log.load(await self._port.acall("load_steps"))
        return self._log

    def _look_up(self, call: StepCall, find: Callable[[StepCall], T]) -> T:
        try:
            return find(call)
        except StepMismatch as error:
            self.stopped = error
            raise

    # Steps.

    def run(self, call: StepCall, step: StepSpec, args: Any, kwargs: Any) -> Any:
        """Return the stored result of a step, or execute and store it."""
        found = self._look_up(call, self.load().find)
        self._port.call("hold")  # An attempt that has lost its job must not have more effects.
        if found is not None:
            return _read_record(step, bytes(found.value))
        began_ms, began = _now_ms(), monotonic()
        with step_span(step.name), _within(step.name):
            value = self._attempts(step, args, kwargs)
            raw = self._encode(step, value)
        self._port.call("store_step", call.field, _record(call, began_ms, began, raw))
        return _read_record(step, raw)

    async def arun(self, call: StepCall, step: StepSpec, args: Any, kwargs: Any) -> Any:
        """Return the stored result of a step, or execute and store it."""
        found = self._look_up(call, (await self.aload()).find)
        await self._port.acall("hold")
        if found is not None:
            return _read_record(step, bytes(found.value))
        began_ms, began = _now_ms(), monotonic()
        with step_span(step.name), _within(step.name):
            value = await self._aattempts(step, args, kwargs)
            raw = self._encode(step, value)
        await self._port.acall("store_step", call.field, _record(call, began_ms, began, raw))
        return _read_record(step, raw)

    def _encode(self, step: StepSpec, value: object) -> bytes:
        try:
            return encode_value(value, self._run.job.options.result_limit)
        except SerializationError as error:
            raise SerializationError(f"Step '{step.name}': {error}") from error

    def _attempts(self, step: StepSpec, args: Any, kwargs: Any) -> Any:
        delay = None
        for attempt in range(1, step.attempts + 1):
            try:
                if step.timeout is None:
                    return step.function(*args, **kwargs)
                return _in_time(step, args, kwargs)
            except Exception as error:
                if attempt == step.attempts or self._is_final(error):
                    raise
            delay = step.backoff.wait(attempt, random=random, previous=delay)
            self._sleep(delay)
        raise AssertionError  # The last attempt returns or raises.

    async def _aattempts(self, step: StepSpec, args: Any, kwargs: Any) -> Any:
        delay = None
        for attempt in range(1, step.attempts + 1):
            try:
                if step.timeout is None:
                    return await step.function(*args, **kwargs)
                return await _ain_time(step, step.function(*args, **kwargs))
            except Exception as error:
                if attempt == step.attempts or self._is_final(error):
                    raise
            delay = step.backoff.wait(attempt, random=random, previous=delay)
            if not self._port.is_virtual:
                await anyio.sleep(delay)
        raise AssertionError  # The last attempt returns or raises.

    def _sleep(self, seconds: float) -> None:
        """Sleep in a thread. Stop early if the job is cancelled or has lost its lock."""
        end = monotonic() + (0.0 if self._port.is_virtual else seconds)
        while (left := end - monotonic()) > 0:
            if self._run.cancelled is not None or self._run.lost is not None:
                return
            time.sleep(min(left, _LOOK))

    def _is_final(self, error: Exception) -> bool:
        """Return True if another attempt of the step would not help."""
        run = self._run
        if run.cancelled is not None or run.lost is not None:
            return True
        return isinstance(error, JobControl | LockLost) or self._port.caused(error)

    # Waits.

    def wait(
        self, kind: StepKind, name: str, seconds: float | None, read: Callable[[bytes], Any]
    ) -> Any:
        """Return the value of a signal, or None after a sleep.

        Raises:
            WaitForChildren: If the job has to wait. It then runs again.
            SignalTimeout: If no signal arrived in time.
        """
        call = self.begin(kind, name)
        record, end = self._look_up(call, self.load().find_wait)
        if end is None:
            reply = self._port.call("wait", *_asked(call, record, seconds))
            return _finish(call, self._replied(reply), read, seconds)
        self._port.call("hold")
        return _finish(call, (end, self._log.value_of(call, end)), read, seconds)

    async def await_(
        self, kind: StepKind, name: str, seconds: float | None, read: Callable[[bytes], Any]
    ) -> Any:
        """Return the value of a signal, or None after a sleep. See `wait`."""
        call = self.begin(kind, name)
        record, end = self._look_up(call, (await self.aload()).find_wait)
        if end is None:
            reply = await self._port.acall("wait", *_asked(call, record, seconds))
            return _finish(call, self._replied(reply), read, seconds)
        await self._port.acall("hold")
        return _finish(call, (end, self._log.value_of(call, end)), read, seconds)

    def _replied(self, reply: Any) -> tuple[WaitEnd, bytes | None]:
        if reply is None:
            self.stopped = WaitForChildren()
            raise self.stopped
        ended, value = reply
        end = read_wait_end(ended)
        if isinstance(end.value, Raw):
            return end, bytes(end.value)
        return end, value if end.sent else None


def stopped_by(run: Run) -> JobControl | None:
    """Return the wait or the `StepMismatch` that ends a run, or None."""
    steps: JobSteps | None = run.steps
    return None if steps is None else steps.stopped


def ending_of(run: Run, result: T) -> T | JobControl:
    """Return what ends a run whose function returned or raised `result`.

    This is its wait or `StepMismatch`, unless concurrent calls raised other errors as well.
    """
    is_group = isinstance(result, BaseExceptionGroup)
    stopped = None if is_group else stopped_by(run)
    return result if stopped is None else stopped


_LOOK: Final = 0.1
"""Seconds between checks for cancellation while a thread sleeps."""


def _now_ms() -> int:
    return int(time.time() * 1000)


def _record(call: StepCall, began_ms: int, began: float, raw: bytes) -> bytes:
    took = to_ms(monotonic() - began)
    return encode_record(StepRecord(began_ms, took, Raw(raw), call.args, call.place))


def _read_record(step: StepSpec, raw: bytes) -> Any:
    try:
        return step.read(raw)
    except ValueError as error:
        raise SerializationError(
            f"Step '{step.name}' returned a value that does not fit its annotation: {error}"
        ) from error


@contextmanager
def _within(name: str) -> Generator[None]:
    token = _inside.set(name)
    try:
        yield
    finally:
        _inside.reset(token)


def is_inside_step() -> bool:
    """Return True in a function that is being executed as a step."""
    return bool(_inside.get())


async def _ain_time(step: StepSpec, coroutine: Awaitable[Any]) -> Any:
    with anyio.move_on_after(step.timeout) as scope:
        return await coroutine
    if scope.cancelled_caught:
        raise _timed_out(step)
    raise AssertionError  # The block returns, raises or is cancelled.


def _in_time(step: StepSpec, args: Any, kwargs: Any) -> Any:
    """Call a sync function in another thread, because a thread cannot be interrupted."""
    ended = Event()
    outcome: list[Any] = [None, None]

    def call() -> None:
        try:
            outcome[0] = step.function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller
            outcome[1] = error
        ended.set()

    context = copy_context()
    Thread(target=context.run, args=(call,), name=f"step-{step.name}", daemon=True).start()
    if not ended.wait(step.timeout):
        raise _timed_out(step)
    value, error = outcome
    if error is not None:
        raise error
    return value


def _timed_out(step: StepSpec) -> TimeoutError:
    return TimeoutError(f"Step '{step.name}' took longer than its timeout of {step.timeout:g} s")


def _asked(call: StepCall, record: WaitRecord | None, seconds: float | None) -> tuple[Any, ...]:
    """Return the arguments of the port's method `wait`, as values that a message can carry."""
    begun = None if record is None else (record.at, record.until)
    timeout_ms = None if seconds is None else to_ms(seconds)
    return call.kind, call.name, call.number, call.place, begun, timeout_ms


def _finish(
    call: StepCall,
    ended: tuple[WaitEnd, bytes | None],
    read: Callable[[bytes], Any],
    seconds: float | None,
) -> Any:
    _, raw = ended
    if call.kind == "sleep":
        return None
    if raw is None:
        limit = "" if seconds is None else f" within {seconds:g} s"
        raise SignalTimeout(f"No signal '{call.name}' arrived{limit}")
    try:
        return read(raw)
    except ValueError as error:
        raise PermanentError(f"The value of signal '{call.name}' does not fit: {error}") from error


def wait_record(
    begun: tuple[int, int | None] | None, place: int, timeout_ms: int | None, now_ms: int
) -> WaitRecord:
    """Return the record of a wait that begins now, or of one that began in an earlier run."""
    if begun is not None:
        at, until = begun
        return WaitRecord(at, until, place)
    return WaitRecord(now_ms, None if timeout_ms is None else now_ms + timeout_ms, place)


# Provide the running job to its handler: its data, and the methods to report and add children.


# The running job.


R = TypeVar("R")


def no_resources(_: str) -> None:
    """Return the resources of jobs without a lifespan, which is None."""


class JobEnvironment(Struct, frozen=True):
    """The queue and worker that jobs run in."""

    queue: str
    worker_id: str
    open_port: Callable[[Run], JobPort]
    """Factory for a job's storage, called when the job first needs it."""
    resources_of: Callable[[str], Any] = no_resources
    """Function that returns the lifespan's resources for jobs of a name."""
    wall_ms: Callable[[], int] = Clock().wall_ms
    """Clock for job expiry, in ms since 1970."""


class RunningJob:
    """The running job, as its task sees it.

    Methods that begin with `a` are async. Their counterparts are for sync functions, and would
    block the event loop in an `async def`. Both raise `LockLost` if this worker no longer holds the
    job, or if the attempt is over.
    """

    __slots__ = ("_environment", "_run", "job")

    def __init__(self, run: Run, environment: JobEnvironment) -> None:
        self._run = run
        self._environment = environment
        self.job: Job = run.job
        """The job as read when it was fetched."""

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, JOB, name)

    def __repr__(self) -> str:
        return f"<RunningJob {self.name} {self.id} in {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def name(self) -> str:
        """The job's name, which is the task's name."""
        return self.job.name

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._environment.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self.job.attempt

    @property
    def attempts(self) -> int:
        """The maximum number of attempts."""
        return attempts_of(self.job, self._run.policy)

    @property
    def data(self) -> Any:
        """The payload as read when the job was fetched."""
        return self.job.data

    @property
    def headers(self) -> dict[str, str]:
        """The job's headers, as set with `options(headers=…)`."""
        return self.job.headers

    @property
    def ref(self) -> str:
        """Queue and id in one string, for `app.job(ref)`."""
        return job_ref(self.queue, self.id)

    @property
    def timestamp(self) -> datetime | None:
        """The time when the job was added."""
        return self.job.timestamp

    @property
    def schedule_id(self) -> str | None:
        """Id of the schedule that added the job, or None."""
        return self._run.job.scheduler_id

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the job."""
        return self._environment.worker_id

    @property
    def resources(self) -> Any:
        """The value that the app's lifespan yields, or None without a lifespan."""
        return self._environment.resources_of(self.job.name)

    @property
    def lost(self) -> bool:
        """True if the lock is lost, so that another worker may also be running the job."""
        return self._run.lost is not None

    def too_late(self) -> Fail | None:
        """Return the failure if the job has expired, otherwise None."""
        if self.job.options.expires_ms is None:
            return None
        return expired(self.job, self._environment.wall_ms())

    @property
    def cancelled(self) -> bool:
        """True if the job was cancelled. A sync function should check this and return soon.

        Once this has returned True, the job finishes as cancelled, whatever the function returns.
        """
        run = self._run
        if run.cancelled is None:
            return False
        run.cancel_seen = True
        return True

    def check(self) -> None:
        """Raise `CancelRequested` if the job was cancelled."""
        if self.cancelled:
            raise CancelRequested(self._run.cancelled or "")

    def progress(self, value: Any) -> None:
        """Report the job's progress as a number or any other JSON value.

        If Redis is full or unavailable, the value is lost and the job continues.
        """
        raw = encode_progress(value)
        self._port.call("progress", raw)
        self._run.raw_progress = raw

    async def aprogress(self, value: Any) -> None:
        """Report the job's progress as a number or any other JSON value.

        If Redis is full or unavailable, the value is lost and the job continues.
        """
        raw = encode_progress(value)
        await self._port.acall("progress", raw)
        self._run.raw_progress = raw

    def log(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        If Redis is full or unavailable, the line is lost and the job continues.
        """
        self._port.call("log", line)

    async def alog(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        If Redis is full or unavailable, the line is lost and the job continues.
        """
        await self._port.acall("log", line)

    def update_data(self, data: Any) -> None:
        """Replace the payload in Redis. The next attempt gets the new one.

        If Redis does not accept it within 10 s, this raises an error. The job then runs again
        without using an attempt.
        """
        self._port.call("update_data", encode_data(data))

    async def aupdate_data(self, data: Any) -> None:
        """Replace the payload in Redis. The next attempt gets the new one.

        If Redis does not accept it within 10 s, this raises an error. The job then runs again
        without using an attempt.
        """
        await self._port.acall("update_data", encode_data(data))

    def add_cost(self, cost: int) -> None:
        """Correct the job's cost in the limiter of its group.

        The limiter's current window counts it in addition to the job's `cost`. A negative number
        gives some of it back. Without a group or a limiter, this has no effect.

        Raises:
            ConfigurationError: If `cost` is not an int.
        """
        if check_added_cost(cost) and self.job.options.group is not None:
            self._port.call("add_cost", cost)

    async def aadd_cost(self, cost: int) -> None:
        """Correct the job's cost in the limiter of its group. See `add_cost`."""
        if check_added_cost(cost) and self.job.options.group is not None:
            await self._port.acall("add_cost", cost)

    @overload
    def children(self, task: Source[R]) -> list[R]: ...
    @overload
    def children(self, task: str) -> list[Any]: ...
    def children(self, task: Source[Any] | str) -> list[Any]:
        """Return the results of the job's children by task or name, in the order of the children.

        Children that failed are left out.
        """
        return _read(task, self._port.call("child_results", source_name("children", task)))

    @overload
    async def achildren(self, task: Source[R]) -> list[R]: ...
    @overload
    async def achildren(self, task: str) -> list[Any]: ...
    async def achildren(self, task: Source[Any] | str) -> list[Any]:
        """Return the results of the job's children by task or name. See `children`."""
        return _read(task, await self._port.acall("child_results", source_name("achildren", task)))

    def failed_children(self) -> dict[tuple[str, str], str]:
        """Return the errors of failed children, by queue and id.

        It contains children added with `on_failure` "ignore" or "continue".
        """
        failures: dict[tuple[str, str], str] = self._port.call("child_failures")
        return failures

    async def afailed_children(self) -> dict[tuple[str, str], str]:
        """Return the errors of failed children, by queue and id.

        It contains children added with `on_failure` "ignore" or "continue".
        """
        failures: dict[tuple[str, str], str] = await self._port.acall("child_failures")
        return failures

    def spawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids. See `Task.after`.

        To run the job again when they have finished, raise `WaitForChildren` afterwards. The ids
        are derived from the job's id and the child's number. If the worker dies and the job runs
        again, adding the same children again creates no duplicates.
        """
        children = children_of("spawn()", [jobs], on_failure)
        return self._port.call("spawn", children) if children.jobs else []

    async def aspawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids. See `spawn`."""
        children = children_of("aspawn()", [jobs], on_failure)
        return await self._port.acall("spawn", children) if children.jobs else []

    def drop_pending_children(self) -> int:
        """Remove the children that have not started, and return their number.

        Running children are not stopped, and the job cannot finish before them.
        """
        count: int = self._port.call("drop_children")
        return count

    async def adrop_pending_children(self) -> int:
        """Remove the children that have not started. See `drop_pending_children`."""
        count: int = await self._port.acall("drop_children")
        return count

    @overload
    async def await_signal(
        self, name: str, kind: type[T], *, timeout: Duration | None = None
    ) -> T: ...
    @overload
    async def await_signal(
        self, name: str, kind: Any = Any, *, timeout: Duration | None = None
    ) -> Any: ...
    async def await_signal(
        self, name: str, kind: Any = Any, *, timeout: Duration | None = None
    ) -> Any:
        """Wait for a signal without occupying a slot, and return its value.

        The job leaves the worker without using an attempt. When the signal arrives, the task runs
        again from its beginning: finished steps return their stored results, and this call returns
        the value. A signal that was sent before the wait is kept for it. Each wait takes one
        signal of its name.

        Args:
            name: Name of the signal.
            kind: Type of the value. Without it, the value is the JSON value.
            timeout: Maximum time to wait. None waits indefinitely.

        Raises:
            SignalTimeout: If no signal arrived in time.
            PermanentError: If the value does not fit the type.
            ConfigurationError: If an argument is invalid.

        Example:
            >>> approval = await current_job().await_signal("approval", Approval, timeout=3600)
        """
        asked = _signal_arguments(name, kind, timeout)
        return await self._steps.await_("signal", *asked)

    @overload
    def wait_signal(self, name: str, kind: type[T], *, timeout: Duration | None = None) -> T: ...
    @overload
    def wait_signal(
        self, name: str, kind: Any = Any, *, timeout: Duration | None = None
    ) -> Any: ...
    def wait_signal(self, name: str, kind: Any = Any, *, timeout: Duration | None = None) -> Any:
        """Wait for a signal without occupying a thread. For sync functions; see `await_signal`."""
        return self._steps.wait("signal", *_signal_arguments(name, kind, timeout))

    async def asleep(self, duration: Duration) -> None:
        """Sleep without occupying a slot. The task then runs again from its beginning.

        Finished steps return their stored results, and this call returns. This uses no attempt.

        Args:
            duration: Seconds or a `timedelta`.

        Raises:
            ConfigurationError: If the duration is invalid.
        """
        await self._steps.await_("sleep", "", seconds("duration", duration), payload.decode)

    def sleep(self, duration: Duration) -> None:
        """Sleep without occupying a thread. For sync functions; see `asleep`."""
        self._steps.wait("sleep", "", seconds("duration", duration), payload.decode)

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for Redis to accept its writes."""
        port = self._run.port
        return 0.0 if port is None else port.redis_wait_seconds

    @property
    def _steps(self) -> JobSteps:
        if _current_batch.get(None) is not None:
            raise TaskbullError("A batch task cannot wait or sleep: it runs for several jobs")
        run = self._run
        if run.steps is None:
            run.steps = JobSteps(run, self._port)
        steps: JobSteps = run.steps
        return steps

    @property
    def _port(self) -> JobPort:
        run = self._run
        if run.port is None:
            run.port = self._environment.open_port(run)
        return run.port


# Access for the process pool and for steps.


def run_of(job: RunningJob) -> Run:
    """Return the job's run."""
    return job._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def clock_ahead_ms(job: RunningJob) -> int:
    """Return how far the expiry clock is ahead of this machine's in ms, or 0 without an expiry."""
    if job.job.options.expires_ms is None:
        return 0
    wall_ms = job._environment.wall_ms  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return wall_ms() - int(time.time() * 1000)


def port_of(job: RunningJob) -> JobPort:
    """Return the job's storage."""
    return job._port  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def steps_of(job: RunningJob) -> JobSteps:
    """Return the job's steps and waits."""
    return job._steps  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _signal_arguments(
    name: str, kind: Any, timeout: Duration | None
) -> tuple[str, float | None, Callable[[bytes], Any]]:
    try:
        read = converter(kind)
    except TypeError as error:
        raise ConfigurationError(f"Signal '{name}' cannot have this type: {error}") from None
    limit = None if timeout is None else seconds("timeout", timeout)
    return check_signal_name(name), limit, read


def _read(task: Source[Any] | str, results: list[bytes]) -> list[Any]:
    read = payload.decode if isinstance(task, str) else task.read_result
    return [read(raw) for raw in results]


# The current job, visible to its function, the code that it calls, and its threads.


_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


_current_batch: ContextVar[list[RunningJob]] = ContextVar("taskbull_current_batch")
"""The jobs of a running batch task, which has no single current job."""

enter_batch = _current_batch.set
leave_batch = _current_batch.reset


def job_of(context: Context) -> RunningJob | None:
    """Return the current job of a context. For a batch, return its first job."""
    batch = context.get(_current_batch)
    return context.get(_current) if batch is None else batch[0]


class _Missing:
    """Type of the default of `current_job`, which a caller cannot pass by accident."""


_MISSING = _Missing()


@overload
def current_job() -> RunningJob: ...
@overload
def current_job(default: T) -> RunningJob | T: ...
def current_job(default: Any = _MISSING) -> Any:
    """Return the current job. Works in a task, in code that it calls, and in its threads.

    Args:
        default: Value to return outside a job, and in a batch task.

    Raises:
        TaskbullError: Outside a job, and in a batch task, if there is no default.

    Example:
        >>> job = current_job(None)
        >>> if job is not None:
        ...     job.log("Started")
    """
    try:
        return _current.get()
    except LookupError:
        if default is not _MISSING:
            return default
        if _current_batch.get(None) is not None:
            raise TaskbullError(
                "current_job() called in a batch task, which runs for several jobs: use "
                "current_batch(), which returns them in the order of the items"
            ) from None
        raise TaskbullError("current_job() called outside a running task") from None


def current_batch() -> list[RunningJob]:
    """Return the jobs of the current batch task, in the order of its items.

    Raises `TaskbullError` outside a batch task.
    """
    try:
        return [*_current_batch.get()]
    except LookupError:
        raise TaskbullError("current_batch() called outside a running batch task") from None
