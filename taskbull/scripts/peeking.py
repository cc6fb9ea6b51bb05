"""Looking at jobs without reading them whole: pages of a state, one job, a search.

Each call looks at a bounded number of jobs, and reads at most `ROOM` bytes of what may be large,
whatever stands in the queue. All of them only read: a user of Redis without write rights will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.durations import instant_from_ms
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.core.wire.row import DATA_FIELD, LINE_FIELDS, WHOLE_FIELDS, Peeked, decode_row, flat
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.inspection import ChildCounts
from taskbull.scripts.loader import load
from taskbull.scripts.replies import number, text
from taskbull.scripts.survey import instant_of

PEEK_LISTED = load("peek_listed")
PEEK_SORTED = load("peek_sorted")
PLACE_JOB = load("place_job")
SEARCH_JOBS = load("search_jobs")

ROWS: Final = 50
"""How many jobs one page has at most."""

PIECE: Final = 25
"""How many of them one call should ask for: a millisecond."""

SEARCHED: Final = 100
"""How many jobs one step of a search looks at."""

ROOM: Final = 262_144
"""Bytes of large fields that one call reads."""

_DEEPEST: Final = 20_000
"""How far a job is looked for in a list, from each of its ends: a fraction of a millisecond."""

NEWEST_FIRST: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States of which people want to see the latest job first; of others the next to run."""

pack = msgspec.msgpack.encode


class Row(Struct, frozen=True):
    """A job on a page: its id, and what was read of it; None: it is gone."""

    id: str
    score: float | None
    """Its score, where its state is a sorted set."""
    peeked: Peeked | None


class After(Struct, frozen=True):
    """The end of a page, after which the next begins."""

    place: int = 0
    """Of a list: how many jobs come before."""
    score: str = ""
    """Of a sorted set: the score of the last job, as Redis writes it."""
    id: str = ""


START: Final = After()


class Rows(Struct, frozen=True):
    """A page of jobs."""

    total: int
    """How many jobs are in this state."""
    rows: list[Row]
    after: After | None
    """Where the next page begins; None: this is the last one."""


class PlacedJob(Struct, frozen=True):
    """One job: what was read of it, and where it is."""

    state: JobState
    """Jobs that a pause has parked are `paused`."""
    score: float | None
    peeked: Peeked | None
    """None: there is no such job."""
    lock_ms: int
    """How long its lock lives, as PTTL has it: -1 for ever, -2 there is none."""
    children: ChildCounts
    before: int | None
    """How many jobs of the same list or set come before it, where that is known."""
    sure: bool
    """Whether state and place are exact, and not guessed from the timestamps of others."""
    last_id: int
    """The last id that the queue has given out."""


class Found(Struct, frozen=True):
    """What one step of a search has found, and where the next begins."""

    rows: list[Row]
    looked_at: int
    too_large: int
    """Jobs with a field that was not looked at."""
    after: After | None
    """None: there is nothing left to look at."""
    total: int
    """How many jobs are in this state."""
    reached: datetime | None
    """When the last that was looked at ended; was due, if it is delayed; else was added."""


def peek_jobs(
    queue: QueueKeys,
    state: JobState,
    after: After = START,
    limit: int = ROWS,
    *,
    bound: float | None = None,
    fields: Mapping[str, int] = LINE_FIELDS,
) -> Call[Rows]:
    """See a page of the jobs in a state; of a sorted set up to the score `bound`.

    About 24 commands for each job.
    """
    common = (queue.base, pack(flat(fields)), ROOM)
    keys = _places(queue, state)
    if state in LISTS:
        args: tuple[Word, ...] = (*common, after.place, limit)
        return Call(PEEK_LISTED, keys, args, lambda reply: _listed(reply, fields, after, limit))
    edge = _edge(state, bound)
    args = (*common, int(state in NEWEST_FIRST), after.score, after.id, edge, limit)
    return Call(PEEK_SORTED, keys, args, lambda reply: _sorted(reply, fields, limit))


