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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from mmap import mmap
from pathlib import Path
from random import random
from threading import RLock
from typing import Any, NoReturn, TypeAlias

from anyio.from_thread import start_blocking_portal

from taskbull.app.app import App, dispatch_of
from taskbull.app.dispatch import Dispatch
from taskbull.app.group import Resources, Yielded
from taskbull.app.pool.child_io import RemoteJobPort, WorkerConnection, WorkerLogHandler
from taskbull.app.pool.source import AppSource, load
from taskbull.core.failure import leave_out_our_frames, reason_of, stack_of
from taskbull.core.flow import Children
from taskbull.core.job import Job
from taskbull.core.outcome import Discard, Fail, Loss, RetryAfter, Written
from taskbull.core.retry import decide
from taskbull.core.wire.job import encode_value
from taskbull.errors import ConfigurationError, LockLost, SerializationError, Terminated
from taskbull.scripts.call import again
from taskbull.worker.attempt import SyncHandler
from taskbull.worker.batch import Batch, checked_results
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.messages import (
    MEGABYTE,
    MOST,
    Done,
    Ended,
    Hello,
    JobFlags,
    Raised,
    RunJob,
    Started,
    unpack_job,
)
from taskbull.worker.pool.process import NUMBER_BYTES
from taskbull.worker.pool.results import outcome_fields
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
            f"Result of {len(raw) / MEGABYTE:.1f} MB exceeds the limit of {MOST // MEGABYTE} MB "
            "for pool processes"
        )
    return raw


def end_of(
    number: int, run: Run, result: bytes | BaseException | None, *, halted: bool, megabytes: float
) -> Ended:
    """Return the message that reports a finished job, from its result or its error.

    The outcome of an error is decided here, because this process has the error's class.
    """
    spawned = (run.spawned.before, run.spawned.new)
    if not isinstance(result, BaseException):
        return Done(number, megabytes, spawned, result, run.cancel_seen)
    reason, stack, fields = _decided(result, run, halted=halted)
    kind = f"{type(result).__module__}.{type(result).__qualname__}"
    return Raised(number, megabytes, spawned, kind, reason, stack, **fields)


def _decided(error: BaseException, run: Run, *, halted: bool) -> tuple[str, str, dict[str, Any]]:
    """Return the reason, the stack and the outcome of an error."""
    is_terminated = isinstance(error, Terminated) and halted
    if is_terminated or (run.port is not None and run.port.caused(error)):
        leave_out_our_frames(error)
        outcome = {"outcome": "terminated" if is_terminated else "release"}
        return reason_of(error), stack_of(error), outcome
    decided: Written
    if isinstance(error, NotBegun):
        decided = error.outcome
    else:
        decided = decide(error, run.job, run.policy, random=random)
    if isinstance(decided, Fail | RetryAfter):
        return decided.failure.reason, decided.failure.stack, outcome_fields(decided)
    return reason_of(error), "", outcome_fields(decided)


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
        return peak * (1 if sys.platform == "darwin" else 1024) / MEGABYTE
    return pages * resource.getpagesize() / MEGABYTE


def limit_memory(megabytes: int | None) -> None:
    """Limit this process's address space. Allocations beyond it raise `MemoryError`."""
    if megabytes is not None:
        limit = megabytes * MEGABYTE
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


@contextmanager
def lifespans_open(resources: Resources, backend: str) -> Generator[Yielded]:
    """Run the app's lifespans around the block, in an event loop in a separate thread.

    The tasks' functions need the main thread: only there can a signal interrupt them.
    """
    if not resources:
        yield {}
        return
    with (
        start_blocking_portal(backend, name="lifespan") as portal,
        portal.wrap_async_context_manager(resources.open()) as yielded,
    ):
        yield yielded


_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_SPAWNING = 10.0


