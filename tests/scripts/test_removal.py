"""Jobs are removed with all their data, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.keys import JobState, QueueKeys
from taskbull.errors import JobNotFound, JobsActive, WrongState
from taskbull.scripts import removal
from tests.scripts.bed import NOW, Bed, without

STATES = {
    "completed": "completed",
    "failed": "failed",
    "delayed": "delayed",
    "prioritized": "prioritized",
    "waiting-children": "waiting-children",
    "wait": "wait",
    "paused": "paused",
    "active": "active",
    "": "unknown",
}
KEPT = {"opts.maxLenEvents": "10000"}


def furnish(bed: Bed, job_id: str) -> None:
    """Give a job everything that a job can have beside its hash."""
    key = bed.queue.job(job_id)
    bed.admin.rpush(f"{key}:logs", "a line")
    bed.admin.sadd(f"{key}:dependencies", "x:y:gone")
    bed.admin.hset(f"{key}:processed", "x:y:gone", "1")
    bed.admin.hset(f"{key}:failed", "x:y:gone", "why")
    bed.admin.zadd(f"{key}:unsuccessful", {"x:y:gone": 1})


# one job


@pytest.mark.parametrize("state", STATES)
def test_a_job_is_removed_wherever_it_is(bed: Bed, state: str) -> None:
    bed.job("other", state)
    before = bed.state()
    bed.job("1", state)
    furnish(bed, "1")
    assert bed.run(removal.remove_job(bed.queue, "1", children=False))
    event = {"event": "removed", "jobId": "1", "prev": STATES[state]}
    assert bed.state() == {**before, "meta": KEPT, "events": [event]}


def test_a_job_that_a_worker_holds_is_not_removed(bed: Bed) -> None:
    bed.job("1", "active")
    bed.lock("1")
    before = bed.state()
    assert not bed.run(removal.remove_job(bed.queue, "1"))
    assert bed.state() == before


def test_the_next_run_of_a_scheduler_is_not_removed(bed: Bed) -> None:
    iteration = bed.job(f"repeat:daily:{NOW}", "delayed", rjk="daily")
    bed.job(f"repeat:daily:{NOW - 1}", "completed", rjk="daily")
    bed.admin.zadd(bed.queue.repeat, {"daily": NOW})
    before = bed.state()
    with pytest.raises(WrongState, match="the next run of a schedule") as caught:
        bed.run(removal.remove_job(bed.queue, iteration))
    assert caught.value.code == -8
    assert bed.state() == before
    assert bed.run(removal.remove_job(bed.queue, f"repeat:daily:{NOW - 1}"))


def test_a_job_that_is_not_there_is_no_error(bed: Bed) -> None:
    assert bed.run(removal.remove_job(bed.queue, "missing"))
    assert bed.state() == {}


@pytest.mark.parametrize("garbage", ["meta", "metrics", "text", "dn:d"])
def test_an_id_that_names_something_else_harms_nothing(bed: Bed, garbage: str) -> None:
    bed.hset("meta", KEPT)
    bed.hset("metrics:failed", {"count": 1})
    bed.hset("dn:d", {"name": "n"})
    bed.admin.set(bed.queue.job("text"), "no hash")
    before = bed.state()
    bed.put(garbage, "wait")
    assert bed.run(removal.remove_job(bed.queue, garbage))
    assert bed.state() == before


def test_a_deduplication_id_is_free_again(bed: Bed) -> None:
    bed.job("1", deid="mine")
    bed.job("2", deid="another's")
    bed.admin.set(bed.queue.deduplication("mine"), "1", px=60_000)
    bed.hset("dn:mine", {"name": "n"})
    bed.admin.set(bed.queue.deduplication("another's"), "9")
    for job_id in ("1", "2"):
        bed.run(removal.remove_job(bed.queue, job_id))
    assert bed.state(events=False) == {"de:another's": "9", "meta": KEPT}


def test_a_parent_that_waited_for_the_job_alone_is_let_go(bed: Bed) -> None:
    bed.job("parent", "waiting-children", priority=4, delay=99)
    bed.child("1", "parent")
    bed.child("2", "parent")
    bed.run(removal.remove_job(bed.queue, "1"))
    assert bed.state()["waiting-children"] == {"parent": NOW}
    bed.run(removal.remove_job(bed.queue, "2"))
    state = bed.state()
    assert state["wait"] == ["parent"]
    assert state["marker"] == {"0": 0}
    assert "waiting-children" not in state
    assert bed.events()[1:] == [
        {"event": "waiting", "jobId": "parent", "prev": "waiting-children"},
        {"event": "removed", "jobId": "2", "prev": "wait"},
    ]


def test_a_parent_that_is_gone_is_not_let_go(bed: Bed) -> None:
    bed.put("parent", "waiting-children")
    bed.child("1", "parent")
    bed.run(removal.remove_job(bed.queue, "1"))
    assert bed.state(events=False) == {"meta": KEPT}


def test_children_at_any_depth_go_with_their_parent(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("middle", "top", "waiting-children")
    bed.child("low", "middle")
    bed.job("done", "completed", parentKey=bed.queue.job("top"))
    bed.admin.hset(bed.queue.processed("top"), bed.queue.job("done"), "1")
    assert bed.run(removal.remove_job(bed.queue, "top"))
    assert bed.state(events=False) == {"meta": KEPT, "marker": {"0": 0}}
    removed = [event["jobId"] for event in bed.events() if event["event"] == "removed"]
    assert removed == ["done", "low", "middle", "top"]


def test_a_family_stays_if_a_worker_holds_one_of_it(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("middle", "top", "waiting-children")
    bed.child("low", "middle", "active")
    bed.lock("low")
    before = bed.state()
    assert not bed.run(removal.remove_job(bed.queue, "top"))
    assert bed.state() == before
    assert bed.run(removal.remove_job(bed.queue, "top", children=False))
    gone = ("top", "top:dependencies")
    left = {**without(before, *gone), "waiting-children": {"middle": NOW}}
    assert bed.state(events=False) == {**left, "meta": KEPT}


def test_a_family_that_bites_its_own_tail(bed: Bed) -> None:
    bed.child("1", "2")
    bed.child("2", "1")
    assert bed.run(removal.remove_job(bed.queue, "1"))
    assert bed.state(events=False) == {"meta": KEPT}


def test_pending_children_are_removed_but_not_those_that_run_or_failed(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    for job_id, into in (("1", "wait"), ("2", "active"), ("3", "failed"), ("4", "delayed")):
        bed.child(job_id, "top", into)
    bed.lock("2")
    before = bed.state()
    assert bed.run(removal.remove_unprocessed_children(bed.queue, "top")) == 2
    left = {bed.queue.job("2"), bed.queue.job("3")}
    after = {**without(before, "1", "4", "wait", "delayed"), "top:dependencies": left}
    assert bed.state(events=False) == {**after, "meta": KEPT}


def test_a_running_grandchild_outlives_a_pending_child(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("middle", "top", "waiting-children")
    bed.child("low", "middle", "active")
    bed.child("idle", "middle")
    bed.lock("low")
    assert bed.run(removal.remove_unprocessed_children(bed.queue, "top")) == 1
    left = bed.state(events=False)
    assert left.keys() == {"top", "low", "low:lock", "active", "wait", "marker", "meta"}
    assert left["wait"] == ["top"]


def test_a_child_is_cut_off(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("1", "top")
    assert bed.run(removal.remove_child_dependency(bed.queue, "1"))
    state = bed.state()
    assert state["wait"] == ["1", "top"]
    assert not {"parent", "parentKey"} & state["1"].keys()
    with pytest.raises(WrongState, match="no parent"):
        bed.run(removal.remove_child_dependency(bed.queue, "1"))
    with pytest.raises(JobNotFound):
        bed.run(removal.remove_child_dependency(bed.queue, "missing"))


def test_a_child_for_which_nobody_waits_stays_as_it_is(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("1", "top", "completed")
    bed.admin.delete(bed.queue.dependencies("top"))
    before = bed.state()
    assert not bed.run(removal.remove_child_dependency(bed.queue, "1"))
    assert bed.state() == before


def test_a_deduplication_key_is_removed(bed: Bed) -> None:
    bed.admin.set(bed.queue.deduplication("d"), "1")
    assert bed.run(removal.remove_deduplication_key(bed.queue, "d"))
    assert not bed.run(removal.remove_deduplication_key(bed.queue, "d"))
    assert bed.state() == {}


# many jobs


def test_draining_removes_what_waits(bed: Bed) -> None:
    for place, state in enumerate(STATES):
        bed.job(f"job-{place}", state)
    before = bed.state()
    furnish(bed, "job-5")
    assert bed.go(removal.drain(bed.queue)) == 3
    waiting = ("wait", "paused", "prioritized", "job-3", "job-5", "job-6")
    assert bed.state() == without(before, *waiting)
    assert bed.go(removal.drain(bed.queue, delayed=True)) == 1
    assert bed.state() == without(before, *waiting, "delayed", "job-2")


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("state", ["wait", "prioritized", "delayed"])
def test_draining_spares_the_next_runs_of_schedulers(bed: Bed, state: str, chunk: int) -> None:
    spared = []
    for n in range(12):
        bed.job(f"job-{n}", state, score=NOW + n)
        if n % 4 == 1:
            spared.append(bed.job(f"repeat:s{n}:{NOW + n}", state, score=NOW + n, rjk=f"s{n}"))
            bed.admin.zadd(bed.queue.repeat, {f"s{n}": NOW + n})
            bed.job(f"repeat:s{n}:{NOW - n}", state, score=NOW + n, rjk=f"s{n}")
    assert bed.go(removal.drain(bed.queue, delayed=True, chunk=chunk)) == 15
    left = bed.state()
    assert set(left[state]) == set(spared)
    assert left.keys() == {state, "repeat", *spared}
    if state == "wait":
        assert left["wait"] == spared[::-1]


def test_draining_removes_parents_of_the_queue_with_their_last_child(bed: Bed) -> None:
    bed.job("top", "waiting-children", deid="d")
    bed.admin.set(bed.queue.deduplication("d"), "top")
    bed.child("middle", "top", "waiting-children")
    bed.child("low", "middle")
    bed.job("other", "waiting-children")
    bed.child("1", "other")
    bed.child("2", "other", "delayed")
    bed.go(removal.drain(bed.queue))
    state = bed.state()
    assert state.keys() == {"other", "other:dependencies", "2", "delayed", "waiting-children"}
    assert state["waiting-children"] == {"other": NOW}


def test_draining_lets_parents_of_other_queues_go(bed: Bed) -> None:
    far = QueueKeys("far", bed.prefix)
    bed.job("1", parentKey=far.job("top"), parent="no JSON")
    bed.admin.hset(far.job("top"), "name", "n")
    bed.admin.zadd(far.waiting_children, {"top": NOW})
    bed.admin.sadd(far.dependencies("top"), bed.queue.job("1"))
    bed.go(removal.drain(bed.queue))
    start = f"{bed.prefix}:far:"
    assert bed.state() == {
        f"{start}wait": ["top"],
        f"{start}marker": {"0": 0},
        f"{start}top": {"name": "n"},
    }


@pytest.mark.parametrize("state", ["wait", "delayed"])
def test_garbage_is_removed_and_harms_nothing(bed: Bed, state: str) -> None:
    bed.hset("meta", KEPT)
    bed.hset("metrics:completed", {"count": 1})
    bed.hset("repeat:daily", {"name": "n"})
    bed.admin.set(bed.queue.job("text"), "no hash")
    before = bed.state()
    for garbage in ("ghost", "meta", "metrics", "metrics:completed", "repeat:daily", "text", ""):
        bed.put(garbage, state)
    bed.job("odd", state, parentKey=bed.queue.job("text"), parent="[", timestamp="x")
    bed.go(removal.drain(bed.queue, delayed=True))
    assert bed.state() == before


AGED: dict[JobState, tuple[str, dict[str, Any]]] = {
    JobState.COMPLETED: ("completed", {}),
    JobState.FAILED: ("failed", {}),
    JobState.DELAYED: ("delayed", {"processedOn": "{}"}),
    JobState.PRIORITIZED: ("prioritized", {"timestamp": "{}", "processedOn": 9 * NOW}),
    JobState.WAITING: ("wait", {"timestamp": "{}"}),
    JobState.PAUSED: ("paused", {"processedOn": "{}", "timestamp": 9 * NOW}),
    JobState.ACTIVE: ("active", {"finishedOn": "{}", "timestamp": 9 * NOW}),
}


def aged(bed: Bed, state: JobState, job_id: str, age: int) -> None:
    into, fields = AGED[state]
    instant = NOW - age
    given = {name: instant if value == "{}" else value for name, value in fields.items()}
    bed.job(job_id, into, score=instant if state in {"completed", "failed"} else age, **given)


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("state", AGED)
def test_old_jobs_are_cleaned(bed: Bed, state: JobState, chunk: int) -> None:
    for job_id, age in (("1", 50), ("2", 10), ("3", 100), ("4", 9), ("5", 51), ("6", 50)):
        aged(bed, state, job_id, age)
    cleaned = bed.go(removal.clean(bed.queue, state, NOW - 50, chunk=chunk))
    assert set(cleaned) == {"1", "3", "5", "6"}
    left = bed.state()
    assert set(left[AGED[state][0]]) == {"2", "4"}
    assert left.keys() == {AGED[state][0], "2", "4", "events"}
    assert bed.events() == [{"event": "cleaned", "count": "4"}]


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("state", AGED)
def test_no_more_are_cleaned_than_asked_for(bed: Bed, state: JobState, chunk: int) -> None:
    for n in range(8):
        aged(bed, state, f"young-{n}", 0)
        aged(bed, state, f"old-{n}", 100)
    cleaned = bed.go(removal.clean(bed.queue, state, NOW - 50, limit=5, chunk=chunk))
    assert len(cleaned) == 5
    assert all(job_id.startswith("old") for job_id in cleaned)
    left = bed.state()
    assert len(left[AGED[state][0]]) == 11
    assert not set(cleaned) & left.keys()


def test_an_active_job_is_cleaned_only_without_its_lock(bed: Bed) -> None:
    for job_id in ("1", "2"):
        aged(bed, JobState.ACTIVE, job_id, 100)
    bed.lock("1")
    assert bed.go(removal.clean(bed.queue, JobState.ACTIVE, NOW)) == ["2"]
    assert bed.state()["active"] == ["1"]


def test_waiting_jobs_are_cleaned_wherever_they_wait(bed: Bed) -> None:
    bed.job("1", "wait")
    bed.job("2", "paused")
    assert bed.go(removal.clean(bed.queue, JobState.WAITING, NOW)) == ["2", "1"]
    assert bed.state(events=False) == {}


def test_parents_that_wait_are_not_cleaned(bed: Bed) -> None:
    with pytest.raises(ValueError, match="waiting-children"):
        bed.go(removal.clean(bed.queue, JobState.WAITING_CHILDREN, NOW))


def test_nothing_to_clean_is_reported_too(bed: Bed) -> None:
    assert bed.go(removal.clean(bed.queue, JobState.FAILED, NOW)) == []
    assert bed.state() == {"events": [{"event": "cleaned", "count": "0"}]}


def crowded(bed: Bed) -> None:
    """Have all that a queue can have."""
    for place, state in enumerate(STATES):
        if state:
            bed.job(f"job-{place}", state)
            furnish(bed, f"job-{place}")
    bed.lock("job-7")
    bed.job(f"repeat:daily:{NOW}", "delayed", rjk="daily")
    bed.admin.zadd(bed.queue.repeat, {"daily": NOW})
    bed.hset("repeat:daily", {"name": "n"})
    for key in (bed.queue.id, bed.queue.priority_counter, bed.queue.stalled_check):
        bed.admin.set(key, 1)
    bed.admin.set(bed.queue.limiter, 1)
    bed.admin.sadd(bed.queue.stalled, "job-7")
    bed.admin.set(bed.queue.deduplication("d"), "gone")
    bed.hset("dn:d", {"name": "n"})
    bed.admin.set(bed.queue.private("add", "x"), 1)
    bed.put("0", "marker")
    for kind in ("completed", "failed"):
        bed.hset(f"metrics:{kind}", {"count": 1})
        bed.admin.rpush(f"{bed.queue.base}metrics:{kind}:data", 1)


@pytest.mark.parametrize("chunk", [1, 100])
def test_nothing_is_left_of_a_queue(bed: Bed, chunk: int) -> None:
    crowded(bed)
    bed.admin.set(f"{bed.prefix}:q2:id", 1)
    bed.go(removal.obliterate(bed.queue, force=True, chunk=chunk))
    assert bed.state() == {f"{bed.prefix}:q2:id": "1"}


def test_a_queue_with_running_jobs_is_not_removed_without_force(bed: Bed) -> None:
    crowded(bed)
    before = bed.state()
    with pytest.raises(JobsActive) as caught:
        bed.go(removal.obliterate(bed.queue))
    assert caught.value.count == 1
    assert bed.state() == before
    bed.run(removal.remove_job(bed.queue, "job-7"))
    bed.admin.delete(bed.queue.lock("job-7"))
    bed.run(removal.remove_job(bed.queue, "job-7"))
    bed.go(removal.obliterate(bed.queue))
    assert bed.state() == {}


def test_a_prefix_with_special_characters_is_taken_by_its_word(bed: Bed) -> None:
    odd = Bed(bed.admin, bed.store, f"{bed.prefix}[a-z]*")
    odd.admin.set(odd.queue.private("x"), 1)
    bed.admin.set(f"{bed.prefix}b:q:tb:x", 1)
    odd.go(removal.obliterate(odd.queue))
    assert not odd.admin.exists(odd.queue.private("x"))
    assert odd.admin.exists(f"{bed.prefix}b:q:tb:x")
    odd.admin.delete(f"{bed.prefix}b:q:tb:x")
