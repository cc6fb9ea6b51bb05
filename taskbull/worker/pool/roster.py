"""Which process has which call: decided under one lock, in the event loop and in the threads."""

from __future__ import annotations

from collections import deque
from threading import Lock

from taskbull.worker.pool.call import PoolCall, Seat


class Roster:
    """Hands calls to idle processes; those that find none wait, and are handed over when one is.

    That is done by the thread whose process has become free, without asking the event loop.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        """Held for moments only: the event loop waits for it, too."""
        self._idle: list[Seat] = []
        self._waiting: deque[PoolCall] = deque()
        self.busy = 0
        """How many processes run a job."""

    def put(self, call: PoolCall) -> Seat | None:
        """Give a call to an idle process, and return its seat; None: the call waits."""
        with self.lock:
            if not self._idle:
                self._waiting.append(call)
                return None
            seat = self._idle.pop()  # the one that was busy last: its caches are warm
            self._give(seat, call)
            return seat

    def put_back(self, call: PoolCall) -> bool:
        """Put a call that was not begun before all that wait; return False if it was halted.

        That is done once: it may be the call that ends processes.
        """
        with self.lock:
            if call.is_halted or call.was_returned:
                return False
            call.was_returned = True
            call.seat = None
            self._waiting.appendleft(call)
            return True

    def take_waiting(self) -> tuple[Seat, PoolCall] | None:
        """Give the first call that waits to an idle process, if there are both."""
        with self.lock:
            if not self._idle or not self._waiting:
                return None
            seat, call = self._idle.pop(), self._waiting.popleft()
            self._give(seat, call)
            return seat, call

    def take(self, seat: Seat) -> PoolCall | None:
        """Return the next call for a process that is free; None: it is idle from now on.

        One that was dismissed gets no other.
        """
        with self.lock:
            if seat.call is not None:
                seat.call = None
                self.busy -= 1
            if seat.dismissed:
                return None
            if self._waiting:
                call = self._waiting.popleft()
                self._give(seat, call)
                return call
            self._idle.append(seat)
            return None

    def leave(self, seat: Seat) -> PoolCall | None:
        """Give a process no more calls; return the one that it has, which it loses."""
        with self.lock:
            if seat in self._idle:
                self._idle.remove(seat)
            call, seat.call = seat.call, None
            self.busy -= call is not None
            return call

    def dismiss(self, seat: Seat) -> bool:
        """Give a process no more calls; return False if it still has one."""
        with self.lock:
            seat.dismissed = True
            if seat in self._idle:
                self._idle.remove(seat)
            return seat.call is None

    def halt(self, call: PoolCall) -> Seat | None:
        """Return the seat of a call that is to be ended; None: the call is over.

        From now on the process gets no other call, so that a signal can only hit this one.
        """
        with self.lock:
            call.is_halted = True
            seat = call.seat
            if seat is None or seat.call is not call or seat.halted:
                return None
            seat.halted = seat.dismissed = True
            return seat

    def withdraw(self, call: PoolCall) -> bool:
        """Take back a call; return False if a process has it already."""
        with self.lock:
            if call.seat is not None:
                return False
            if call in self._waiting:
                self._waiting.remove(call)
            return True

    def give_up(self) -> list[PoolCall]:
        """Return all calls that wait, and let none of them wait any longer."""
        with self.lock:
            calls = list(self._waiting)
            self._waiting.clear()
            return calls

    def _give(self, seat: Seat, call: PoolCall) -> None:
        call.seat = seat
        seat.call = call
        self.busy += 1
