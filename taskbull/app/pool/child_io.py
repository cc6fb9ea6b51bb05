"""What a job in a process writes to: its worker, which does it and answers."""

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
    Message,
    Question,
    Record,
    Reply,
    Standing,
    ToProcess,
    encode,
    read_in_process,
    unpack_fault,
)
from taskbull.worker.pool.process import NOT_ITS_OWN
from taskbull.worker.run import Run

# What a job in a process writes to: its worker, which does it and answers.


AskWorker = Callable[[Question, bytes], Reply | None]
Spawn = Callable[[Children], list[str]]


class AskingPort:
    """Asks the worker for what a job wants written or read.

    When the attempt is over, it raises `LockLost`: a task may have left a thread behind.
    """

    held_up = 0.0  # the worker knows

    def __init__(self, run: Run, queue: str, ask: AskWorker, spawn: Spawn) -> None:
        self._run = run
        self._queue = queue
        self._ask_worker = ask
        self._spawn = spawn
        self._trouble: BaseException | None = None

    def caused(self, error: BaseException) -> bool:
        """Return whether an error of the task comes from Redis; a word of the task's own wins."""
        if self._trouble is None or isinstance(error, Steering):
            return False
        return any(one is self._trouble for one in causes(error))

    def progress(self, raw: bytes) -> None:
        """Write how far the job has come."""
        self._ask(Question.PROGRESS, raw)

    async def aprogress(self, raw: bytes) -> None:
        """Write how far the job has come."""
        self.progress(raw)

    def log(self, line: str) -> None:
        """Append a line to the job's log."""
        self._ask(Question.LOG, str(line).encode("utf-8", "backslashreplace"))

    async def alog(self, line: str) -> None:
        """Append a line to the job's log."""
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        """Replace the payload."""
        self._ask(Question.UPDATE_DATA, raw)

    async def aupdate_data(self, raw: bytes) -> None:
        """Replace the payload."""
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        """Read what the job's children of a name returned."""
        # The worker does not know what a call has spawned until its end.
        spawned = self._run.spawned.new > 0
        question = Question.CHILD_RESULTS_SO_FAR if spawned else Question.CHILD_RESULTS
        found: list[bytes] = self._ask(question, name.encode())
        return found

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Read what children of a name have returned, though others may be pending."""
        found: list[bytes] = self._ask(Question.CHILD_RESULTS_SO_FAR, name.encode())
        return found

    async def achild_results(self, name: str) -> list[bytes]:
        """Read what the job's children of a name returned."""
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        found: list[list[str]] = self._ask(Question.CHILD_FAILURES)
        return {(queue, job_id): reason for queue, job_id, reason in found}

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        return self.child_failures()

    def spawn(self, children: Children) -> list[str]:
        """Add children of the job: from here, for they are specs of the app's tasks."""
        try:
            return self._spawn(children)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def aspawn(self, children: Children) -> list[str]:
        """Add children of the job."""
        return self.spawn(children)

    def drop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return int(self._ask(Question.DROP_CHILDREN))

    async def adrop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return self.drop_children()

    async def aunclaimed(self, patience: float) -> float:
        """Return that nobody else is asked: the worker gives a process only what it can run."""
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


# How a running function learns that it has to end: an exception in the main thread.
#
# The worker says by the leash which run is meant, and sends SIGTERM. A signal of somebody else (at
# a stop, systemd sends one to every process of a service) ends nothing: the worker decides.


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


