"""What a worker reads from the marker key."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.keys import QueueKeys
from taskbull.scripts.cycle import wait_for_marker

WAIT = wait_for_marker(QueueKeys("q"), 5.0)


def test_it_is_held_as_long_as_it_waits() -> None:
    assert WAIT.words == ("BZPOPMIN", "bull:q:marker", 5.0)
    assert WAIT.held == 5.0


@pytest.mark.parametrize(
    ("reply", "due_ms"),
    [
        (None, None),
        ([b"bull:q:marker", b"0", b"0"], 0),
        ([b"bull:q:marker", b"1", b"1700000000000"], 1_700_000_000_000),
        ([b"bull:q:marker", b"1", b"inf"], 0),
        ([b"bull:q:marker", b"1", b"nan"], 0),
        ([b"bull:q:marker", b"1", b"1e300"], 2**53 - 1),
        ([b"bull:q:marker", b"2", b"1700000000000"], 0),
    ],
)
def test_a_marker_tells_when_there_is_a_job(reply: Any, due_ms: float | None) -> None:
    assert WAIT.parse(reply) == due_ms
