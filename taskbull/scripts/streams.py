"""Calls that write and read the streams of jobs whose functions yield items.

Each such job has a Redis stream. An entry has the id `<run>-<number>`. Runs are counted from 1 and
include runs that a crash has ended. The entries of a run are:

- `<run>-0`, in every run but the first: the job has restarted.
- `<run>-1`, `<run>-2` and so on: the items, in order.
- `<run>-18446744073709551615`: the job has ended. This entry is written with the job's outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Ending
from taskbull.core.keys import QueueKeys
from taskbull.core.validation import refusal
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.call import REFUSALS, Call, Command, Word, load, number, text
from taskbull.scripts.read import ends_in

WRITE_ITEMS = load("write_items")
PREVIEW_ITEMS = load("preview_items")

PAGE: Final = 100
"""Maximum number of entries per read."""

PAGE_BYTES: Final = 1 << 20
"""Number of bytes that a reader wants to get or hold. It may be more if items differ in size."""

_IDLE_LIFE_MS: Final = 7 * 86_400_000
"""Milliseconds until a stream without new entries expires if its job does not end."""

_LONGEST: Final = 2_000
"""Maximum number of bytes of an item in a preview."""

LAST_NUMBER: Final = 18_446_744_073_709_551_615
"""Number of the last entry of a job that has ended."""

_UNWRITABLE: Final = -14


class EntryId(NamedTuple):
    """Position of an entry in a job's stream."""

    run: int
    number: int

    def __str__(self) -> str:
        return f"{self.run}-{self.number}"


START: Final = EntryId(0, 0)
"""Position before the first entry."""


class Entry(Struct, frozen=True):
    """An entry of a job's stream: an item, a restart or the end."""

    id: EntryId
    kind: Literal["item", "restart", "end"]
    raw: bytes = b""
    """The item as JSON. Empty if a preview leaves it out."""
    length: int = 0
    """Number of bytes of an item that a preview leaves out."""
    attempt: int = 0
    """Number of the attempt that a restart begins."""
    state: str = ""
    """`completed` or `failed`, at the end."""
    reason: str = ""
    """Reason of a failure, at the end."""

    @property
    def shown(self) -> str:
        """The item as text, or its length if a preview leaves it out."""
        return f"({self.length:,} bytes)" if self.length else text(self.raw)


class Unwritten(NamedTuple):
    """Items of one running job, to write to its stream."""

    job_id: str
    token: str
    run: int
    """Number of the run in the stream, or 0 for the first write of the run."""
    attempt: int
    limit: int
    life_ms: int
    """Milliseconds that the stream lives after the job has ended."""
    first: int
    """Number of the first item."""
    items: Sequence[bytes]


def write_items(
    queue: QueueKeys, jobs: Iterable[Unwritten], *, is_repeated: bool = False
) -> Call[list[int]]:
    """Append items to the streams of jobs that hold their locks.

    The reply has the number of the run for each job, or a negative code if the job is gone or has
    lost its lock. The call may be repeated with `is_repeated` if it was perhaps executed.
    """
    args: list[Word] = [queue.base, _IDLE_LIFE_MS, int(is_repeated)]
    for job in jobs:
        *head, items = job
        args += (*cast("list[Word]", head), len(items), *items)
    return Call(WRITE_ITEMS, (queue.stalled,), tuple(args), list)


def write_error(code: int, queue: QueueKeys, job_id: str) -> TaskbullError:
    """Return the error for a negative code of `write_items`."""
    if code != _UNWRITABLE:
        return REFUSALS[code](queue.queue, job_id)
    return ServerRefused(
        "WRONGTYPE",
        f"Cannot write the items of job '{job_id}' in queue '{queue.queue}': another program has "
        f"changed the key '{queue.items(job_id)}'",
    )


def read_page(
    queue: QueueKeys, job_id: str, after: EntryId, count: int = PAGE
) -> Command[list[Entry]]:
    """Return up to `count` entries after an id."""
    key = queue.items(job_id)
    # Redis 6.0 has no exclusive ranges.
    start = (
        f"{after.run + 1}-0" if after.number == LAST_NUMBER else f"{after.run}-{after.number + 1}"
    )
    words: tuple[Word, ...] = ("XRANGE", key, start, "+", "COUNT", count)
    return Command(words, key, lambda reply: [_decode(each) for each in reply])


