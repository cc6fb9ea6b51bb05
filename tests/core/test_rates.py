"""Throughput from available data: edges of minutes, gaps, trimmed sets."""

from __future__ import annotations

import pytest

from taskbull.core.queue_health import (
    EndCounts,
    Kept,
    Throughput,
    empty_in,
    from_kept,
    rate,
    throughput,
)

MINUTE = 60_000
NOW = 1_000 * MINUTE + 30_000


@pytest.mark.parametrize(
    ("tally", "minutes"),
    [
        # A job has finished in the current minute, so later counts belong to it.
        (EndCounts(10, 1_000 * MINUTE, 7, [4, 3]), [3, 4, 3, None]),
        # None has finished since the previous minute, which is over but not written yet.
        (EndCounts(10, 999 * MINUTE + 59_999, 7, [4, 3]), [0, 3, 4, 3]),
        # A gap.
        (EndCounts(10, 997 * MINUTE, 7, [4, 3]), [0, 0, 0, 3]),
        (EndCounts(10, 1 * MINUTE, 7, [4, 3]), [0, 0, 0, 0]),
        # The writer's clock is ahead of ours.
        (EndCounts(10, 1_001 * MINUTE, 7, [4]), [3, 4, None, None]),
        # The clock was set back.
        (EndCounts(2, 1_000 * MINUTE, 7, []), [0, None, None, None]),
    ],
)
def test_metrics_are_read_by_minutes(tally: EndCounts, minutes: list[int | None]) -> None:
    assert throughput(tally, None, NOW, 4) == Throughput(minutes, "metrics")


@pytest.mark.parametrize(
    ("kept", "minutes"),
    [
        (Kept(1_000 * MINUTE, [5, 6, 7], 1), [5, 6, 7, None]),
        # The set was trimmed within the second minute, so that minute is incomplete.
        (Kept(1_000 * MINUTE, [5, 6, 0], 999 * MINUTE + 1), [5, None, None, None]),
        (Kept(1_000 * MINUTE, [5, 6, 0], 999 * MINUTE), [5, 6, None, None]),
        (Kept(1_000 * MINUTE, [0, 0, 0], None), [None] * 4),
        # A new minute has started since the read.
        (Kept(999 * MINUTE, [5, 6, 7], 1), [None, 5, 6, 7]),
    ],
)
def test_only_whole_minutes_of_what_is_kept_count(kept: Kept, minutes: list[int | None]) -> None:
    assert from_kept(kept, NOW, 4) == minutes


def test_what_is_kept_is_taken_if_some_workers_do_not_count() -> None:
    tally = EndCounts(10, 1_000 * MINUTE, 9, [2, 2, 2])
    fewer, more = Kept(1_000 * MINUTE, [9, 1, 1, 1], 1), Kept(1_000 * MINUTE, [1, 5, 5, 5], 1)
    assert throughput(tally, fewer, NOW, 4).source == "metrics"
    assert throughput(tally, more, NOW, 4) == Throughput([1, 5, 5, 5], "kept")
    assert throughput(None, more, NOW, 4).source == "kept"
    assert throughput(None, Kept(1_000 * MINUTE, [0], None), NOW, 4).source is None
    assert throughput(None, None, NOW, 4) == Throughput([None] * 4, None)


def test_a_rate_is_taken_over_what_is_known() -> None:
    assert Throughput([30, 60, 60, 60, 60, 60, 6000], "metrics").recent(30) == 1.0
    assert Throughput([30, 60, None], "metrics").recent(30) == 1.0
    assert Throughput([None, 60], "kept").recent(30) == 1.0
    assert Throughput([20, None], "metrics").recent(0.1) == 20.0  # in a new queue
    assert Throughput([None, None], None).recent(30) is None
    assert Throughput([], None).recent(30) is None
    assert Throughput([1, 2, None, 4], "kept").total(2) == 3


def test_when_it_is_empty_depends_on_both_ends() -> None:
    assert empty_in(100, 3.0, 1.0) == 50.0
    assert empty_in(100, 1.0, 1.0) == float("inf")
    assert empty_in(100, 2.0, None) == 50.0
    assert empty_in(0, None, None) == 0.0
    assert empty_in(100, None, 1.0) is None


def test_a_change_per_second_is_not_taken_from_a_count_that_was_set_back() -> None:
    assert rate((0.0, 10), (2.0, 14)) == 2.0
    assert rate((0.0, 10), (2.0, 4)) is None
    assert rate((2.0, 10), (2.0, 14)) is None
