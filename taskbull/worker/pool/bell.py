"""What wakes a thread that waits for descriptors."""

from __future__ import annotations

import socket
from contextlib import suppress


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
