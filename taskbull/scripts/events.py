"""Calls that read a queue's event stream. BullMQ's counterpart is `QueueEvents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from taskbull.core.job import Ending
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.events import (
    Entry,
    QueueEvent,
    decode_end,
    decode_event,
    tells_how_it_stands,
)
from taskbull.scripts.call import Command, Steps, Word, text

BLOCK: Final = 5.0
"""Maximum time that the server blocks a read, in seconds. Cancelling a reader is immediate."""

AT_ONCE: Final = 1000
"""Maximum number of events per read."""

_PAGES: Final = 12
"""Number of pages searched for a removed job. They cover all of BullMQ's 10,000 events."""


class Ends(Struct, frozen=True):
    """The jobs that finished or were removed, according to some events."""

    place: str
    """Id of the last of these events."""
    endings: Sequence[tuple[str, Ending | None]] = ()
    """Job ids and their endings. The ending is None if the job was removed."""


def last_event_id(queue: QueueKeys) -> Command[str]:
    """Return the id of the newest event, or `0-0` if there is none."""
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, "+", "-", "COUNT", 1)
    return Command(words, queue.events, lambda reply: text(reply[0][0]) if reply else "0-0")


def read_events(queue: QueueKeys, after: str) -> Command[list[QueueEvent]]:
    """Wait up to `BLOCK` seconds for events after the id `after`."""

    def read(reply: Any) -> list[QueueEvent]:
        return [decode_event(entry) for entry in _entries(reply)]

    return Command(_read(queue, after, BLOCK), queue.events, read, held=BLOCK)


def read_ends(queue: QueueKeys, after: str, block: float = BLOCK) -> Command[Ends]:
    """Wait up to `block` seconds for events after the id `after`. Return the finished jobs."""

    def read(reply: Any) -> Ends:
        entries = _entries(reply)
        if not entries:
            return Ends(after)
        ends = (decode_end(entry) for entry in entries)
        return Ends(text(entries[-1][0]), [end for end in ends if end is not None])

    return Command(_read(queue, after, block), queue.events, read, held=block)


def find_ending(queue: QueueKeys, job_id: str) -> Steps[Ending | None]:
    """Search the stream for the ending of a job that is no longer stored.

    Returns None if the stream does not contain it, or if the job was removed or added since.
    """
    newest = "+"
    for _ in range(_PAGES):
        entries: Sequence[Entry] = yield _page(queue, newest)
        for entry in entries:
            if tells_how_it_stands(entry, job_id):
                end = decode_end(entry)
                # Without an end, this is the job's `added` event: it has not finished since.
                return None if end is None else end[1]
        if len(entries) < AT_ONCE:
            break
        newest = f"({text(entries[-1][0])}"
    return None


def _page(queue: QueueKeys, newest: str) -> Command[Sequence[Entry]]:
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, newest, "-", "COUNT", AT_ONCE)
    return Command(words, queue.events, lambda reply: reply)


def _read(queue: QueueKeys, after: str, block: float) -> tuple[Word, ...]:
    block_ms = max(1, int(block * 1000))  # 0 would block without a limit.
    return ("XREAD", "COUNT", AT_ONCE, "BLOCK", block_ms, "STREAMS", queue.events, after)


def _entries(reply: Any) -> Sequence[Entry]:
    if not reply:
        return ()
    [[_, entries]] = reply
    found: Sequence[Entry] = entries
    return found
