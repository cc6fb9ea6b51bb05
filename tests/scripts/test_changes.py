"""Changing the state, position and contents of jobs, atomically."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from taskbull.core.steps import StepCall, WaitRecord
from taskbull.errors import JobNotFound, LockLost, TaskbullError, WrongState
from taskbull.scripts import change
from taskbull.scripts.call import Request
from tests.scripts.bed import DUE, NOW, Bed, without

KEPT = {"opts.maxLenEvents": "10000"}
STEP = 2**32


def waiting(job_id: str, prev: str) -> dict[str, str]:
    return {"event": "waiting", "jobId": job_id, "prev": prev}


def refused(bed: Bed, request: Request[Any], error: type[TaskbullError], code: int = 0) -> None:
    """Expect an error, and no change but the number of events to keep."""
    before = bed.state()
    with pytest.raises(error) as caught:
        bed.run(request)
    assert without(bed.state(), "meta") == without(before, "meta")
    if isinstance(caught.value, WrongState):
        assert caught.value.code == code


# promoting


def test_a_delayed_job_is_promoted(bed: Bed) -> None:
    bed.job("1", "delayed", delay=5_000)
    before = bed.state()
    bed.run(change.promote_job(bed.queue, "1"))
    assert bed.state() == {
        **without(before, "delayed"),
        "1": {**before["1"], "delay": "0"},
        "wait": ["1"],
        "marker": {"0": 0},
        "events": [waiting("1", "delayed")],
    }


def test_a_prioritized_job_is_promoted_to_the_back_of_its_class(bed: Bed) -> None:
    bed.job("1", "delayed", priority=3)
    bed.admin.set(bed.queue.priority_counter, 7)
    bed.run(change.promote_job(bed.queue, "1"))
    state = bed.state()
    assert state["prioritized"] == {"1": 3 * STEP + 8}
    assert state["marker"] == {"0": 0}


def test_a_job_of_a_paused_queue_is_promoted_to_where_it_is_parked(bed: Bed) -> None:
    bed.job("1", "delayed")
    bed.hset("meta", {"paused": 1})
    bed.run(change.promote_job(bed.queue, "1"))
    state = bed.state()
    assert state["paused"] == ["1"]
    assert "marker" not in state


def test_only_a_delayed_job_is_promoted(bed: Bed) -> None:
    bed.job("1")
    refused(bed, change.promote_job(bed.queue, "1"), WrongState, -3)


def test_an_id_without_a_job_is_not_promoted_but_dropped(bed: Bed) -> None:
    bed.put("ghost", "delayed")
    with pytest.raises(JobNotFound):
        bed.run(change.promote_job(bed.queue, "ghost"))
    assert bed.state() == {}


@pytest.mark.parametrize("chunk", [1, 3, 250])
def test_all_delayed_jobs_are_promoted(bed: Bed, chunk: int) -> None:
    for n in range(7):
        bed.job(str(n), "delayed", score=NOW - n, delay=5, priority=n)
    bed.put("ghost", "delayed")
    before = bed.state()
    assert bed.go(change.promote_jobs(bed.queue, chunk=chunk)) == 7
    assert bed.state() == {
        **without(before, "delayed"),
        "wait": ["0", "1", "2", "3", "4", "5", "6"],
        "marker": {"0": 0},
        "meta": KEPT,
        "events": [waiting(str(n), "delayed") for n in range(6, -1, -1)],
    }


def test_promoting_ends_although_others_continue_adding(bed: Bed) -> None:
    for n in range(10):
        bed.job(str(n), "delayed")
    names = (f"new-{n}" for n in itertools.count())

    def others() -> None:
        for job_id in itertools.islice(names, 3):
            bed.job(job_id, "delayed", score=NOW + 1)

    assert bed.go(change.promote_jobs(bed.queue, chunk=2), others) == 10


@pytest.mark.parametrize("operation", ["promote", "retry"])
def test_the_events_of_many_jobs_are_trimmed(bed: Bed, operation: str) -> None:
    for n in range(500):
        bed.job(str(n), "delayed" if operation == "promote" else "failed")
    bed.hset("meta", {"opts.maxLenEvents": 50})
    if operation == "promote":
        bed.go(change.promote_jobs(bed.queue))
    else:
        bed.go(change.retry_jobs(bed.queue, NOW))
    assert 50 <= len(bed.events()) < 300


# delay and priority


def test_a_delay_is_changed(bed: Bed) -> None:
    bed.job("1", "delayed", score=DUE * 4096)
    bed.job("2", "delayed", score=(NOW + 7_000) * 4096)
    before = bed.state()
    bed.run(change.change_delay(bed.queue, "1", 7_000, NOW))
    due = NOW + 7_000
    assert bed.state() == {
        **before,
        "1": {**before["1"], "delay": "7000"},
        "delayed": {"1": due * 4096 + 1, "2": due * 4096},
        "marker": {"1": due},
        "meta": KEPT,
        "events": [{"event": "delayed", "jobId": "1", "delay": str(due)}],
    }


def test_only_the_delay_of_a_delayed_job_is_changed(bed: Bed) -> None:
    bed.job("1")
    refused(bed, change.change_delay(bed.queue, "1", 1, NOW), WrongState, -3)


# postponing


@pytest.mark.parametrize("into", ["wait", "paused", "prioritized"])
def test_a_job_that_waits_is_postponed(bed: Bed, into: str) -> None:
    bed.job("1", into, delay=0)
    bed.job("2", into)
    bed.job("3", "delayed", score=DUE * 4096)
    before = bed.state()
    bed.run(change.postpone_job(bed.queue, "1", DUE, NOW))
    left = {"2": before[into]["2"]} if into == "prioritized" else ["2"]
    assert bed.state() == {
        **before,
        "1": {**before["1"], "delay": str(DUE - NOW)},
        into: left,
        "delayed": {"3": DUE * 4096, "1": DUE * 4096 + 1},
        "marker": {"1": DUE},
        "meta": KEPT,
        "events": [{"event": "delayed", "jobId": "1", "delay": str(DUE)}],
    }


@pytest.mark.parametrize("into", ["active", "delayed", "completed", "failed", "waiting-children"])
def test_only_a_job_that_waits_is_postponed(bed: Bed, into: str) -> None:
    bed.job("1", into)
    refused(bed, change.postpone_job(bed.queue, "1", DUE, NOW), WrongState, -3)


def test_what_was_promoted_and_postponed_is_as_it_was(bed: Bed) -> None:
    bed.job("1", "delayed", score=DUE * 4096, delay=DUE - NOW, priority=3)
    before = bed.state()
    bed.run(change.promote_job(bed.queue, "1"))
    bed.run(change.postpone_job(bed.queue, "1", DUE, NOW))
    assert {key: bed.state()[key] for key in before} == before


@pytest.mark.parametrize("into", ["wait", "paused", "prioritized"])
@pytest.mark.parametrize(
    ("priority", "lifo", "place"),
    [
        (0, False, {"wait": ["1", "last"]}),
        (0, True, {"wait": ["last", "1"]}),
        (4, False, {"wait": ["last"], "prioritized": {"1": 4 * STEP + 1}, "pc": "1"}),
        (4, True, {"wait": ["last"], "prioritized": {"1": 4 * STEP}}),
    ],
)
def test_a_job_that_waits_gets_its_new_place(
    bed: Bed, into: str, priority: int, lifo: bool, place: dict[str, Any]
) -> None:
    bed.job("1", into, priority=2)
    bed.job("last")
    before = bed.state()
    bed.run(change.change_priority(bed.queue, "1", priority, lifo=lifo))
    after = without(bed.state(), "meta", "marker")
    jobs = {"1": {**before["1"], "priority": str(priority)}, "last": before["last"]}
    assert after == {**jobs, **place}


@pytest.mark.parametrize("into", ["delayed", "active", "completed", ""])
def test_a_job_elsewhere_only_gets_its_priority(bed: Bed, into: str) -> None:
    bed.job("1", into)
    before = bed.state()
    bed.run(change.change_priority(bed.queue, "1", 6))
    assert bed.state() == {**before, "1": {**before["1"], "priority": "6"}}


# retrying


@pytest.mark.parametrize(
    ("state", "outcome"), [("failed", "failedReason"), ("completed", "returnvalue")]
)
def test_a_job_that_has_ended_runs_once_more(bed: Bed, state: change.Ended, outcome: str) -> None:
    kept = {"atm": "1", "ats": "1", "stacktrace": "[]"}
    bed.job("1", state, finishedOn=NOW, processedOn=NOW, **{outcome: "x"}, **kept)
    bed.job("2")
    before = bed.state()
    bed.run(change.retry_job(bed.queue, "1", state))
    assert bed.state() == {
        **without(before, state),
        "1": without(before["1"], "finishedOn", "processedOn", outcome),
        "wait": ["1", "2"],
        "marker": {"0": 0},
        "meta": KEPT,
        "events": [waiting("1", state)],
    }


def test_a_job_goes_back_to_where_it_belongs(bed: Bed) -> None:
    bed.job("urgent", "failed", priority=3)
    bed.job("next", "failed", opts='{"lifo":true}')
    bed.job("odd", "failed", opts="[", priority="x")
    bed.job("1")
    for job_id in ("urgent", "next", "odd"):
        bed.run(change.retry_job(bed.queue, job_id))
    state = bed.state()
    assert state["prioritized"] == {"urgent": 3 * STEP + 1}
    assert state["wait"] == ["odd", "1", "next"]


def test_attempts_are_forgotten_if_asked(bed: Bed) -> None:
    bed.job("1", "failed", atm=3, ats=4)
    bed.run(change.retry_job(bed.queue, "1", reset_attempts=True, reset_starts=True))
    assert not {"atm", "ats"} & bed.state()["1"].keys()


def test_only_a_job_in_that_state_is_retried(bed: Bed) -> None:
    bed.job("1", "completed")
    refused(bed, change.retry_job(bed.queue, "1", "failed"), WrongState, -3)


ENDS: dict[str, tuple[change.Ended, str, Callable[[Bed, str, str], Any]]] = {
    "done": ("completed", "processed", lambda bed, key, child: bed.admin.hset(key, child, "1")),
    "ignored": ("failed", "failed", lambda bed, key, child: bed.admin.hset(key, child, "why")),
    "fatal": ("failed", "unsuccessful", lambda bed, key, child: bed.admin.zadd(key, {child: 1})),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("all_of_them", [False, True])
def test_the_parent_of_a_retried_child_waits_for_it_again(
    bed: Bed, end: str, all_of_them: bool
) -> None:
    state, part, note = ENDS[end]
    bed.job("top", "waiting-children")
    bed.child("1", "top", state)
    bed.admin.delete(bed.queue.dependencies("top"))
    note(bed, f"{bed.queue.job('top')}:{part}", bed.queue.job("1"))
    if all_of_them:
        bed.go(change.retry_jobs(bed.queue, NOW, state))
    else:
        bed.run(change.retry_job(bed.queue, "1", state))
    after = bed.state()
    assert after["top:dependencies"] == {bed.queue.job("1")}
    assert f"top:{part}" not in after


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_parent_that_did_not_note_the_end_stays_as_it_is(bed: Bed, all_of_them: bool) -> None:
    bed.job("top", "waiting-children")
    bed.child("1", "top", "failed")
    bed.admin.set(f"{bed.queue.job('top')}:unsuccessful", "of another type")
    before = bed.state()
    if all_of_them:
        bed.go(change.retry_jobs(bed.queue, NOW))
    else:
        bed.run(change.retry_job(bed.queue, "1"))
    after = bed.state()
    for name in ("top", "top:dependencies", "top:unsuccessful"):
        assert after[name] == before[name]


@pytest.mark.parametrize("chunk", [1, 3, 250])
def test_all_jobs_that_ended_by_then_are_retried(bed: Bed, chunk: int) -> None:
    for n in range(7):
        bed.job(str(n), "failed", score=NOW - n, failedReason="x", finishedOn=NOW, priority=n)
    bed.job("later", "failed", score=NOW + 1)
    bed.put("ghost", "failed", score=1)
    assert bed.go(change.retry_jobs(bed.queue, NOW, chunk=chunk)) == 7
    after = bed.state()
    assert after["wait"] == ["0", "1", "2", "3", "4", "5", "6"]
    assert after["failed"] == {"later": NOW + 1}
    assert not [n for n in range(7) if {"failedReason", "finishedOn"} & after[str(n)].keys()]
    assert after["events"] == [waiting(str(n), "failed") for n in range(6, -1, -1)]
    assert after["marker"] == {"0": 0}


# waiting for children


def test_a_running_job_waits_for_its_children(bed: Bed) -> None:
    bed.job("top", "active")
    bed.lock("top")
    bed.admin.sadd(bed.queue.stalled, "top")
    bed.child("1", "top")
    before = bed.state()
    assert bed.run(change.move_to_waiting_children(bed.queue, "top", "token", NOW))
    assert bed.state() == {
        **without(before, "active", "top:lock", "stalled"),
        "waiting-children": {"top": NOW},
        "meta": KEPT,
        "events": [{"event": "waiting-children", "jobId": "top", "prev": "active"}],
    }


@pytest.mark.parametrize("child", ["", "x:y:done"])
def test_a_job_without_pending_children_continues(bed: Bed, child: str) -> None:
    bed.job("top", "active")
    bed.lock("top")
    if child:
        bed.child("1", "top")
    before = bed.state()
    move = change.move_to_waiting_children
    assert not bed.run(move(bed.queue, "top", "token", NOW, child_key=child))
    assert bed.state() == before


def test_a_job_that_is_not_ours_cannot_wait(bed: Bed) -> None:
    bed.job("top", "active")
    bed.child("1", "top")
    move = change.move_to_waiting_children
    refused(bed, move(bed.queue, "top", "mine", NOW), LockLost)
    bed.lock("top", "another's")
    refused(bed, move(bed.queue, "top", "mine", NOW), LockLost)
    refused(bed, move(bed.queue, "missing", "mine", NOW), JobNotFound)
    bed.admin.delete(bed.queue.active)
    refused(bed, move(bed.queue, "top", "another's", NOW), WrongState, -3)
    bed.admin.zadd(bed.queue.unsuccessful("top"), {"x": 1})
    refused(bed, move(bed.queue, "top", "another's", NOW), WrongState, -9)


# contents


def test_progress_is_noted_and_reported(bed: Bed) -> None:
    bed.job("1")
    before = bed.state()
    bed.run(change.update_progress(bed.queue, "1", b'{"at":50}'))
    assert bed.state() == {
        **before,
        "1": {**before["1"], "progress": '{"at":50}'},
        "meta": KEPT,
        "events": [{"event": "progress", "jobId": "1", "data": '{"at":50}'}],
    }


def test_events_are_trimmed_as_the_queue_says(bed: Bed) -> None:
    bed.job("1")
    bed.hset("meta", {"opts.maxLenEvents": 1})
    for n in range(250):
        bed.run(change.update_progress(bed.queue, "1", b"%d" % n))
    assert len(bed.events()) < 150


def test_data_is_replaced(bed: Bed) -> None:
    bed.job("1")
    before = bed.state()
    bed.run(change.update_data(bed.queue, "1", b"[1]"))
    assert bed.state() == {**before, "1": {**before["1"], "data": "[1]"}}


def test_lines_are_logged_and_the_last_ones_kept(bed: Bed) -> None:
    bed.job("1")
    lines = ["one", "two ž", "three\n"]
    assert [bed.run(change.add_log(bed.queue, "1", line, keep=0)) for line in lines] == [1, 2, 3]
    assert bed.run(change.add_log(bed.queue, "1", "four", keep=2)) == 2
    assert bed.state()["1:logs"] == ["three\n", "four"]
    bed.run(change.clear_logs(bed.queue, "1", keep=1))
    assert bed.state()["1:logs"] == ["four"]
    bed.run(change.clear_logs(bed.queue, "1"))
    assert "1:logs" not in bed.state()


# signals


def test_the_late_call_of_a_signal_that_was_sent_again_has_no_effect(bed: Bed) -> None:
    bed.job("1", "active", ats=1)
    bed.lock("1")
    holder = change.Holder("1", "token", 1_000_000)
    signal = change.signal_call(bed.queue, "1", change.Signal("go", b"1", "sent-twice"), NOW)

    def wait(number: int) -> bool:
        """Begin a wait or continue it; return whether it has ended."""
        call, record = StepCall("signal", "go", number), WaitRecord(NOW)
        return bed.run(change.begin_wait(bed.queue, holder, call, record, None, NOW)) is not None

    assert bed.run(signal) == 0
    assert (wait(1), wait(2)) == (True, False)
    assert bed.run(signal) == 0  # A connection that was given up has delivered the first one.
    assert wait(2) is False
    other = change.Signal("go", b"2", "another")
    assert bed.run(change.signal_call(bed.queue, "1", other, NOW)) == 0
    assert wait(2) is True


MISSING: dict[str, Callable[[Bed], Request[Any]]] = {
    "change_delay": lambda bed: change.change_delay(bed.queue, "x", 1, NOW),
    "postpone_job": lambda bed: change.postpone_job(bed.queue, "x", DUE, NOW),
    "change_priority": lambda bed: change.change_priority(bed.queue, "x", 1),
    "retry_job": lambda bed: change.retry_job(bed.queue, "x"),
    "update_progress": lambda bed: change.update_progress(bed.queue, "x", b"1"),
    "update_data": lambda bed: change.update_data(bed.queue, "x", b"1"),
    "add_log": lambda bed: change.add_log(bed.queue, "x", "line", keep=1),
}


@pytest.mark.parametrize("operation", MISSING)
@pytest.mark.parametrize("garbage", [False, True])
def test_what_is_no_job_is_not_changed(bed: Bed, operation: str, garbage: bool) -> None:
    if garbage:
        bed.admin.set(bed.queue.job("x"), "no hash")
        for into in ("wait", "delayed", "failed"):
            bed.put("x", into)
    refused(bed, MISSING[operation](bed), JobNotFound)
