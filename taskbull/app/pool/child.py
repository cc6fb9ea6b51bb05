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
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from mmap import mmap
from pathlib import Path
from random import random
from threading import Lock, RLock, Thread, current_thread, get_ident, main_thread
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from anyio.from_thread import start_blocking_portal

from taskbull.app.app import App, dispatch_of
from taskbull.app.discovery import AppSource, load
from taskbull.app.dispatch import Dispatch
from taskbull.app.group import Resources, Yielded
from taskbull.core.job import Children, Job
from taskbull.core.outcome import (
    Discard,
    Fail,
    Loss,
    RetryAfter,
    Written,
    causes,
    format_stack,
    frames_of,
    leave_out_our_frames,
    reason_of,
    scrubbed,
    stack_of,
)
from taskbull.core.retry import decide
from taskbull.core.wire.job import encode_value
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    JobControl,
    LockLost,
    MaybeExecuted,
    SerializationError,
    TaskbullError,
    Terminated,
)
from taskbull.observability.logs import STANDARD
from taskbull.scripts.call import again
from taskbull.worker.attempt import SyncHandler
from taskbull.worker.batch import Batch, checked_results
from taskbull.worker.pool import messages
from taskbull.worker.pool.process import NOT_ITS_OWN, NUMBER_BYTES
from taskbull.worker.run import JobPort, NotStarted, PortMethod, Run, end_child_of, spawning
from taskbull.worker.running_job import (
    JobEnvironment,
    RunningJob,
    ending_of,
    enter,
    enter_batch,
    job_thread,
    leave,
    leave_batch,
    run_of,
)
from taskbull.worker.threads import current_frames

# A pool process's communication with its worker: requests, interruption, messages and logs.


