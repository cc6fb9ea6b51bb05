"""Excerpts of large job fields, from both ends, at a bounded cost."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.keys import JobState
from taskbull.scripts import browse, read, schedulers
from tests.scripts.bed import NOW, Bed


def test_each_end_of_a_field_is_read(bed: Bed) -> None:
    bed.job("a", data="x" * 100_000 + "end", stacktrace='["first","last"]')
    head = bed.run(read.preview_field(bed.queue, "a", "data", 10, end=False))
    assert (head.size, head.text) == (100_003, "x" * 10)
    tail = bed.run(read.preview_field(bed.queue, "a", "data", 5, end=True))
    assert tail.text == "xxend"
    stacks = bed.run(read.preview_field(bed.queue, "a", "stacktrace", 6, end=True))
    assert stacks.text == 'last"]'


def test_a_character_cut_in_half_is_left_out(bed: Bed) -> None:
    bed.job("a", data="€" * 100)
    assert bed.run(read.preview_field(bed.queue, "a", "data", 10, end=False)).text == "€" * 3
    assert bed.run(read.preview_field(bed.queue, "a", "data", 10, end=True)).text == "€" * 3


def test_only_the_size_of_very_large_fields_is_reported(bed: Bed) -> None:
    bed.job("a", data="x" * 5_000_000)
    found = bed.run(read.preview_field(bed.queue, "a", "data", 10, end=False))
    assert (found.size, found.text) == (5_000_000, "")


def test_what_is_no_job_has_no_pieces(bed: Bed) -> None:
    bed.admin.set(bed.queue.job("text"), "x")
    for job_id in ("text", "none"):
        found = bed.run(read.preview_field(bed.queue, job_id, "data", 10, end=False))
        assert (found.size, found.text) == (0, "")


def test_the_newest_lines_of_a_log_are_read_as_far_as_they_fit(bed: Bed) -> None:
    key = bed.queue.logs("a")
    bed.admin.rpush(key, *[f"line {number}" for number in range(10)])
    few = bed.run(read.get_newest_logs(bed.queue, "a", 3))
    assert (few.count, few.lines, few.cut) == (10, ["line 7", "line 8", "line 9"], 0)
    bed.admin.rpush(key, "x" * 300_000, "last")
    large = bed.run(read.get_newest_logs(bed.queue, "a", 5))
    assert [len(line) for line in large.lines] == [4096, 4]  # no room for those before
    assert (large.count, large.cut) == (12, 1)
    assert bed.run(read.get_newest_logs(bed.queue, "none", 5)).lines == []


def test_events_of_a_job_are_found_among_others(bed: Bed) -> None:
    for number in range(35):
        bed.admin.xadd(bed.queue.events, {"event": "added", "jobId": f"j{number % 7}", "prev": "x"})
    bed.admin.xadd(bed.queue.events, {"event": "paused"})
    found = bed.run(read.find_events(bed.queue, "j3"))
    assert (len(found.events), found.examined, found.whole) == (5, 36, True)
    assert {(each.name, each.previous) for each in found.events} == {("added", "x")}
    assert found.events == sorted(found.events, key=lambda event: event.at_ms)


def test_no_more_events_are_looked_at_than_fit(bed: Bed) -> None:
    for number in range(2500):
        bed.admin.xadd(bed.queue.events, {"event": "active", "jobId": str(number)})
    found = bed.run(read.find_events(bed.queue, "2499"))
    assert 1000 <= found.examined < 1020
    assert (len(found.events), found.whole) == (1, False)
    for _ in range(50):
        large: dict[Any, Any] = {"event": "completed", "jobId": "x", "returnvalue": "r" * 50_000}
        bed.admin.xadd(bed.queue.events, large)
    assert bed.run(read.find_events(bed.queue, "x")).examined < 25


def test_jobs_that_failed_before_are_seen_wherever_they_are(bed: Bed) -> None:
    stack = '["Error: first\\n at a.js","Traceback (most recent call last):\\nKeyError: 1"]'
    failed = {"failedReason": "KeyError: 1", "stacktrace": stack, "processedOn": NOW}
    for place in ("wait", "active", "paused"):
        bed.job(f"{place}1", place, **failed)
        bed.job(f"{place}2", place)
    bed.job("d1", "delayed", **failed)
    bed.job("p1", "prioritized", **failed)
    for state, job_id in {
        JobState.WAITING: "wait1",
        JobState.ACTIVE: "active1",
        JobState.PAUSED: "paused1",
        JobState.DELAYED: "d1",
        JobState.PRIORITIZED: "p1",
    }.items():
        step = bed.run(browse.list_retried(bed.queue, state, 0))
        assert [job.id for job in step.jobs] == [job_id]
        assert step.jobs[0].reason == "KeyError: 1"
        assert step.jobs[0].stack_tail.endswith("KeyError: 1")
    assert bed.run(browse.list_retried(bed.queue, JobState.WAITING, 2)).examined == 0


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_the_last_run_of_a_schedule_is_found(bed: Bed, state: str) -> None:
    name = f"repeat:s:{NOW - 1000}"
    bed.job(name, state, processedOn=NOW - 900, finishedOn=NOW - 800)
    found = bed.run(schedulers.find_run(bed.queue, "s", [NOW, NOW - 1000]))
    assert found is not None
    assert (found.id, found.state) == (name, state)
    assert bed.run(schedulers.find_run(bed.queue, "s", [NOW])) is None
    bed.job(f"repeat:s:{NOW}", "active")
    bed.lock(f"repeat:s:{NOW}")
    running = bed.run(schedulers.find_run(bed.queue, "s", [NOW, NOW - 1000]))
    assert running is not None
    assert running.state is JobState.ACTIVE
