"""Locks are renewed, many in one call."""

from __future__ import annotations

from taskbull.scripts.cycle import extend_lock, extend_locks
from tests.scripts.bed import Bed


def test_a_lock_that_is_held_lives_on_and_its_job_is_not_suspected(bed: Bed) -> None:
    bed.lock("1", "mine")
    bed.admin.sadd(bed.queue.stalled, "1", "2")
    before = bed.state()
    assert bed.run(extend_locks(bed.queue, [("1", "mine")], 90_000)).lost == set()
    assert bed.state() == {**before, "stalled": {"2"}}
    assert 80_000 < bed.admin.pttl(bed.queue.lock("1")) <= 90_000


def test_locks_that_are_gone_or_anothers_come_back(bed: Bed) -> None:
    for job_id, token in (("1", "mine"), ("2", "another's")):
        bed.lock(job_id, token)
    bed.admin.lpush(bed.queue.lock("4"), "no lock at all")
    bed.admin.sadd(bed.queue.stalled, "1", "2", "3")
    before = bed.state()
    held = [(job_id, "mine") for job_id in ("1", "2", "3", "4")]
    assert bed.run(extend_locks(bed.queue, held, 90_000)).lost == {"2", "3", "4"}
    assert bed.state() == {**before, "stalled": {"2", "3"}}
    assert bed.admin.pttl(bed.queue.lock("2")) <= 30_000


def test_thousands_of_locks_are_renewed_in_one_call(bed: Bed) -> None:
    held = [(f"job-{n}", f"token-{n}") for n in range(9_001)]
    for job_id, token in held[::2]:
        bed.admin.set(bed.queue.lock(job_id), token)
    lost = bed.run(extend_locks(bed.queue, held, 90_000)).lost
    assert lost == {job_id for job_id, _ in held[1::2]}
    assert all(bed.admin.pttl(bed.queue.lock(job_id)) > 0 for job_id, _ in held[:100:2])


def test_nothing_held_is_nothing_lost(bed: Bed) -> None:
    assert bed.run(extend_locks(bed.queue, [], 90_000)).lost == set()
    assert bed.state() == {}


def test_one_lock_is_renewed_by_itself_and_nothing_else_is_touched(bed: Bed) -> None:
    bed.lock("1", "mine")
    bed.lock("2", "another's")
    bed.admin.lpush(bed.queue.lock("4"), "no lock at all")
    bed.admin.sadd(bed.queue.stalled, "1", "2", "3")
    before = bed.state()
    renewed = [bed.run(extend_lock(bed.queue, job_id, "mine", 90_000)) for job_id in "1234"]
    assert renewed == [True, False, False, False]
    assert bed.state() == before
    assert 80_000 < bed.admin.pttl(bed.queue.lock("1")) <= 90_000
    assert bed.admin.pttl(bed.queue.lock("2")) <= 30_000
