"""The process's end of the line to its worker."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from threading import Lock, RLock
from typing import Final

from taskbull.app.pool.interruption import Interruption
from taskbull.errors import ConnectionLost
from taskbull.worker.pool.frames import FrameReader
from taskbull.worker.pool.messages import (
    Ask,
    Message,
    Question,
    Reply,
    ToProcess,
    encode,
    read_in_process,
)

_PIECE = 1 << 15  # far larger ones are mapped and unmapped each time, for 50 µs

LINE_IS_GONE: Final = 70
"""The exit code of a process whose line was closed by its task."""


class ProcessLine:
    """Sends and receives messages; no signal comes in the middle of one.

    The main thread receives orders, and whoever asks receives the answer: one at a time.
    """

    def __init__(self, descriptor: int, interruption: Interruption) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._identity = _identity(descriptor)
        self._interruption = interruption
        self._frames = FrameReader()
        self._received: deque[ToProcess] = deque()
        self._sending = RLock()  # a handler of logging may be called while we send
        self._asking = Lock()
        self._asked = 0

    def send(self, *messages: Message) -> None:
        """Send messages."""
        data = b"".join(map(encode, messages))
        with self._interruption.held_off():
            self._check()
            with self._sending:
                self._socket.sendall(data)

    def receive(self) -> ToProcess:
        """Wait for the next message; raise `EOFError` when the worker is gone."""
        while not self._received:
            self._fill()
        return self._received.popleft()

    def ask(self, job: int, question: Question, argument: bytes) -> Reply:
        """Ask the worker for a job of the call that runs, and wait for its answer."""
        with self._asking:
            self._asked += 1
            self.send(Ask(self._asked, question, argument, job))
            while True:
                while not self._received:  # a signal may come while we wait, not while we read
                    select.select([self._socket], [], [])
                    with self._interruption.held_off():
                        self._fill()
                answer = self._received.popleft()
                if isinstance(answer, Reply) and answer.number == self._asked:
                    return answer

    def _fill(self) -> None:
        try:
            piece = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionLost(f"the line to the worker is closed: {error}") from error
        if not piece:
            raise EOFError
        self._received.extend(read_in_process(data) for data in self._frames.feed(piece))

    def _check(self) -> None:
        """End the process if its task has closed the line: another file may have its number."""
        if _identity(self._socket.fileno()) != self._identity:
            os._exit(LINE_IS_GONE)


def _identity(descriptor: int) -> tuple[int, int]:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
