"""A queue's row on the overview is rendered again only if it changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from taskbull.core.keys import JobState
from taskbull.core.queue_health import QueueFacts
from taskbull.dashboard.html import Rendered
from taskbull.dashboard.queue_line import QueueState, draw_line, line_of
from taskbull.monitor.browse import QueueSample
from tests.dashboard.test_html import read


def test_a_line_that_says_the_same_is_drawn_again_only_in_its_time() -> None:
    state = state_of(waiting_since=datetime.now(UTC) - timedelta(minutes=5))
    line = line_of(state)
    rendered = draw_line(line, None)
    later = draw_line(line_of(state), (line, Rendered("", rendered.timeless)))
    assert later.timeless is rendered.timeless
    assert ">5 min" in later.markup
    assert read(later.markup).tags == read(rendered.markup).tags
    other = line_of(state_of(waiting_since=None))
    assert "<time" not in draw_line(other, (line, rendered)).markup


def state_of(waiting_since: datetime | None) -> QueueState:
    counts: Any = dict.fromkeys(JobState, 0) | {JobState.WAITING: 3}
    facts = QueueFacts(
        name="a<b", now=datetime.now(UTC), counts=counts, waiting_since=waiting_since
    )
    return QueueState(QueueSample("a<b", counts, False, None, waiting_since), facts, [])
