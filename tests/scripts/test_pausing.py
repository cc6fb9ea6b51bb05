"""Pausing and resuming merge the two lists of waiting jobs, without overwriting either."""

from __future__ import annotations

import pytest

from taskbull.scripts.change import is_paused, pause, resume
from taskbull.scripts.cycle import FetchOptions, cycle
from tests.scripts.bed import DUE, NOW, Bed

FIVE, SIX = "bullmq:5.62.0", "bullmq:6.7.0"


def wait_for_turn(bed: Bed, into: str, *jobs: str) -> None:
    for job_id in reversed(jobs):  # as the list shows them, from head to tail
        bed.put(job_id, into)


@pytest.mark.parametrize("version", [None, FIVE, "odd"])
def test_jobs_are_parked_where_bullmq_5_looks_for_them(bed: Bed, version: str | None) -> None:
    wait_for_turn(bed, "wait", "2", "1")
    meta = {"version": version} if version else {}
    bed.hset("meta", {**meta, "x": 1})
    bed.put("0", "marker")
    bed.go(pause(bed.queue))
    assert bed.state() == {
        "paused": ["2", "1"],
        "meta": {**meta, "x": "1", "paused": "1"},
        "events": [{"event": "paused"}],
    }
    assert bed.run(is_paused(bed.queue))


def test_jobs_stay_in_a_queue_of_bullmq_6(bed: Bed) -> None:
    wait_for_turn(bed, "wait", "2", "1")
    bed.hset("meta", {"version": SIX})
    bed.go(pause(bed.queue))
    state = bed.state()
    assert state["wait"] == ["2", "1"]
    assert "paused" not in state


def test_a_list_that_was_parked_before_is_kept(bed: Bed) -> None:
    wait_for_turn(bed, "wait", "4", "3")
    wait_for_turn(bed, "paused", "2", "1")
    bed.hset("meta", {"version": SIX})
    bed.go(pause(bed.queue))
    assert bed.state(events=False) == {
        "paused": ["4", "3", "2", "1"],
        "meta": {"version": SIX, "paused": "1"},
    }


@pytest.mark.parametrize("parked", ["wait", "paused"])
def test_resuming_lets_jobs_run(bed: Bed, parked: str) -> None:
    wait_for_turn(bed, parked, "2", "1")
    bed.hset("meta", {"paused": 1})
    bed.go(resume(bed.queue))
    assert bed.state() == {
        "wait": ["2", "1"],
        "marker": {"0": 0},
        "events": [{"event": "resumed"}],
    }
    assert not bed.run(is_paused(bed.queue))


def test_resuming_tells_when_a_delayed_job_is_due(bed: Bed) -> None:
    bed.put("1", "delayed", score=DUE * 4096)
    bed.go(resume(bed.queue))
    assert bed.state(events=False) == {"delayed": {"1": DUE * 4096}, "marker": {"1": DUE}}


def test_resuming_wakes_workers_for_prioritized_jobs(bed: Bed) -> None:
    bed.put("1", "prioritized")
    bed.go(resume(bed.queue))
    assert bed.state()["marker"] == {"0": 0}


def test_resuming_a_queue_that_is_full_wakes_nobody(bed: Bed) -> None:
    bed.put("1", "active")
    bed.put("2", "wait")
    bed.hset("meta", {"paused": 1, "concurrency": 1})
    bed.go(resume(bed.queue))
    assert "marker" not in bed.state()


@pytest.mark.parametrize(("waiting", "parked"), [(23, 40), (40, 23), (23, 23), (0, 40), (40, 0)])
@pytest.mark.parametrize("operation", [pause, resume])
def test_both_lists_are_joined_in_pieces(
    bed: Bed, waiting: int, parked: int, operation: type
) -> None:
    newer, older = [f"new-{n}" for n in range(waiting)], [f"old-{n}" for n in range(parked)]
    wait_for_turn(bed, "wait", *newer)
    wait_for_turn(bed, "paused", *older)
    bed.hset("meta", {"paused": 1})
    steps = operation(bed.queue, chunk=7)

    def look() -> None:
        state = bed.state()
        assert [*state.get("wait", []), *state.get("paused", [])] == [*newer, *older]
        assert bed.run(is_paused(bed.queue)) or "paused" not in state

    bed.go(steps, look)
    whole = "paused" if operation is pause else "wait"
    assert bed.state()[whole] == [*newer, *older]
    assert len(bed.events()) == 1


def test_more_jobs_are_joined_than_a_command_of_a_script_can_have(bed: Bed) -> None:
    newer, older = [f"n{n}" for n in range(9_000)], [f"o{n}" for n in range(21_000)]
    bed.admin.rpush(bed.queue.wait, *newer)
    bed.admin.rpush(bed.queue.paused, *older)
    bed.go(resume(bed.queue, chunk=15_000))
    assert bed.state()["wait"] == [*newer, *older]


def test_each_pause_is_reported(bed: Bed) -> None:
    for _ in range(2):
        bed.go(pause(bed.queue))
    assert bed.events() == [{"event": "paused"}] * 2


def test_due_jobs_join_those_that_wait_in_an_obliterated_queue(bed: Bed) -> None:  # K4
    bed.hset("meta", {"paused": 1})  # BullMQ 6 has obliterated it, and paused it again
    wait_for_turn(bed, "wait", "1")
    bed.put("2", "delayed", score=NOW * 4096)
    bed.run(cycle(bed.queue, NOW, [], 1, "t:0", FetchOptions(30_000)))
    state = bed.state()
    assert state["wait"] == ["2", "1"]
    assert "paused" not in state
