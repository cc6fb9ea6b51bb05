"""One pool process as the worker sees it, and the thread that starts, monitors and reaps it."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from contextvars import Context, copy_context
from functools import partial
from math import inf
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import IO, Final, TypeAlias

import msgspec

from taskbull.core.outcome import where_of
from taskbull.store.backend import Waiter, wake
from taskbull.worker.pool import messages
from taskbull.worker.running_job import RunningJob, clock_ahead_ms, run_of
from taskbull.worker.threads import TimeLimit

# Output of a process, as log lines. All of it is read, because a full pipe would block the
# process, but only a limited number of lines is logged.


LINE_LIMIT: Final = 8192
"""Maximum number of bytes logged per line; the rest is counted."""

MOST_PER_SECOND: Final = 1000

_PIECE = 1 << 15  # Much larger buffers are mapped and unmapped each time, which takes 50 µs.
_PIECES = 64

STDOUT: Final = ("stdout", logging.INFO)
STDERR: Final = ("stderr", logging.WARNING)


class OutputReader:
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
                chunk = os.read(self.descriptor, _PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self._take(chunk)
        return True

    def end_of_job(self) -> None:
        """Log an unfinished last line and the number of lines left out."""
        if self._held:
            self._line(self._held)
            self._held = b""
        self._log_left_out()

    def _take(self, chunk: bytes) -> None:
        *lines, rest = chunk.split(b"\n")
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
            self._log_left_out()
            self._second, self._logged = second, 0
        cut, self._cut = self._cut + max(0, len(line) - LINE_LIMIT), 0
        if self._logged >= MOST_PER_SECOND:
            self._left_out += 1
            return
        self._logged += 1
        text = line[:LINE_LIMIT].decode("utf-8", "backslashreplace").rstrip("\r")
        self.last.append(text)
        self._log("%s … (%d bytes left out)" if cut else "%s", *((text, cut) if cut else (text,)))

    def _log_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._log("… (%d lines left out: more than %d in a second)", left_out, MOST_PER_SECOND)

    def _log(self, text: str, *args: object) -> None:
        if self._logger.isEnabledFor(self._level):
            self._context().run(self._logger.log, self._level, text, *args)


def log_record(record: messages.Record, pid: int | None) -> None:
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


# Calls.


class PoolCall:
    """One function call in a pool process, for one job or for the jobs of a batch.

    The process's thread appends to `ends`. Everything else belongs to the event loop.
    """

    def __init__(
        self, number: int, jobs: Sequence[RunningJob], grace: float, clock: TimeLimit | None
    ) -> None:
        self.number = number
        self.jobs = jobs
        self.grace = grace
        self.clock = clock
        """The clock to stop while the call waits for a process."""
        self.context = copy_context()
        """The context of the running jobs, which adds the job's fields to the process's logs."""
        self.process: PoolProcess | None = None
        """The process that has the call, or `None` while the call waits for one."""
        self.ends: list[messages.Ended] = []
        """The ends of its jobs, in order."""
        self.was_returned = False
        """True if a process died before it started the call, and the call was put back."""
        self.stack = ""
        """The last stack that the process has reported."""
        self.stack_waiters: list[Waiter] = []
        self.inbox: deque[messages.JobRequest | messages.End] = deque()
        self.waiter: Waiter | None = None
        more = len(jobs)
        self._messages = [
            messages.pack_job(
                job.job,
                number=number,
                more=(more := more - 1),
                queue=job.queue,
                token=run_of(job).token,
                clock_ahead_ms=clock_ahead_ms(job),
            )
            for job in jobs
        ]
        for place, job in enumerate(jobs):
            run_of(job).notify = partial(self._notify, place)

    def packed(self) -> bytes:
        """Return the call's messages, preceded by those about cancelled jobs and lost locks.

        All use the same socket, because the function may check its status as soon as it runs.
        """
        return b"".join((*map(messages.encode, self.flags()), *self._messages))

    def flags(self, *, halt: bool = False) -> Iterator[messages.JobFlags]:
        """Yield the status of each job that was cancelled or lost its lock.

        With `halt`, the status of the last job always follows, with the request to stop.
        """
        last = len(self.jobs) - 1
        for place, job in enumerate(self.jobs):
            run, stop = run_of(job), halt and place == last
            if stop or run.cancelled is not None or run.lost is not None:
                yield messages.JobFlags(
                    self.number, place, run.cancelled, run.lost is not None, stop
                )

    def deliver(self, message: messages.JobRequest | messages.End) -> None:
        """Add a message and wake the task that awaits the call."""
        self.inbox.append(message)
        if self.waiter is not None:
            wake(self.waiter)

    def _notify(self, place: int) -> None:
        if self.process is not None:
            run = run_of(self.jobs[place])
            flags = messages.JobFlags(self.number, place, run.cancelled, run.lost is not None)
            self.process.send_flags([flags])


# The OS process: a fresh interpreter in its own session. A signal to its group also reaches the
# programs that its tasks have started. The worker is connected to it by:
#
# - the *data socket*, for messages;
# - the *control socket*, for messages while a function runs: cancellations, lost locks and halt
#   requests. Its end of file means that the worker is gone;
# - its output streams;
# - the *faults* pipe, where Python's fault handler writes a stack when C code crashes;
# - a shared number: the last call that the process has started.


CHILD: Final = "taskbull.app.pool.child"
"""The module that the process runs."""

NOT_ITS_OWN: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that only the worker handles, even if a pool process also receives them."""

