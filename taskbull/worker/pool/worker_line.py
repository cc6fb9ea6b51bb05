"""The worker's end of the line to a process. Nothing here waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock

from taskbull.worker.pool.frames import FrameReader
from taskbull.worker.pool.messages import ToWorker, read_in_worker

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
