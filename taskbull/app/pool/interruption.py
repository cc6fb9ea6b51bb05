"""How a running function learns that it has to end: an exception in the main thread.

The worker says by the leash which run is meant, and sends SIGTERM. A signal of somebody else (at a
stop, systemd sends one to every process of a service) ends nothing: the worker decides.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread, current_thread, get_ident, main_thread
from types import FrameType

from taskbull.errors import Terminated
from taskbull.worker.pool.frames import FrameReader
from taskbull.worker.pool.messages import Halt, Standing, read_in_process
from taskbull.worker.pool.process import NOT_ITS_OWN


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
