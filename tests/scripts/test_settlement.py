"""What a cycle has done whose reply was lost can be seen in Redis."""

from __future__ import annotations

from taskbull.core.outcome import Completed
from taskbull.scripts.cycle import cycle
from taskbull.scripts.settlement import Trace, settle_cycle
from tests.scripts.bed import NOW, Bed
from tests.scripts.test_cycle import TAKING, pack, seed, take


def test_the_jobs_that_a_call_took_are_found_by_its_token(bed: Bed) -> None:
    seed(bed, [{}] * 5)
    take(bed, 2, "me:1")
    lost = take(bed, 2, "me:2")
    before = bed.state()
    settled = bed.go(settle_cycle(bed.queue, "me:2", [], 2))
    assert settled.jobs == lost.jobs
    assert settled.traces == []
    assert bed.state() == before


def test_a_call_that_was_not_executed_took_nothing(bed: Bed) -> None:
    seed(bed, [{}] * 2)
    take(bed, 2, "me:1")
    assert bed.go(settle_cycle(bed.queue, "me:2", [], 2)).jobs == []


def test_an_outcome_that_was_written_is_told_from_one_that_was_not(bed: Bed) -> None:
    seed(bed, [{}] * 2)
    [written, unwritten] = take(bed, 2, "me:1").jobs
    bed.run(cycle(bed.queue, NOW, [pack(written, Completed(), "me:1")], 0, "me:2", TAKING))
    settled = bed.go(
        settle_cycle(bed.queue, "me:2", [(written.id, "me:1"), (unwritten.id, "me:1")], 0)
    )
    assert settled.traces == [Trace(False, NOW, 1), Trace(True, 0, 0)]


def test_a_job_that_is_gone_is_told_from_one_that_has_not_finished(bed: Bed) -> None:
    seed(bed, [{}])
    [expired] = take(bed, 1, "me:1").jobs
    bed.admin.delete(f"{bed.queue.job(expired.id)}:lock")
    settled = bed.go(settle_cycle(bed.queue, "me:2", [("none", "me:1"), (expired.id, "me:1")], 0))
    assert settled.traces == [Trace(False, -1, 0), Trace(False, 0, 0)]


def test_a_long_list_is_searched_in_pieces(bed: Bed) -> None:
    seed(bed, [{}] * 40)
    mine = take(bed, 3, "me:1").jobs
    take(bed, 37, "another:1")
    settled = bed.go(settle_cycle(bed.queue, "me:1", [], 50, piece=8))
    assert sorted(job.id for job in settled.jobs) == sorted(job.id for job in mine)


def test_garbage_among_the_active_jobs_is_passed_over(bed: Bed) -> None:
    seed(bed, [{}])
    take(bed, 1, "me:1")
    bed.admin.lpush(bed.queue.active, "no job", "1:lock")
    [job] = bed.go(settle_cycle(bed.queue, "me:1", [], 5)).jobs
    assert job.id == "1"
