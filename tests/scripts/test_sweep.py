"""Jobs of dead workers return to their queue: all of them, once, in bounded calls."""

from __future__ import annotations

import pytest

from taskbull.scripts.call import Steps
from taskbull.scripts.cycle import Sweep, sweep_chunk, sweep_stalled
from tests.scripts.bed import NOW, Bed

INTERVAL = 30_000
DOOM = "job stalled more than allowable limit"


def sweep(bed: Bed, *, max_stalls: int = 1, chunk: int = 250) -> Steps[Sweep | None]:
    return sweep_stalled(bed.queue, NOW, interval_ms=INTERVAL, max_stalls=max_stalls, chunk=chunk)


def sweep_again(bed: Bed, *, max_stalls: int = 1, chunk: int = 250) -> Sweep:
    bed.admin.delete(bed.queue.stalled_check)
    swept = bed.go(sweep(bed, max_stalls=max_stalls, chunk=chunk))
    assert swept is not None
    return swept


def marked(bed: Bed, count: int, *, dead: int = 1, **fields: object) -> None:
    """Have active jobs that one sweep has seen; every `dead`th has no lock."""
    for n in range(1, count + 1):
        bed.job(str(n), "active", **fields)
        bed.admin.sadd(bed.queue.stalled, str(n))
        if n % dead:
            bed.lock(str(n))


def test_a_sweep_marks_what_is_active(bed: Bed) -> None:
    bed.job("1", "active")
    bed.job("2", "active")
    bed.lock("2")
    before = bed.state()
    assert bed.go(sweep(bed)) == Sweep([], [])
    meta = {"opts.maxLenEvents": "10000"}
    check = {"stalled": {"1", "2"}, "stalled-check": str(NOW), "meta": meta}
    assert bed.state() == {**before, **check}
    assert INTERVAL - 5_000 < bed.admin.pttl(bed.queue.stalled_check) <= INTERVAL


def test_the_next_one_puts_back_what_has_no_lock(bed: Bed) -> None:
    marked(bed, 3, dead=2)
    bed.job("waiting")
    before = bed.state()
    assert sweep_again(bed) == Sweep(["2"], [])
    assert bed.state() == {
        **before,
        "2": {**before["2"], "stc": "1"},
        "active": ["3", "1"],
        "wait": ["waiting", "2"],
        "stalled": {"1", "3"},
        "stalled-check": str(NOW),
        "meta": {"opts.maxLenEvents": "10000"},
        "marker": {"0": 0},
        "events": [
            {"event": "waiting", "jobId": "2", "prev": "active"},
            {"event": "stalled", "jobId": "2"},
        ],
    }


def test_a_sweep_that_is_not_due_does_nothing(bed: Bed) -> None:
    marked(bed, 1)
    bed.admin.set(bed.queue.stalled_check, 1)
    before = bed.state()
    assert bed.go(sweep(bed)) is None
    assert bed.state() == before


@pytest.mark.parametrize(("stalls", "limit", "doomed"), [(0, 1, False), (1, 1, True), (0, 0, True)])
def test_a_job_that_stalls_too_often_will_fail(
    bed: Bed, stalls: int, limit: int, doomed: bool
) -> None:
    marked(bed, 1, stc=stalls)
    swept = sweep_again(bed, max_stalls=limit)
    assert swept == Sweep(["1"], ["1"] if doomed else [])
    assert bed.state()["1"].get("defa") == (DOOM if doomed else None)


@pytest.mark.parametrize("lives", [True, False])
def test_the_run_of_a_scheduler_fails_only_if_that_is_gone(bed: Bed, lives: bool) -> None:
    marked(bed, 1, stc=5, rjk="daily")
    if lives:
        bed.admin.zadd(bed.queue.repeat, {"daily": NOW})
    assert sweep_again(bed).to_fail == ([] if lives else ["1"])


def test_what_is_no_job_is_dropped(bed: Bed) -> None:
    marked(bed, 1)
    for garbage in ("ghost", "meta", "text", ""):
        bed.put(garbage, "active")
        bed.admin.sadd(bed.queue.stalled, garbage)
    bed.admin.set(bed.queue.job("text"), "no hash")
    bed.hset("meta", {"version": "bullmq:5.62.0"})
    bed.job("odd", "active", stc="x")
    bed.admin.sadd(bed.queue.stalled, "odd")
    swept = sweep_again(bed)
    assert set(swept.put_back) == {"1", "odd"}
    state = bed.state()
    assert "active" not in state
    assert set(state["wait"]) == {"1", "odd"}
    assert state["text"] == "no hash"
    assert state["odd"]["stc"] == "1"


