"""The program of a pool process: `python -m taskbull.app.pool.child`.

It imports the app, enters its lifespans, and runs one call after another in its main thread until
the worker asks it to retire. It connects to Redis only when a task needs it, for example to spawn
children.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from mmap import mmap
from pathlib import Path
from queue import SimpleQueue
from random import random
from threading import RLock, Thread
from typing import Any, NoReturn, TypeAlias

import anyio
from msgspec.structs import replace

from taskbull.app.app import App, dispatch_of
from taskbull.app.dispatch import Dispatch
from taskbull.app.group import Resources, Yielded
from taskbull.app.pool.child_io import Interruption, LineHandler, ProcessLine, RemoteJobPort
from taskbull.app.pool.source import AppSource, load
from taskbull.core.failure import leave_out_our_frames, reason_of, stack_of
from taskbull.core.flow import Children
from taskbull.core.job import Job
from taskbull.core.outcome import Discard, Fail, Loss, RetryAfter, Written
from taskbull.core.retry import decide
from taskbull.core.wire.job import encode_value
from taskbull.core.wire.options import decode_options
from taskbull.errors import ConfigurationError, LockLost, SerializationError, Terminated
from taskbull.scripts.call import again
from taskbull.store.backend import poster
from taskbull.worker.attempt import SyncHandler
from taskbull.worker.batch import Batch, checked_results
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.messages import (
    MOST,
    CannotStart,
    Done,
    Ended,
    Hello,
    JobFlags,
    Order,
    Raised,
    Ready,
    RemoteOutcome,
    Retire,
)
from taskbull.worker.pool.process import NUMBER_BYTES
from taskbull.worker.pool.results import PUT_OFF, TERMINATED, remote_outcome_of
from taskbull.worker.run import JobPort, NotBegun, Run, note_spawned, spawning
from taskbull.worker.running_job import (
    JobEnvironment,
    RunningJob,
    enter,
    enter_batch,
    leave,
    leave_batch,
    run_of,
)

# Reports to the worker about finished jobs.


_MOST_OF_A_RESULT = MOST - 4096


def encoded(value: Any, job: Job) -> bytes | None:
    """Return a job's result as JSON, or `None` for null.

    Raises:
        SerializationError: If the result is too large or cannot be encoded.
    """
    if value is None:
        return None
    raw = encode_value(value, job.options.result_limit)
    if len(raw) > _MOST_OF_A_RESULT:
        raise SerializationError(
            f"Result of {len(raw) / 1e6:.1f} MB exceeds the limit of {MOST >> 20} MB for pool "
            "processes"
        )
    return raw


def end_of(
    number: int, run: Run, result: bytes | BaseException | None, *, halted: bool, megabytes: float
) -> Ended:
    """Return the message that reports a finished job, from its result or its error."""
    spawned = (run.spawned.before, run.spawned.new)
    if not isinstance(result, BaseException):
        return Done(number, result, megabytes, spawned, run.cancel_seen)
    raised = _raised(number, run, result, halted=halted)
    return replace(raised, megabytes=megabytes, spawned=spawned)


def _raised(number: int, run: Run, error: BaseException, *, halted: bool) -> Raised:
    """Decide the job's outcome in this process, which has the error's class."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, Terminated) and halted:
        return _told(number, kind, error, TERMINATED)
    if run.port is not None and run.port.caused(error):
        return _told(number, kind, error, PUT_OFF)
    if isinstance(error, NotBegun):
        outcome: Written = error.outcome
    else:
        outcome = decide(error, run.job, run.policy, random=random)
    fate = remote_outcome_of(outcome)
    if isinstance(outcome, Fail | RetryAfter):
        return Raised(number, kind, outcome.failure.reason, outcome.failure.stack, fate)
    return Raised(number, kind, reason_of(error), "", fate)


def _told(number: int, kind: str, error: BaseException, fate: RemoteOutcome) -> Raised:
    leave_out_our_frames(error)
    return Raised(number, kind, reason_of(error), stack_of(error), fate)


# Calls of a task's function, with one job or with the items of a batch.


Result: TypeAlias = bytes | BaseException | None
"""A job's result as JSON (`None` means null), or the error raised for it."""


def call_one(function: SyncHandler, job: RunningJob) -> bytes | None:
    """Call a function with its job and return the result as JSON.

    Raises:
        NotBegun: If the job has expired.
    """
    _check_time(job)
    token = enter(job)
    try:
        value = function(job)
    finally:
        leave(token)
    return encoded(value, job.job)


def call_batch(
    function: Callable[[Batch], Any], read: Callable[[bytes], Any], jobs: Sequence[RunningJob]
) -> list[Result]:
    """Call a function with the items of all jobs, and return each job's result.

    Expired jobs and invalid items are left out of the call. An error in one item or in its result
    only fails that job.
    """
    found: dict[RunningJob, Result] = {}
    items: dict[RunningJob, Any] = {}
    for job in jobs:
        try:
            _check_time(job)
            items[job] = read(job.job.raw_data)
        except Exception as error:  # noqa: BLE001 - the application's types may raise anything
            found[job] = error
    if items:
        batch = Batch([*items], [*items.values()])
        for job, value in zip(batch.jobs, _results(function, batch), strict=True):
            found[job] = _part(value, job)
    return [found[job] for job in jobs]