class Child:
    """The main object of a pool process: it runs the calls that the worker sends."""

    def __init__(self, worker: WorkerConnection, begun: mmap) -> None:
        self._worker = worker
        self._begun = begun
        """The number of the last call started; the worker reads it if this process dies."""
        # Reentrant: an interruption may arrive during a spawn, and the task's handler may spawn.
        self._spawning = RLock()
        self._pid = os.getpid()
        self._running: tuple[int, Sequence[RunningJob]] = 0, ()
        self._flags: list[JobFlags] = []
        self._app: App
        self._dispatch: Dispatch
        self._hello: Hello
        self._resources_of: Callable[[str], Any]

    def serve(self, hello: Hello) -> None:
        """Load the app, and run calls inside its lifespans until the worker sends no more."""
        self._hello = hello
        self._app, self._dispatch = _load_app(hello)
        resources = Resources(self._app.registry, in_process=True)
        with lifespans_open(resources, hello.backend) as yielded:
            self._resources_of = partial(resources.of, yielded)
            self._worker.send(Started())
            jobs: list[RunJob] = []
            with suppress(EOFError):
                while True:
                    message = self._worker.receive()
                    if isinstance(message, JobFlags):
                        self.set_flags(message)
                    elif isinstance(message, RunJob):
                        jobs.append(message)
                        if not message.more:
                            self._run(jobs)
                            jobs = []
        self._app.close()

    def set_flags(self, flags: JobFlags) -> None:
        """Store a job's status. The job itself may still be in flight on the other socket."""
        self._flags.append(flags)
        self._apply_flags()

    def _run(self, messages: Sequence[RunJob]) -> None:
        number = messages[0].number
        jobs = [self._job(place, message) for place, message in enumerate(messages)]
        self._running = number, jobs
        self._apply_flags()
        results: Sequence[Result]
        try:
            try:
                self._worker.begin(number)
                self._begun[:] = number.to_bytes(NUMBER_BYTES, "little")
                results = self._call(jobs)
            finally:
                self._worker.end_interruption()
        except BaseException as error:  # noqa: BLE001 - the task's code may raise anything
            end_child_of(self._pid, error)
            results = [error] * len(jobs)
        end_child_of(self._pid)
        # From here on, threads that the task has left behind can no longer affect its jobs.
        self._worker.end()
        with self._spawning:
            pass
        self._flags.clear()
        _flush()
        halted = self._worker.is_halted(number)
        megabytes = resident_megabytes() if self._hello.measures else 0.0
        ends = [
            end_of(number, run_of(job), result, halted=halted, megabytes=megabytes)
            for job, result in zip(jobs, results, strict=True)
        ]
        self._worker.send(*ends)

    def _job(self, place: int, message: RunJob) -> RunningJob:
        environment = JobEnvironment(
            message.queue,
            self._hello.worker_id,
            partial(self._open_port, message, place),
            self._resources_of,
            lambda: int(time.time() * 1000) + message.clock_ahead_ms,
        )
        return RunningJob(Run(unpack_job(message), token=message.token, renewed=0.0), environment)

    def _call(self, jobs: Sequence[RunningJob]) -> list[Result]:
        route = self._dispatch.resolve(jobs[0].job)
        for job in jobs:
            run_of(job).policy = route.policy
        if route.batch is not None:
            return call_batch(route.function, route.batch.read, jobs)
        [job] = jobs
        return [call_one(route.function, job)]

    def _apply_flags(self) -> None:
        number, jobs = self._running
        for flags in list(self._flags):
            if flags.number == number:
                run = run_of(jobs[flags.job])
                run.cancelled = flags.cancelled
                run.lost = Discard(Loss.TAKEN) if flags.lost else None

    def _open_port(self, message: RunJob, place: int, run: Run) -> JobPort:
        request = partial(self._worker.request, message.number, place)
        return RemoteJobPort(run, message.queue, request, partial(self._spawn, message, run))

    def _spawn(self, message: RunJob, run: Run, children: Children) -> list[str]:
        with self._spawning:
            if not self._worker.is_open_to(message.number):
                raise LockLost(message.queue, run.job.id)
            producer = self._app.producer
            keys = producer.namespace.keys(message.queue)
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


def _set_up_logging(worker: WorkerConnection, hello: Hello) -> None:
    root = logging.getLogger()
    root.addHandler(WorkerLogHandler(worker.send))
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
    parent, data_fd, control_fd, faults_fd, begun_fd = map(int, sys.argv[1:])
    _die_with(parent)
    worker = WorkerConnection(data_fd, control_fd)
    worker.handle_signals()
    _catch_faults(faults_fd)
    child = Child(worker, mmap(begun_fd, NUMBER_BYTES))
    os.close(begun_fd)
    worker.watch_control_socket(child.set_flags, _end_group)
    hello = worker.receive()
    if not isinstance(hello, Hello):
        sys.exit(f"{hello!r} is not a greeting")
    sys.path[:] = hello.path
    _set_up_logging(worker, hello)
    try:
        limit_memory(hello.memory_limit)
        child.serve(hello)
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        with suppress(OSError):
            worker.send(Started(f"{reason_of(error)}\n{stack_of(error)}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