def test_an_id_that_stands_twice_is_put_back_once(bed: Bed) -> None:
    marked(bed, 1)
    bed.put("1", "active")
    assert sweep_again(bed) == Sweep(["1"], [])
    assert bed.state()["wait"] == ["1"]


def test_the_newest_of_several_is_taken_first(bed: Bed) -> None:
    # H3: the one that killed its process as it started is tried before the others run again
    marked(bed, 5)
    bed.job("waiting")
    sweep_again(bed)
    assert bed.state()["wait"] == ["waiting", "1", "2", "3", "4", "5"]


def test_jobs_of_a_paused_queue_are_parked(bed: Bed) -> None:
    marked(bed, 1)
    bed.hset("meta", {"paused": 1, "version": "bullmq:5.62.0"})
    sweep_again(bed)
    state = bed.state()
    assert state["paused"] == ["1"]
    assert "marker" not in state


def test_a_slot_that_a_dead_worker_held_is_free_again(bed: Bed) -> None:
    marked(bed, 1)
    bed.hset("meta", {"concurrency": 1})
    sweep_again(bed)
    assert bed.state()["marker"] == {"0": 0}


@pytest.mark.parametrize("dead", [1, 2, 3, 1000])
def test_many_jobs_are_swept_in_pieces(bed: Bed, dead: int) -> None:
    marked(bed, 333, dead=dead)
    swept = sweep_again(bed, chunk=20)
    gone = {str(n) for n in range(dead, 334, dead)}
    state = bed.state()
    assert set(swept.put_back) == gone
    assert len(swept.put_back) == len(gone)
    alive = [str(n) for n in range(333, 0, -1) if str(n) not in gone]
    assert state.get("active", []) == alive
    assert state.get("stalled", set()) == set(alive)
    assert set(state.get("wait", [])) == gone
    assert not [name for name in state if name.startswith("tb:")]


def test_a_sweep_looks_at_all_although_jobs_end_meanwhile(bed: Bed) -> None:
    marked(bed, 300, dead=1000)
    bed.admin.delete(bed.queue.stalled, bed.queue.stalled_check)
    steps = sweep(bed, chunk=40)

    def others() -> None:
        bed.admin.rpop(bed.queue.active, 3)  # the oldest end
        bed.admin.lpush(bed.queue.active, "new")  # others are taken

    bed.go(steps, others)
    state = bed.state()
    assert {job_id for job_id in state["active"] if job_id != "new"} <= state["stalled"]


def test_the_suspects_of_a_sweep_that_broke_off_are_taken_up(bed: Bed) -> None:
    marked(bed, 100)
    bed.admin.delete(bed.queue.stalled_check)
    swept = bed.run(sweep_chunk(bed.queue, NOW, INTERVAL, 1, size=30))
    assert len(swept.put_back) == 30
    rest = sweep_again(bed, chunk=30)
    assert len(rest.put_back) == 70
    state = bed.state()
    assert sorted(map(int, state["wait"])) == list(range(1, 101))
    assert not {"active", "stalled", "tb:suspects"} & state.keys()


def test_two_concurrent_sweeps_return_each_job_once(bed: Bed) -> None:
    marked(bed, 100)
    pair = []
    for _ in range(2):
        bed.admin.delete(bed.queue.stalled_check)
        steps = sweep(bed, chunk=16)
        pair.append((steps, steps.send(None)))
    results: list[Sweep] = []
    waiting = pair
    while waiting:
        again = []
        for steps, request in waiting:
            bed.admin.delete(bed.queue.stalled_check)
            try:
                again.append((steps, steps.send(bed.run(request))))
            except StopIteration as end:
                results.append(end.value)
        waiting = again
    put_back = [job_id for swept in results for job_id in swept.put_back]
    assert sorted(put_back, key=int) == [str(n) for n in range(1, 101)]
    state = bed.state()
    assert sorted(map(int, state["wait"])) == list(range(1, 101))
    assert all(state[str(n)]["stc"] == "1" for n in range(1, 101))


@pytest.mark.parametrize("leftover", ["flows", "cancelling"])
def test_the_end_says_whether_flows_are_left_half_done(bed: Bed, leftover: str) -> None:  # H1
    assert bed.go(sweep(bed)) == Sweep([], [], has_leftovers=False)
    bed.admin.set(bed.queue.private(leftover), "")
    assert sweep_again(bed) == Sweep([], [], has_leftovers=True)
