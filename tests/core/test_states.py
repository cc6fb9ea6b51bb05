"""Scores order jobs as BullMQ does, and stay within what a double holds."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.keys import (
    MAX_DUE_MS,
    MAX_PRIORITY,
    JobState,
    delay_score_range,
    due_ms,
    due_ms_of_score,
    highest_due_score,
    priority_of_score,
    priority_score,
)
from taskbull.core.validation import MAX_SAFE_INTEGER
from taskbull.scripts.read import Counts

priorities = st.integers(1, MAX_PRIORITY)
counters = st.integers(0, 2**40)
instants = st.integers(0, MAX_DUE_MS)


def test_a_state_is_its_name() -> None:
    counts: dict[str, int] = {JobState.WAITING_CHILDREN: 3}
    assert counts["waiting-children"] == 3
    assert JobState("prioritized") is JobState.PRIORITIZED


def test_the_score_seen_in_real_bullmq() -> None:
    assert priority_score(3, 1) == 12884901889


# FR-1
@given(priorities, priorities, counters, counters)
def test_a_more_urgent_job_has_the_lower_score(p: int, q: int, c: int, d: int) -> None:
    if p < q:
        assert priority_score(p, c) < priority_score(q, d)


@given(priorities, st.integers(0, 2**32 - 2))
def test_equal_priorities_keep_their_order(priority: int, counter: int) -> None:
    assert priority_score(priority, counter) < priority_score(priority, counter + 1)


@given(priorities, counters)
def test_a_priority_score_is_exact_and_leads_back(priority: int, counter: int) -> None:
    score = priority_score(priority, counter)
    assert score <= MAX_SAFE_INTEGER
    assert priority_of_score(float(score)) == priority


@given(instants, instants)
def test_earlier_jobs_have_lower_scores_and_become_due_first(one: int, other: int) -> None:
    low, high = delay_score_range(one)
    assert due_ms_of_score(float(low)) == due_ms_of_score(float(high)) == one
    assert high <= MAX_SAFE_INTEGER
    if one < other:
        assert high < delay_score_range(other)[0]
    assert (low <= highest_due_score(other)) == (one <= other)


@given(st.integers(0, 2**60), st.integers(-5, 2**60))
def test_a_due_time_that_no_score_holds_becomes_the_last_one(base: int, delay: int) -> None:
    assert due_ms(base, delay) == min(base + max(delay, 0), MAX_DUE_MS)


# users-5
def test_counts_are_shown_with_plain_names() -> None:
    counts = Counts({JobState.WAITING: 3, JobState.WAITING_CHILDREN: 0})
    assert repr(counts) == str(counts) == "{'waiting': 3, 'waiting-children': 0}"
    assert counts["waiting"] == counts[JobState.WAITING] == 3
    assert msgspec.json.encode(counts) == b'{"waiting":3,"waiting-children":0}'