def wait_for_entries(
    queue: QueueKeys, places: Mapping[str, EntryId], block: float
) -> Command[dict[str, list[Entry]]]:
    """Wait up to `block` seconds for entries of several jobs' streams.

    `places` maps job ids to the last entries read. The reply has up to `PAGE` entries per job.
    """
    jobs = {queue.items(job_id): job_id for job_id in places}

    def read(reply: Any) -> dict[str, list[Entry]]:
        return {jobs[text(key)]: [_decode(each) for each in found] for key, found in reply or ()}

    block_ms = max(1, int(block * 1000))  # 0 would block without a limit.
    ids = [str(place) for place in places.values()]
    words: tuple[Word, ...] = ("XREAD", "COUNT", PAGE, "BLOCK", block_ms, "STREAMS", *jobs, *ids)
    return Command(words, next(iter(jobs)), read, held=block)


def wait_for_entry_or_end(
    queue: QueueKeys, job_id: str, after: EntryId, after_event: str, block: float
) -> Command[tuple[str, list[Ending | None]]]:
    """Wait up to `block` seconds for an entry of a job's stream or an event of its queue.

    Returns the id of the last event, and the endings of the job among the events. An ending is
    None if the job was removed.
    """
    items = queue.items(job_id)

    def read(reply: Any) -> tuple[str, list[Ending | None]]:
        found: dict[bytes, Any] = dict(reply or ())
        ends = ends_in(found.get(queue.events.encode(), ()), after_event)
        return ends.place, [ending for each, ending in ends.endings if each == job_id]

    block_ms = max(1, int(block * 1000))
    words = ("XREAD", "COUNT", PAGE, "BLOCK", block_ms, "STREAMS")
    places = (items, queue.events, str(after), after_event)
    return Command((*words, *places), items, read, held=block)


class StreamPreview(Struct, frozen=True):
    """The last entries of a job's stream."""

    count: int = 0
    """Number of all entries, including restarts and the end."""
    first: EntryId = START
    """Position of the first entry."""
    entries: Sequence[Entry] = ()

    @property
    def items(self) -> list[Entry]:
        """The entries that are items."""
        return [entry for entry in self.entries if entry.kind == "item"]

    @property
    def item_count(self) -> int:
        """Number of items that are kept, if the job was not retried after its end."""
        if not self.entries:
            return 0
        last = self.entries[-1]
        restarts = last.id.run - self.first.run + (self.first.number == 0)
        return self.count - restarts - (last.kind == "end")

    def describe(self) -> dict[str, Any]:
        """Return the number of items and the last ones as JSON-compatible values."""
        shown = [_value(each.raw) for each in self.items if each.raw]
        return {"items": self.item_count, "last": shown}


def _value(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except ValueError:  # Not written by taskbull.
        return text(raw)


NO_STREAM: Final = StreamPreview()


def preview_items(queue: QueueKeys, job_id: str, most: int) -> Call[StreamPreview]:
    """Read the last entries of a job's stream. Long items have only their length."""
    return Call(PREVIEW_ITEMS, (queue.items(job_id),), (most, _LONGEST), _preview)


def _preview(reply: Any) -> StreamPreview:
    count, first, entries = reply
    return StreamPreview(count, _place(first or b"0-0"), [_decode(each) for each in entries])


def read_entry_id(field: str, value: object) -> EntryId:
    """Return the position that an id from a reader names.

    Raises:
        ConfigurationError: If it is not one.
    """
    found = re.fullmatch(r"([0-9]{1,15})-([0-9]{1,20})", value) if isinstance(value, str) else None
    if found is None or int(found[2]) > LAST_NUMBER:
        raise refusal(field, "be the id of an entry, such as '1-7'", value)
    return EntryId(int(found[1]), int(found[2]))


def is_gap(before: EntryId, entry: Entry) -> bool:
    """Return True if entries between these two were dropped because of the limit."""
    run, number = entry.id
    if entry.kind == "end":
        return False  # It does not say how many items there were.
    if run == before.run:
        return number != before.number + 1
    return number != (1 if run == 1 else 0)


def _place(raw: bytes) -> EntryId:
    run, _, number = text(raw).partition("-")
    return EntryId(int(run), int(number))


def _decode(raw: Any) -> Entry:
    entry_id, flat = raw
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    place = _place(entry_id)
    if b"item" in fields:
        return Entry(place, "item", fields[b"item"])
    if b"length" in fields:
        return Entry(place, "item", length=number(fields[b"length"]))
    if fields.get(b"event") == b"restart":
        return Entry(place, "restart", attempt=number(fields.get(b"attempt")))
    state, reason = fields.get(b"state", b""), fields.get(b"reason", b"")
    return Entry(place, "end", state=text(state), reason=text(reason))
