"""Problems of a queue: each rule just below and at its threshold."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskbull.core.diagnosis import explain_queue, find_trouble
from taskbull.core.queue_health import PauseNote, RedisNode, Throughput, clock_ahead
from taskbull.core.worker_record import BreakerRecord, Seen, WorkerRecord
from taskbull.monitor.browse import ConnectedWorker, Workers
from taskbull.monitor.inspect import QueueWatch
from taskbull.scripts.browse import unknown_queue
from tests.core.test_why import NOW, at, ms, queue

OPEN = WorkerRecord(id="a", circuit=BreakerRecord("open"))
HALF = WorkerRecord(id="b", circuit=BreakerRecord("half-open"))


def minutes(count: int) -> Throughput:
    return Throughput([count, *[0] * 59], "metrics")


RULES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "refused",
        {"refusal": ""},
        {"refusal": "its memory is full"},
        "Redis refuses writes (its memory is full): no job can be added or fetched",
    ),
    (
        "clock",
        {"records": [WorkerRecord(id="a", skew=0.0)]},
        {"records": [WorkerRecord(id="a", skew=-300.0)]},
        "the clock of worker a is 5 min behind Redis's",
    ),
    ("own_clock", {}, {"ahead": 300.0}, "the clock of this machine is 5 min ahead of Redis's"),
    (  # Jobs that an operator cancelled are no problem.
        "failing",
        {"failed": minutes(14), "cancelled_share": 0.8},
        {"failed": minutes(140), "cancelled_share": 0.8},
        "28 failed in 10 min",
    ),
    (
        "no_worker",
        {"records": [], "connected": [], "counts": {"completed": 9}},
        {
            "records": [],
            "connected": [],
            "counts": {"prioritized": 4, "waiting": 1_200},
            "last_seen": at(minutes=14),
        },
        "1,204 waiting, no worker for 14 min",
    ),
    (  # Without a worker, nothing moves them to the waiting jobs.
        "no_worker",
        {"records": [], "connected": [], "counts": {"delayed": 5}, "next_due": at(seconds=-1)},
        {"records": [], "connected": [], "counts": {"delayed": 5}, "next_due": at(seconds=78)},
        "5 delayed, the next was due 78 s ago, no worker connected",
    ),
    (
        "old",
        {"counts": {"delayed": 5}, "next_due": at(minutes=5)},
        {"counts": {"delayed": 5}, "next_due": at(minutes=6)},
        "5 delayed, the next was due 6 min ago",
    ),
    (
        "not_responding",
        {"records": [WorkerRecord(id="a"), WorkerRecord(id="b")], "connected": ["a", "b"]},
        {
            "records": [WorkerRecord(id="a"), WorkerRecord(id="b")],
            "connected": ["a", "b"],
            "silent": {"b": at(seconds=14)},
        },
        (
            "worker b is connected but has not responded for 14 s: the process is frozen, or a "
            "task blocks its event loop"
        ),
    ),
    (
        "failing",
        {"failed": minutes(9), "completed": minutes(0)},
        {"failed": minutes(312), "worst_error": "TimeoutError", "worst_share": 0.97},
        "312 failed in 10 min, 97% of them TimeoutError",
    ),
    (
        "failing",
        {"failed": minutes(10), "completed": minutes(190)},
        {"failed": minutes(11), "completed": minutes(189)},
        "11 failed in 10 min",
    ),
    (
        "failed",
        {"counts": {"failed": 99}},
        {"counts": {"failed": 10_000, "completed": 2_000}},
        "10,000 failed jobs are stored, more than completed ones",
    ),
    (
        "failed",
        {"counts": {"failed": 1_000, "completed": 1_000}},
        {"counts": {"failed": 1_001, "completed": 1_000}},
        "1,001 failed jobs are stored, more than completed ones",
    ),
    (
        "task_unknown",
        {},
        {"unknown_tasks": {"no_such": 15, "other": 1}},
        "15 jobs wait for task no_such, and 1 job for task other, which no worker has",
    ),
    ("stalled", {}, {"lockless": 2}, "2 running jobs without a lock (worker gone, or cut off)"),
    (
        "breaker",
        {"records": [HALF], "connected": ["b"]},
        {"records": [OPEN, HALF], "connected": ["a", "b"]},
        "circuit breaker open in 1 of 2 workers",
    ),
    (
        "old",
        {"waiting_since": at(minutes=5), "counts": {"waiting": 7}},
        {"waiting_since": at(minutes=6), "counts": {"waiting": 7}},
        "7 waiting, the next for 6 min",
    ),
    (
        "paused",
        {"paused": True},
        {
            "paused": True,
            "counts": {"paused": 88},
            "note": PauseNote("bob", ms(at(hours=3)), "migration"),
        },
        "paused for 3 h by bob: migration",
    ),
    ("paused", {"paused": True}, {"paused": True, "counts": {"waiting": 1}}, "paused, 1 waiting"),
    (
        "late",
        {"next_scheduled": at(seconds=60)},
        {"next_scheduled": at(minutes=9)},
        "a schedule is 9 min late",
    ),
    (
        "mixed",
        {"versions": frozenset({"bullmq:5.62.0", "bullmq:5.1.0", "odd"})},
        {"versions": frozenset({"bullmq:5.62.0", "bullmq:6.7.0"})},
        "BullMQ 5 and 6 both use this queue; resuming it with BullMQ 5 may lose jobs",
    ),
    (
        "split",
        {"counts": {"waiting": 1}},
        {"counts": {"waiting": 1, "paused": 1}},
        "jobs are in both the wait and paused lists; resume the queue with taskbull",
    ),
]


@pytest.mark.parametrize(("code", "before", "then", "text"), RULES)
def test_each_rule_holds_when_it_should(
    code: str, before: dict[str, Any], then: dict[str, Any], text: str
) -> None:
    assert find_trouble(queue(**before)) == []
    [found] = find_trouble(queue(**then))
    assert (found.queue, found.code, found.text) == ("emails", code, text)


def test_the_worst_comes_first() -> None:
    facts = queue(
        paused=False,
        counts={"waiting": 9},
        records=[],
        connected=[],
        failed=minutes(50),
        next_scheduled=NOW - timedelta(hours=1),
    )
    assert [found.code for found in find_trouble(facts)] == ["no_worker", "failing", "late"]


def test_slots_of_workers_that_do_not_respond_are_not_busy_ones() -> None:
    full = [WorkerRecord(id=each, concurrency=10, running=10) for each in ("a", "b")]
    waiting = {"counts": {"waiting": 1}, "connected": ["a", "b"], "records": full}
    assert queue(**waiting).busy_slots == 20
    assert queue(**waiting, silent={"b": at(seconds=14)}).busy_slots == 10
    none = queue(**waiting, silent={"a": at(seconds=14), "b": at(seconds=14)})
    assert none.busy_slots == 0
    assert explain_queue(none)[0].text.startswith("All 2 workers are connected but do not respond")
    some = explain_queue(queue(**waiting, silent={"b": at(seconds=14)}))
    assert [reason.code for reason in some] == ["busy", "not_responding", "waiting"]
    assert some[1].text.startswith("1 of 2 workers is connected but does not respond (for 14 s)")
    assert none.is_unresponsive
    assert (none.workers, none.python_workers, none.foreign) == (2, 2, 0)


def test_slots_of_jobs_that_lost_their_lock_are_named() -> None:
    record = WorkerRecord(id="a", concurrency=10, running=10, lost=10)
    facts = queue(counts={"waiting": 14}, connected=["a"], records=[record])
    [found] = find_trouble(facts)
    assert found.text == (
        "all 10 slots busy, nothing finished for a minute; 10 jobs lost their lock but did not end"
    )
    assert explain_queue(facts)[0].text == (
        "All 10 slots of the only worker are busy, 10 of them with jobs that lost their lock, "
        "whose result will be ignored. If they do not end, restart the worker."
    )


def test_times_are_measured_by_the_clock_of_redis() -> None:
    watch = QueueWatch("emails")
    watch.sampled(replace(unknown_queue("emails", ""), problem=None, waiting_since=at(seconds=10)))
    record = WorkerRecord(id="a", at_ms=ms(at(seconds=3)), running=1)
    watch.seen = [Seen("a", record.at_ms, record)]
    watch.workers = Workers({"emails": [ConnectedWorker("a", "", 0, 0)]})
    late = NOW + timedelta(minutes=5)
    assert "a" in watch.facts(late).silent
    watch.nodes = [RedisNode("r", ahead=300.0)]
    facts = watch.facts(late)
    assert (facts.now, facts.silent, len(facts.records)) == (NOW, {}, 1)
    assert [found.code for found in find_trouble(facts)] == ["own_clock"]


@pytest.mark.parametrize(
    ("before", "after", "ahead"),
    [(1300.0, 1300.2, 300.1), (700.0, 700.0, -300.0), (1001.0, 1001.0, 0.0), (1000.0, 1010.0, 0.0)],
)
def test_the_clock_of_a_server_is_compared(before: float, after: float, ahead: float) -> None:
    info = {"server_time_usec": "1000000000"}
    assert clock_ahead(info, before, after) == pytest.approx(ahead)
    assert clock_ahead({}, before, after) == 0


def test_a_queue_that_stands_still_does_not_grow() -> None:
    still = Throughput([0] * 60, "metrics")
    assert queue(counts={"waiting": 4}, finishes=0.0, arrivals=0.0).seconds_left is None
    assert queue(counts={"waiting": 4}, completed=still, arrivals=2.0, finishes=0.0).seconds_left


def test_unknown_workers_are_not_reported_as_none() -> None:
    assert find_trouble(queue(records=[], connected=None, counts={"waiting": 9})) == []


def test_a_worker_that_cannot_write_its_record_is_known_by_its_name() -> None:
    facts = queue(records=[WorkerRecord(id="a")], connected=["a", "web-1-812-0f3a9c", "", "mine"])
    assert (facts.workers, facts.python_workers, facts.other_workers) == (4, 2, 2)
