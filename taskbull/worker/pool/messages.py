"""Messages between a worker and its pool processes, and their encoding.

Arguments and results travel as the JSON that is stored in Redis. Errors are not pickled: the
process, which has the error's class, decides the outcome and sends it as a `RemoteOutcome`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from taskbull.errors import (
    ConnectionLost,
    LockLost,
    MaybeExecuted,
    PermanentError,
    ServerRefused,
    ServerUnavailable,
    Steering,
    TaskbullError,
    WaitForChildren,
)

# Frames: a mark, a length, the message. The mark reveals a task that has written to the line's
# descriptor. Without it, the reader would take those bytes for a length and wait.


MARK: Final = b"tbp1"

MOST: Final = 64 << 20
"""Maximum size of a message in bytes."""

_HEADER = struct.Struct(">4sI")


class BadFrame(TaskbullError):
    """The bytes are not a valid message, or the message is too long."""


def check_length(length: int) -> None:
    """Raise `BadFrame` if a message of this length is too long to send."""
    if length > MOST:
        raise BadFrame(
            f"{length / 1e6:.1f} MB exceed the limit of {MOST >> 20} MB for messages to and from "
            "pool processes"
        )


def frame(message: bytes) -> bytes:
    """Return a message with its header; raise `BadFrame` if it is too long."""
    check_length(len(message))
    return _HEADER.pack(MARK, len(message)) + message


class FrameReader:
    """A parser that assembles messages from chunks of bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add a chunk and yield the messages that it completes.

        Raises:
            BadFrame: If the bytes are not the start of a message.
        """
        held = self._held
        held += data
        while len(held) >= _HEADER.size:
            mark, length = _HEADER.unpack_from(held)
            if mark != MARK or length > MOST:
                raise BadFrame(f"{bytes(held[:16])!r} is not the start of a message")
            end = _HEADER.size + length
            if len(held) < end:
                return
            message = bytes(memoryview(held)[_HEADER.size : end])
            del held[:end]
            yield message


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Base class of all messages."""


# Messages from the worker to the process.


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
    memory_limit: int | None = None
    """Maximum address space in megabytes."""
    measures: bool = False
    """True if the process reports its memory use after each job."""


class Order(Message, frozen=True):
    """A job to run.

    `number` and `more` describe the call. Most other fields are those of `Job`.
    """

    number: int
    more: int
    """Number of further orders in the same call: the remaining jobs of a batch."""
    queue: str
    id: str
    name: str
    data: bytes
    options: bytes
    created_ms: int | None = None
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    attempts_started: int = 0
    stalled_count: int = 0
    previous_delay_ms: int | None = None
    processed_ms: int | None = None
    dedup_key: str | None = None
    scheduler_id: str | None = None
    parent_key: str | None = None
    expiry_lifted: bool = False
    token: str = ""
    clock_ahead_ms: int = 0
    """Milliseconds that the clock used for expiry is ahead of this machine's clock."""


class Fault(Struct, frozen=True, array_like=True):
    """A taskbull error to raise in the process."""

    kind: str
    message: str
    code: str = ""
    of_redis: bool = False
    """True if Redis caused the error. A job that fails because of it loses no attempt."""


class Reply(Message, frozen=True):
    """The answer to an `Ask`: a value or an error."""

    number: int
    value: Any = None
    fault: Fault | None = None


class Retire(Message, frozen=True):
    """A request to leave the lifespan and exit, because there are no more jobs."""


class JobFlags(Message, frozen=True):
    """A job's cancellation and lock status, sent over the control socket or before its order."""

    number: int
    """The number of the call."""
    job: int
    """The job's index in its call."""
    cancelled: str | None
    """The reason if the job was cancelled, otherwise `None`."""
    lost: bool
    """True if the job's lock was lost."""


class Halt(Message, frozen=True):
    """A request to stop the call with this number, sent over the control socket before a signal."""

    number: int
    reason: str


# Messages from the process to the worker.


class Ready(Message, frozen=True):
    """The process is ready to run jobs."""


