"""Messages between a worker and its pool processes, and the sockets that carry them.

Arguments and results travel as the JSON that is stored in Redis. Errors are not pickled: the
process, which has the error's class, decides the job's outcome and sends it in `Raised`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from textwrap import indent
from threading import Lock
from typing import Any, Final, Generic, Literal, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Job
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Fail,
    Failure,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
    reason_of,
)
from taskbull.core.wire.options import decode_options
from taskbull.errors import (
    ConnectionLost,
    JobControl,
    LockLost,
    MaybeExecuted,
    PermanentError,
    ProcessDied,
    RaisedInProcess,
    RateLimited,
    Retry,
    ServerRefused,
    ServerUnavailable,
    Snooze,
    TaskbullError,
    TransientError,
    WaitForChildren,
)
from taskbull.worker.run import Run, Spawning
from taskbull.worker.running_job import RunningJob, port_of, run_of

MARK: Final = b"tbp1"
"""The start of each frame. It reveals a task that has written to the socket's descriptor."""

MEGABYTE: Final = 1_000_000
"""The unit of memory limits and message sizes."""

MOST: Final = 64 * MEGABYTE
"""Maximum size of a message in bytes."""

_HEADER = struct.Struct(">4sI")
_PIECE = 1 << 15  # Much larger buffers are mapped and unmapped each time, which takes 50 µs.


class BadFrame(TaskbullError):
    """The bytes are not a valid message, or the message is too long."""


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Base class of all messages."""


# Messages from the worker to the process. If the worker shuts down the data socket, the process
# leaves its lifespan and exits.


class Hello(Message, frozen=True):
    """The first message to a process: the app to load and the worker's settings."""

    app: str
    """The app, as `module:attribute`."""
    modules: list[str]
    """The modules that define the tasks."""
    tasks: list[str]
    """The names of the tasks that those modules must define."""
    script: str | None
    """The file of the worker's program, if the app or a task is defined in it."""
    redis: str | None
    """URL of the Redis server that a test uses in place of the app's own."""
    path: list[str]
    """The worker's `sys.path`."""
    worker_id: str
    backend: str
    log_level: int
    """The level of the worker's root logger."""
    log_levels: dict[str, int]
    """The levels of the worker's other loggers, by name. Loggers without a level are omitted."""
    log_disabled: int
    """The worker's `logging.disable` level."""
    memory_limit: int | None
    """Maximum address space in megabytes."""
    measures: bool
    """True if the process reports its memory use after each job."""


class RunJob(Message, frozen=True):
    """A job to run."""

    number: int
    """The number of the call."""
    more: int
    """Number of further messages for the same call: the remaining jobs of a batch."""
    queue: str
    token: str
    clock_ahead_ms: int
    """Milliseconds that the clock used for expiry is ahead of this machine's clock."""
    options: bytes
    fields: tuple[Any, ...]
    """The job's other fields, in the order of `_JOB_FIELDS`."""


class Reply(Message, frozen=True):
    """The answer to a `JobRequest`: a value or a taskbull error."""

    number: int
    value: Any = None
    error: str = ""
    """The class name of the error to raise in the process."""
    text: str = ""
    code: str = ""
    of_redis: bool = False
    """True if Redis caused the error. A job that fails because of it loses no attempt."""


class JobFlags(Message, frozen=True):
    """A job's status, sent over the control socket, or before the job if it had to wait."""

    number: int
    """The number of the call."""
    job: int
    """The job's index in its call."""
    cancelled: str | None
    """The reason if the job was cancelled, otherwise `None`."""
    lost: bool
    """True if the job's lock was lost."""
    halt: bool = False
    """True if the call must stop. A signal follows."""


class StackRequest(Message, frozen=True):
    """A request for the stack of the running call, sent over the control socket."""

    number: int
    """The number of the call."""


# Messages from the process to the worker.


class ReportedStack(Message, frozen=True):
    """The stack of the running call."""

    number: int
    stack: str


class Started(Message, frozen=True):
    """The process is ready to run jobs, or failed to start."""

    failure: str = ""
    """The reason and the stack of the failure, if any."""


Method: TypeAlias = Literal[
    "progress",
    "log",
    "update_data",
    "add_cost",
    "child_results",
    "child_results_so_far",
    "child_failures",
    "drop_children",
    "load_steps",
    "store_step",
    "wait",
    "hold",
    "open_stream",
    "emit",
    "flush_stream",
]
"""The `JobPort` methods that a process can call."""


