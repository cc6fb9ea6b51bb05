"""Ending and taking many jobs in one call: the same as one by one, and never more than allowed."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskbull.core.job import Job, NewJob
from taskbull.core.options import Dedup, JobOptions
from taskbull.core.outcome import (
    Category,
    Completed,
    Failed,
    Failure,
    Limited,
    Released,
    Retried,
    Snoozed,
    Verdict,
    Written,
)
from taskbull.core.retention import Keep
from taskbull.core.retry import attempts_of
from taskbull.core.wire.job import RUN_FIELDS, encode_job
from taskbull.scripts.add import Lane, add_jobs
from taskbull.scripts.cycle import CYCLE, Cycled, Taking, cycle, pack_outcome
from tests.scripts.bed import NOW, Bed, without

TAKING = Taking(30_000)
MEMO = "tb:cycle:t"
FAILURE = Failure(Category.TRANSIENT, "broke", "Traceback", RuntimeError("broke"))

OUTCOMES: dict[str, Written] = {
    "completed": Completed(b'{"ok":true}'),
    "failed": Failed(FAILURE, Verdict.EXHAUSTED),
    "retried": Retried(FAILURE, 0.0),
    "retried later": Retried(FAILURE, 5.0, remembered_delay=5.0),
    "snoozed": Snoozed(7.0),
    "released": Released(),
}


def seed(bed: Bed, kinds: list[dict[str, Any]]) -> None:
    jobs = [
        encode_job(NewJob(f"job-{number}", {"n": number}, JobOptions(**kind)), NOW)
        for number, kind in enumerate(kinds)
    ]
    bed.run(add_jobs(bed.queue, jobs, NOW, Lane("p", 0, 1)))


def take(bed: Bed, want: int, token: str = "t:0", taking: Taking = TAKING) -> Cycled:
    return bed.run(cycle(bed.queue, NOW, [], want, token, taking))


def pack(job: Job, outcome: Written, token: str = "t:0") -> Any:
    return pack_outcome(job, token, outcome, attempts_of(job), NOW)


def test_the_fields_that_are_read_are_those_that_the_worker_expects() -> None:
    reads = re.findall(r'pcall?\("HMGET", key,((?:\s*"\w+",?)+)', CYCLE.source)
    names = re.findall(r'"(\w+)"', max(reads, key=len))
    assert [name.encode() for name in names] == list(RUN_FIELDS)


def test_many_are_taken_in_order_and_locked(bed: Bed) -> None:
    seed(bed, [{}, {"priority": 2}, {}, {"priority": 1}, {"lifo": True}])
    cycled = take(bed, 10, "w:7")
    assert [job.id for job in cycled.jobs] == ["5", "1", "3", "4", "2"]
    state = bed.state()
    assert state["active"] == ["2", "4", "3", "1", "5"]
    assert {state[f"{number}:lock"] for number in range(1, 6)} == {"w:7"}
    assert "wait" not in state
    assert "prioritized" not in state


def test_no_more_are_taken_than_wanted(bed: Bed) -> None:
    seed(bed, [{}] * 5)
    assert len(take(bed, 2).jobs) == 2
    assert len(bed.state()["wait"]) == 3


def test_nothing_is_taken_from_a_paused_queue(bed: Bed) -> None:
    seed(bed, [{}])
    bed.admin.hset(bed.queue.meta, "paused", 1)
    assert take(bed, 5).jobs == []


def test_global_concurrency_holds_for_a_batch_and_what_ends_makes_room(bed: Bed) -> None:
    seed(bed, [{}] * 6)
    bed.admin.hset(bed.queue.meta, "concurrency", 3)
    running = take(bed, 10).jobs
    assert len(running) == 3
    assert take(bed, 10).jobs == []
    ends = [pack(job, Completed()) for job in running[:2]]
    cycled = bed.run(cycle(bed.queue, NOW, ends, 10, "t:1", TAKING))
    assert (cycled.codes, len(cycled.jobs)) == ([0, 0], 2)


def test_a_limiter_counts_the_jobs_of_a_batch(bed: Bed) -> None:
    seed(bed, [{}] * 6)
    taking = Taking(30_000, max_starts=4, window_ms=5_000)
    assert len(take(bed, 3, taking=taking).jobs) == 3
    assert len(take(bed, 3, taking=taking).jobs) == 1
    limited = take(bed, 3, taking=taking)
    assert limited.jobs == []
    assert 0 < limited.limited_ms <= 5_000


def test_due_jobs_are_promoted_and_the_next_instant_is_told(bed: Bed) -> None:
    seed(bed, [{"delay": 1}, {"delay": 60}])
    later = bed.run(cycle(bed.queue, NOW + 1_000, [], 5, "t:0", TAKING))
    assert [job.id for job in later.jobs] == ["1"]
    nothing = bed.run(cycle(bed.queue, NOW + 1_000, [], 5, "t:0", TAKING))
    assert nothing.next_due_ms == NOW + 60_000


def test_garbage_in_the_list_is_dropped_and_the_rest_is_taken(bed: Bed) -> None:
    seed(bed, [{}, {}])
    bed.admin.rpush(bed.queue.wait, "meta:x", "text")
    bed.admin.set(bed.queue.job("text"), "no hash")
    assert {job.id for job in take(bed, 10).jobs} >= {"1", "2"}
    assert b"text" not in bed.admin.lrange(bed.queue.active, 0, -1)


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_is_refused_without_the_lock_and_nothing_is_written(bed: Bed, name: str) -> None:
    seed(bed, [{}, {}, {}])
    mine, stolen, expired = take(bed, 3).jobs
    bed.admin.set(bed.queue.lock(stolen.id), "another:1")
    bed.admin.delete(bed.queue.lock(expired.id))
    before = bed.state()
    ends = [pack(job, OUTCOMES[name]) for job in (stolen, expired)]
    ends.append(("nobody", "t:0", 1, "null", (-1, -1, -1)))
    cycled = bed.run(cycle(bed.queue, NOW, ends, 0, "t:1", TAKING))
    assert cycled.codes == [-6, -2, -1]
    assert without(bed.state(), MEMO) == before
    assert mine.id == "1"


def test_an_outcome_that_is_sent_twice_is_refused_the_second_time(bed: Bed) -> None:
    seed(bed, [{}])
    [job] = take(bed, 1).jobs
    end = pack(job, Completed())
    assert bed.run(cycle(bed.queue, NOW, [end, end], 0, "t:1", TAKING)).codes == [0, -3]
    assert bed.run(cycle(bed.queue, NOW, [end], 0, "t:1", TAKING)).codes == [-2]
    assert bed.state()["completed"] == {"1": NOW}


def test_a_task_that_asks_its_queue_to_wait_is_heard(bed: Bed) -> None:
    seed(bed, [{}])
    [job] = take(bed, 1).jobs
    bed.run(cycle(bed.queue, NOW, [pack(job, Limited(30.0))], 0, "t:1", TAKING))
    assert bed.admin.get(bed.queue.limiter) == b"9007199254740991"
    assert 0 < bed.admin.pttl(bed.queue.limiter) <= 30_000
    assert bed.state()["wait"] == ["1"]


kinds = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 2),
        "attempts": st.integers(1, 2),
        "lifo": st.booleans(),
        "keep_completed": st.sampled_from(
            [None, Keep.all(), Keep.none(), Keep(count=1), Keep(count=2), Keep(age=0)]
        ),
        "keep_failed": st.sampled_from([None, Keep.none(), Keep(count=1)]),
        "dedup": st.builds(Dedup, st.sampled_from(["one", "two", "three"])),
    },
)
plans = st.lists(st.tuples(kinds, st.sampled_from(sorted(OUTCOMES))), min_size=1, max_size=10)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(plan=plans, concurrency=st.sampled_from([None, 3, 20]), metrics=st.booleans())
def test_a_batch_leaves_what_its_jobs_leave_one_by_one(
    bed: Bed, plan: list[Any], concurrency: int | None, metrics: bool
) -> None:
    taking = Taking(30_000, data_points=5 if metrics else 0)

    def run(at_once: int) -> dict[str, Any]:
        bed.admin.flushall()
        seed(bed, [kind for kind, _ in plan])
        jobs = take(bed, len(plan)).jobs
        if concurrency is not None:
            bed.admin.hset(bed.queue.meta, "concurrency", concurrency)
        ends = [pack(job, OUTCOMES[plan[int(job.name.removeprefix("job-"))][1]]) for job in jobs]
        for first in range(0, len(ends), at_once):
            part = ends[first : first + at_once]
            codes = bed.run(cycle(bed.queue, NOW, part, 0, "t:1", taking)).codes
            assert codes == [0] * len(part)
        return by_job(without(bed.state(), MEMO))

    assert run(len(plan)) == run(1)


def by_job(state: dict[str, Any]) -> dict[str, Any]:
    """Sort the events by job. `drained` has none: one by one, the last to go may be a retry."""
    events: dict[Any, list[Any]] = defaultdict(list)
    for event in state.pop("events"):
        fields = dict(event) if not isinstance(event, dict) else event
        events[fields.get("jobId")].append(event)
    events.pop(None, None)
    return state | {"events": dict(events)}
