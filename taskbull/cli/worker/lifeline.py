"""The line between the supervisor and one of its worker processes: a pair of sockets.

Down goes how far the process is to stop; up comes, once, who it is and what it works on. If the
supervisor dies, however that happens, the line ends, and the process stops gracefully.

Signals would not do: systemd sends its SIGTERM to every process of a service, and one that the
supervisor passed on would come as the second, which means "at once".
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from threading import Thread
from typing import Self

import msgspec
from msgspec import Struct

from taskbull.app.running import Stop
from taskbull.queue.any_server import Namespace

_MOST = 1 << 20


class Presence(Struct, frozen=True):
    """Who a worker process is, and where its jobs are."""

    worker_id: str
    namespace: Namespace
    queues: list[str]


class Lifeline:
    """The supervisor's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._read: Presence | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._theirs.close()

    @property
    def other_end(self) -> int:
        """The descriptor that the process is to inherit."""
        return self._theirs.fileno()

    @property
    def presence(self) -> Presence | None:
        """What the process has said about itself; None: it has not begun to work."""
        if self._read is None:
            with suppress(OSError, msgspec.DecodeError):
                self._read = msgspec.json.decode(self._ours.recv(_MOST), type=Presence)
        return self._read

    def tell(self, step: int) -> None:
        """Tell the process how far it is to stop."""
        with suppress(OSError):  # it has ended just now
            self._ours.send(bytes([step]))


class Tether:
    """The process's end."""

    def __init__(self, descriptor: int, presence: Presence) -> None:
        os.set_inheritable(descriptor, False)  # what a task starts must not hold it
        self._socket = socket.socket(fileno=descriptor)
        self._presence = presence

    async def watch(self, stop: Stop) -> None:
        """Say that the worker runs, and go as far in stopping as the supervisor says."""
        reach = stop.from_thread()

        def read() -> None:
            with suppress(OSError):  # the supervisor is gone already, as the next lines will see
                self._socket.sendall(msgspec.json.encode(self._presence))
            while step := self._next_step():
                reach(step)
            reach(1)

        Thread(target=read, name="taskbull-parent", daemon=True).start()

    def _next_step(self) -> int:
        """Wait for the next word of the supervisor; 0 if it is gone."""
        try:
            said = self._socket.recv(64)
        except OSError:
            return 0
        return max(said, default=0)
