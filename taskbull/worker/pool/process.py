"""One pool process as the worker sees it: the OS process, its output and its message line."""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from threading import Lock
from time import monotonic, sleep
from typing import IO, Final

import msgspec
from msgspec import Struct

from taskbull.core.failure import where_of
from taskbull.worker.pool.messages import FrameReader, Record, ToWorker, read_in_worker

# Output of a process, as log lines. All of it is read, because a full pipe would block the
# process, but only a limited number of lines is logged.


LINE_LIMIT: Final = 8192
"""Maximum number of bytes logged per line; the rest is counted."""

MOST_PER_SECOND: Final = 1000

_PIECE = 1 << 15  # Much larger buffers are mapped and unmapped each time, which takes 50 µs.
_PIECES = 64

STDOUT: Final = ("stdout", logging.INFO)
STDERR: Final = ("stderr", logging.WARNING)


class Printed:
    """A reader that logs the lines of one output stream, to a logger named after the stream.

    `context` returns the context of the running job, which adds the job's fields to the lines.
    """

    def __init__(
        self,
        descriptor: int,
        kind: tuple[str, int],
        context: Callable[[], Context],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.descriptor = descriptor
        name, self._level = kind
        self._logger = logging.getLogger(name)
        self._context = context
        self._clock = clock
        self._held = b""
        self._cut = 0
        self._second = -1
        self._logged = 0
        self._left_out = 0
        self.last: deque[str] = deque(maxlen=30)
        """The last lines printed."""

    def read(self) -> bool:
        """Log the available output; return False when the stream has ended.

        The amount is limited, so that a process that prints endlessly cannot block the caller.
        """
        for _ in range(_PIECES):
            try:
                piece = os.read(self.descriptor, _PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not piece:
                return False
            self._take(piece)
        return True

    def end_of_job(self) -> None:
        """Log an unfinished last line and the number of lines left out."""
        if self._held:
            self._line(self._held)
            self._held = b""
        self._tell_left_out()

    def _take(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = self._held + lines[0]
            for line in lines:
                self._line(line)
            self._held = rest
        else:
            self._held += rest
        if len(self._held) > LINE_LIMIT:
            self._cut += len(self._held) - LINE_LIMIT
            self._held = self._held[:LINE_LIMIT]

    def _line(self, line: bytes) -> None:
        second = int(self._clock())
        if second != self._second:
            self._tell_left_out()
            self._second, self._logged = second, 0
        cut, self._cut = self._cut + max(0, len(line) - LINE_LIMIT), 0
        if self._logged >= MOST_PER_SECOND:
            self._left_out += 1
            return
        self._logged += 1
        text = line[:LINE_LIMIT].decode("utf-8", "backslashreplace").rstrip("\r")
        self.last.append(text)
        self._log("%s … (%d bytes left out)" if cut else "%s", *((text, cut) if cut else (text,)))

    def _tell_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._log("… (%d lines left out: more than %d in a second)", left_out, MOST_PER_SECOND)

    def _log(self, text: str, *args: object) -> None:
        if self._logger.isEnabledFor(self._level):
            self._context().run(self._logger.log, self._level, text, *args)


class Outputs:
    """The standard output and standard error of a process."""

    def __init__(self, streams: Sequence[IO[bytes]], context: Callable[[], Context]) -> None:
        self._open = {
            stream.fileno(): Printed(stream.fileno(), kind, context)
            for stream, kind in zip(streams, (STDOUT, STDERR), strict=True)
        }
        self._last: list[str] = []

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the streams that have not ended."""
        return [*self._open]

    def read(self, ready: Container[int]) -> list[int]:
        """Log the output of the ready descriptors; return those whose stream has ended."""
        ended = [one for one, printed in self._open.items() if one in ready and not printed.read()]
        for one in ended:
            printed = self._open.pop(one)
            printed.end_of_job()
            self._last += printed.last
        return ended

    def end_of_job(self) -> None:
        """Log the rest of a job's output, which was flushed before the job was reported."""
        for printed in self._open.values():
            printed.read()
            printed.end_of_job()

    def last_lines(self) -> list[str]:
        """Return the last lines printed, which often show why a process could not start."""
        return [*self._last, *(line for printed in self._open.values() for line in printed.last)]


def log_record(record: Record, pid: int | None) -> None:
    """Log a record from a process as if it had been logged in the worker."""
    logger = logging.getLogger(record.logger)
    if not logger.isEnabledFor(record.level):
        return
    file, line, function = record.place
    with suppress(Exception):  # The application's handlers and filters may raise.
        made = logger.makeRecord(
            logger.name, record.level, file, line, record.text, (), None, function
        )
        made.created = record.created
        made.msecs = (record.created % 1) * 1000
        made.threadName = record.thread
        made.process = pid
        made.exc_text = record.stack or None
        vars(made).update(msgspec.json.decode(record.extra, type=dict[str, object]))
        logger.handle(made)


# The worker's end of the line to a process. Nothing here blocks.


class WorkerLine:
    """A non-blocking message socket: any thread sends, the keeper's thread receives.

    Data that does not fit into the socket's buffer is kept for `flush`.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._socket = line
        self._lock = Lock()
        self._frames = FrameReader()
        self._backlog = bytearray()

    @property
    def has_backlog(self) -> bool:
        """True if unsent data is left for `flush`."""
        return bool(self._backlog)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send a message without waiting; return False if part of it is left for `flush`."""
        with self._lock:
            sent = 0
            if not self._backlog:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    pass
                except OSError:  # The process is exiting, which the keeper will notice.
                    return True
            if sent == len(data):
                return True
            self._backlog += data[sent:]
            return False

    def flush(self) -> None:
        """Send as much of the unsent data as the socket accepts."""
        if not self._backlog:
            return
        with self._lock, suppress(OSError):
            del self._backlog[: self._socket.send(self._backlog)]

    def receive(self, *, to_the_end: bool = False) -> Iterator[ToWorker]:
        """Yield the messages that have arrived.

        Raises:
            EOFError: If the process has closed its end.
            BadFrame: If the process has sent something that is not a message.
        """
        while True:
            try:
                piece = self._socket.recv(_PIECE)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            for data in self._frames.feed(piece):
                yield read_in_worker(data)
            if len(piece) < _PIECE and not to_the_end:
                return


# The OS process: a fresh interpreter in its own session. A signal to its group also reaches the
# programs that its tasks have started. The worker is connected to it by:
#
# - the *line*, for messages;
# - the *control socket*, for messages while a function runs: cancellations, lost locks and halt
#   requests.
#   Its end of file means that the worker is gone;
# - its output streams;
# - the *faults* pipe, where Python's fault handler writes a stack when C code crashes;
# - a shared number: the last call that the process has started.
#
# The thread that starts a process must live as long as the process, because Linux kills the
# process when that thread exits (see `app.pool.child`).


CHILD: Final = "taskbull.app.pool.child"
"""The module that the process runs."""

NOT_ITS_OWN: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that only the worker handles, even if a pool process also receives them."""

NUMBER_BYTES: Final = 8
"""Size in bytes of the shared number, which is little-endian."""

_FAULT_LIMIT = 20_000

_LONG = 3600.0

_CAN_LOOK = hasattr(os, "waitid")
"""True if an exited process can be detected without reaping it (on macOS, Python 3.13+)."""


class Death(Struct, frozen=True):
    """The exit status of a process."""

    pid: int
    code: int
    """The exit code, or the negative signal number."""
    peak: float
    """Peak memory use in megabytes."""
    fault: str = ""
    """The stack from the faults pipe, if any."""

    @property
    def told(self) -> str:
        """A description for errors and log lines."""
        return f"process {self.pid} died: {self._cause}"

    @property
    def _cause(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        if self.code == -signal.SIGKILL:
            return f"{name}, perhaps out of memory (peak {_size(self.peak)})"
        return name


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


class PoolProcess:
    """A running pool process, created by its keeper's thread.

    `context` returns the context of the job that it runs, for its output lines.
    """

    def __init__(self, context: Callable[[], Context]) -> None:
        ours, line = socket.socketpair()
        self.line = WorkerLine(ours)
        loop, control_socket = socket.socketpair()
        self.control_socket = WorkerLine(loop)
        self._faults, faults = os.pipe()
        self._begun = _open_shared()
        theirs = (line.fileno(), control_socket.fileno(), faults, self._begun.fileno())
        try:
            os.set_blocking(faults, False)  # The pipe is read only after the process has exited.
            self._popen = subprocess.Popen(  # noqa: S603 - taskbull's own program
                [sys.executable, "-m", CHILD, str(os.getpid()), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=theirs,
            )
        except BaseException:
            self.line.close()
            self.control_socket.close()
            os.close(self._faults)
            self._begun.close()
            raise
        finally:
            line.close()
            control_socket.close()
            os.close(faults)
        self.pid = self._popen.pid
        self.exit_fd = _open_exit_fd(self.pid)
        """Descriptor that becomes readable when the process exits, or `None` if not supported."""
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self.outputs = Outputs(self._streams, context)
        self._lock = Lock()
        self._end: tuple[int, resource.struct_rusage] | None = None
        self._buried = False

    @property
    def _streams(self) -> list[IO[bytes]]:
        return [stream for stream in (self._popen.stdout, self._popen.stderr) if stream is not None]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all programs that it has started."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._buried:  # The system does not reuse the id before that.
                os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Return True if the process has exited and can be reaped."""
        if _CAN_LOOK:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None
        with self._lock:
            if self._end is None:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
                self._end = (status, usage) if pid else None
            return self._end is not None

    def ends_within(self, seconds: float) -> bool:
        """Wait for the process to exit; return False if it does not exit in time."""
        limit = monotonic() + seconds
        while not self.has_ended():
            left = limit - monotonic()
            if left <= 0:
                return False
            if self.exit_fd is not None:
                select.select([self.exit_fd], [], [], left)
            else:
                sleep(min(left, 0.01))
        return True

    def bury(self) -> Death:
        """Wait for the process to exit, kill the programs it left behind, and reap it."""
        while not self.ends_within(_LONG):
            pass
        self.signal(signal.SIGKILL)  # Kill the group while its id cannot be reused.
        with self._lock:
            status, usage = self._end or os.wait4(self.pid, 0)[1:]
            self._buried = True
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        return Death(self.pid, self._popen.returncode, peak, self._read_fault())

    def close(self) -> None:
        """Close all descriptors that lead to the process."""
        self.line.close()
        self.control_socket.close()
        os.close(self._faults)
        self._begun.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
        for stream in self._streams:
            stream.close()

    def last_begun(self) -> int:
        """Return the number of the last call that the process has started, or 0."""
        return int.from_bytes(os.pread(self._begun.fileno(), NUMBER_BYTES, 0), "little")

    def _read_fault(self) -> str:
        os.set_blocking(self._faults, False)
        written = b""
        with suppress(BlockingIOError):
            while piece := os.read(self._faults, 65536):
                written += piece
        return where_of(written[-_FAULT_LIMIT:].decode("utf-8", "backslashreplace"))


def _open_shared() -> IO[bytes]:
    """Return a file that holds one number and that a process can map into its memory."""
    shared: IO[bytes]
    if hasattr(os, "memfd_create"):  # does not use the disk
        shared = os.fdopen(os.memfd_create("taskbull-pool"), "r+b")
    else:
        shared = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
    os.ftruncate(shared.fileno(), NUMBER_BYTES)
    return shared


def _open_exit_fd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):  # macOS
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # The kernel is too old, or a sandbox forbids the call.
        return None
