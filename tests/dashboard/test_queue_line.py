"""The row of a queue on the overview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from taskbull.core.keys import JobState
from taskbull.core.queue_health import QueueFacts
from taskbull.dashboard.queue_line import QueueState, draw_line
from taskbull.monitor.browse import QueueSample


def test_a_line_has_the_counts_and_how_long_the_oldest_job_has_waited() -> None:
    row = draw_line(state_of(waiting_since=datetime.now(UTC) - timedelta(minutes=5)))
    assert ">5 min" in row.markup
    assert ">5 min" not in row.timeless
    assert "a&lt;b" in row.markup
    assert "<time" not in draw_line(state_of(waiting_since=None)).markup


def state_of(waiting_since: datetime | None) -> QueueState:
    counts: Any = dict.fromkeys(JobState, 0) | {JobState.WAITING: 3}
    facts = QueueFacts(
        name="a<b", now=datetime.now(UTC), counts=counts, waiting_since=waiting_since
    )
    return QueueState(QueueSample("a<b", counts, False, None, waiting_since), facts, [])