def _results(function: Callable[[Batch], Any], batch: Batch) -> list[Any]:
    token = enter_batch(batch.jobs)
    try:
        return checked_results(function(batch), batch.jobs)
    finally:
        leave_batch(token)


def _part(value: Any, job: RunningJob) -> Result:
    if isinstance(value, BaseException):
        return value
    try:
        return encoded(value, job.job)
    except Exception as error:  # noqa: BLE001 - encoding a value may run the application's code
        return error


def _check_time(job: RunningJob) -> None:
    if (late := job.too_late()) is not None:
        raise NotBegun(late)


# Memory use and memory limit of this process.


def resident_megabytes() -> float:
    """Return this process's memory use in megabytes, or its peak if that is not available."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return pages * resource.getpagesize() / (1 << 20)


def limit_memory(megabytes: int | None) -> None:
    """Limit this process's address space. Allocations beyond it raise `MemoryError`."""
    if megabytes is not None:
        limit = megabytes << 20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


# Lifespans. They run in an event loop in a separate thread, because the tasks' functions need the
# main thread: only there can a signal interrupt them.


class ProcessLifespan:
    """The app's lifespans, run in a separate thread."""

    def __init__(self, resources: Resources, backend: str) -> None:
        self._resources = resources
        self._backend = backend
        self._yielded: Yielded = {}
        self._news: SimpleQueue[BaseException | None] = SimpleQueue()
        self._leave: Callable[[], object] = bool
        self._thread = Thread(target=self._run, name="lifespan", daemon=True)

    def enter(self) -> None:
        """Enter all lifespans and wait for them; raise the error if one of them fails."""
        if not self._resources:
            return
        self._thread.start()
        error = self._news.get()
        if error is not None:
            raise error

    def resources_of(self, name: str) -> Any:
        """Return the resources for the jobs of a task."""
        return self._resources.of(self._yielded, name)

    def leave(self) -> None:
        """Leave all lifespans and wait until they have finished."""
        if self._thread.is_alive():
            self._leave()
            self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as error:  # noqa: BLE001 - `enter` raises it
            if self._news.empty():
                self._news.put(error)
            traceback.print_exception(error)

    async def _serve(self) -> None:
        done = anyio.Event()
        post = poster()
        self._leave = lambda: post(done.set)
        async with self._resources.open() as self._yielded:
            self._news.put(None)
            await done.wait()


_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_SPAWNING = 10.0


class Child:
    """The main object of a pool process: it runs the calls that the worker sends."""

    def __init__(
        self, line: ProcessLine, interruption: Interruption, hello: Hello, begun: mmap
    ) -> None:
        self._line = line
        self._begun = begun
        """The number of the last call started; the worker reads it if this process dies."""
        # Reentrant: an interruption may arrive during a spawn, and the task's handler may spawn.
        self._spawning = RLock()
        self._interruption = interruption
        self._hello = hello
        self._pid = os.getpid()
        self._running: tuple[int, Sequence[RunningJob]] = 0, ()
        self._standings: list[JobFlags] = []
        interruption.heed = self._heed
        self._app, self._dispatch = _load_app(hello)
        resources = Resources(self._app.registry, in_process=True)
        self._lifespan = ProcessLifespan(resources, hello.backend)

    def serve(self) -> None:
        """Run calls until the worker sends `Retire`, then leave the lifespans."""
        self._lifespan.enter()
        self._line.send(Ready())
        orders: list[Order] = []
        while not isinstance(message := self._line.receive(), Retire):
            if isinstance(message, JobFlags):
                self._heed(message)
            elif isinstance(message, Order):
                orders.append(message)
                if not message.more:
                    self._run(orders)
                    orders = []
        self._lifespan.leave()
        self._app.close()

    def _run(self, orders: Sequence[Order]) -> None:
        number = orders[0].number
        jobs = [self._job(place, order) for place, order in enumerate(orders)]
        self._running = number, jobs
        self._mark()
        results: Sequence[Result]
        try:
            try:
                self._line.begin(number)
                self._interruption.begin(number)
                self._begun[:] = number.to_bytes(NUMBER_BYTES, "little")
                results = self._call(jobs)
            finally:
                self._interruption.end()
        except BaseException as error:  # noqa: BLE001 - the task's code may raise anything
            end_child_of(self._pid, error)
            results = [error] * len(jobs)
        end_child_of(self._pid)
        # From here on, threads that the task has left behind can no longer affect its jobs.
        self._line.end()
        with self._spawning:
            pass
        self._standings.clear()
        _flush()
        halted = self._interruption.halted(number)
        megabytes = resident_megabytes() if self._hello.measures else 0.0
        ends = [
            end_of(number, run_of(job), result, halted=halted, megabytes=megabytes)
            for job, result in zip(jobs, results, strict=True)
        ]
        self._line.send(*ends)

    def _job(self, place: int, order: Order) -> RunningJob:
        workplace = JobEnvironment(
            order.queue,
            self._hello.worker_id,
            partial(self._open_port, order, place),
            self._lifespan.resources_of,
            lambda: int(time.time() * 1000) + order.clock_ahead_ms,
        )
        return RunningJob(Run(_job(order), token=order.token, renewed=0.0), workplace)

    def _call(self, jobs: Sequence[RunningJob]) -> list[Result]:
        route = self._dispatch.resolve(jobs[0].job)
        for job in jobs:
            run_of(job).policy = route.policy
        if route.batch is not None:
            return call_batch(route.function, route.batch.read, jobs)
        [job] = jobs
        return [call_one(route.function, job)]

    def _heed(self, standing: JobFlags) -> None:
        """Store a job's status. Its order may still be in flight on the other line."""
        self._standings.append(standing)
        self._mark()

    def _mark(self) -> None:
        number, jobs = self._running
        for standing in list(self._standings):
            if standing.number == number:
                run = run_of(jobs[standing.job])
                run.cancelled = standing.cancelled
                run.lost = Discard(Loss.TAKEN) if standing.lost else None

    def _open_port(self, order: Order, place: int, run: Run) -> JobPort:
        ask = partial(self._line.ask, order.number, place)
        return RemoteJobPort(run, order.queue, ask, partial(self._spawn, order, run))

    def _spawn(self, order: Order, run: Run, children: Children) -> list[str]:
        with self._spawning:
            if not self._line.is_open_to(order.number):
                raise LockLost(order.queue, order.id)
            producer = self._app.producer
            keys = producer.namespace.keys(order.queue)
            steps = spawning(keys, run, children, int(time.time() * 1000))
            store = producer.stores.sync_store()
            return note_spawned(run, store.run(again(steps), timeout=_SPAWNING))


