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
    JobControl,
    LockLost,
    MaybeExecuted,
    TaskbullError,
    Terminated,
)
from taskbull.observability.logs import STANDARD
from taskbull.worker.pool.messages import (
    JobFlags,
    JobRequest,
    Message,
    MessageSocket,
    Method,
    Record,
    Reply,
    ToProcess,
    decode_in_process,
    encode,
)
from taskbull.worker.pool.process import NOT_ITS_OWN
from taskbull.worker.pool.results import error_in_reply
from taskbull.worker.run import Run


class RemoteJobPort:
    """A `JobPort` that sends a job's reads and writes to the worker.

    After the attempt has finished, its methods raise `LockLost`, because a task may have left a
    thread behind.
    """

    redis_wait_seconds = 0.0  # The worker measures it.

    def __init__(
        self,
        run: Run,
        queue: str,
        request: Callable[..., Reply | None],
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

    def progress(self, raw: bytes) -> None:
        """Write the job's progress."""
        self._call("progress", raw)

    async def aprogress(self, raw: bytes) -> None:
        """Write the job's progress."""
        self.progress(raw)

    def log(self, line: str) -> None:
        """Append a line to the job's log."""
        self._call("log", str(line).encode("utf-8", "backslashreplace").decode())

    async def alog(self, line: str) -> None:
        """Append a line to the job's log."""
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        """Replace the job's data."""
        self._call("update_data", raw)

    async def aupdate_data(self, raw: bytes) -> None:
        """Replace the job's data."""
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        """Read the results of the job's children with this name."""
        # The worker does not know which children a call has spawned until the call finishes.
        spawned = self._run.spawned.new > 0
        found: list[bytes] = self._call(
            "child_results_so_far" if spawned else "child_results", name
        )
        return found

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Read the results of finished children with this name; others may be pending."""
        found: list[bytes] = self._call("child_results_so_far", name)
        return found

    async def achild_results(self, name: str) -> list[bytes]:
        """Read the results of the job's children with this name."""
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Read the failure reasons of the job's children, by queue and id."""
        found: list[list[str]] = self._call("child_failures")
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
        return int(self._call("drop_children"))

    async def adrop_children(self) -> int:
        """Remove the pending children that are not running; return their number."""
        return self.drop_children()

    async def arecord_unknown_task(self, patience: float) -> float:
        """Return `patience` unchanged: a process only gets jobs that it can run."""
        return patience

    def _call(self, method: Method, *arguments: Any) -> Any:
        reply = self._request(method, arguments)
        if reply is None:
            raise LockLost(self._queue, self._run.job.id)
        if not reply.error:
            return reply.value
        error = error_in_reply(reply, self._queue, self._run.job.id)
        if reply.of_redis:
            self._trouble = error
        raise error


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
        self._data = MessageSocket(socket.socket(fileno=data_fd), decode_in_process)
        self._control = MessageSocket(socket.socket(fileno=control_fd), decode_in_process)
        self._identity = _identity(data_fd)
        self._pid = os.getpid()
        self._main = get_ident()
        self._received: deque[ToProcess] = deque()
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
        self, on_flags: Callable[[JobFlags], object], on_orphaned: Callable[[], object]
    ) -> None:
        """Read the control socket in a thread; call `on_orphaned` when the worker is gone."""

        def listen() -> None:
            try:
                while True:
                    for message in self._control.receive():
                        if isinstance(message, JobFlags):
                            on_flags(message)
                            if message.halt:
                                self._halted = message.number
                                signal.pthread_kill(self._main, signal.SIGTERM)
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

    def send(self, *messages: Message) -> None:
        """Send messages to the worker.

        Exit the process if its task has closed the socket: its descriptor may now belong to another
        file.
        """
        data = b"".join(map(encode, messages))
        with self._interruption_deferred():
            if _identity(self._data.socket.fileno()) != self._identity:
                os._exit(SOCKET_IS_GONE)
            with self._sending:
                self._data.socket.sendall(data)

    def receive(self) -> ToProcess:
        """Wait for the next message; raise `EOFError` if there will be no more."""
        while not self._received:
            self._read()
        return self._received.popleft()

    def request(
        self, call: int, job: int, method: Method, arguments: tuple[Any, ...]
    ) -> Reply | None:
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
            self.send(JobRequest(number, call, job, method, arguments))
            while self.is_open_to(call):
                # A signal may interrupt the wait, but not the read.
                if select.select([self._data.socket], [], [], _LOOK)[0]:
                    with self._interruption_deferred():
                        reply = self._read(number)
                    if reply is not None:
                        return reply
        return None

    def _read(self, request: int = 0) -> Reply | None:
        """Read once, keep the calls, and return the reply to a request, if it has arrived.

        Replies to earlier requests are dropped.
        """
        found: Reply | None = None
        for message in self._data.receive():
            if not isinstance(message, Reply):
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

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the worker."""
        try:
            self._send(_packed(record))
        except Exception:  # noqa: BLE001 - a log line must not fail the job
            self.handleError(record)


def _packed(record: logging.LogRecord) -> Record:
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