NUMBER_BYTES: Final = 8
"""Size in bytes of the shared number, which is little-endian."""

_FAULT_LIMIT = 20_000

_BOTH = select.POLLIN | select.POLLOUT

_LOOK = 0.25
"""Polling interval in seconds, used without an exit descriptor or with unsent control messages."""

_DYING = 1.0
"""Seconds that a process has to exit after it has closed its data socket."""

_CAN_LOOK = hasattr(os, "waitid")
"""True if an exited process can be detected without reaping it (on macOS, Python 3.13+)."""


class PoolProcess:
    """A pool process, and the thread that starts it, listens to it, kills it and reaps it.

    The thread lives as long as the process, because Linux kills the process when the thread that
    started it exits. It also works while the event loop is blocked. It calls `report` with the
    message that the process has started, with each request, with each finished call, and with
    `None` when the process has exited. The methods are for the event loop.
    """

    _data: messages.MessageSocket[messages.ToWorker]
    _control: messages.MessageSocket[messages.ToWorker]
    _faults: int
    _begun: IO[bytes]
    _outputs: list[OutputReader]

    def __init__(
        self,
        hello: bytes,
        report: Callable[[PoolProcess, ProcessEvent], None],
        number: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._hello = hello
        self._env = env or {}
        self.number = number
        """The number of the process in its pool, from 0."""
        self._report = report
        self.pid = 0
        """The process id, or 0 until the process is started."""
        self.started_at = 0.0
        self.is_ready = False
        """True once the process can run jobs."""
        self.is_unwanted = False
        """True if the pool has retired or killed the process."""
        self.reason = ""
        """The reason why the process has exited or could not be started."""
        self.fault = ""
        """The stack that the process wrote when it crashed, if any."""
        self.last_started = 0
        """After the exit, the number of the last call that the process had started."""
        self._popen: subprocess.Popen[bytes] | None = None
        self._exit_fd: int | None = None
        self._wakeup: socket.socket | None = None
        self._lock = Lock()
        self._status: int | None = None
        self._peak = 0.0
        self._is_reaped = False
        self._killed = Event()
        self._kill_at = inf
        self._trouble = ""
        # The pool writes these attributes, in the event loop.
        self.call: PoolCall | None = None
        """The call that the process runs."""
        self.last_finished = 0
        """The number of the last call that the process has finished."""
        self.jobs = 0
        """Number of jobs that the process has run."""
        self.recycle_due = False
        """True if the process has done its share and will be replaced."""
        self.is_dismissed = False
        """True if the process gets no more calls."""
        self.is_halted = False
        """True if the process was dismissed because its call was halted."""

    def start(self, delay: float = 0.0) -> None:
        """Start the thread, which starts the process after `delay` seconds."""
        Thread(target=self._run, args=(delay,), name="taskbull-pool", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send messages without waiting."""
        if not self._data.send(data):
            self._wake()

    def send_flags(self, flags: Sequence[messages.JobFlags]) -> None:
        """Send the status of jobs, which the process reads while a function runs."""
        if not self._control.send(b"".join(map(messages.encode, flags))):
            self._wake()

    def request_stack(self, call: PoolCall) -> None:
        """Ask the process for the stack of the call."""
        if not self._control.send(messages.encode(messages.StackRequest(call.number))):
            self._wake()

    def halt(self, call: PoolCall) -> None:
        """Ask the process to stop the call, and kill the process after the call's grace."""
        self._kill_at = monotonic() + call.grace
        self.send_flags([*call.flags(halt=True)])
        self._signal(signal.SIGTERM)
        self._wake()

    def shorten_grace(self, seconds: float) -> None:
        """Shorten the time until the process is killed, if it was asked to stop."""
        if self._kill_at < inf:
            self._kill_at = min(self._kill_at, monotonic() + seconds)
            self._wake()

    def retire(self, limit: float) -> None:
        """Ask an idle process to leave its lifespan and exit within `limit` seconds.

        A process that is not ready yet is killed.
        """
        self.is_unwanted = True
        if not self.is_ready:
            self.kill()
            return
        self._kill_at = monotonic() + limit
        with suppress(OSError):  # The process is exiting.
            self._data.socket.shutdown(socket.SHUT_WR)
        self._wake()

    def kill(self) -> None:
        """Kill the process immediately, or prevent it from starting."""
        self.is_unwanted = True
        self._killed.set()
        self._signal(signal.SIGKILL)

    def _wake(self) -> None:
        # A full socket wakes the thread anyway; a closed one means that the thread has finished.
        if self._wakeup is not None:
            with suppress(OSError):
                self._wakeup.send(b".")

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all programs that it has started."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            # The system does not reuse the id before the process is reaped.
            if self._popen is not None and not self._is_reaped:
                os.killpg(self.pid, number)

    # The methods below run in the thread.

    def _run(self, delay: float) -> None:
        # The process inherits the mask. It unblocks the signals once it has installed handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, NOT_ITS_OWN)
        self._killed.wait(delay)
        with ExitStack() as resources:
            try:
                if self._killed.is_set():
                    raise OSError("it is no longer needed")
                self.started_at = monotonic()
                wakeup = self._start(resources)
            except Exception as error:  # noqa: BLE001 - report any error from the system
                self.reason = str(error)
            else:
                try:
                    self._listen(wakeup)
                except Exception:
                    logging.getLogger(__name__).exception(
                        "Killing a pool process after an unexpected error"
                    )
                    self._signal(signal.SIGKILL)
                self._reap()
        self._report(self, None)

    def _start(self, ours: ExitStack) -> socket.socket:
        """Start the process, and return the socket that wakes this thread."""
        with ExitStack() as theirs:
            data, data_end = map(_entered, (ours, theirs), socket.socketpair())
            control, control_end = map(_entered, (ours, theirs), socket.socketpair())
            waker, wakeup = map(_entered, (ours, ours), socket.socketpair())
            for each in (data, control, waker, wakeup):
                each.setblocking(False)
            self._faults, faults = os.pipe()
            ours.callback(os.close, self._faults)
            theirs.callback(os.close, faults)
            os.set_blocking(faults, False)  # The pipe is read only after the process has exited.
            os.set_blocking(self._faults, False)
            self._begun = ours.enter_context(_open_shared())
            passed = (data_end.fileno(), control_end.fileno(), faults, self._begun.fileno())
            popen = subprocess.Popen(  # noqa: S603 - taskbull's own program
                [sys.executable, "-m", CHILD, str(os.getpid()), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=passed,
                env={**os.environ, **self._env} if self._env else None,
            )
        self._outputs = []
        for stream, kind in ((popen.stdout, STDOUT), (popen.stderr, STDERR)):
            if stream is not None:
                ours.callback(stream.close)
                os.set_blocking(stream.fileno(), False)
                self._outputs.append(OutputReader(stream.fileno(), kind, self._context))
        self._exit_fd = _open_exit_fd(popen.pid)
        if self._exit_fd is not None:
            ours.callback(os.close, self._exit_fd)
        self._data = messages.MessageSocket(data, messages.decode_in_worker)
        self._control = messages.MessageSocket(control, messages.decode_in_worker)
        self._wakeup = waker
        self.pid = popen.pid
        with self._lock:
            self._popen = popen
        if self._killed.is_set():
            self._signal(signal.SIGKILL)
        self._data.send(self._hello)
        return wakeup

    def _listen(self, wakeup: socket.socket) -> None:
        data, outputs = self._data.socket.fileno(), {one.descriptor: one for one in self._outputs}
        poll = select.poll()
        for descriptor in (data, wakeup.fileno(), *outputs):
            poll.register(descriptor, select.POLLIN)
        if self._exit_fd is not None:
            poll.register(self._exit_fd, select.POLLIN)
        goes_on = True
        while goes_on:
            poll.modify(data, _BOTH if self._data.has_unsent else select.POLLIN)
            ready = dict(poll.poll(self._patience_ms()))
            if wakeup.fileno() in ready:
                wakeup.recv(4096)
            self._control.flush()
            self._data.flush()
            for descriptor in outputs.keys() & ready.keys():
                if not outputs[descriptor].read():
                    outputs.pop(descriptor).end_of_job()
                    poll.unregister(descriptor)
            goes_on = not ready.get(data, 0) & ~select.POLLOUT or self._receive()
            if goes_on and (self._exit_fd is None or self._exit_fd in ready):
                goes_on = not self._has_exited()
            if monotonic() >= self._kill_at:
                self._kill_at = inf
                self._signal(signal.SIGKILL)
        with suppress(EOFError, BlockingIOError, messages.BadFrame):
            while True:  # Messages sent before the exit count.
                self._read()

    def _patience_ms(self) -> int | None:
        left = self._kill_at - monotonic()
        if self._exit_fd is None or self._control.has_unsent:
            left = min(left, _LOOK)
        return None if left == inf else int(max(0.0, left) * 1000) + 1

    def _receive(self) -> bool:
        """Handle the messages that have arrived; return False if there will be no more."""
        try:
            self._read()
            return True
        except BlockingIOError:
            return True
        except EOFError:
            trouble = "it closed the socket to its worker"
        except messages.BadFrame as error:
            trouble = f"what it wrote to its worker is wrong: {error}"
        if not self._exits_within(_DYING):  # An exiting process also closes the socket.
            self._trouble = trouble
            self._signal(signal.SIGKILL)
        return False

    def _read(self) -> None:
        for message in self._data.receive():
            match message:
                case messages.Done() | messages.Raised():
                    self._finish(message)
                case messages.Record():
                    self._context().run(log_record, message, self.pid)
                case messages.Started(failure) if failure:
                    self._trouble = failure
                case messages.Started():
                    self.is_ready = True
                    self._report(self, message)
                case messages.JobRequest() | messages.ReportedStack():
                    self._report(self, message)

    def _finish(self, end: messages.Ended) -> None:
        call = self.call
        if call is not None and call.number == end.number:
            call.ends.append(end)
            if len(call.ends) == len(call.jobs):
                self._log_rest_of_output()
                self._report(self, call)

    def _log_rest_of_output(self) -> None:
        """Log the rest of a job's output, which was flushed before the job was reported."""
        for output in self._outputs:
            output.read()
            output.end_of_job()

    def _context(self) -> Context:
        call = self.call
        return Context() if call is None else call.context

    def _has_exited(self) -> bool:
        if _CAN_LOOK:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None
        with self._lock:
            return self._status is not None or self._wait(os.WNOHANG)

    def _exits_within(self, seconds: float) -> bool:
        limit = monotonic() + seconds
        while not self._has_exited():
            left = limit - monotonic()
            if left <= 0:
                return False
            if self._exit_fd is not None:
                select.select([self._exit_fd], [], [], min(left, 3600))
            else:
                sleep(min(left, 0.01))
        return True

    def _wait(self, options: int = 0) -> bool:
        pid, status, usage = os.wait4(self.pid, options)
        if pid:
            self._status = status
            # The unit is bytes on macOS, and 1,024 bytes elsewhere.
            self._peak = (
                usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / messages.MEGABYTE
            )
        return bool(pid)

    def _reap(self) -> None:
        """Wait for the process to exit, kill the programs that it left behind, and reap it."""
        self._exits_within(inf)
        self._signal(signal.SIGKILL)  # Kill the group while its id cannot be reused.
        with self._lock:
            if self._status is None:
                self._wait()
            self._is_reaped = True
        code = os.waitstatus_to_exitcode(self._status or 0)
        if self._popen is not None:
            self._popen.returncode = code
        self._log_rest_of_output()
        self.fault = self._read_fault()
        self.last_started = int.from_bytes(
            os.pread(self._begun.fileno(), NUMBER_BYTES, 0), "little"
        )
        self.reason = self._exit_reason(code)

    def _read_fault(self) -> str:
        written = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._faults, 65536):
                written += chunk
        return where_of(written[-_FAULT_LIMIT:].decode("utf-8", "backslashreplace"))

    def _exit_reason(self, code: int) -> str:
        died = f"process {self.pid} died: {exit_cause(code, self._peak)}"
        if not self.is_ready:
            last_lines = [line for output in self._outputs for line in output.last]
            return self._trouble or "\n".join([died, *last_lines])
        trouble = self._trouble
        if self.is_halted and code == -signal.SIGKILL:
            trouble = trouble or "its job did not end within the task's grace"
        return f"process {self.pid} was ended: {trouble}" if trouble else died


ProcessEvent: TypeAlias = (
    messages.Started | messages.JobRequest | messages.ReportedStack | PoolCall | None
)


def exit_cause(code: int, peak: float) -> str:
    """Describe an exit code, which is negative for a signal. `peak` is memory use in megabytes."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    if code != -signal.SIGKILL:
        return name
    size = f"{peak / 1000:.1f} GB" if peak >= 1000 else f"{peak:.0f} MB"
    return f"{name}, perhaps out of memory (peak {size})"


def _entered(stack: ExitStack, end: socket.socket) -> socket.socket:
    return stack.enter_context(end)


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