class RemoteJobPort:
    """A `JobPort` that sends a job's reads and writes to the worker.

    After the attempt has finished, its methods raise `LockLost`, because a task may have left a
    thread behind.
    """

    redis_wait_seconds = 0.0  # The worker measures it.
    is_virtual = False
    has_stream = False

    def __init__(
        self,
        run: Run,
        queue: str,
        request: Callable[..., messages.Reply | None],
        spawn: Callable[[Children], list[str]],
    ) -> None:
        self._run = run
        self._queue = queue
        self._request = request
        self._spawn = spawn
        self._trouble: BaseException | None = None

    def caused(self, error: BaseException) -> bool:
        """Return True if Redis caused a task's error. Steering errors never count."""
        if self._trouble is None or isinstance(error, JobControl):
            return False
        return any(one is self._trouble for one in causes(error))

    def call(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write, and block until it is done."""
        if method == "spawn":
            return self._spawn_children(*arguments)
        if method == "log":
            arguments = tuple(
                str(line).encode("utf-8", "backslashreplace").decode() for line in arguments
            )
        elif method == "child_results" and self._run.spawned.new > 0:
            # The worker does not know which children a call has spawned until the call finishes.
            method = "child_results_so_far"
        reply = self._request(method, arguments)
        if reply is None:
            raise LockLost(self._queue, self._run.job.id)
        if reply.error:
            error = messages.error_in_reply(reply, self._queue, self._run.job.id)
            if reply.of_redis:
                self._trouble = error
            raise error
        if method == "child_failures":
            return {(queue, job_id): reason for queue, job_id, reason in reply.value}
        return reply.value

    async def acall(self, method: PortMethod, *arguments: Any) -> Any:
        """Perform a read or write. It blocks, because a process has no event loop for its jobs."""
        return self.call(method, *arguments)

    def _spawn_children(self, children: Children) -> list[str]:
        """Add children from this process, which has the specs of the app's tasks."""
        try:
            return self._spawn(children)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def arecord_unknown_task(self, patience: float) -> float:
        """Return `patience` unchanged: a process only gets jobs that it can run."""
        return patience


SOCKET_IS_GONE: Final = 70
"""The exit code of a process whose task has closed the data socket."""

_LOOK = 0.05
"""Seconds between checks whether the call is over, while a thread waits for a reply."""

_HALTED = "the worker ends the job: its time is up, it was cancelled, or the worker stops"


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


class WorkerConnection:
    """The two sockets to the worker, and the signal handling that stops a running function.

    One thread reads the data socket at a time. During a call that is the thread that sends a
    request for one of the jobs. Between calls it is the main thread, which waits for jobs. A task
    may leave threads behind; after its call has finished, their requests get no reply.

    The worker stops a function by naming its call over the control socket, which a separate thread
    reads. `Terminated` is then raised in the main thread, at most once per call and never in the
    middle of a message. A SIGTERM from elsewhere is ignored, because the worker decides: systemd,
    for example, sends one to every process of a service that it stops.
    """

    def __init__(self, data_fd: int, control_fd: int) -> None:
        for descriptor in (data_fd, control_fd):
            os.set_inheritable(descriptor, False)
        data, control = socket.socket(fileno=data_fd), socket.socket(fileno=control_fd)
        self._data = messages.MessageSocket(data, messages.decode_in_process)
        self._control = messages.MessageSocket(control, messages.decode_in_process)
        self._identity = _identity(data_fd)
        self._pid = os.getpid()
        self._main = get_ident()
        self._received: deque[messages.ToProcess] = deque()
        self._sending = RLock()  # A logging handler may be called while this thread is sending.
        self._requesting = Lock()
        self._requests = 0
        self._call = 0
        """The number of the running call, or 0. Only its jobs may send requests."""
        self._interruptible = 0
        """The number of the call that may be interrupted, or 0."""
        self._halted = 0
        """The number of the last call that the worker has asked to stop."""
        self._deferred = 0
        self._is_due = False

    def handle_signals(self) -> None:
        """Handle SIGTERM, and ignore SIGINT because the worker handles Ctrl-C."""
        signal.signal(signal.SIGTERM, self._on_signal)
        # Programs that a task starts would inherit SIG_IGN.
        signal.signal(signal.SIGINT, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_ITS_OWN)  # The worker had blocked them.

    def watch_control_socket(
        self, on_flags: Callable[[messages.JobFlags], object], on_orphaned: Callable[[], object]
    ) -> None:
        """Read the control socket in a thread; call `on_orphaned` when the worker is gone."""

        def listen() -> None:
            try:
                while True:
                    for message in self._control.receive():
                        if isinstance(message, messages.JobFlags):
                            on_flags(message)
                            if message.halt:
                                self._halted = message.number
                                signal.pthread_kill(self._main, signal.SIGTERM)
                        elif isinstance(message, messages.StackRequest):
                            if not self.is_open_to(message.number):
                                continue
                            stack = format_stack(frames_of(current_frames().get(self._main)))
                            self.send(messages.ReportedStack(message.number, stack))
            except EOFError:
                on_orphaned()

        Thread(target=listen, name="control_socket", daemon=True).start()

    def begin(self, call: int) -> None:
        """Accept requests from the jobs of a call, and allow it to be interrupted.

        Raises:
            Terminated: If the worker has already asked to stop the call.
        """
        self._call = call
        self._is_due = False
        self._interruptible = call
        self._raise_if_halted()

    def end_interruption(self) -> None:
        """Stop allowing the call to be interrupted."""
        self._interruptible = 0

    def end(self) -> None:
        """Stop accepting requests, and wait until a thread with a pending request has left."""
        self._call = 0
        with self._requesting:
            pass

    def is_open_to(self, call: int) -> bool:
        """Return True if the jobs of this call may send requests."""
        return call == self._call

    def is_halted(self, call: int) -> bool:
        """Return True if the worker has asked to stop this call."""
        return call == self._halted

    def send(self, *sent: messages.Message) -> None:
        """Send messages to the worker.

        Exit the process if its task has closed the socket: its descriptor may now belong to another
        file.
        """
        data = b"".join(map(messages.encode, sent))
        with self._interruption_deferred():
            if _identity(self._data.socket.fileno()) != self._identity:
                os._exit(SOCKET_IS_GONE)
            with self._sending:
                self._data.socket.sendall(data)

    def receive(self) -> messages.ToProcess:
        """Wait for the next message; raise `EOFError` if there will be no more."""
        while not self._received:
            self._read()
        return self._received.popleft()

    def request(
        self, call: int, job: int, method: messages.Method, arguments: tuple[Any, ...]
    ) -> messages.Reply | None:
        """Send a job's request and return the reply, or `None` if the call is over.

        Raises:
            TaskbullError: In a forked process.
        """
        # After a fork, either process could receive the reply.
        if os.getpid() != self._pid:
            raise TaskbullError(
                "A process forked by a task cannot use current_job(): only the task's own process "
                "can"
            )
        with self._requesting:
            if not self.is_open_to(call):
                return None
            self._requests = number = self._requests + 1
            self.send(messages.JobRequest(number, call, job, method, arguments))
            while self.is_open_to(call):
                # A signal may interrupt the wait, but not the read.
                if select.select([self._data.socket], [], [], _LOOK)[0]:
                    with self._interruption_deferred():
                        reply = self._read(number)
                    if reply is not None:
                        return reply
        return None

    def _read(self, request: int = 0) -> messages.Reply | None:
        """Read once, keep the calls, and return the reply to a request, if it has arrived.

        Replies to earlier requests are dropped.
        """
        found: messages.Reply | None = None
        for message in self._data.receive():
            if not isinstance(message, messages.Reply):
                self._received.append(message)
            elif message.number == request:
                found = message
        return found

    @contextmanager
    def _interruption_deferred(self) -> Generator[None]:
        if current_thread() is not main_thread():  # Signals only interrupt the main thread.
            yield
            return
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self._is_due:
            self._is_due = False
            self._raise_if_halted()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._deferred:
            self._is_due = True
        else:
            self._raise_if_halted()

    def _raise_if_halted(self) -> None:
        if self._interruptible and self._interruptible == self._halted:
            self._interruptible = 0
            raise Terminated(_HALTED)


def _identity(descriptor: int) -> tuple[int, int]:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


class WorkerLogHandler(logging.Handler):
    """A logging handler that sends records to the worker, which logs them with the job's fields."""

    def __init__(self, send: Callable[[messages.Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the worker."""
        try:
            self._send(_packed(record))
        except Exception:  # noqa: BLE001 - a log line must not fail the job
            self.handleError(record)


def _packed(record: logging.LogRecord) -> messages.Record:
    stack = record.exc_text or ""
    if not stack and record.exc_info and record.exc_info[1] is not None:
        stack = stack_of(record.exc_info[1])
    extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
    return messages.Record(
        record.name,
        record.levelno,
        scrubbed(record.getMessage()),
        record.created,
        (scrubbed(record.pathname), record.lineno, record.funcName or ""),
        record.threadName or "",
        "\n".join(filter(None, (stack, record.stack_info))),
        _encode(extra),
    )


def _encode(extra: dict[str, Any]) -> bytes:
    if not extra:
        return b"{}"
    try:
        return msgspec.json.encode(extra, enc_hook=str)
    except (TypeError, ValueError):  # JSON cannot represent a value.
        return msgspec.json.encode({name: scrubbed(repr(value)) for name, value in extra.items()})


# Reports to the worker about finished jobs.


_MOST_OF_A_RESULT = messages.MOST - 4096


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
            f"Result of {len(raw) / messages.MEGABYTE:.1f} MB exceeds the limit of "
            f"{messages.MOST // messages.MEGABYTE} MB for pool processes"
        )
    return raw


def end_of(
    number: int, run: Run, result: bytes | BaseException | None, *, halted: bool, megabytes: float
) -> messages.Ended:
    """Return the message that reports a finished job, from its result or its error.

    The outcome of an error is decided here, because this process has the error's class.
    """
    spawned = (run.spawned.before, run.spawned.new)
    if not (run.cancel_seen or halted):
        result = ending_of(run, result)
    if not isinstance(result, BaseException):
        return messages.Done(number, megabytes, spawned, result, run.cancel_seen)
    reason, stack, fields = _decided(result, run, halted=halted)
    kind = f"{type(result).__module__}.{type(result).__qualname__}"
    return messages.Raised(number, megabytes, spawned, kind, reason, stack, **fields)


def _decided(error: BaseException, run: Run, *, halted: bool) -> tuple[str, str, dict[str, Any]]:
    """Return the reason, the stack and the outcome of an error."""
    is_terminated = isinstance(error, Terminated) and halted
    if is_terminated or (run.port is not None and run.port.caused(error)):
        leave_out_our_frames(error)
        outcome = {"outcome": "terminated" if is_terminated else "release"}
        return reason_of(error), stack_of(error), outcome
    decided: Written
    if isinstance(error, NotStarted):
        decided = error.outcome
    else:
        decided = decide(error, run.job, run.policy, random=random)
    if isinstance(decided, Fail | RetryAfter):
        return decided.failure.reason, decided.failure.stack, messages.outcome_fields(decided)
    return reason_of(error), "", messages.outcome_fields(decided)


# Calls of a task's function, with one job or with the items of a batch.


Result: TypeAlias = bytes | BaseException | None
"""A job's result as JSON (`None` means null), or the error raised for it."""


def call_one(function: SyncHandler, job: RunningJob) -> bytes | None:
    """Call a function with its job and return the result as JSON.

    Raises:
        NotStarted: If the job has expired.
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
        raise NotStarted(late)


# Memory use and memory limit of this process.


def resident_megabytes() -> float:
    """Return this process's memory use in megabytes, or its peak if that is not available."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024) / messages.MEGABYTE
    return pages * resource.getpagesize() / messages.MEGABYTE


def limit_memory(megabytes: int | None) -> None:
    """Limit this process's address space. Allocations beyond it raise `MemoryError`."""
    if megabytes is not None:
        limit = megabytes * messages.MEGABYTE
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
        self._flags: list[messages.JobFlags] = []
        self._app: App
        self._dispatch: Dispatch
        self._hello: messages.Hello
        self._resources_of: Callable[[str], Any]

    def serve(self, hello: messages.Hello) -> None:
        """Load the app, and run calls inside its lifespans until the worker sends no more."""
        self._hello = hello
        self._app, self._dispatch = _load_app(hello)
        _send_records(self._worker)  # The app's modules may have configured logging.
        resources = Resources(self._app.registry, in_process=True)
        with lifespans_open(resources, hello.backend) as yielded, job_thread():
            self._resources_of = partial(resources.of, yielded)
            self._worker.send(messages.Started())
            jobs: list[messages.RunJob] = []
            with suppress(EOFError):
                while True:
                    message = self._worker.receive()
                    if isinstance(message, messages.JobFlags):
                        self.set_flags(message)
                    elif isinstance(message, messages.RunJob):
                        jobs.append(message)
                        if not message.more:
                            self._run(jobs)
                            jobs = []
        self._app.close()

    def set_flags(self, flags: messages.JobFlags) -> None:
        """Store a job's status. The job itself may still be in flight on the other socket."""
        self._flags.append(flags)
        self._apply_flags()

    def _run(self, batch: Sequence[messages.RunJob]) -> None:
        number = batch[0].number
        jobs = [self._job(place, message) for place, message in enumerate(batch)]
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

    def _job(self, place: int, message: messages.RunJob) -> RunningJob:
        environment = JobEnvironment(
            message.queue,
            self._hello.worker_id,
            partial(self._open_port, message, place),
            self._resources_of,
            lambda: int(time.time() * 1000) + message.clock_ahead_ms,
        )
        return RunningJob(
            Run(messages.unpack_job(message), token=message.token, renewed=0.0), environment
        )

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

    def _open_port(self, message: messages.RunJob, place: int, run: Run) -> JobPort:
        request = partial(self._worker.request, message.number, place)
        return RemoteJobPort(run, message.queue, request, partial(self._spawn, message, run))

    def _spawn(self, message: messages.RunJob, run: Run, children: Children) -> list[str]:
        with self._spawning:
            if not self._worker.is_open_to(message.number):
                raise LockLost(message.queue, run.job.id)
            producer = self._app.producer
            keys = producer.namespace.keys(message.queue)
            steps = spawning(keys, run, children, int(time.time() * 1000))
            store = producer.stores.sync_store()
            return store.run(again(steps), timeout=_SPAWNING)


def _load_app(hello: messages.Hello) -> tuple[App, Dispatch]:
    app = load(AppSource(hello.app, hello.modules, hello.script))
    if not isinstance(app, App):
        raise ConfigurationError(f"{hello.app!r} must be an App, got {type(app).__qualname__}")
    if hello.redis is not None:
        app.producer.move(hello.redis)
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


def _send_records(worker: WorkerConnection) -> None:
    """Send all log records to the worker, which has the same handlers, and only there."""
    root = logging.getLogger()
    for logger in [root, *logging.Logger.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            logger.handlers[:] = []
            logger.propagate = True
    root.addHandler(WorkerLogHandler(worker.send))


def _set_up_logging(worker: WorkerConnection, hello: messages.Hello) -> None:
    root = logging.getLogger()
    _send_records(worker)
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
    if not isinstance(hello, messages.Hello):
        sys.exit(f"{hello!r} is not a greeting")
    sys.path[:] = hello.path
    _set_up_logging(worker, hello)
    try:
        limit_memory(hello.memory_limit)
        child.serve(hello)
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        with suppress(OSError):
            worker.send(messages.Started(f"{reason_of(error)}\n{stack_of(error)}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
