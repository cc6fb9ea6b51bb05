"""Following a queue's event stream: what BullMQ's QueueEvents is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.checks import refusal
from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Command, Word
from taskbull.scripts.replies import text

BLOCK = 5.0
"""Seconds for which the server holds a read; a reader that is cancelled ends at once anyway."""

AT_ONCE = 1000
"""Events per read, at the most."""


class QueueEvent(Struct, frozen=True):
    """Something that happened in a queue; names and fields are BullMQ's."""

    id: str
    """Place in the stream: the server's clock in ms, and a counter."""
    name: str
    job_id: str | None
    fields: Mapping[str, str]
    """As they stand in the stream: what BullMQ writes as JSON is JSON here."""

    @property
    def details(self) -> dict[str, str]:
        """Its fields but for the id of the job."""
        return {name: value for name, value in self.fields.items() if name != "jobId"}

    @property
    def progress(self) -> Any:
        """What a job told of its progress, of an event of that name; else None."""
        return _decoded(self.fields.get("data")) if self.name == "progress" else None

    @property
    def returnvalue(self) -> Any:
        """The result, of an event `completed`; else None."""
        return _decoded(self.fields.get("returnvalue"))


def last_event_id(queue: QueueKeys) -> Command[str]:
    """Find the end of the stream as it is now, so that nothing after it is missed."""
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, "+", "-", "COUNT", 1)
    return Command(words, queue.events, lambda reply: text(reply[0][0]) if reply else "0-0")


def read_events(queue: QueueKeys, after: str, block: float = BLOCK) -> tuple[Word, ...]:
    """Make the command that waits up to `block` seconds for events after that id."""
    block_ms = max(1, int(block * 1000))  # 0 would be without end
    return ("XREAD", "COUNT", AT_ONCE, "BLOCK", block_ms, "STREAMS", queue.events, after)


def next_events(queue: QueueKeys, after: str) -> Command[list[QueueEvent]]:
    """Wait up to `BLOCK` seconds for events after that id."""
    return Command(read_events(queue, after), queue.events, events_of, held=BLOCK)


def check_last_id(last_id: str) -> str:
    """Refuse what is no id of an event; `$` is the end of the stream."""
    if not re.fullmatch(r"\$|\d+(-\d+)?", last_id):
        raise refusal("last_id", "be '$' or an event's id such as '1700000000000-0'", last_id)
    return last_id


def events_of(reply: Any) -> list[QueueEvent]:
    """Read what the command gave; None is no event."""
    if not reply:
        return []
    [[_, entries]] = reply
    return [_event(entry_id, flat) for entry_id, flat in entries]


def _decoded(value: str | None) -> Any:
    try:
        return None if value is None else payload.decode(value.encode())
    except ValueError:  # not by BullMQ, nor by us
        return value


def _event(entry_id: bytes, flat: list[bytes]) -> QueueEvent:
    fields = {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return QueueEvent(text(entry_id), fields.pop("event", ""), fields.get("jobId"), fields)
