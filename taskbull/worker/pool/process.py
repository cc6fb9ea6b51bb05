"""What a process of the pool prints, as log lines.

Whatever it prints is read, or it would stand still; but of a flood only so much is logged.
"""

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

# What a process of the pool prints, as log lines.
#
# Whatever it prints is read, or it would stand still; but of a flood only so much is logged.


LINE_LIMIT: Final = 8192
"""Bytes of a line that are logged; the rest is counted."""

MOST_PER_SECOND: Final = 1000

_PIECE = 1 << 15
_PIECES = 64

STDOUT: Final = ("stdout", logging.INFO)
STDERR: Final = ("stderr", logging.WARNING)


class Printed:
    """Logs the lines of one stream; the logger has its name.

    `context` gives that of the job that runs, by which the line gets the job's fields.
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
        """The last lines."""

    def read(self) -> bool:
        """Log what there is now, a pipe full of it; return False when the stream has ended."""
        for _ in range(_PIECES):  # who prints without end must not keep us here
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
        """Log also a line that was not ended, and what was left out."""
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
    """Both streams of a process, until they end."""

    def __init__(self, streams: Sequence[IO[bytes]], context: Callable[[], Context]) -> None:
        self._open = {
            stream.fileno(): Printed(stream.fileno(), kind, context)
            for stream, kind in zip(streams, (STDOUT, STDERR), strict=True)
        }
        self._last: list[str] = []

    @property
    def descriptors(self) -> list[int]:
        """Those that have not ended."""
        return [*self._open]

    def read(self, ready: Container[int]) -> list[int]:
        """Log what has come by these descriptors; return those that have ended by now."""
        ended = [one for one, printed in self._open.items() if one in ready and not printed.read()]
        for one in ended:
            printed = self._open.pop(one)
            printed.end_of_job()
            self._last += printed.last
        return ended

    def end_of_job(self) -> None:
        """Log what is left of a job's lines: it was flushed before the end was told."""
        for printed in self._open.values():
            printed.read()
            printed.end_of_job()

    def last_lines(self) -> list[str]:
        """Return what was printed last: if the process cannot start, it says why."""
        return [*self._last, *(line for printed in self._open.values() for line in printed.last)]


def log_record(record: Record, pid: int | None) -> None:
    """Log a line that was logged in a process, as if it had been here."""
    logger = logging.getLogger(record.logger)
    if not logger.isEnabledFor(record.level):
        return
    file, line, function = record.place
    with suppress(Exception):  # foreign code: handlers and filters of the application
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


# The worker's end of the line to a process. Nothing here waits.


_PIECE = 1 << 15  # far larger ones are mapped and unmapped each time, for 50 µs


class WorkerLine:
    """Sends messages from any thread, and receives them in that of the process's keeper.

    Nobody waits for a process that does not listen: what it has no room for is kept, for `flush`.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._socket = line
        self._lock = Lock()
        self._frames = FrameReader()
        self._backlog = bytearray()

    @property
    def has_backlog(self) -> bool:
        """Whether something was sent that the process has to make room for."""
        return bool(self._backlog)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send a message; return False if some of it is left for `flush`."""
        with self._lock:
            sent = 0
            if not self._backlog:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    pass
                except OSError:  # the process is dying, and that will be told
                    return True
            if sent == len(data):
                return True
            self._backlog += data[sent:]
            return False

    def flush(self) -> None:
        """Send more of what is left."""
        if not self._backlog:
            return
        with self._lock, suppress(OSError):
            del self._backlog[: self._socket.send(self._backlog)]

    def receive(self, *, to_the_end: bool = False) -> Iterator[ToWorker]:
        """Yield what the process has said, as far as it is here; `EOFError`: it says no more.

        `BadFrame` is raised for what is not a message.
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


# One process of the pool, as the operating system has it: started, signalled, buried.
#
# It is a fresh interpreter in a session of its own, so that a signal to its group reaches what its
# tasks have started, too. What leads to it: the *line* (messages), the *leash* (what it has to
# know while a function runs: who was cancelled, the word to halt, and by its end the news that the
# worker is gone), its output, *faults*, where the C code of Python writes a stack when it crashes,
# and a shared number: the last call that it has begun.
#
# Whatever starts it has to be a thread that lives as long as it: Linux kills the process when that
# thread ends (see `app.pool.child`).


CHILD: Final = "taskbull.app.pool.child"
"""The module that the process runs."""

NOT_ITS_OWN: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""The signals that are the worker's business, also when a process of the pool gets them, too."""

