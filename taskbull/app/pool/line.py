"""The process's end of the line to its worker."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from threading import Lock, RLock
from typing import Final

from taskbull.app.pool.interruption import Interruption
from taskbull.errors import ConnectionLost, TaskbullError
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

_LOOK = 0.05
"""Seconds after which whoever waits for an answer looks whether its call is over."""


class ProcessLine:
    """Sends and receives messages; no signal comes in the middle of one.

    One thread reads at a time. While a call runs, that is whoever asks for one of its jobs; between
    two calls it is the main thread, which waits for orders. A task may leave threads behind: when
    its call is over they are sent away, and get no answer any more.
    """

    def __init__(self, descriptor: int, interruption: Interruption) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._identity = _identity(descriptor)
        self._interruption = interruption
        self._process = os.getpid()
        self._frames = FrameReader()
        self._orders: deque[ToProcess] = deque()
        self._sending = RLock()  # a handler of logging may be called while we send
        self._call = 0
        """The number of the call that runs; 0: none."""
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
        while not self._orders:
            self._read()
        return self._orders.popleft()

    def begin(self, call: int) -> None:
        """Let the jobs of a call ask, from now on."""
        self._call = call

    def end(self) -> None:
        """Let them ask no longer; whoever waits for an answer is sent away first."""
        self._call = 0
        with self._asking:
            pass

    def is_open_to(self, call: int) -> bool:
        """Return whether the jobs of a call may ask."""
        return call == self._call

    def ask(self, call: int, job: int, question: Question, argument: bytes) -> Reply | None:
        """Ask the worker for a job of a call, and wait for its answer; None: the call is over."""
        if os.getpid() != self._process:  # its answer would come to the one, or to the other
            raise TaskbullError(
                "a process that a task has forked cannot write to the job or ask for anything: "
                "only the task's own process can"
            )
        with self._asking:
            if not self.is_open_to(call):
                return None
            self._asked = number = self._asked + 1
            self.send(Ask(number, call, question, argument, job))
            while self.is_open_to(call):
                # A signal may come while we wait, not while we read.
                if select.select([self._socket], [], [], _LOOK)[0]:
                    with self._interruption.held_off():
                        answer = self._read(number)
                    if answer is not None:
                        return answer
        return None

    def _read(self, asked: int = 0) -> Reply | None:
        """Take in what has come, and keep the orders; return the answer to a question, if it has.

        An answer that nobody waits for any more is dropped.
        """
        answer: Reply | None = None
        for data in self._frames.feed(self._receive_piece()):
            message = read_in_process(data)
            if not isinstance(message, Reply):
                self._orders.append(message)
            elif message.number == asked:
                answer = message
        return answer

    def _receive_piece(self) -> bytes:
        try:
            piece = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionLost(f"the line to the worker is closed: {error}") from error
        if not piece:
            raise EOFError
        return piece

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
