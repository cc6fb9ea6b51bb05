"""The thread that supervises one pool process: it starts, monitors, kills and reaps it.

The thread lives as long as the process, because Linux kills the process when the thread exits. It
also keeps running while the event loop is blocked.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from signal import SIG_BLOCK, SIGKILL, SIGTERM, pthread_sigmask
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final, Protocol

from taskbull.errors import ProcessDied, TaskbullError
from taskbull.worker.pool.messages import (
    OVER,
    Ask,
    BadFrame,
    CannotStart,
    Done,
    Ended,
    Halt,
    JobFlags,
    Raised,
    Ready,
    Record,
    Reply,
    Retire,
    ToWorker,
    encode,
)
from taskbull.worker.pool.pool_plan import Gone
from taskbull.worker.pool.process import NOT_ITS_OWN, Death, PoolProcess, log_record
from taskbull.worker.pool.results import PoolCall, ProcessSlot


class WakeupPipe:
    """A socket pair that wakes a thread waiting for descriptors. Any thread may ring it."""

    def __init__(self) -> None:
        self._rung, self._heard = socket.socketpair()
        self._rung.setblocking(False)
        self._heard.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the bell rings."""
        return self._heard.fileno()

    def ring(self) -> None:
        """Wake the waiting thread."""
        # A full socket wakes the thread anyway; a closed one means that the thread has finished.
        with suppress(OSError):
            self._rung.send(b".")

    def hush(self) -> None:
        """Clear all pending rings."""
        with suppress(BlockingIOError):
            self._heard.recv(4096)

    def close(self) -> None:
        """Close the sockets; later rings are ignored."""
        self._rung.close()
        self._heard.close()


class KillDeadline:
    """The time until a process is killed.

    The event loop sets it, and the process's thread checks it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: float | None = None

    def grant(self, seconds: float) -> None:
        """Set the deadline to this many seconds from now."""
        with self._lock:
            self._until = monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Shorten an existing deadline to at most this many seconds from now."""
        with self._lock:
            if self._until is not None:
                self._until = min(self._until, monotonic() + seconds)

    def left(self) -> float | None:
        """Return the seconds left, or `None` if there is no deadline or it has passed."""
        with self._lock:
            return None if self._until is None else max(0.0, self._until - monotonic())

    def is_over(self) -> bool:
        """Return True once the deadline has passed, and clear it."""
        with self._lock:
            if self._until is None or monotonic() < self._until:
                return False
            self._until = None
            return True


_BOTH = select.POLLIN | select.POLLOUT
_LOOK = 0.25
"""Polling interval in seconds, used without an exit descriptor or with unsent control socket
data."""

_DYING = 1.0
"""Seconds that a process has to exit after it has closed its line."""

LEAVING: Final = 10.0
"""Seconds that a process has to leave its lifespan."""


class ProcessListener(Protocol):
    """The callbacks of a keeper. Each method is called in the keeper's thread."""

    def began(self, keeper: ProcessMonitor) -> None:
        """Handle a process that is ready to run jobs."""
        ...

    def asked(self, call: PoolCall, ask: Ask) -> None:
        """Handle a request from a running job."""
        ...

    def ended(self, keeper: ProcessMonitor, call: PoolCall) -> None:
        """Handle a finished call, whose process is now free."""
        ...

    def returned(self, call: PoolCall) -> bool:
        """Give an unstarted call to another process; return False if that is not possible."""
        ...

    def died(self, call: PoolCall, error: TaskbullError) -> None:
        """Handle a call whose process has exited."""
        ...

    def gone(self, keeper: ProcessMonitor, end: Gone) -> None:
        """Handle a process that has exited or could not be started."""
        ...


