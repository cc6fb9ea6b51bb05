"""One process of the pool, as the operating system has it: started, signalled, buried.

It is a fresh interpreter in a session of its own, so that a signal to its group reaches what its
tasks have started, too. What leads to it: the *line* (messages), the *leash* (what it has to know
while a function runs: who was cancelled, the word to halt, and by its end the news that the worker
is gone), its output, *faults*, where the C code of Python writes a stack when it crashes, and a
shared number: the last call that it has begun.

Whatever starts it has to be a thread that lives as long as it: Linux kills the process when that
thread ends (see `app.pool.child`).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from threading import Lock
from time import monotonic, sleep
from typing import IO, Final

from msgspec import Struct

from taskbull.core.frames import where_of
from taskbull.worker.pool.output import Outputs
from taskbull.worker.pool.worker_line import WorkerLine

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
