"""Attempts of a job, derived from the events of its queue."""

from __future__ import annotations

import pytest

from taskbull.core.validation import instant_from_ms
from taskbull.core.worker_record import AttemptEnd, PastEvent, attempts_of

TOLD: dict[
    str, tuple[list[tuple[int, str]], int, list[tuple[int, int, int | None, AttemptEnd]]]
] = {
    "one that runs": ([(1, "added"), (1, "waiting"), (5, "active")], 1, [(1, 5, None, "running")]),
    "a failure, then success": (
        [(5, "active"), (7, "delayed"), (9, "waiting"), (10, "active"), (12, "completed")],
        2,
        [(1, 5, 7, "again"), (2, 10, 12, "completed")],
    ),
    "tried again at once, then failed": (
        [(5, "active"), (6, "waiting"), (7, "active"), (8, "failed")],
        2,
        [(1, 5, 6, "again"), (2, 7, 8, "failed")],
    ),
    "a worker that died": (
        [(5, "active"), (60, "waiting"), (60, "stalled"), (61, "active")],
        2,
        [(1, 5, 60, "stalled"), (2, 61, None, "running")],
    ),
    "the stream has forgotten the first": (
        [(7, "delayed"), (10, "active"), (12, "delayed"), (20, "active"), (21, "failed")],
        5,
        [(4, 10, 12, "again"), (5, 20, 21, "failed")],
    ),
    "more than were counted, as the count began anew": (
        [(1, "active"), (2, "failed"), (3, "active"), (4, "failed")],
        1,
        [(1, 3, 4, "failed")],
    ),
    "progress is no end": (
        [(5, "active"), (6, "progress"), (7, "completed")],
        1,
        [(1, 5, 7, "completed")],
    ),
    "nothing": ([], 3, []),
}


@pytest.mark.parametrize("case", TOLD)
def test_events_tell_of_attempts(case: str) -> None:
    events, started, wanted = TOLD[case]
    found = attempts_of([PastEvent(at, name) for at, name in events], started)
    assert [(each.number, each.began, each.ended, each.end) for each in found] == [
        (number, instant_from_ms(began), None if ended is None else instant_from_ms(ended), end)
        for number, began, ended, end in wanted
    ]
