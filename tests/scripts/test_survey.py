"""Summaries of many queues and jobs without reading the jobs."""

from __future__ import annotations

import pytest

from taskbull.core.keys import JobState
from taskbull.core.validation import instant_from_ms
from taskbull.scripts import browse
from taskbull.scripts.browse import FailedJob, FailuresStep, list_failures
from tests.scripts.bed import NOW, Bed


def test_an_empty_queue_has_nothing(bed: Bed) -> None:
    found = bed.run(browse.survey_queue(bed.queue))
    assert not any(found.counts.values())
    assert (found.paused, found.version, found.waiting_since) == (False, None, None)


def test_a_queue_is_seen_at_a_glance(bed: Bed) -> None:
    bed.job("1", timestamp=NOW - 500)
    bed.job("2", timestamp=NOW)
    bed.job("3", "failed")
    bed.admin.hset(bed.queue.meta, mapping={"paused": "1", "version": "bullmq:5.62.0"})
    found = bed.run(browse.survey_queue(bed.queue))
    assert (found.counts[JobState.WAITING], found.counts[JobState.FAILED]) == (2, 1)
    assert (found.paused, found.version) == (True, "bullmq:5.62.0")
    assert found.waiting_since == instant_from_ms(NOW - 500)


@pytest.mark.parametrize("place", ["wait", "paused", "prioritized"])
def test_a_job_that_was_delayed_waits_since_it_was_due(bed: Bed, place: str) -> None:
    bed.job("1", place, opts='{"delay":400}')
    assert bed.run(browse.survey_queue(bed.queue)).waiting_since == instant_from_ms(NOW + 400)


@pytest.mark.parametrize("fields", [{"timestamp": "soon"}, {"opts": "{"}, {"opts": "x" * 9000}])
def test_a_strange_job_hides_nothing_else(bed: Bed, fields: dict[str, str]) -> None:
    bed.job("1", **fields)
    assert bed.run(browse.survey_queue(bed.queue)).counts[JobState.WAITING] == 1


def test_what_is_no_job_is_passed_over(bed: Bed) -> None:
    bed.put("gone", "wait")
    bed.put("text", "paused")
    bed.admin.set(bed.queue.job("text"), "no hash")
    assert bed.run(browse.survey_queue(bed.queue)).waiting_since is None


def test_it_is_seen_who_runs_a_job_and_for_how_long_it_is_locked(bed: Bed) -> None:
    bed.job("old", "active", pb="web1", processedOn=NOW)
    bed.job("new", "active")
    bed.admin.set(bed.queue.lock("old"), "token", px=30_000)
    first, second = bed.run(browse.list_jobs(bed.queue, JobState.ACTIVE)).rows
    assert first.lock_seconds is not None
    assert 29 < first.lock_seconds <= 30
    assert (first.job.id, first.job.processed_by) == ("old", "web1")
    assert first.job.processed_on == instant_from_ms(NOW)
    assert (second.job.id, second.job.name, second.lock_seconds) == ("new", "n", None)


def test_why_jobs_failed_is_cut_to_a_line(bed: Bed) -> None:
    bed.job("1", "failed", score=1, failedReason="é" * 500, finishedOn=NOW)
    bed.job("2", "failed", score=2, failedReason="x" * 100_000)
    bed.put("gone", "failed", score=3)
    large = FailedJob("2", "n", "", None)
    long = FailedJob("1", "n", "é" * 150, instant_from_ms(NOW))
    assert bed.run(list_failures(bed.queue, range(3))) == FailuresStep(3, [large, long])
    assert bed.run(list_failures(bed.queue, [1])) == FailuresStep(1, [large])
    assert bed.run(list_failures(bed.queue, ids=["1", "none"])) == FailuresStep(2, [long])