NUMBER_BYTES: Final = 8
"""The size of the shared number, little-endian."""

_FAULT_LIMIT = 20_000

_LONG = 3600.0

_CAN_LOOK = hasattr(os, "waitid")
"""Whether one can look at the dead without burying them; on macOS, Python learned it in 3.13."""


class Death(Struct, frozen=True):
    """How a process ended."""

    pid: int
    code: int
    """Its exit code; of a signal the negative number."""
    peak: float
    """The most memory that it had, in megabytes."""
    fault: str = ""
    """The stack that it could still write."""

    @property
    def told(self) -> str:
        """The words for it."""
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
    """A running process; made by the thread that keeps it.

    `context` gives that of the job that runs in it, for the lines that it prints.
    """

    def __init__(self, context: Callable[[], Context]) -> None:
        ours, line = socket.socketpair()
        self.line = WorkerLine(ours)
        loop, leash = socket.socketpair()
        self.leash = WorkerLine(loop)
        self._faults, faults = os.pipe()
        self._begun = _open_shared()
        theirs = (line.fileno(), leash.fileno(), faults, self._begun.fileno())
        try:
            os.set_blocking(faults, False)  # nobody reads it before the end
            self._popen = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", CHILD, str(os.getpid()), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=theirs,
            )
        except BaseException:
            self.line.close()
            self.leash.close()
            os.close(self._faults)
            self._begun.close()
            raise
        finally:
            line.close()
            leash.close()
            os.close(faults)
        self.pid = self._popen.pid
        self.exit_fd = _open_exit_fd(self.pid)
        """Becomes readable when it ends; None: it has to be asked."""
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self.outputs = Outputs(self._streams, context)
        self._lock = Lock()
        self._end: tuple[int, resource.struct_rusage] | None = None
        self._buried = False

    @property
    def _streams(self) -> list[IO[bytes]]:
        """Its standard output and its standard error."""
        return [stream for stream in (self._popen.stdout, self._popen.stderr) if stream is not None]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._buried:  # until then nobody else has its number
                os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Return whether it has ended, and is to be buried."""
        if _CAN_LOOK:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None
        with self._lock:
            if self._end is None:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
                self._end = (status, usage) if pid else None
            return self._end is not None

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end; return False if it does not come."""
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
        """Wait for its end, end all that it has left behind, and return how it ended."""
        while not self.ends_within(_LONG):
            pass
        self.signal(signal.SIGKILL)  # its group, while the number is still its own
        with self._lock:
            status, usage = self._end or os.wait4(self.pid, 0)[1:]
            self._buried = True
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        return Death(self.pid, self._popen.returncode, peak, self._read_fault())

    def close(self) -> None:
        """Close all that leads to it."""
        self.line.close()
        self.leash.close()
        os.close(self._faults)
        self._begun.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
        for stream in self._streams:
            stream.close()

    def last_begun(self) -> int:
        """Return the number of the last call of a function that it has begun; 0 if none."""
        return int.from_bytes(os.pread(self._begun.fileno(), NUMBER_BYTES, 0), "little")

    def _read_fault(self) -> str:
        os.set_blocking(self._faults, False)
        written = b""
        with suppress(BlockingIOError):
            while piece := os.read(self._faults, 65536):
                written += piece
        return where_of(written[-_FAULT_LIMIT:].decode("utf-8", "backslashreplace"))


def _open_shared() -> IO[bytes]:
    """Return a file of one number that a process can map into its memory."""
    shared: IO[bytes]
    if hasattr(os, "memfd_create"):  # needs no disk
        shared = os.fdopen(os.memfd_create("taskbull-pool"), "r+b")
    else:
        shared = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    os.ftruncate(shared.fileno(), NUMBER_BYTES)
    return shared


def _open_exit_fd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):  # macOS
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or one that is fenced in
        return None