def _load_app(hello: Hello) -> tuple[App, Dispatch]:
    app = load(AppSource(hello.app, hello.modules, hello.script))
    if not isinstance(app, App):
        raise ConfigurationError(f"{hello.app!r} must be an App, got {type(app).__qualname__}")
    app.load_tasks()
    if missing := sorted(set(hello.tasks) - app.tasks.keys()):
        raise ConfigurationError(
            f"App '{app.name}' has no task {', '.join(map(repr, missing))} when a pool process "
            f"imports {hello.app!r}: a task with process=True must not be declared inside a "
            "function, or only in the program that runs the worker"
        )
    return app, dispatch_of(app)


def _job(order: Order) -> Job:
    return Job(
        id=order.id,
        name=order.name,
        raw_data=order.data,
        options=decode_options(order.options),
        created_ms=order.created_ms,
        delay_ms=order.delay_ms,
        priority=order.priority,
        attempts_made=order.attempts_made,
        attempts_started=order.attempts_started,
        stalled_count=order.stalled_count,
        previous_delay_ms=order.previous_delay_ms,
        processed_ms=order.processed_ms,
        processed_by=None,
        dedup_key=order.dedup_key,
        scheduler_id=order.scheduler_id,
        parent_key=order.parent_key,
        expiry_lifted=order.expiry_lifted,
    )


def _flush() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - the task may have closed or replaced them
        pass


def _die_with(parent: int) -> None:
    """Make sure that this process does not outlive its worker, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # The worker exited before prctl took effect.
        os._exit(1)


def _end_group() -> NoReturn:
    """Kill this process and all programs that it has started, because the worker is gone."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _catch_faults(descriptor: int) -> None:
    """Write the stack to a descriptor when C code crashes, and on SIGTERM."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable(descriptor, all_threads=False)
    faulthandler.register(signal.SIGTERM, descriptor, all_threads=False, chain=True)


def _set_up_logging(line: ProcessLine, hello: Hello) -> None:
    root = logging.getLogger()
    root.addHandler(LineHandler(line.send))
    root.setLevel(hello.log_level)
    # Do not send lines that the worker would not log.
    logging.disable(hello.log_disabled)
    for name, level in hello.log_levels.items():
        logging.getLogger(name).setLevel(level)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def main() -> None:
    """Run a pool process. The arguments are the worker's process id and four descriptors."""
    parent, line_fd, leash_fd, faults_fd, begun_fd = map(int, sys.argv[1:])
    _die_with(parent)
    interruption = Interruption()
    interruption.install()
    _catch_faults(faults_fd)
    interruption.watch(leash_fd, _end_group)
    begun = mmap(begun_fd, NUMBER_BYTES)
    os.close(begun_fd)
    line = ProcessLine(line_fd, interruption)
    hello = line.receive()
    if not isinstance(hello, Hello):
        sys.exit(f"{hello!r} is not a greeting")
    sys.path[:] = hello.path
    _set_up_logging(line, hello)
    try:
        limit_memory(hello.memory_limit)
        child = Child(line, interruption, hello, begun)
        child.serve()
    except EOFError:
        _end_group()
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        with suppress(OSError):
            line.send(CannotStart(reason_of(error), stack_of(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
