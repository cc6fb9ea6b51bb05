"""Parts of one job that may be large: their ends, at a bounded price, or all of them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from taskbull.core.attempt_times import JobHistory, PastEvent
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.row import WIRE_NAMES
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.loader import load
from taskbull.scripts.replies import number, text

PEEK_FIELD = load("peek_field")
PEEK_LOGS = load("peek_logs")
PEEK_EVENTS = load("peek_events")

LOG_PIECE: Final = 100
"""How many lines of a log are read at once, where all of them are."""

_LARGEST: Final = 4 * 1_048_576
"""Bytes of a field of which an end is read: that takes Redis 2 ms."""

_ROOM: Final = 262_144
_LONGEST_LINE: Final = 4096
_EVENTS: Final = 1000


class FieldPiece(Struct, frozen=True):
    """One end of a field."""

    size: int
    """The bytes of the whole field."""
    text: str
    """Empty if the field is too large for an end of it to be cut off."""


class NewestLines(Struct, frozen=True):
    """The newest lines of a log, the oldest of them first; long ones are cut."""

    count: int
    """Of all lines."""
    lines: list[str]
    cut: int
    """How many of them are not whole."""


def peek_field(
    queue: QueueKeys, job_id: str, field: str, most: int, *, end: bool
) -> Call[FieldPiece]:
    """Read the first bytes of a field, or its last: 2 commands."""

    def read(reply: Any) -> FieldPiece:
        size, piece = reply
        # It may be cut in the middle of a character.
        words = piece.decode("utf-8", "ignore") if len(piece) == most else text(piece)
        return FieldPiece(size, words)

    args = (WIRE_NAMES[field], most, int(end), _LARGEST)
    return Call(PEEK_FIELD, (queue.job(job_id),), args, read)


def get_field(queue: QueueKeys, job_id: str, field: str) -> Command[bytes | None]:
    """Read a field as it stands in Redis, all of it; None if there is none."""
    key = queue.job(job_id)
    return Command(("HGET", key, WIRE_NAMES[field]), key, lambda reply: reply)


def peek_logs(queue: QueueKeys, job_id: str, most: int) -> Call[NewestLines]:
    """Read the newest lines of a log, as many as have 256 kB: a command for each."""

    def read(reply: Any) -> NewestLines:
        count, flat = reply
        lines, sizes = flat[::2], flat[1::2]
        cut = sum(len(line) < size for line, size in zip(lines, sizes, strict=True))
        return NewestLines(count, [text(line) for line in reversed(lines)], cut)

    args = (most, _LONGEST_LINE, _ROOM)
    return Call(PEEK_LOGS, (queue.logs(job_id),), args, read)


def get_log_lines(queue: QueueKeys, job_id: str, start: int) -> Command[list[bytes]]:
    """Read the next `LOG_PIECE` lines of a log, all of each."""
    key = queue.logs(job_id)
    words: tuple[Word, ...] = ("LRANGE", key, start, start + LOG_PIECE - 1)
    return Command(words, key, lambda reply: reply)


def peek_events(queue: QueueKeys, job_id: str) -> Call[JobHistory]:
    """See what the newest 1,000 events tell about a job, or as many as have 256 kB."""

    def read(reply: Any) -> JobHistory:
        looked_at, done, flat = reply
        events = [
            PastEvent(number(entry.partition(b"-")[0]), text(name), text(previous))
            for entry, name, previous in zip(*(flat[place::3] for place in range(3)), strict=True)
        ]
        return JobHistory(events[::-1], looked_at, bool(done))

    return Call(PEEK_EVENTS, (queue.events,), (job_id, _EVENTS, _ROOM), read)
