"""The effects of a cycle whose reply was lost can be read from Redis."""

from __future__ import annotations

from msgspec.structs import replace

from taskbull.core.options import Keep
from taskbull.core.outcome import Complete, RetryAfter, SnoozeFor, Written
from taskbull.scripts.cycle import FetchOptions, Settled, adopt_jobs, cycle, settle_cycle
from tests.scripts.bed import NOW, Bed
from tests.scripts.test_cycle import FAILURE, TAKING, pack, seed, take

LONG = FetchOptions(60_000)


def test_the_jobs_that_a_call_took_are_found_by_its_token(bed: Bed) -> None:
    seed(bed, [{}] * 5)
    take(bed, 2, "me:1")
    lost = take(bed, 2, "me:2")
    before = bed.state()
    settled = bed.go(settle_cycle(bed.queue, "me:2", [], 2))
    assert settled == Settled([job.id for job in lost.jobs], [], [])
    assert bed.state() == before


def test_a_call_that_was_not_executed_took_nothing(bed: Bed) -> None:
    seed(bed, [{}] * 2)
    take(bed, 2, "me:1")
    assert bed.go(settle_cycle(bed.queue, "me:2", [], 2)).taken == []


def test_what_a_call_answered_for_each_outcome_is_remembered(bed: Bed) -> None:  # N1
    seed(bed, [{"keep_completed": Keep.none()}, {}, {}, {}])
    jobs = take(bed, 4, "me:1").jobs
    bed.admin.delete(bed.queue.lock(jobs[3].id))
    kinds: list[Written] = [Complete(), RetryAfter(FAILURE, 0.0), SnoozeFor(5.0), Complete()]
    outcomes = [pack(job, kind, "me:1") for job, kind in zip(jobs, kinds, strict=True)]
    lost = bed.run(cycle(bed.queue, NOW, outcomes, 0, "me:2", TAKING))
    ended = [(job.id, "me:1") for job in jobs]
    settled = bed.go(settle_cycle(bed.queue, "me:2", ended, 0))
    assert settled == Settled([], lost.codes, [False] * 4)
    assert lost.codes == [0, 0, 0, -2]
    assert 0 < int(bed.admin.pttl(bed.queue.private("cycle", "me"))) <= 3_600_000


def test_what_another_wrote_is_not_ours(bed: Bed) -> None:  # N1
    seed(bed, [{}] * 2)
    [gone, here] = take(bed, 2, "me:1").jobs
    bed.lock(gone.id, "another:1")
    bed.run(cycle(bed.queue, NOW, [pack(gone, Complete(), "another:1")], 0, "another:2", TAKING))
    settled = bed.go(settle_cycle(bed.queue, "me:2", [(gone.id, "me:1"), (here.id, "me:1")], 0))
    assert settled == Settled([], [], [False, True])


def test_jobs_are_adopted_with_a_new_life_of_their_locks(bed: Bed) -> None:  # F10
    seed(bed, [{}] * 3)
    jobs = take(bed, 3, "me:1").jobs
    for job in jobs:
        bed.admin.pexpire(bed.queue.lock(job.id), 5_000)
    bed.lock(jobs[1].id, "another:1")
    bed.admin.sadd(bed.queue.stalled, jobs[0].id)
    adopted = bed.run(adopt_jobs(bed.queue, "me:1", [job.id for job in jobs], NOW, LONG))
    mine = [replace(job, fresh=False) for job in (jobs[0], jobs[2])]
    assert (adopted.count, adopted.jobs) == (3, mine)
    assert bed.admin.pttl(bed.queue.lock(jobs[0].id)) > 30_000
    assert bed.admin.pttl(bed.queue.lock(jobs[1].id)) <= 30_000
    assert not bed.admin.exists(bed.queue.stalled)


def test_big_jobs_are_adopted_in_pieces_and_all_locks_are_renewed_by_each(bed: Bed) -> None:  # F2
    seed(bed, [{}] * 4)
    jobs = take(bed, 4, "me:1").jobs
    for job in jobs:
        bed.hset(job.id, {"data": "x" * 600})
        bed.admin.pexpire(bed.queue.lock(job.id), 5_000)
    ids = [job.id for job in jobs]
    adopted = bed.run(adopt_jobs(bed.queue, "me:1", ids, NOW, LONG, size=1_000))
    assert (adopted.count, [job.id for job in adopted.jobs]) == (2, ids[:2])
    assert all(bed.admin.pttl(bed.queue.lock(job_id)) > 30_000 for job_id in ids)
    assert bed.run(adopt_jobs(bed.queue, "me:1", ids[2:], NOW, LONG, size=1)).count == 1


def test_a_long_list_is_searched_in_pieces(bed: Bed) -> None:
    seed(bed, [{}] * 40)
    mine = take(bed, 3, "me:1").jobs
    take(bed, 37, "another:1")
    settled = bed.go(settle_cycle(bed.queue, "me:1", [], 50, chunk=8))
    assert sorted(settled.taken) == sorted(job.id for job in mine)


def test_garbage_among_the_active_jobs_is_passed_over(bed: Bed) -> None:
    seed(bed, [{}])
    take(bed, 1, "me:1")
    bed.admin.lpush(bed.queue.active, "no job", "1:lock")
    assert bed.go(settle_cycle(bed.queue, "me:1", [], 5)).taken == ["1"]


def test_a_job_that_is_no_hash_any_more_is_not_adopted(bed: Bed) -> None:
    seed(bed, [{}])
    take(bed, 1, "me:1")
    bed.admin.delete(bed.queue.job("1"))
    bed.admin.set(bed.queue.job("1"), "no hash")
    adopted = bed.run(adopt_jobs(bed.queue, "me:1", ["1"], NOW, LONG))
    assert (adopted.count, adopted.jobs) == (1, [])
