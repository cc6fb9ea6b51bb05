"""Messages as bytes between a worker and a process of its pool: a mark, a length, the message.

The mark shows at once when a task has written to the descriptor of the line: what follows would be
taken for a length, and waited for.
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

# Messages as bytes between a worker and a process of its pool: a mark, a length, the message.
#
# The mark shows at once when a task has written to the descriptor of the line: what follows would
# be taken for a length, and waited for.


MARK: Final = b"tbp1"

MOST: Final = 64 << 20
"""Bytes of a message, at the most."""

_HEADER = struct.Struct(">4sI")


class BadFrame(TaskbullError):
    """What came is not a message."""


def check_length(length: int) -> None:
    """Refuse a message of so many bytes if that is too long."""
    if length > MOST:
        raise BadFrame(
            f"{length / 1e6:.1f} MB are more than the {MOST >> 20} MB that can be exchanged with "
            "a process of the pool"
        )


def frame(message: bytes) -> bytes:
    """Return a message as it is sent; refuse one that is too long."""
    check_length(len(message))
    return _HEADER.pack(MARK, len(message)) + message


class FrameReader:
    """Puts messages together from the pieces in which they come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take in a piece; yield the messages that are complete."""
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


# What a worker and a process of its pool tell each other.
#
# Arguments and results are the JSON that they are in Redis. Errors are not pickled: what follows
# from one is decided in the process, where its class is, and comes as a `Fate`.


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Something that is told."""


# From the worker.


class Hello(Message, frozen=True):
    """Who the process works for: the first message."""

    app: str
    """The app, as `module:attribute`."""
    modules: list[str]
    """The modules that define the tasks."""
    tasks: list[str]
    """The names of the tasks that the process must know then."""
    script: str | None
    """The file of the worker's own program, if something is in it."""
    path: list[str]
    """What `sys.path` is."""
    worker_id: str
    backend: str
    log_level: int
    """That of the worker's root logger."""
    log_levels: dict[str, int]
    """Those of its other loggers, as far as they have one."""
    log_disabled: int
    """The level up to which it has disabled logging, as `logging.disable` does."""
    memory_limit: int | None = None
    """Megabytes of address space that it may have."""
    measures: bool = False
    """Whether it tells after each job how much memory it uses."""


class Order(Message, frozen=True):
    """A job to run. The first two are the call's; the rest is the job's, as `Job` has it."""

    number: int
    more: int
    """How many jobs of the same call follow, each in an order of its own: those of a batch."""
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
    """How far the clock by which the job expires is ahead of this machine's."""


class Fault(Struct, frozen=True, array_like=True):
    """An error of ours that is to be raised in the process."""

    kind: str
    message: str
    code: str = ""
    of_redis: bool = False
    """Whether it costs the job no attempt if it ends by this."""


class Reply(Message, frozen=True):
    """What came of an `Ask`."""

    number: int
    value: Any = None
    fault: Fault | None = None


class Retire(Message, frozen=True):
    """Leave the lifespan and end: there are no more jobs."""


class Standing(Message, frozen=True):
    """How a job of the call of this number stands: comes by the leash, or before its order."""

    number: int
    job: int
    """Which one of its call it is, counted from 0."""
    cancelled: str | None
    """Why it was cancelled, if it was."""
    lost: bool
    """Whether its lock is gone."""


class Halt(Message, frozen=True):
    """End the call of this number now: comes by the leash, and a signal follows."""

    number: int
    reason: str


# From the process.


class Ready(Message, frozen=True):
    """It can run jobs."""


class CannotStart(Message, frozen=True):
    """It cannot."""

    reason: str
    stack: str


class Question(StrEnum):
    """What a running job may ask of its worker: the names are those of `JobPort`."""

    PROGRESS = "progress"
    LOG = "log"
    UPDATE_DATA = "update_data"
    CHILD_RESULTS = "child_results"
    CHILD_RESULTS_SO_FAR = "child_results_so_far"
    CHILD_FAILURES = "child_failures"
    DROP_CHILDREN = "drop_children"


class Ask(Message, frozen=True):
    """A running job wants something written or read."""

    number: int
    call: int
    """The number of the call whose job it is: a thread may have outlived its own."""
    question: Question
    argument: bytes = b""
    job: int = 0
    """Which one of its call it is, counted from 0."""


class Record(Message, frozen=True):
    """A line that was logged."""

    logger: str
    level: int
    text: str
    created: float
    place: tuple[str, int, str]
    """File, line and function."""
    thread: str
    stack: str
    extra: bytes
    """What else was given, as JSON."""


class Done(Message, frozen=True):
    """The run of a job is over, and well. The jobs of a call end in order."""

    number: int
    value: bytes | None
    megabytes: float = 0.0
    spawned: tuple[int, int] = (0, 0)
    heeded: bool = False
    """Whether the function knew that its job was cancelled."""


class FateKind(StrEnum):
    """What is to become of a job whose function raised."""

    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    LIMIT = "limit"
    AWAIT_CHILDREN = "await_children"
    PUT_OFF = "put_off"
    """Redis did not take what the job had to write."""
    TERMINATED = "terminated"
    """It was ended from outside."""


class Fate(Struct, frozen=True, array_like=True):
    """What is to become of a job, as it was decided in the process."""

    kind: FateKind
    category: str = ""
    verdict: str = ""
    delay: float = 0.0
    remembered_delay: float | None = None


class Raised(Message, frozen=True):
    """The run of a job is over, by an error."""

    number: int
    kind: str
    """The error's class, with its module."""
    reason: str
    stack: str
    fate: Fate
    megabytes: float = 0.0
    spawned: tuple[int, int] = (0, 0)


Ended: TypeAlias = Done | Raised
ToProcess: TypeAlias = Hello | Order | Reply | Retire | Standing | Halt
ToWorker: TypeAlias = Ready | CannotStart | Ask | Record | Ended

_encode = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """Return a message as the bytes that are sent."""
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


# Our own errors on their way into a process: those that a running job meets when it asks.


_PLAIN: dict[str, Callable[[str], TaskbullError]] = {
    kind.__name__: kind for kind in (ConnectionLost, MaybeExecuted, TaskbullError)
}
_WITH_CODE: dict[str, Callable[[str, str], TaskbullError]] = {
    kind.__name__: kind for kind in (ServerRefused, ServerUnavailable)
}

OVER: Final = Fault(LockLost.__name__, "")
"""For those who ask when their attempt is over."""


def pack_fault(error: TaskbullError, *, of_redis: bool) -> Fault:
    """Return an error as it is told."""
    code = error.code if isinstance(error, ServerRefused) else ""
    return Fault(type(error).__name__, str(error), code, of_redis)


def unpack_fault(fault: Fault, queue: str, job_id: str) -> TaskbullError | Steering:
    """Return the error that was told; one of an unknown class as a `TaskbullError`."""
    if fault.kind == LockLost.__name__:
        return LockLost(queue, job_id)
    if fault.kind == WaitForChildren.__name__:
        return WaitForChildren()
    if fault.kind == PermanentError.__name__:
        return PermanentError(fault.message)
    if fault.kind in _WITH_CODE:
        return _WITH_CODE[fault.kind](fault.code, fault.message)
    return _PLAIN.get(fault.kind, TaskbullError)(fault.message)
