"""Entries of the event stream, as written by Node, taskbull or other programs."""

from __future__ import annotations

import pytest

from taskbull.core.job import Ending
from taskbull.core.keys import JobState
from taskbull.core.wire.job import decode_end, decode_event, reports_state

Fields = list[bytes]

COMPLETED = [b"event", b"completed", b"jobId", b"7", b"returnvalue", b"[1]", b"prev", b"active"]
FAILED = [b"event", b"failed", b"jobId", b"7", b"failedReason", b"broke \xff"]
REMOVED = [b"event", b"removed", b"jobId", b"7"]
ADDED = [b"event", b"added", b"jobId", b"7", b"name", b"send"]
WAITING = [b"event", b"waiting", b"jobId", b"7"]
DRAINED = [b"event", b"drained"]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        (COMPLETED, ("7", Ending(JobState.COMPLETED, raw_value=b"[1]"))),
        (COMPLETED[:4], ("7", Ending(JobState.COMPLETED, raw_value=b"null"))),
        (FAILED, ("7", Ending(JobState.FAILED, failed_reason="broke \\xff"))),
        (FAILED[:4], ("7", Ending(JobState.FAILED, failed_reason=""))),
        (REMOVED, ("7", None)),
        (REMOVED[:2], ("", None)),
        (ADDED, None),
        (WAITING, None),
        (DRAINED, None),
    ],
)
def test_the_end_of_a_job_is_read(fields: Fields, end: tuple[str, Ending | None] | None) -> None:
    assert decode_end((b"1-0", fields)) == end


@pytest.mark.parametrize(
    ("fields", "job_id", "tells"),
    [
        (COMPLETED, "7", True),
        (FAILED, "7", True),
        (REMOVED, "7", True),
        (ADDED, "7", True),
        (ADDED, "8", False),
        (WAITING, "7", False),
        (DRAINED, "", False),
    ],
)
def test_some_events_tell_how_a_job_stands(fields: Fields, job_id: str, tells: bool) -> None:
    assert reports_state((b"1-0", fields), job_id) is tells


def test_any_event_is_read() -> None:
    event = decode_event((b"1-0", COMPLETED))
    assert (event.id, event.name, event.job_id, event.returnvalue) == ("1-0", "completed", "7", [1])
    assert event.details == {"returnvalue": "[1]", "prev": "active"}
    nothing = decode_event((b"2-0", DRAINED))
    assert (nothing.name, nothing.job_id, nothing.fields) == ("drained", None, {})