class ProcessMonitor(ProcessSlot):
    """The supervisor of one process, with a thread that lives as long as the process."""

    def __init__(
        self, office: ProcessListener, hello: bytes, leave: Callable[[ProcessSlot], PoolCall | None]
    ):
        super().__init__()
        self._office = office
        self._hello = hello
        self._leave = leave
        self.jobs = 0
        """Number of jobs that the process has run."""
        self.born = 0.0
        self.has_begun = False
        self.worn = False
        """True if the process has done its share and will be replaced."""
        self._process: PoolProcess | None = None
        self._lock = Lock()
        self._reprieve = KillDeadline()
        self._told_to_end = False
        self._killed = Event()
        self._last_call = 0  # number of the last finished call
        self._bell = WakeupPipe()
        self._trouble = ""

    @property
    def pid(self) -> int | None:
        """The process id, or `None` if the process is not running."""
        process = self._process
        return None if process is None else process.pid

    def start(self, delay: float = 0.0) -> None:
        """Start the thread, which starts the process after `delay` seconds."""
        Thread(target=self._keep, args=(delay,), name="taskbull-pool", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send a message without waiting. Thread-safe."""
        process = self._process
        if process is not None and not process.line.send(data):
            self._bell.ring()

    def halt(self, call: PoolCall, reason: str) -> None:
        """Ask the process to stop the call, and kill the process after the call's grace."""
        with self._lock:
            process = self._process
            if process is None:
                return
            self._reprieve.grant(call.grace)
            for standing in call.standings():
                self.tell(standing)
            process.control_socket.send(encode(Halt(call.number, reason)))
            process.signal(SIGTERM)
        self._bell.ring()

    def tell(self, standing: JobFlags) -> None:
        """Notify the process that a job was cancelled or lost its lock. Thread-safe."""
        process = self._process
        if process is not None and not process.control_socket.send(encode(standing)):
            self._bell.ring()

    def hurry(self, seconds: float) -> None:
        """Shorten the deadline of a process that was asked to stop."""
        self._reprieve.shorten(seconds)
        self._bell.ring()

    def retire(self, limit: float) -> None:
        """Ask an idle process to leave its lifespan and exit within `limit` seconds.

        A process that is not ready yet is killed.
        """
        self._told_to_end = True
        if not self.has_begun:
            self.kill()
            return
        self._reprieve.grant(limit)
        self.send(encode(Retire()))
        self._bell.ring()

    def kill(self) -> None:
        """Kill the process immediately, or prevent it from starting."""
        self._told_to_end = True
        self._killed.set()
        if self._process is not None:
            self._process.signal(SIGKILL)

    def _keep(self, delay: float) -> None:
        # The process inherits the mask. It unblocks the signals once it has installed handlers.
        pthread_sigmask(SIG_BLOCK, NOT_ITS_OWN)
        self._killed.wait(delay)
        try:
            if self._killed.is_set():
                raise OSError("it is no longer needed")
            self.born = monotonic()
            process = PoolProcess(self._context)
        except Exception as error:  # noqa: BLE001 - report any error from the system
            self._bell.close()
            self._office.gone(self, Gone(0, str(error), started=False, wanted=self._told_to_end))
            return
        with self._lock:
            self._process = process
        if self._killed.is_set():
            process.signal(SIGKILL)
        self.send(self._hello)
        try:
            self._listen(process)
        except Exception:
            logging.getLogger(__name__).exception(
                "Killing a pool process after an unexpected error"
            )
            process.signal(SIGKILL)
        self._bury(process)

    def _listen(self, process: PoolProcess) -> None:
        poll = select.poll()
        line, bell = process.line.fileno(), self._bell.fileno()
        for descriptor in (line, bell, *process.outputs.descriptors):
            poll.register(descriptor, select.POLLIN)
        if process.exit_fd is not None:
            poll.register(process.exit_fd, select.POLLIN)
        goes_on = True
        while goes_on:
            poll.modify(line, _BOTH if process.line.has_backlog else select.POLLIN)
            process.control_socket.flush()
            ready = dict(poll.poll(self._patience_ms(process)))
            if bell in ready:
                self._bell.hush()
            for descriptor in process.outputs.read(ready):
                poll.unregister(descriptor)
            said = ready.get(line, 0)
            if said & select.POLLOUT:
                process.line.flush()
            goes_on = not said & ~select.POLLOUT or self._receive(process)
            goes_on = goes_on and not self._has_ended(process, ready)
            if self._reprieve.is_over():
                process.signal(SIGKILL)

    def _patience_ms(self, process: PoolProcess) -> int | None:
        is_told = process.exit_fd is not None and not process.control_socket.has_backlog
        limits = [] if is_told else [_LOOK]
        if (left := self._reprieve.left()) is not None:
            limits.append(left)
        return int(min(limits) * 1000) + 1 if limits else None

    def _has_ended(self, process: PoolProcess, ready: dict[int, int]) -> bool:
        if process.exit_fd is not None and process.exit_fd not in ready:
            return False
        if not process.has_ended():
            return False
        self._receive(process, to_the_end=True)  # Messages sent before the exit count.
        return True

    def _receive(self, process: PoolProcess, *, to_the_end: bool = False) -> bool:
        """Handle the messages that have arrived; return False if there will be no more."""
        try:
            for message in process.line.receive(to_the_end=to_the_end):
                self._heed(message, process)
        except EOFError:
            return self._break_off(process, "it closed the line to its worker")
        except BadFrame as error:
            return self._break_off(process, f"what it wrote to its worker is wrong: {error}")
        return True

    def _break_off(self, process: PoolProcess, trouble: str) -> bool:
        if not process.ends_within(_DYING):  # An exiting process also closes the line.
            self._trouble = trouble
            process.signal(SIGKILL)
        return False

    def _heed(self, message: ToWorker, process: PoolProcess) -> None:
        match message:
            case Done() | Raised():
                self._finish(message, process)
            case Ask(number, of):
                call = self.call
                if call is not None and call.number == of:
                    self._office.asked(call, message)
                else:  # The request comes from a thread that an earlier call left behind.
                    self.send(encode(Reply(number, fault=OVER)))
            case Record():
                self._context().run(log_record, message, process.pid)
            case Ready():
                self.has_begun = True
                self._office.began(self)
            case CannotStart(reason, stack):
                self._trouble = f"{reason}\n{stack}"

    def _finish(self, end: Ended, process: PoolProcess) -> None:
        call = self.call
        if call is None or call.number != end.number:
            return
        call.ends.append(end)
        if len(call.ends) < len(call.jobs):
            return
        process.outputs.end_of_job()
        self.jobs += len(call.jobs)
        self._last_call = call.number
        self._office.ended(self, call)

    def _context(self) -> Context:
        call = self.call
        return Context() if call is None else call.context

    def _bury(self, process: PoolProcess) -> None:
        death = process.bury()
        process.outputs.end_of_job()
        call = self._leave(self)
        with self._lock:
            self._process = None
        reason = self._reason(death, process.outputs.last_lines())
        # If the process died idle while the order was in flight, another process can run the call.
        # A task that overwrites arbitrary memory or descriptors may change the shared number, but
        # not to the number of the last call.
        was_idle = process.last_begun() == self._last_call and not self.halted
        if call is not None and was_idle and self._office.returned(call):
            call = None
        if call is not None:
            error = ProcessDied(reason)
            if death.fault:
                error.add_note(death.fault)
            self._office.died(call, error)
        process.close()
        self._bell.close()
        self._office.gone(
            self,
            Gone(
                death.pid,
                reason,
                started=self.has_begun,
                wanted=self._told_to_end,
                job=None if call is None else call.jobs[0].job,
            ),
        )

    def _reason(self, death: Death, last_lines: list[str]) -> str:
        if not self.has_begun:
            return self._trouble or "\n".join([death.told, *last_lines])
        trouble = self._trouble
        if self.halted and death.code == -SIGKILL:
            trouble = trouble or "its job did not end within the task's grace"
        return f"process {death.pid} was ended: {trouble}" if trouble else death.told