class Interruption:
    """Raises `Terminated` in the main thread: once in a run, and not in the middle of a message."""

    def __init__(self) -> None:
        self._main = get_ident()
        self._number = 0
        """The run that may be interrupted; 0: none."""
        self._halt: Halt | None = None
        self.heed: Callable[[Standing], object] = bool
        """Told how jobs stand, in the thread that listens."""
        self._held_off = 0
        self._due = False

    def install(self) -> None:
        """Take over SIGTERM, and let SIGINT mean nothing: a Ctrl-C is the worker's business."""
        signal.signal(signal.SIGTERM, self._on_signal)
        # Not SIG_IGN, which programs that a task starts would inherit.
        signal.signal(signal.SIGINT, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_ITS_OWN)  # the worker held them back

    def watch(self, leash: int, orphaned: Callable[[], None]) -> None:
        """Listen at the leash, in a thread; call `orphaned` when the worker is gone."""
        os.set_inheritable(leash, False)
        Thread(target=self._listen, args=(leash, orphaned), name="leash", daemon=True).start()

    def begin(self, number: int) -> None:
        """Let a run be interrupted from now on; that may be now."""
        self._due = False
        self._number = number
        self._raise_if_meant()

    def end(self) -> None:
        """Let it no longer be interrupted."""
        self._number = 0

    def halted(self, number: int) -> bool:
        """Return whether a run was to be ended."""
        return self._halt is not None and self._halt.number == number

    @contextmanager
    def held_off(self) -> Generator[None]:
        """Put the exception off until the end of the block."""
        if current_thread() is not main_thread():  # signals are the main thread's
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

    def _listen(self, leash: int, orphaned: Callable[[], None]) -> None:
        frames = FrameReader()
        with socket.socket(fileno=leash) as line:
            while piece := line.recv(4096):
                for data in frames.feed(piece):
                    message = read_in_process(data)
                    if isinstance(message, Standing):
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


_PIECE = 1 << 15  # far larger ones are mapped and unmapped each time, for 50 µs

LINE_IS_GONE: Final = 70
"""The exit code of a process whose line was closed by its task."""

_LOOK = 0.05
"""Seconds after which whoever waits for an answer looks whether its call is over."""


class ProcessLine:
    """Sends and receives messages; no signal comes in the middle of one.

    One thread reads at a time. While a call runs, that is whoever asks for one of its jobs; between
    two calls it is the main thread, which waits for orders. A task may leave threads behind: when
    its call is over they are sent away, and get no answer any more.
    """

    def __init__(self, descriptor: int, interruption: Interruption) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._identity = _identity(descriptor)
        self._interruption = interruption
        self._process = os.getpid()
        self._frames = FrameReader()
        self._orders: deque[ToProcess] = deque()
        self._sending = RLock()  # a handler of logging may be called while we send
        self._call = 0
        """The number of the call that runs; 0: none."""
        self._asking = Lock()
        self._asked = 0

    def send(self, *messages: Message) -> None:
        """Send messages."""
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
        """Let the jobs of a call ask, from now on."""
        self._call = call

    def end(self) -> None:
        """Let them ask no longer; whoever waits for an answer is sent away first."""
        self._call = 0
        with self._asking:
            pass

    def is_open_to(self, call: int) -> bool:
        """Return whether the jobs of a call may ask."""
        return call == self._call

    def ask(self, call: int, job: int, question: Question, argument: bytes) -> Reply | None:
        """Ask the worker for a job of a call, and wait for its answer; None: the call is over."""
        if os.getpid() != self._process:  # its answer would come to the one, or to the other
            raise TaskbullError(
                "a process that a task has forked cannot write to the job or ask for anything: "
                "only the task's own process can"
            )
        with self._asking:
            if not self.is_open_to(call):
                return None
            self._asked = number = self._asked + 1
            self.send(Ask(number, call, question, argument, job))
            while self.is_open_to(call):
                # A signal may come while we wait, not while we read.
                if select.select([self._socket], [], [], _LOOK)[0]:
                    with self._interruption.held_off():
                        answer = self._read(number)
                    if answer is not None:
                        return answer
        return None

    def _read(self, asked: int = 0) -> Reply | None:
        """Take in what has come, and keep the orders; return the answer to a question, if it has.

        An answer that nobody waits for any more is dropped.
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
            raise ConnectionLost(f"the line to the worker is closed: {error}") from error
        if not piece:
            raise EOFError
        return piece

    def _check(self) -> None:
        """End the process if its task has closed the line: another file may have its number."""
        if _identity(self._socket.fileno()) != self._identity:
            os._exit(LINE_IS_GONE)


def _identity(descriptor: int) -> tuple[int, int]:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


# Log lines of a process, on their way to the worker's own handlers.


class LineHandler(logging.Handler):
    """Sends what is logged to the worker, which logs it with the fields of the job."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._send(_told(record))
        except Exception:  # noqa: BLE001 - as logging has it: no line is worth the job
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
    except (TypeError, ValueError):  # what no JSON can hold
        return msgspec.json.encode({name: scrubbed(repr(value)) for name, value in extra.items()})
