"""What a process of the pool prints, as log lines.

Whatever it prints is read, or it would stand still; but of a flood only so much is logged.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import IO, Final

import msgspec

from taskbull.worker.pool.messages import Record

LINE_LIMIT: Final = 8192
"""Bytes of a line that are logged; the rest is counted."""

MOST_PER_SECOND: Final = 1000

_PIECE = 1 << 15
_PIECES = 64

STDOUT: Final = ("stdout", logging.INFO)
STDERR: Final = ("stderr", logging.WARNING)


class Printed:
    """Logs the lines of one stream; the logger has its name.

    `context` gives that of the job that runs, by which the line gets the job's fields.
    """

    def __init__(
        self,
        descriptor: int,
        kind: tuple[str, int],
        context: Callable[[], Context],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.descriptor = descriptor
        name, self._level = kind
        self._logger = logging.getLogger(name)
        self._context = context
        self._clock = clock
        self._held = b""
        self._cut = 0
        self._second = -1
        self._logged = 0
        self._left_out = 0
        self.last: deque[str] = deque(maxlen=30)
        """The last lines."""

    def read(self) -> bool:
        """Log what there is now, a pipe full of it; return False when the stream has ended."""
        for _ in range(_PIECES):  # who prints without end must not keep us here
            try:
                piece = os.read(self.descriptor, _PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not piece:
                return False
            self._take(piece)
        return True

    def end_of_job(self) -> None:
        """Log also a line that was not ended, and what was left out."""
        if self._held:
            self._line(self._held)
            self._held = b""
        self._tell_left_out()

    def _take(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = self._held + lines[0]
            for line in lines:
                self._line(line)
            self._held = rest
        else:
            self._held += rest
        if len(self._held) > LINE_LIMIT:
            self._cut += len(self._held) - LINE_LIMIT
            self._held = self._held[:LINE_LIMIT]

    def _line(self, line: bytes) -> None:
        second = int(self._clock())
        if second != self._second:
            self._tell_left_out()
            self._second, self._logged = second, 0
        cut, self._cut = self._cut + max(0, len(line) - LINE_LIMIT), 0
        if self._logged >= MOST_PER_SECOND:
            self._left_out += 1
            return
        self._logged += 1
        text = line[:LINE_LIMIT].decode("utf-8", "backslashreplace").rstrip("\r")
        self.last.append(text)
        self._log("%s … (%d bytes left out)" if cut else "%s", *((text, cut) if cut else (text,)))

    def _tell_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._log("… (%d lines left out: more than %d in a second)", left_out, MOST_PER_SECOND)

    def _log(self, text: str, *args: object) -> None:
        if self._logger.isEnabledFor(self._level):
            self._context().run(self._logger.log, self._level, text, *args)


class Outputs:
    """Both streams of a process, until they end."""

    def __init__(self, streams: Sequence[IO[bytes]], context: Callable[[], Context]) -> None:
        self._open = {
            stream.fileno(): Printed(stream.fileno(), kind, context)
            for stream, kind in zip(streams, (STDOUT, STDERR), strict=True)
        }
        self._last: list[str] = []

    @property
    def descriptors(self) -> list[int]:
        """Those that have not ended."""
        return [*self._open]

    def read(self, ready: Container[int]) -> list[int]:
        """Log what has come by these descriptors; return those that have ended by now."""
        ended = [one for one, printed in self._open.items() if one in ready and not printed.read()]
        for one in ended:
            printed = self._open.pop(one)
            printed.end_of_job()
            self._last += printed.last
        return ended

    def end_of_job(self) -> None:
        """Log what is left of a job's lines: it was flushed before the end was told."""
        for printed in self._open.values():
            printed.read()
            printed.end_of_job()

    def last_lines(self) -> list[str]:
        """Return what was printed last: if the process cannot start, it says why."""
        return [*self._last, *(line for printed in self._open.values() for line in printed.last)]


def log_record(record: Record, pid: int | None) -> None:
    """Log a line that was logged in a process, as if it had been here."""
    logger = logging.getLogger(record.logger)
    if not logger.isEnabledFor(record.level):
        return
    file, line, function = record.place
    with suppress(Exception):  # foreign code: handlers and filters of the application
        made = logger.makeRecord(
            logger.name, record.level, file, line, record.text, (), None, function
        )
        made.created = record.created
        made.msecs = (record.created % 1) * 1000
        made.threadName = record.thread
        made.process = pid
        made.exc_text = record.stack or None
        vars(made).update(msgspec.json.decode(record.extra, type=dict[str, object]))
        logger.handle(made)
