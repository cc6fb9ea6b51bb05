"""Messages between a worker and its pool processes, and the sockets that carry them.

Arguments and results travel as the JSON that is stored in Redis. Errors are not pickled: the
process, which has the error's class, decides the job's outcome and sends it in `Raised`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter
from threading import Lock
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.wire.options import decode_options
from taskbull.errors import TaskbullError

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


# Messages from the process to the worker.


class Started(Message, frozen=True):
    """The process is ready to run jobs, or failed to start."""

    failure: str = ""
    """The reason and the stack of the failure, if any."""


Method: TypeAlias = Literal[
    "progress",
    "log",
    "update_data",
    "child_results",
    "child_results_so_far",
    "child_failures",
    "drop_children",
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
ToProcess: TypeAlias = Hello | RunJob | Reply | JobFlags
ToWorker: TypeAlias = Started | JobRequest | Record | Ended
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
