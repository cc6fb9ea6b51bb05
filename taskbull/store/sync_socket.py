"""A connected socket for blocking code: each wait is as long as its caller says, and no longer.

`settimeout` takes a system call of its own, and lets each `send` and `recv` ask first whether they
would block: 3 system calls for each of the two. A plain socket needs 1 and 2 here. Encrypted ones
keep it: they read more than was asked for, and `poll` does not see what they hold.
"""

from __future__ import annotations

import select
import socket
from abc import ABC, abstractmethod

from taskbull.store.sockets import RECEIVE

_SHORTEST = 0.001
"""Seconds: 0, or less, would mean something else to `settimeout` and to `poll`."""


class SyncSocket(ABC):
    """Sends and receives, or raises `TimeoutError` when that took too long."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._input = select.poll()
        self._input.register(raw, select.POLLIN)

    @abstractmethod
    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes; return the number of bytes."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes:
        """Return what has come; empty if the peer has closed."""

    def readable(self, seconds: float = 0.0) -> bool:
        """Return whether there is something to receive, be it the end."""
        return bool(self._input.poll(seconds * 1000))

    def close(self) -> None:
        """Close it at once."""
        self._raw.close()


class PlainSocket(SyncSocket):
    """One that never blocks by itself."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        raw.setblocking(False)

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes; if that is nothing, wait until that changes.

        Or until something has come: the peer may wait for us to receive it.
        """
        try:
            return self._raw.send(data)
        except BlockingIOError:
            room = select.poll()
            room.register(self._raw, select.POLLOUT | select.POLLIN)
            if not room.poll(max(seconds, _SHORTEST) * 1000):
                raise TimeoutError("timed out") from None
            return 0

    def receive(self, seconds: float) -> bytes:
        """Wait until something has come, and return it."""
        while self._input.poll(max(seconds, _SHORTEST) * 1000):
            try:
                return self._raw.recv(RECEIVE)
            except BlockingIOError:  # woken for nothing
                continue
        raise TimeoutError("timed out")


class EncryptedSocket(SyncSocket):
    """One with TLS."""

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.send(data)

    def receive(self, seconds: float) -> bytes:
        """Wait until something has come, and return it."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.recv(RECEIVE)