class JobRequest(Message, frozen=True):
    """A running job's request to write or read something."""

    number: int
    call: int
    """The number of the job's call. A thread may have outlived its call."""
    job: int
    """The job's index in its call."""
    method: Method
    arguments: tuple[Any, ...]


class Record(Message, frozen=True):
    """A log record."""

    logger: str
    level: int
    text: str
    created: float
    place: tuple[str, int, str]
    """File, line and function."""
    thread: str
    stack: str
    extra: bytes
    """The fields passed in `extra`, as JSON."""


class Done(Message, frozen=True):
    """A job's function has returned. The jobs of a call are reported in order."""

    number: int
    megabytes: float
    spawned: tuple[int, int]
    value: bytes | None
    cancel_seen: bool = False
    """True if the function checked and saw that its job was cancelled."""


RemoteOutcome: TypeAlias = Literal[
    "fail", "retry", "snooze", "limit", "await_children", "release", "terminated"
]
"""The outcome of a job whose function raised. It is "release" if Redis did not accept a write from
the job, and "terminated" if the process was asked to stop the job."""


class Raised(Message, frozen=True):
    """A job's function has raised, and the process has decided the outcome."""

    number: int
    megabytes: float
    spawned: tuple[int, int]
    kind: str
    """The error's class name, including its module."""
    reason: str
    stack: str
    outcome: RemoteOutcome
    category: str = ""
    verdict: str = ""
    delay: float = 0.0
    remembered_delay: float | None = None
    is_expected: bool = False


Ended: TypeAlias = Done | Raised
ToProcess: TypeAlias = Hello | RunJob | Reply | JobFlags | StackRequest
ToWorker: TypeAlias = Started | JobRequest | Record | ReportedStack | Ended
Incoming = TypeVar("Incoming")

_encode = msgspec.msgpack.Encoder().encode
decode_in_process: Callable[[bytes], ToProcess] = msgspec.msgpack.Decoder(ToProcess).decode
decode_in_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode


def check_length(length: int) -> None:
    """Raise `BadFrame` if a message of this length is too long to send."""
    if length > MOST:
        raise BadFrame(
            f"{length / MEGABYTE:.1f} MB exceed the limit of {MOST // MEGABYTE} MB for messages to "
            "and from pool processes"
        )


def encode(message: Message) -> bytes:
    """Encode a message as a frame: a mark, its length and the message.

    Raises:
        BadFrame: If the message is too long.
    """
    data = _encode(message)
    check_length(len(data))
    return _HEADER.pack(MARK, len(data)) + data


