"""Ending and taking many jobs in one call: the same as one by one, and never more than allowed."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskbull.core.job import Job, NewJob
from taskbull.core.options import Dedup, JobOptions, Keep
from taskbull.core.outcome import (
    Category,
    Complete,
    Fail,
    Failure,
    LimitQueue,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.core.retry import attempts_of
from taskbull.core.wire.job import RUN_FIELDS, encode_job
from taskbull.errors import ServerRefused
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.cycle import (
    CYCLE,
    CycleReply,
    FetchOptions,
    Hold,
    cycle,
    pack_outcome,
    settle_cycle,
)
from tests.scripts.bed import NOW, Bed, without

TAKING = FetchOptions(30_000)
SPARING = FetchOptions(30_000, hold=Hold(500, 20))
MEMO = "tb:cycle:t"
FAILURE = Failure(Category.TRANSIENT, "broke", "Traceback", RuntimeError("broke"))

OUTCOMES: dict[str, Written] = {
    "completed": Complete(b'{"ok":true}'),
    "failed": Fail(FAILURE, Verdict.EXHAUSTED),
    "retried": RetryAfter(FAILURE, 0.0),
    "retried later": RetryAfter(FAILURE, 5.0, remembered_delay=5.0),
    "snoozed": SnoozeFor(7.0),
    "released": Release(),
}


def seed(bed: Bed, kinds: list[dict[str, Any]]) -> None:
    jobs = [
        encode_job(NewJob(f"job-{number}", {"n": number}, JobOptions(**kind)), NOW)
        for number, kind in enumerate(kinds)
    ]
    bed.run(add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1)))


def take(bed: Bed, want: int, token: str = "t:0", taking: FetchOptions = TAKING) -> CycleReply:
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


def test_those_that_have_stalled_are_put_off_where_they_are_not_wanted(bed: Bed) -> None:
    seed(bed, [{}, {"priority": 2}, {}, {"priority": 1}, {}])
    for name in ("1", "4", "5"):
        bed.admin.hset(bed.queue.job(name), "stc", 1)
    bed.admin.hset(bed.queue.job("5"), "defa", "it is to fail, and harms nobody")
    before = len(bed.events())
    cycled = bed.run(cycle(bed.queue, NOW, [], 10, "t:0", SPARING))
    assert [job.id for job in cycled.jobs] == ["3", "5", "2"]
    assert (cycled.held, cycled.dropped) == (2, [])
    state = bed.state()
    assert state["delayed"] == {"1": (NOW + 500) * 4096, "4": (NOW + 520) * 4096}
    assert "1:lock" not in state
    assert "4:lock" not in state
    assert "wait" not in state
    assert "prioritized" not in state
    assert (state["1"]["delay"], state["4"]["delay"]) == ("500", "520")
    assert {state["1"].get("ats"), state["4"].get("ats")} == {None}
    assert [entry for entry in bed.events()[before:] if entry["event"] == "delayed"] == [
        {"event": "delayed", "jobId": "1", "delay": str(NOW + 500)},
        {"event": "delayed", "jobId": "4", "delay": str(NOW + 520)},
    ]
    assert (state["1"]["tbho"], state["4"]["tbho"]) == (str(NOW + 500), str(NOW + 520))
    again = bed.run(cycle(bed.queue, NOW + 520, [], 10, "t:1", TAKING))
    assert ([job.id for job in again.jobs], again.held) == (["1"], 1)  # one in a call


def test_a_queue_that_has_put_off_its_last_job_is_not_drained(bed: Bed) -> None:
    seed(bed, [{}, {}])
    bed.admin.hset(bed.queue.job("2"), "stc", 1)
    [job] = take(bed, 1).jobs
    ends = [pack(job, Complete(b"1"))]
    cycled = bed.run(cycle(bed.queue, NOW, ends, 5, "t:1", SPARING))
    assert (cycled.jobs, cycled.held) == ([], 1)
    assert "drained" not in [entry["event"] for entry in bed.events()]


def test_a_minute_that_has_begun_is_counted_alike_without_a_look(bed: Bed) -> None:
    seed(bed, [{}] * 6)
    jobs = take(bed, 6).jobs
    for number, (job, minute, has_begun) in enumerate(
        zip(jobs, (0, 0, 0, 2, 2, 3), (False, True, True, False, True, False), strict=True), 1
    ):
        taking = FetchOptions(30_000, data_points=10, has_begun=has_begun)
        ends = [pack(job, Complete(b"1"))]
        bed.run(cycle(bed.queue, NOW + minute * 60_000, ends, 0, f"t:{number}", taking))
    state = bed.state()
    assert state["metrics:completed"]["count"] == "6"
    assert state["metrics:completed:data"] == ["2", "0", "3"]


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
    ends = [pack(job, Complete()) for job in running[:2]]
    cycled = bed.run(cycle(bed.queue, NOW, ends, 10, "t:1", TAKING))
    assert (cycled.codes, len(cycled.jobs)) == ([0, 0], 2)


@pytest.mark.parametrize("kind", [0, 7, 99])
def test_an_outcome_of_an_unknown_kind_is_refused(bed: Bed, kind: int) -> None:
    seed(bed, [{}] * 2)
    [job, other] = take(bed, 2).jobs
    unknown = msgspec.Raw(msgspec.msgpack.encode((job.id, "t:0", kind, 0)))
    cycled = bed.run(cycle(bed.queue, NOW, [unknown, pack(other, Release())], 0, "t:1", TAKING))
    assert (cycled.codes, cycled.reasons) == ([-10, 0], [f"no outcome has the kind {kind}"])
    state = bed.state()
    assert (state["active"], state["wait"]) == ([job.id], [other.id])
    assert state[f"{job.id}:lock"] == "t:0"


def test_a_limiter_counts_the_jobs_of_a_batch(bed: Bed) -> None:
    seed(bed, [{}] * 6)
    taking = FetchOptions(30_000, max_starts=4, window_ms=5_000)
    assert len(take(bed, 3, taking=taking).jobs) == 3
    assert len(take(bed, 3, taking=taking).jobs) == 1
    limited = take(bed, 3, taking=taking)
    assert limited.jobs == []
    assert 0 < limited.limited_ms <= 5_000


def test_due_jobs_are_promoted_and_the_next_instant_is_reported(bed: Bed) -> None:
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
    end = pack(job, Complete())
    assert bed.run(cycle(bed.queue, NOW, [end, end], 0, "t:1", TAKING)).codes == [0, -3]
    assert bed.run(cycle(bed.queue, NOW, [end], 0, "t:1", TAKING)).codes == [-2]
    assert bed.state()["completed"] == {"1": NOW}


def test_a_task_that_asks_its_queue_to_wait_is_heard(bed: Bed) -> None:
    seed(bed, [{}])
    [job] = take(bed, 1).jobs
    bed.run(cycle(bed.queue, NOW, [pack(job, LimitQueue(30.0))], 0, "t:1", TAKING))
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans, concurrency=st.sampled_from([None, 3, 20]), metrics=st.booleans())
def test_a_batch_leaves_what_its_jobs_leave_one_by_one(
    bed: Bed, plan: list[Any], concurrency: int | None, metrics: bool
) -> None:
    taking = FetchOptions(30_000, data_points=5 if metrics else 0)

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


def test_a_job_with_six_other_fields_than_a_new_one_is_not_taken_for_new(bed: Bed) -> None:
    seed(bed, [{}, {}])
    bed.admin.hdel(bed.queue.job("1"), "delay")
    bed.admin.hset(bed.queue.job("1"), "deid", "key")
    odd, new = take(bed, 2).jobs
    assert (odd.fresh, odd.dedup_key, new.fresh) == (False, "key", True)


def test_a_parent_that_a_job_gets_while_it_runs_is_reported(bed: Bed) -> None:
    seed(bed, [{}, {}])
    jobs = take(bed, 2).jobs
    bed.job("parent", "waiting-children")
    parent = bed.queue.job("parent")
    bed.admin.sadd(f"{parent}:dependencies", bed.queue.job("1"))
    stored = f'{{"id":"parent","queueKey":"{bed.queue.qualified_name}"}}'
    bed.hset("1", {"parentKey": parent, "parent": stored})
    ends = [pack(job, Complete(b"7")) for job in jobs]
    assert bed.run(cycle(bed.queue, NOW, ends, 0, "t:1", TAKING)).codes == [0, 0]
    state = bed.state()
    assert state["parent:processed"] == {bed.queue.job("1"): "7"}
    assert (state["wait"], set(state["completed"])) == (["parent"], {"1", "2"})


def test_a_job_that_gets_children_while_it_runs_is_not_completed(bed: Bed) -> None:
    seed(bed, [{}] * 3)
    jobs = take(bed, 3).jobs
    bed.admin.sadd(bed.queue.dependencies("2"), "child")
    ends = [pack(job, Complete()) for job in jobs]
    assert bed.run(cycle(bed.queue, NOW, ends, 0, "t:1", TAKING)).codes == [0, -4, 0]
    assert bed.state()["active"] == ["2"]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0], [3], [2, 3], [3, 0, 1]])
def test_jobs_end_in_any_order_and_those_with_progress_too(bed: Bed, order: list[int]) -> None:
    seed(bed, [{}] * 4)
    jobs = take(bed, 4).jobs
    bed.admin.hset(bed.queue.job("2"), "progress", "50")
    ends = [pack(jobs[place], Complete()) for place in order]
    assert bed.run(cycle(bed.queue, NOW, ends, 0, "t:1", TAKING)).codes == [0] * len(order)
    state = bed.state()
    ended = {jobs[place].id for place in order}
    assert set(state["completed"]) == ended
    assert set(state.get("active", [])) == {job.id for job in jobs} - ended
    assert {state[job_id]["atm"] for job_id in ended} == {"1"}


def test_many_due_jobs_are_promoted_in_pieces_and_in_order(bed: Bed) -> None:
    seed(bed, [{"delay": 1 + number % 3} for number in range(250)])
    order: list[str] = []
    now = NOW + 10_000
    for left in (150, 50, 0):
        taken = bed.run(cycle(bed.queue, now, [], 100, "t:0", TAKING)).jobs
        order += [job.id for job in taken]
        assert bed.admin.zcard(bed.queue.delayed) == left
    assert order == sorted(order, key=lambda job_id: ((int(job_id) - 1) % 3, int(job_id)))


def test_due_jobs_that_are_left_in_a_paused_queue_are_asked_for_immediately(bed: Bed) -> None:
    seed(bed, [{"delay": 1}] * 150)
    bed.admin.hset(bed.queue.meta, "paused", 1)
    first = bed.run(cycle(bed.queue, NOW + 5_000, [], 10, "t:0", TAKING))
    assert first.next_due_ms == NOW + 1_000
    assert bed.run(cycle(bed.queue, NOW + 5_000, [], 10, "t:0", TAKING)).next_due_ms == 0


def test_what_was_written_is_known_where_the_rest_of_a_call_is_refused(bed: Bed) -> None:
    seed(bed, [{}, {}])
    done, broken = take(bed, 2, "me:1").jobs
    bed.admin.set(bed.queue.failed, "no set")
    ends = [pack(done, Complete(), "me:1"), pack(broken, OUTCOMES["failed"], "me:1")]
    with pytest.raises(ServerRefused):
        bed.run(cycle(bed.queue, NOW, ends, 0, "me:2", TAKING))
    ended = [(done.id, "me:1"), (broken.id, "me:1")]
    assert bed.go(settle_cycle(bed.queue, "me:2", ended, 0)).codes == [0, -11]
    assert bed.state()["active"] == [broken.id]
