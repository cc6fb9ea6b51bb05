"""A pool process's communication with its worker: requests, interruption, messages and logs."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock, RLock, Thread, current_thread, get_ident, main_thread
from types import FrameType
from typing import Any, Final

import msgspec

from taskbull.core.failure import causes, scrubbed, stack_of
from taskbull.core.flow import Children
from taskbull.errors import (
    ConnectionLost,
    LockLost,
    MaybeExecuted,
    Steering,
    TaskbullError,
    Terminated,
)
from taskbull.observability.logs import STANDARD
from taskbull.worker.pool.messages import (
    Ask,
    FrameReader,
    Halt,
    JobFlags,
    Message,
    Question,
    Record,
    Reply,
    ToProcess,
    encode,
    read_in_process,
    unpack_fault,
)
from taskbull.worker.pool.process import NOT_ITS_OWN
from taskbull.worker.run import Run

JobRequest = Callable[[Question, bytes], Reply | None]
Spawn = Callable[[Children], list[str]]


class RemoteJobPort:
    """A `JobPort` that sends a job's reads and writes to the worker.

    After the attempt has finished, its methods raise `LockLost`, because a task may have left a
    thread behind.
    """

    held_up = 0.0  # The worker measures it.

    def __init__(self, run: Run, queue: str, ask: JobRequest, spawn: Spawn) -> None:
        self._run = run
        self._queue = queue
        self._ask_worker = ask
        self._spawn = spawn
        self._trouble: BaseException | None = None

    def caused(self, error: BaseException) -> bool:
        """Return True if Redis caused a task's error. Steering errors never count."""
        if self._trouble is None or isinstance(error, Steering):
            return False
        return any(one is self._trouble for one in causes(error))

    def progress(self, raw: bytes) -> None:
        """Write the job's progress."""
        self._ask(Question.PROGRESS, raw)

    async def aprogress(self, raw: bytes) -> None:
        """Write the job's progress."""
        self.progress(raw)

    def log(self, line: str) -> None:
        """Append a line to the job's log."""
        self._ask(Question.LOG, str(line).encode("utf-8", "backslashreplace"))

    async def alog(self, line: str) -> None:
        """Append a line to the job's log."""
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        """Replace the job's data."""
        self._ask(Question.UPDATE_DATA, raw)

    async def aupdate_data(self, raw: bytes) -> None:
        """Replace the job's data."""
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        """Read the results of the job's children with this name."""
        # The worker does not know which children a call has spawned until the call finishes.
        spawned = self._run.spawned.new > 0
        question = Question.CHILD_RESULTS_SO_FAR if spawned else Question.CHILD_RESULTS
        found: list[bytes] = self._ask(question, name.encode())
        return found

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Read the results of finished children with this name; others may be pending."""
        found: list[bytes] = self._ask(Question.CHILD_RESULTS_SO_FAR, name.encode())
        return found

    async def achild_results(self, name: str) -> list[bytes]:
        """Read the results of the job's children with this name."""
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Read the failure reasons of the job's children, by queue and id."""
        found: list[list[str]] = self._ask(Question.CHILD_FAILURES)
        return {(queue, job_id): reason for queue, job_id, reason in found}

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        """Read the failure reasons of the job's children, by queue and id."""
        return self.child_failures()

    def spawn(self, children: Children) -> list[str]:
        """Add children to the job from this process, which has the specs of the app's tasks."""
        try:
            return self._spawn(children)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def aspawn(self, children: Children) -> list[str]:
        """Add children to the job."""
        return self.spawn(children)

    def drop_children(self) -> int:
        """Remove the pending children that are not running; return their number."""
        return int(self._ask(Question.DROP_CHILDREN))

    async def adrop_children(self) -> int:
        """Remove the pending children that are not running; return their number."""
        return self.drop_children()

    async def aunclaimed(self, patience: float) -> float:
        """Return `patience` unchanged: a process only gets jobs that it can run."""
        return patience

    def _ask(self, question: Question, argument: bytes = b"") -> Any:
        answer = self._ask_worker(question, argument)
        if answer is None:
            raise LockLost(self._queue, self._run.job.id)
        if answer.fault is None:
            return answer.value
        error = unpack_fault(answer.fault, self._queue, self._run.job.id)
        if answer.fault.of_redis:
            self._trouble = error
        raise error


# Stopping a running function with an exception in the main thread. The worker names the call over
# the control socket and sends SIGTERM. A SIGTERM from elsewhere is ignored, because the worker
# decides
# (systemd, for example, sends one to every process of a service that it stops).


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