class MessageSocket(Generic[Incoming]):
    """A stream socket that carries messages.

    `send`, `flush` and `close` are thread-safe; one thread receives. On a non-blocking socket,
    unsent data is kept for `flush`.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], Incoming]) -> None:
        self.socket = sock
        self._decode = decode
        self._received = bytearray()
        self._unsent = bytearray()
        self._lock = Lock()

    @property
    def has_unsent(self) -> bool:
        """True if unsent data is left for `flush`."""
        return bool(self._unsent)

    def send(self, data: bytes) -> bool:
        """Send frames without waiting; return False if part of them is left for `flush`."""
        with self._lock:
            sent = 0
            if not self._unsent:
                try:
                    sent = self.socket.send(data)
                except BlockingIOError:
                    pass
                except OSError:  # The process is exiting, which its thread will notice.
                    return True
            if sent == len(data):
                return True
            self._unsent += data[sent:]
            return False

    def flush(self) -> None:
        """Send as much of the unsent data as the socket accepts."""
        if self._unsent:
            with self._lock, suppress(OSError):
                del self._unsent[: self.socket.send(self._unsent)]

    def receive(self) -> Iterator[Incoming]:
        """Read once, and yield the messages that are now complete.

        Raises:
            EOFError: If the other side has closed the socket.
            BlockingIOError: If nothing has arrived at a non-blocking socket.
            BadFrame: If the bytes are not a message.
        """
        try:
            chunk = self.socket.recv(_PIECE)
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise EOFError
        held = self._received
        held += chunk
        while len(held) >= _HEADER.size:
            mark, length = _HEADER.unpack_from(held)
            if mark != MARK or length > MOST:
                raise BadFrame(f"{bytes(held[:16])!r} is not the start of a message")
            end = _HEADER.size + length
            if len(held) < end:
                return
            data = bytes(memoryview(held)[_HEADER.size : end])
            del held[:end]
            try:
                yield self._decode(data)
            except msgspec.MsgspecError as error:
                raise BadFrame(f"{data[:16]!r} is not a message: {error}") from error


# Jobs. Their options are sent as JSON, because the process caches decoded options by their JSON.


_JOB_FIELDS: Final = (
    "id",
    "name",
    "raw_data",
    "created_ms",
    "delay_ms",
    "priority",
    "attempts_made",
    "attempts_started",
    "stalled_count",
    "previous_delay_ms",
    "processed_ms",
    "dedup_key",
    "scheduler_id",
    "parent_key",
    "expiry_lifted",
    "fresh",
)
_fields_of = attrgetter(*_JOB_FIELDS)


def pack_job(
    job: Job, *, number: int, more: int, queue: str, token: str, clock_ahead_ms: int
) -> bytes:
    """Encode the message that asks a process to run a job."""
    options = msgspec.json.encode(job.options)
    return encode(RunJob(number, more, queue, token, clock_ahead_ms, options, _fields_of(job)))


def unpack_job(message: RunJob) -> Job:
    """Return the job of a message."""
    options = decode_options(message.options)
    return Job(options=options, **dict(zip(_JOB_FIELDS, message.fields, strict=True)))


# Requests and results of jobs that run in a pool process.
#
# The process decides the outcome of a job whose function raised, and sends it in `Raised`.
# This module converts outcomes and errors for that journey, in both directions.


# Requests from jobs. Only the worker has the connection to Redis and the job's lock.


async def perform(request: JobRequest, job: RunningJob) -> Reply:
    """Perform a job's request. Errors are returned in the reply."""
    port = port_of(job)
    try:
        value = await port.acall(request.method, *request.arguments)
    except (WaitForChildren, PermanentError) as error:
        return Reply(request.number, error=type(error).__name__, text=str(error))
    except TaskbullError as error:
        return error_reply(request.number, error, of_redis=port.caused(error))
    except Exception as error:  # noqa: BLE001 - the job gets every error
        return Reply(request.number, error=TaskbullError.__name__, text=reason_of(error))
    if request.method == "progress":
        [run_of(job).raw_progress] = request.arguments
    if request.method == "child_failures":  # MessagePack has no tuples as keys.
        value = [[*key, reason] for key, reason in value.items()]
    return Reply(request.number, value)


def error_reply(number: int, error: TaskbullError, *, of_redis: bool = False) -> Reply:
    """Return a reply that raises an error in the process."""
    code = error.code if isinstance(error, ServerRefused) else ""
    return Reply(number, None, type(error).__name__, str(error), code, of_redis)


_IN_REPLIES: Final[dict[str, Callable[[Reply], TaskbullError | JobControl]]] = {
    "WaitForChildren": lambda _: WaitForChildren(),
    "PermanentError": lambda reply: PermanentError(reply.text),
    "ConnectionLost": lambda reply: ConnectionLost(reply.text),
    "MaybeExecuted": lambda reply: MaybeExecuted(reply.text),
    "ServerRefused": lambda reply: ServerRefused(reply.code, reply.text),
    "ServerUnavailable": lambda reply: ServerUnavailable(reply.code, reply.text),
}


def error_in_reply(reply: Reply, queue: str, job_id: str) -> TaskbullError | JobControl:
    """Return the error of a reply. An unknown class becomes a `TaskbullError`."""
    if reply.error == LockLost.__name__:
        return LockLost(queue, job_id)
    make = _IN_REPLIES.get(reply.error)
    return TaskbullError(reply.text) if make is None else make(reply)


_ROOM = 65_536
"""Bytes reserved in a message for everything except the job's data."""


def check_size(job: RunningJob) -> None:
    """Raise `BadFrame` if a job is too large to send to a process.

    Check this before the job joins a batch, so that it cannot fail the other jobs.
    """
    check_length(len(job.job.raw_data) + _ROOM)


# Outcomes of jobs whose function raised: encoded in the process, decoded in the worker.


def outcome_fields(outcome: Written) -> dict[str, Any]:
    """Return the fields of `Raised` that describe an outcome, without the error."""
    match outcome:
        case Fail(failure, verdict):
            return {"outcome": "fail", **_failure_fields(failure), "verdict": verdict}
        case RetryAfter(failure, delay, remembered):
            return {
                "outcome": "retry",
                **_failure_fields(failure),
                "delay": delay,
                "remembered_delay": remembered,
            }
        case SnoozeFor(delay):
            return {"outcome": "snooze", "delay": delay}
        case LimitQueue(delay):
            return {"outcome": "limit", "delay": delay}
        case AwaitChildren():
            return {"outcome": "await_children"}
        case _:
            raise TypeError(f"an error does not end in {outcome!r}")