def place_job(queue: QueueKeys, job_id: str) -> Call[PlacedJob]:
    """See a job, its state, its lock, and how many come before it: about 45 commands.

    Of a list with more than 40,000 jobs only the ends are searched, and what its timestamp says.
    """

    def read(reply: Any) -> PlacedJob:
        state, score, peeked, lock, children, before, sure, counter = reply
        job = None if not peeked else decode_row(job_id.encode(), WHOLE_FIELDS, peeked)
        return PlacedJob(
            JobState(text(state)),
            _score(score),
            job,
            lock,
            ChildCounts(*children),
            None if before < 0 else before,
            bool(sure),
            number(counter),
        )

    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
        queue.id,
    )
    args = (queue.base, job_id, pack(flat(WHOLE_FIELDS)), ROOM, _DEEPEST)
    return Call(PLACE_JOB, keys, args, read)


def search_jobs(
    queue: QueueKeys,
    state: JobState,
    wanted: Sequence[tuple[Sequence[str], Sequence[str]]],
    after: After = START,
    *,
    bound: float | None = None,
) -> Call[Found]:
    """Look for texts in the next 100 jobs of a state, or as many as have 256 kB.

    Each of `wanted` is fields and texts: one of the texts has to be in one of the fields, and that
    for each of them.
    """
    newest = state in NEWEST_FIRST

    def read(reply: Any) -> Found:
        looked_at, too_large, last, score, done, hits, total, added = reply
        more = After(after.place + looked_at, text(score), text(last))
        return Found(
            _rows(hits, LINE_FIELDS),
            looked_at,
            too_large,
            None if done or not looked_at else more,
            total,
            _reached(state, score, added),
        )

    [place, *_] = _places(queue, state)
    args = (
        queue.base,
        pack([[list(fields), list(texts)] for fields, texts in wanted]),
        pack(flat(LINE_FIELDS)),
        0 if after.score else after.place,
        int(newest),
        after.score,
        after.id,
        _edge(state, bound),
        SEARCHED,
        ROOM,
    )
    return Call(SEARCH_JOBS, (place,), args, read)


def get_data(queue: QueueKeys, job_id: str) -> Command[Any]:
    """Read the data of a job; None if there are none, or if they are not JSON."""
    key = queue.job(job_id)

    def read(raw: bytes | None) -> Any:
        try:
            return payload.decode(raw or b"null")
        except ValueError:
            return None

    return Command(("HGET", key, DATA_FIELD), key, read)


LISTS: Final = frozenset({JobState.WAITING, JobState.ACTIVE, JobState.PAUSED})


def _places(queue: QueueKeys, state: JobState) -> tuple[str, ...]:
    places = {
        JobState.WAITING: (queue.wait, queue.paused),  # whoever paused the queue, and however
        JobState.PAUSED: (queue.paused, queue.private("none")),
        JobState.ACTIVE: (queue.active, queue.private("none")),
        JobState.COMPLETED: (queue.completed,),
        JobState.FAILED: (queue.failed,),
        JobState.DELAYED: (queue.delayed,),
        JobState.PRIORITIZED: (queue.prioritized,),
        JobState.WAITING_CHILDREN: (queue.waiting_children,),
    }
    if state not in places:
        raise ConfigurationError(f"there is no list of jobs in state {state}")
    return places[state]


def _reached(state: JobState, score: bytes, added: bytes) -> datetime | None:
    if state in NEWEST_FIRST:
        return instant_from_ms(float(score)) if score else None
    if state is JobState.DELAYED:
        return instant_from_ms(due_ms_of_score(float(score))) if score else None
    return instant_of(added)


def _edge(state: JobState, bound: float | None) -> Word:
    if bound is not None:
        return f"{bound:.0f}"
    return "-inf" if state in NEWEST_FIRST else "+inf"


def _listed(reply: Any, fields: Mapping[str, int], after: After, limit: int) -> Rows:
    total, flat_rows = reply
    rows = _rows(flat_rows, fields)
    end = after.place + len(rows)
    return Rows(total, rows, After(end) if len(rows) == limit and end < total else None)


def _sorted(reply: Any, fields: Mapping[str, int], limit: int) -> Rows:
    total, flat_rows = reply
    rows = _rows(flat_rows, fields)
    after = None
    if len(rows) == limit:
        after = After(score=text(flat_rows[-2]), id=text(flat_rows[-3]))
    return Rows(total, rows, after)


def _rows(reply: list[Any], fields: Mapping[str, int]) -> list[Row]:
    return [
        Row(text(i), _score(score), decode_row(i, fields, peeked) if peeked else None)
        for i, score, peeked in zip(*(reply[place::3] for place in range(3)), strict=True)
    ]


def _score(raw: bytes) -> float | None:
    return float(raw) if raw else None
