"""Scores order jobs as BullMQ does, and stay within what a double holds."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.keys import (
    MAX_DUE_MS,
    JobState,
    delay_score_range,
    due_ms,
    due_ms_of_score,
)
from taskbull.core.validation import MAX_SAFE_INTEGER
from taskbull.scripts.read import Counts

instants = st.integers(0, MAX_DUE_MS)


def test_a_state_is_its_name() -> None:
    counts: dict[str, int] = {JobState.WAITING_CHILDREN: 3}
    assert counts["waiting-children"] == 3
    assert JobState("prioritized") is JobState.PRIORITIZED


@given(instants, instants)
def test_earlier_jobs_have_lower_scores_and_become_due_first(one: int, other: int) -> None:
    low, high = delay_score_range(one)
    assert due_ms_of_score(float(low)) == due_ms_of_score(float(high)) == one
    assert high <= MAX_SAFE_INTEGER
    if one < other:
        assert high < delay_score_range(other)[0]


@given(st.integers(0, 2**60), st.integers(-5, 2**60))
def test_a_due_time_that_no_score_holds_becomes_the_last_one(base: int, delay: int) -> None:
    assert due_ms(base, delay) == min(base + max(delay, 0), MAX_DUE_MS)


# users-5
def test_counts_are_shown_with_plain_names() -> None:
    counts = Counts({JobState.WAITING: 3, JobState.WAITING_CHILDREN: 0})
    assert repr(counts) == str(counts) == "{'waiting': 3, 'waiting-children': 0}"
    assert counts["waiting"] == counts[JobState.WAITING] == 3
    assert msgspec.json.encode(counts) == b'{"waiting":3,"waiting-children":0}'
