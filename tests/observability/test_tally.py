"""Counting without an SDK, and adding up what several processes have counted."""

from __future__ import annotations

from taskbull.observability import metrics
from taskbull.observability.exporters import Report, Reports
from taskbull.observability.health import Health
from taskbull.observability.metrics import Distribution, Snapshot, Tally, merge


def tally() -> Tally:
    made = Tally()
    made.counter(metrics.PROCESSED).add(2, ("q", "completed"))
    made.histogram(metrics.DURATION).record([0.02], ("q",))
    made.gauge(metrics.CONNECTED).set(1)
    return made


def test_a_value_falls_into_the_first_bucket_that_holds_it() -> None:
    times = Tally().histogram(metrics.DURATION)
    times.record([0.001, 0.0011, 1e9])
    counts = times.values[()].counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (1, 1, 1, 3)


def test_counters_add_up_and_gauges_do_not() -> None:
    other = tally()
    other.gauge(metrics.CONNECTED).set(0)
    both = merge([tally().snapshot(), other.snapshot()])
    assert both.numbers["bullmq_jobs_processed_total"] == {("q", "completed"): 4}
    assert both.numbers["bullmq_redis_connection_status"] == {(): 0}  # the worst counts
    [times] = both.distributions["bullmq_job_duration_seconds"].values()
    assert (sum(times.counts), times.total) == (2, 0.04)


def test_a_snapshot_does_not_change_with_what_it_was_made_of() -> None:
    made = tally()
    before = made.snapshot()
    merged = merge([before])
    made.histogram(metrics.DURATION).record([0.02], ("q",))
    made.counter(metrics.PROCESSED).add(1, ("q", "completed"))
    merge([merged, made.snapshot()])
    [times] = before.distributions["bullmq_job_duration_seconds"].values()
    assert isinstance(times, Distribution)
    assert sum(times.counts) == 1
    assert before.numbers["bullmq_jobs_processed_total"] == {("q", "completed"): 2}


def test_what_a_child_has_counted_outlives_it() -> None:
    reports = Reports()
    assert not reports.health().ready
    assert reports.health().live
    for child in range(100):
        reports.take(child, Report(tally().snapshot(), Health()))
        reports.take(child, Report(tally().snapshot(), Health()))  # the newest counts
        reports.child_ended(child)
        reports.child_ended(child)
    reports.take("alive", Report(tally().snapshot(), Health()))
    assert reports.health().ready
    values = reports.snapshot().numbers
    assert values["bullmq_jobs_processed_total"] == {("q", "completed"): 202}
    assert values["bullmq_redis_connection_status"] == {(): 1}
    reports.child_ended("alive")
    assert "bullmq_redis_connection_status" not in reports.snapshot().numbers


def test_the_health_of_all_is_that_of_the_worst() -> None:
    reports = Reports()
    reports.take(1, Report(Snapshot(), Health()))
    reports.take(2, Report(Snapshot(), Health(idle="Redis cannot be reached")))
    assert (reports.health().live, reports.health().ready) == (True, False)
    reports.take(3, Report(Snapshot(), Health(stuck="the event loop has not moved")))
    assert not reports.health().live