class Interruption:
    """The signal handling that raises `Terminated` in the main thread.

    It raises at most once per call, and never in the middle of a message.
    """

    def __init__(self) -> None:
        self._main = get_ident()
        self._number = 0
        """The number of the call that may be interrupted, or 0."""
        self._halt: Halt | None = None
        self.heed: Callable[[JobFlags], object] = bool
        """Callback for job status messages, called in the control socket thread."""
        self._held_off = 0
        self._due = False

    def install(self) -> None:
        """Handle SIGTERM, and ignore SIGINT because the worker handles Ctrl-C."""
        signal.signal(signal.SIGTERM, self._on_signal)
        # Programs that a task starts would inherit SIG_IGN.
        signal.signal(signal.SIGINT, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_ITS_OWN)  # The worker had blocked them.

    def watch(self, control_socket: int, orphaned: Callable[[], None]) -> None:
        """Read the control socket in a thread; call `orphaned` when the worker is gone."""
        os.set_inheritable(control_socket, False)
        Thread(
            target=self._listen, args=(control_socket, orphaned), name="control_socket", daemon=True
        ).start()

    def begin(self, number: int) -> None:
        """Allow a call to be interrupted from now on.

        Raises:
            Terminated: If the worker has already asked to stop the call.
        """
        self._due = False
        self._number = number
        self._raise_if_meant()

    def end(self) -> None:
        """Stop allowing interruptions."""
        self._number = 0

    def halted(self, number: int) -> bool:
        """Return True if the worker has asked to stop this call."""
        return self._halt is not None and self._halt.number == number

    @contextmanager
    def held_off(self) -> Generator[None]:
        """Delay the exception until the end of the block."""
        if current_thread() is not main_thread():  # Signals only interrupt the main thread.
            yield
            return
        self._held_off += 1
        try:
            yield
        finally:
            self._held_off -= 1
        if self._due:
            self._due = False
            self._raise_if_meant()

    def _listen(self, control_socket: int, orphaned: Callable[[], None]) -> None:
        frames = FrameReader()
        with socket.socket(fileno=control_socket) as line:
            while piece := line.recv(4096):
                for data in frames.feed(piece):
                    message = read_in_process(data)
                    if isinstance(message, JobFlags):
                        self.heed(message)
                    elif isinstance(message, Halt):
                        self._halt = message
                        signal.pthread_kill(self._main, signal.SIGTERM)
        orphaned()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._held_off:
            self._due = True
        else:
            self._raise_if_meant()

    def _raise_if_meant(self) -> None:
        halt = self._halt
        if halt is not None and halt.number == self._number:
            self._number = 0
            raise Terminated(halt.reason)


# The process's end of the line to its worker.


_PIECE = 1 << 15  # Much larger buffers are mapped and unmapped each time, which takes 50 µs.

LINE_IS_GONE: Final = 70
"""The exit code of a process whose task has closed the line."""

_LOOK = 0.05
"""Seconds between checks whether the call is over, while a thread waits for an answer."""


class ProcessLine:
    """The message socket to the worker. No signal interrupts a message.

    One thread reads at a time. During a call that is the thread that sends a request for one of the
    jobs. Between calls it is the main thread, which waits for orders. A task may leave threads
    behind; after its call has finished, their requests get no answer.
    """

    def __init__(self, descriptor: int, interruption: Interruption) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._identity = _identity(descriptor)
        self._interruption = interruption
        self._process = os.getpid()
        self._frames = FrameReader()
        self._orders: deque[ToProcess] = deque()
        self._sending = RLock()  # A logging handler may be called while this thread is sending.
        self._call = 0
        """The number of the running call, or 0."""
        self._asking = Lock()
        self._asked = 0

    def send(self, *messages: Message) -> None:
        """Send messages to the worker.

        Exit the process if its task has closed the line.
        """
        data = b"".join(map(encode, messages))
        with self._interruption.held_off():
            self._check()
            with self._sending:
                self._socket.sendall(data)

    def receive(self) -> ToProcess:
        """Wait for the next message; raise `EOFError` when the worker is gone."""
        while not self._orders:
            self._read()
        return self._orders.popleft()

    def begin(self, call: int) -> None:
        """Accept requests from the jobs of a call from now on."""
        self._call = call

    def end(self) -> None:
        """Stop accepting requests, and wait until a thread with a pending request has left."""
        self._call = 0
        with self._asking:
            pass

    def is_open_to(self, call: int) -> bool:
        """Return True if the jobs of this call may send requests."""
        return call == self._call

    def ask(self, call: int, job: int, question: Question, argument: bytes) -> Reply | None:
        """Send a job's request and return the answer, or `None` if the call is over.

        Raises:
            TaskbullError: In a forked process.
        """
        # After a fork, either process could receive the answer.
        if os.getpid() != self._process:
            raise TaskbullError(
                "A process forked by a task cannot use current_job(): only the task's own process "
                "can"
            )
        with self._asking:
            if not self.is_open_to(call):
                return None
            self._asked = number = self._asked + 1
            self.send(Ask(number, call, question, argument, job))
            while self.is_open_to(call):
                # A signal may interrupt the wait, but not the read.
                if select.select([self._socket], [], [], _LOOK)[0]:
                    with self._interruption.held_off():
                        answer = self._read(number)
                    if answer is not None:
                        return answer
        return None

    def _read(self, asked: int = 0) -> Reply | None:
        """Read a chunk, keep its orders, and return the answer to request `asked`, if present.

        Answers to earlier requests are dropped.
        """
        answer: Reply | None = None
        for data in self._frames.feed(self._receive_piece()):
            message = read_in_process(data)
            if not isinstance(message, Reply):
                self._orders.append(message)
            elif message.number == asked:
                answer = message
        return answer

    def _receive_piece(self) -> bytes:
        try:
            piece = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionLost(f"the connection to the worker is closed: {error}") from error
        if not piece:
            raise EOFError
        return piece

    def _check(self) -> None:
        """Exit if the task has closed the line: its descriptor may now belong to another file."""
        if _identity(self._socket.fileno()) != self._identity:
            os._exit(LINE_IS_GONE)


def _identity(descriptor: int) -> tuple[int, int]:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


class LineHandler(logging.Handler):
    """A logging handler that sends records to the worker, which logs them with the job's fields."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the worker."""
        try:
            self._send(_told(record))
        except Exception:  # noqa: BLE001 - a log line must not fail the job
            self.handleError(record)


def _told(record: logging.LogRecord) -> Record:
    stack = record.exc_text or ""
    if not stack and record.exc_info and record.exc_info[1] is not None:
        stack = stack_of(record.exc_info[1])
    extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
    return Record(
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
