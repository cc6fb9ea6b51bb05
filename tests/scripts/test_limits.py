"""Limits of a queue are set where every worker looks for them."""

from __future__ import annotations

import pytest

from taskbull.scripts import change
from tests.scripts.bed import Bed


def test_global_concurrency(bed: Bed) -> None:
    bed.run(change.set_global_concurrency(bed.queue, 2))
    assert bed.state() == {"meta": {"concurrency": "2"}}
    bed.put("1", "active")
    assert not bed.run(change.is_maxed(bed.queue))
    bed.put("2", "active")
    assert bed.run(change.is_maxed(bed.queue))
    bed.run(change.set_global_concurrency(bed.queue, None))
    assert not bed.run(change.is_maxed(bed.queue))
    assert bed.state() == {"active": ["2", "1"]}


def test_a_global_rate_limit(bed: Bed) -> None:
    bed.run(change.set_global_rate_limit(bed.queue, (5, 60_000)))
    assert bed.state() == {"meta": {"max": "5", "duration": "60000"}}
    bed.run(change.set_global_rate_limit(bed.queue, None))
    assert bed.state() == {}


def test_a_pause_of_some_time(bed: Bed) -> None:
    bed.run(change.rate_limit(bed.queue, 60_000))
    assert bed.state() == {"limiter": "9007199254740991"}
    assert 50_000 < bed.run(change.rate_limit_ttl(bed.queue)) <= 60_000
    bed.run(change.remove_rate_limit(bed.queue))
    assert bed.state() == {}
    assert bed.run(change.rate_limit_ttl(bed.queue)) < 0


@pytest.mark.parametrize(
    ("started", "of_worker", "of_queue", "limited"),
    [(3, 4, None, False), (4, 4, None, True), (4, None, 5, False), (5, None, 5, True)],
)
def test_the_time_until_jobs_may_start(
    bed: Bed, started: int, of_worker: int | None, of_queue: int | None, limited: bool
) -> None:
    bed.admin.set(bed.queue.limiter, started, px=60_000)
    if of_queue:
        bed.hset("meta", {"max": of_queue})
    assert (bed.run(change.rate_limit_ttl(bed.queue, of_worker)) > 0) is limited


def test_events_are_trimmed(bed: Bed) -> None:
    for n in range(300):
        bed.admin.xadd(bed.queue.events, {"event": str(n)})
    dropped = bed.run(change.trim_events(bed.queue, 50))
    assert dropped >= 100
    assert len(bed.events()) == 300 - dropped
