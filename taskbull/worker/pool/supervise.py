"""What wakes a thread that waits for descriptors."""

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
    Raised,
    Ready,
    Record,
    Reply,
    Retire,
    Standing,
    ToWorker,
    encode,
)
from taskbull.worker.pool.pool_plan import Gone
from taskbull.worker.pool.process import NOT_ITS_OWN, Death, PoolProcess, log_record
from taskbull.worker.pool.results import PoolCall, Seat

# What wakes a thread that waits for descriptors.


class Bell:
    """A descriptor that becomes readable when somebody rings; from any thread."""

    def __init__(self) -> None:
        self._rung, self._heard = socket.socketpair()
        self._rung.setblocking(False)
        self._heard.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._heard.fileno()

    def ring(self) -> None:
        """Wake whoever waits."""
        with suppress(OSError):  # full: it will wake up; or closed: it has ended
            self._rung.send(b".")

    def hush(self) -> None:
        """Take in that it has rung, however often."""
        with suppress(BlockingIOError):
            self._heard.recv(4096)

    def close(self) -> None:
        """Let nobody be woken any more."""
        self._rung.close()
        self._heard.close()


# How long a process may still live that is to end.


class Reprieve:
    """The time up to its kill: the event loop grants it, the thread of the process looks at it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: float | None = None

    def grant(self, seconds: float) -> None:
        """Let the process live for so long from now on."""
        with self._lock:
            self._until = monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Let it live no longer than that, if it is to end at all."""
        with self._lock:
            if self._until is not None:
                self._until = min(self._until, monotonic() + seconds)

    def left(self) -> float | None:
        """Return the seconds that it has left; None: it is not to end, or was killed."""
        with self._lock:
            return None if self._until is None else max(0.0, self._until - monotonic())

    def is_over(self) -> bool:
        """Return True once, when the time is up."""
        with self._lock:
            if self._until is None or monotonic() < self._until:
                return False
            self._until = None
            return True


# The thread that keeps one process of the pool: it starts it, listens to it, and buries it.
#
# It lives as long as the process, because Linux kills the process when the thread ends; and it
# goes on while the event loop is blocked.


_BOTH = select.POLLIN | select.POLLOUT
_LOOK = 0.25
"""Seconds after which a process is looked at, where nothing tells of its end or of its ears."""

_DYING = 1.0
"""Seconds that a process has to end when it has closed its line."""

LEAVING: Final = 10.0
"""Seconds that a process has to leave its lifespan."""


class Office(Protocol):
    """Whom a keeper tells; each method is called in the keeper's thread."""

    def began(self, keeper: Keeper) -> None:
        """Take in a process that can run jobs."""
        ...

    def asked(self, call: PoolCall, ask: Ask) -> None:
        """Take in a question of a running job."""
        ...

    def ended(self, keeper: Keeper, call: PoolCall) -> None:
        """Take in the end of a call: the process is free."""
        ...

    def returned(self, call: PoolCall) -> bool:
        """Give a call that was not begun to another process; return False if that is too late."""
        ...

    def died(self, call: PoolCall, error: TaskbullError) -> None:
        """Take in that the process of a call is gone."""
        ...

    def gone(self, keeper: Keeper, end: Gone) -> None:
        """Take in that the process is gone."""
        ...


class Keeper(Seat):
    """Keeps one process."""

    def __init__(self, office: Office, hello: bytes, leave: Callable[[Seat], PoolCall | None]):
        super().__init__()
        self._office = office
        self._hello = hello
        self._leave = leave
        self.jobs = 0
        """How many jobs it has run."""
        self.born = 0.0
        self.has_begun = False
        self.worn = False
        """Whether another process is to take its place."""
        self._process: PoolProcess | None = None
        self._lock = Lock()
        self._reprieve = Reprieve()
        self._told_to_end = False
        self._killed = Event()
        self._last_call = 0  # the number of the last one that has ended
        self._bell = Bell()
        self._trouble = ""

    @property
    def pid(self) -> int | None:
        """The process's number, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self, delay: float = 0.0) -> None:
        """Start the process after so many seconds."""
        Thread(target=self._keep, args=(delay,), name="taskbull-pool", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send a message, without waiting; from any thread."""
        process = self._process
        if process is not None and not process.line.send(data):
            self._bell.ring()

    def halt(self, call: PoolCall, reason: str) -> None:
        """End a call that runs here: the process is told, then killed after the call's grace."""
        with self._lock:
            process = self._process
            if process is None:
                return
            self._reprieve.grant(call.grace)
            for standing in call.standings():
                self.tell(standing)
            process.leash.send(encode(Halt(call.number, reason)))
            process.signal(SIGTERM)
        self._bell.ring()

    def tell(self, standing: Standing) -> None:
        """Let the process know how a job of its call stands; from any thread."""
        process = self._process
        if process is not None and not process.leash.send(encode(standing)):
            self._bell.ring()

    def hurry(self, seconds: float) -> None:
        """Give a process that is to end no more than so many seconds."""
        self._reprieve.shorten(seconds)
        self._bell.ring()

    def retire(self, limit: float) -> None:
        """Let an idle process leave its lifespan and end, within so many seconds."""
        self._told_to_end = True
        if not self.has_begun:
            self.kill()
            return
        self._reprieve.grant(limit)
        self.send(encode(Retire()))
        self._bell.ring()

    def kill(self) -> None:
        """End the process at once, or keep it from being started."""
        self._told_to_end = True
        self._killed.set()
        if self._process is not None:
            self._process.signal(SIGKILL)

    def _keep(self, delay: float) -> None:
        # The process has them held back, too, until it knows that they are not for it to heed.
        pthread_sigmask(SIG_BLOCK, NOT_ITS_OWN)
        self._killed.wait(delay)
        try:
            if self._killed.is_set():
                raise OSError("it is not needed any more")
            self.born = monotonic()
            process = PoolProcess(self._context)
        except Exception as error:  # noqa: BLE001 - whatever the system says
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
            process.leash.flush()
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
        is_told = process.exit_fd is not None and not process.leash.has_backlog
        limits = [] if is_told else [_LOOK]
        if (left := self._reprieve.left()) is not None:
            limits.append(left)
        return int(min(limits) * 1000) + 1 if limits else None

    def _has_ended(self, process: PoolProcess, ready: dict[int, int]) -> bool:
        if process.exit_fd is not None and process.exit_fd not in ready:
            return False
        if not process.has_ended():
            return False
        self._receive(process, to_the_end=True)  # what it said before counts
        return True

    def _receive(self, process: PoolProcess, *, to_the_end: bool = False) -> bool:
        """Take in what the process has said; return False if it says no more."""
        try:
            for message in process.line.receive(to_the_end=to_the_end):
                self._heed(message, process)
        except EOFError:
            return self._break_off(process, "it closed the line to its worker")
        except BadFrame as error:
            return self._break_off(process, f"what it wrote to its worker is wrong: {error}")
        return True

    def _break_off(self, process: PoolProcess, trouble: str) -> bool:
        if not process.ends_within(_DYING):  # by ending it closes the line, too
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
                else:  # of a thread that a former call has left behind
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
        # If it died idle while the order was on its way, another process can run the call. A task
        # that writes wherever it can changes the number, too, but not to that of the last call.
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