class CannotStart(Message, frozen=True):
    """The process failed to start."""

    reason: str
    stack: str


class Question(StrEnum):
    """A request that a running job can send to its worker, named after the `JobPort` method."""

    PROGRESS = "progress"
    LOG = "log"
    UPDATE_DATA = "update_data"
    CHILD_RESULTS = "child_results"
    CHILD_RESULTS_SO_FAR = "child_results_so_far"
    CHILD_FAILURES = "child_failures"
    DROP_CHILDREN = "drop_children"


class Ask(Message, frozen=True):
    """A running job's request to write or read something."""

    number: int
    call: int
    """The number of the job's call. A thread may have outlived its call."""
    question: Question
    argument: bytes = b""
    job: int = 0
    """The job's index in its call."""


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
    value: bytes | None
    megabytes: float = 0.0
    spawned: tuple[int, int] = (0, 0)
    cancel_seen: bool = False
    """True if the function checked and saw that its job was cancelled."""


class RemoteOutcomeKind(StrEnum):
    """The kind of outcome for a job whose function raised."""

    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    LIMIT = "limit"
    AWAIT_CHILDREN = "await_children"
    PUT_OFF = "put_off"
    """Redis did not accept a write from the job."""
    TERMINATED = "terminated"
    """The process was asked to stop the job."""


class RemoteOutcome(Struct, frozen=True, array_like=True):
    """A job's outcome, as decided in the process."""

    kind: RemoteOutcomeKind
    category: str = ""
    verdict: str = ""
    delay: float = 0.0
    remembered_delay: float | None = None


class Raised(Message, frozen=True):
    """A job's function has raised."""

    number: int
    kind: str
    """The error's class name, including its module."""
    reason: str
    stack: str
    fate: RemoteOutcome
    megabytes: float = 0.0
    spawned: tuple[int, int] = (0, 0)


Ended: TypeAlias = Done | Raised
ToProcess: TypeAlias = Hello | Order | Reply | Retire | JobFlags | Halt
ToWorker: TypeAlias = Ready | CannotStart | Ask | Record | Ended

_encode = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """Encode a message as a frame; raise `BadFrame` if it is too long."""
    return frame(_encode(message))


def _decoder(kinds: Any) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder(kinds).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except msgspec.MsgspecError as error:
            raise BadFrame(f"{data[:16]!r} is not a message: {error}") from error

    return read


read_in_process: Callable[[bytes], ToProcess] = _decoder(ToProcess)
read_in_worker: Callable[[bytes], ToWorker] = _decoder(ToWorker)


# Errors that a running job gets in reply to a request.


_PLAIN: dict[str, Callable[[str], TaskbullError]] = {
    kind.__name__: kind for kind in (ConnectionLost, MaybeExecuted, TaskbullError)
}
_WITH_CODE: dict[str, Callable[[str, str], TaskbullError]] = {
    kind.__name__: kind for kind in (ServerRefused, ServerUnavailable)
}

OVER: Final = Fault(LockLost.__name__, "")
"""The reply to a request that arrives after the attempt has finished."""


def pack_fault(error: TaskbullError, *, of_redis: bool) -> Fault:
    """Convert an error to a `Fault`."""
    code = error.code if isinstance(error, ServerRefused) else ""
    return Fault(type(error).__name__, str(error), code, of_redis)


def unpack_fault(fault: Fault, queue: str, job_id: str) -> TaskbullError | Steering:
    """Convert a `Fault` to an error. An unknown class becomes a `TaskbullError`."""
    if fault.kind == LockLost.__name__:
        return LockLost(queue, job_id)
    if fault.kind == WaitForChildren.__name__:
        return WaitForChildren()
    if fault.kind == PermanentError.__name__:
        return PermanentError(fault.message)
    if fault.kind in _WITH_CODE:
        return _WITH_CODE[fault.kind](fault.code, fault.message)
    return _PLAIN.get(fault.kind, TaskbullError)(fault.message)