def _failure_fields(failure: Failure) -> dict[str, Any]:
    return {"category": failure.category, "is_expected": failure.is_expected}


def error_of(raised: Raised) -> Exception:
    """Return the error to raise in the worker for an error in the process.

    A steering error such as `Retry` is recreated, with the `RaisedInProcess` as its cause.
    """
    error = RaisedInProcess(raised.kind, raised.reason, raised.stack, raised)
    make = _STEERING.get(raised.kind)
    if make is None:
        return error
    error.steering = steering = make(raised)
    steering.__cause__ = error
    return steering


_STEERING: Final[dict[str, Callable[[Raised], JobControl]]] = {
    "taskbull.errors.Retry": lambda raised: Retry(raised.reason, after=raised.delay),
    "taskbull.errors.Snooze": lambda raised: Snooze(raised.delay),
    "taskbull.errors.RateLimited": lambda raised: RateLimited(raised.delay),
    "taskbull.errors.WaitForChildren": lambda _: WaitForChildren(),
    "taskbull.errors.PermanentError": lambda raised: PermanentError(raised.reason),
    "taskbull.errors.TransientError": lambda raised: TransientError(raised.reason),
}


def remote_error_of(error: BaseException) -> RaisedInProcess | None:
    """Return the error from the process, or `None` if a middleware has replaced it."""
    if isinstance(error, RaisedInProcess):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, RaisedInProcess) and cause.steering is error else None


def outcome_of(error: RaisedInProcess, run: Run) -> Outcome | None:
    """Return the job's outcome, or `None` if it was stopped or Redis did not accept a write."""
    raised: Raised = error.raised
    match raised.outcome:
        case "fail":
            return Fail(_failure(error, raised), Verdict(raised.verdict))
        case "retry":
            return RetryAfter(_failure(error, raised), raised.delay, raised.remembered_delay)
        case "snooze":
            return SnoozeFor(raised.delay)
        case "limit":
            return LimitQueue(raised.delay)
        case "await_children":
            return run.awaiting_children()
        case "release" | "terminated":
            return None


def _failure(error: RaisedInProcess, raised: Raised) -> Failure:
    return Failure(
        Category(raised.category),
        str(error),
        error.stack,
        error.steering or error,
        raised.is_expected,
    )


# Results of a finished call.


End: TypeAlias = list[Ended] | TaskbullError
"""The end of a call: a message for each job, or an error if there is no process to run it."""

Result: TypeAlias = bytes | Exception | None
"""A job's result as JSON (`None` means null), or the error raised for it."""


class Json(Struct, frozen=True):
    """A result that the process has already encoded as JSON and checked."""

    raw: bytes


def results_of(jobs: Sequence[RunningJob], end: End) -> list[Result]:
    """Return the result of each job; raise the error if the process died."""
    if isinstance(end, TaskbullError):
        raise end
    return [_result(each, run_of(job)) for each, job in zip(end, jobs, strict=True)]


def has_value(end: End | None) -> TypeGuard[list[Ended]]:
    """Return True if a halted function returned a result for at least one job."""
    return isinstance(end, list) and any(isinstance(each, Done) for each in end)


def note_halted(jobs: Sequence[RunningJob], end: End | None) -> None:
    """Record the stack of a function that was halted, if it is known."""
    if isinstance(end, list):
        stack = next((each.stack for each in end if isinstance(each, Raised)), "")
    else:
        stack = "\n".join(getattr(end, "__notes__", ()))
    for job in jobs:
        run_of(job).halted_at = indent(stack, "  ")  # The stack of the timeout is not indented.


def opened(result: Result, *, read: bool) -> Any:
    """Return a result for the code around the job: decoded if `read`, otherwise as `Json`."""
    if not isinstance(result, bytes):
        return result
    return payload.decode(result) if read else Json(result)


def _result(end: Ended, run: Run) -> Result:
    if any(end.spawned):
        run.spawned = Spawning(*end.spawned)
    if isinstance(end, Done):
        run.cancel_seen = run.cancel_seen or end.cancel_seen
        return end.value
    if end.outcome == "terminated":
        return ProcessDied(f"the process was told to end, not by its worker: {end.reason}")
    return error_of(end)
