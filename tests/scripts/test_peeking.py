"""Pages, places and searches: what is seen of jobs, whatever they hold."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.states import JobState
from taskbull.scripts import browse
from taskbull.scripts.browse import START, After, Found, Row, Rows
from taskbull.scripts.read import ChildCounts
from tests.scripts.bed import NOW, Bed


def pages(bed: Bed, state: JobState, limit: int, **bound: Any) -> list[Rows]:
    """Read page after page, to the last."""
    found: list[Rows] = []
    after: After | None = START
    while after is not None:
        found.append(bed.run(browse.peek_jobs(bed.queue, state, after, limit, **bound)))
        after = found[-1].after
    return found


def ids(rows: list[Row]) -> list[str]:
    return [row.id for row in rows]


def test_an_empty_state_is_one_empty_page(bed: Bed) -> None:
    for state in (JobState.WAITING, JobState.FAILED):
        assert pages(bed, state, 5) == [Rows(0, [], None)]


def test_a_list_is_paged_from_the_next_to_run(bed: Bed) -> None:
    for number in range(3):
        bed.job(f"p{number}", "paused")
    for number in range(4):
        bed.job(f"w{number}")
    found = pages(bed, JobState.WAITING, 2)
    assert [ids(page.rows) for page in found] == [["p0", "p1"], ["p2", "w0"], ["w1", "w2"], ["w3"]]
    assert {page.total for page in found} == {7}
    assert [ids(page.rows) for page in pages(bed, JobState.PAUSED, 5)] == [["p0", "p1", "p2"]]


@pytest.mark.parametrize(("state", "newest"), [("failed", True), ("delayed", False)])
def test_sorted_jobs_are_paged_by_score_and_id(bed: Bed, state: str, newest: bool) -> None:
    for number in range(12):  # four of each score
        bed.job(f"{number:02}", state, score=number // 4)
    wanted = [f"{number:02}" for number in range(12)]
    found = pages(bed, JobState(state), 5)
    assert [i for page in found for i in ids(page.rows)] == (wanted[::-1] if newest else wanted)


def test_pages_do_not_slip_when_jobs_come_and_go(bed: Bed) -> None:
    for number in range(12):
        bed.job(f"{number:02}", "failed", score=number // 4)
    first = bed.run(browse.peek_jobs(bed.queue, JobState.FAILED, START, 6))
    assert ids(first.rows) == ["11", "10", "09", "08", "07", "06"]
    bed.job("new", "failed", score=9)
    bed.admin.zrem(bed.queue.failed, "06", "10")  # the last of the page, too
    assert first.after is not None
    second = bed.run(browse.peek_jobs(bed.queue, JobState.FAILED, first.after, 3))
    assert ids(second.rows) == ["05", "04", "03"]


def test_a_page_ends_at_a_score(bed: Bed) -> None:
    for number in range(6):
        bed.job(str(number), "failed", score=number)
    [page] = pages(bed, JobState.FAILED, 10, bound=3)
    assert ids(page.rows) == ["5", "4", "3"]
    begun = After(score="4", id="\uffff")
    page = bed.run(browse.peek_jobs(bed.queue, JobState.FAILED, begun, 10, bound=3))
    assert ids(page.rows) == ["4", "3"]


def test_long_fields_are_cut_and_large_ones_only_sized(bed: Bed) -> None:
    bed.job("1", "failed", failedReason="é" * 500, data="x" * 70_000, opts='{"attempts":5}')
    [page] = pages(bed, JobState.FAILED, 5)
    peeked = page.rows[0].peeked
    assert peeked is not None
    assert peeked.job.failed_reason == "é" * 150
    assert peeked.job.options.attempts == 5
    assert peeked.job.raw_data == b"{}"  # was not read
    assert (peeked.sizes["data"], peeked.sizes["reason"]) == (70_000, 1_000)


def test_a_call_reads_a_bounded_number_of_bytes(bed: Bed) -> None:
    for number in range(50):
        bed.job(f"{number:02}", "failed", score=number, data="x" * 60_000)
    [page] = pages(bed, JobState.FAILED, 50)[:1]
    read = [row.peeked.job.raw_data != b"{}" for row in page.rows if row.peeked is not None]
    assert read == [True] * 4 + [False] * 46
    assert {row.peeked.sizes["data"] for row in page.rows if row.peeked} == {60_000}


def test_what_is_no_job_is_on_the_page_without_fields(bed: Bed) -> None:
    bed.put("gone", "failed", score=1)
    bed.put("text", "failed", score=2)
    bed.admin.set(bed.queue.job("text"), "no hash")
    [page] = pages(bed, JobState.FAILED, 5)
    assert page.rows == [Row("text", 2.0, None), Row("gone", 1.0, None)]


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "prioritized"])
def test_a_job_in_a_set_is_placed(bed: Bed, state: str) -> None:
    bed.job("first", state, score=3)
    bed.job("it", state, score=4)
    bed.admin.set(bed.queue.id, 7)
    placed = bed.run(browse.place_job(bed.queue, "it"))
    assert (placed.state, placed.score, placed.sure) == (state, 4.0, True)
    assert placed.before == (1 if state in {"delayed", "prioritized"} else None)
    assert (placed.last_id, placed.lock_ms) == (7, -2)


@pytest.mark.parametrize(
    ("into", "state"), [("wait", "waiting"), ("paused", "paused"), ("active", "active")]
)
def test_a_job_in_a_list_is_placed(bed: Bed, into: str, state: str) -> None:
    for name in ("first", "second", "it", "last"):
        bed.job(name, into)
    bed.lock("it")
    placed = bed.run(browse.place_job(bed.queue, "it"))
    assert (placed.state, placed.before, placed.sure) == (state, 2, True)
    assert 0 < placed.lock_ms <= 30_000


def test_a_job_that_is_nowhere_has_no_state(bed: Bed) -> None:
    bed.job("lost", "")
    placed = bed.run(browse.place_job(bed.queue, "lost"))
    assert (placed.state, placed.peeked is None, placed.sure) == ("unknown", False, True)
    placed = bed.run(browse.place_job(bed.queue, "never"))
    assert (placed.state, placed.peeked, placed.last_id) == ("unknown", None, 0)


def test_children_are_counted_with_a_job(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("a", "top")
    bed.admin.hset(bed.queue.processed("top"), "x", "1")
    placed = bed.run(browse.place_job(bed.queue, "top"))
    assert placed.children == ChildCounts(processed=1, unprocessed=1, ignored=0, failed=0)


def long_list(bed: Bed, jobs: int) -> None:
    """Fill `wait` with ids whose timestamps grow; the middle has its jobs."""
    piece = 10_000
    for start in range(0, jobs, piece):
        bed.admin.lpush(bed.queue.wait, *range(start, start + piece))
    pipe = bed.admin.pipeline(transaction=False)
    for number in range(jobs):
        pipe.hset(bed.queue.job(str(number)), "timestamp", NOW + number // 3)
    pipe.execute()


def test_a_job_in_the_middle_of_a_long_list_is_found_by_its_timestamp(bed: Bed) -> None:
    long_list(bed, 60_000)
    placed = bed.run(browse.place_job(bed.queue, "30001"))
    assert (placed.state, placed.before, placed.sure) == ("waiting", 30_001, True)
    bed.admin.hset(bed.queue.job("30001"), "timestamp", NOW + 9_000)
    placed = bed.run(browse.place_job(bed.queue, "30001"))  # it says that it is elsewhere
    assert (placed.state, placed.before, placed.sure) == ("waiting", 27_000, False)


def search(bed: Bed, state: JobState, *wanted: tuple[list[str], list[str]]) -> list[Found]:
    found: list[Found] = []
    after: After | None = START
    while after is not None:
        found.append(bed.run(browse.search_jobs(bed.queue, state, wanted, after)))
        after = found[-1].after
    return found


@pytest.mark.parametrize("state", ["wait", "failed", "delayed"])
def test_a_text_is_found_in_steps_of_a_hundred_jobs(bed: Bed, state: str) -> None:
    for number in range(250):
        bed.job(f"{number:03}", state, score=number, data=f'{{"n":"<{number}>"}}')
    kind = JobState.WAITING if state == "wait" else JobState(state)
    found = search(bed, kind, (["data"], ["<7>", "<207>"]))
    assert [step.looked_at for step in found] == [100, 100, 50]
    hits = [row.id for step in found for row in step.rows]
    assert hits == (["207", "007"] if state == "failed" else ["007", "207"])


def test_all_that_is_wanted_has_to_be_there(bed: Bed) -> None:
    bed.job("1", "failed", name="send", failedReason="Timeout")
    bed.job("2", "failed", name="send", failedReason="KeyError")
    [step] = search(bed, JobState.FAILED, (["name"], ["send"]), (["failedReason"], ["Time"]))
    assert ids(step.rows) == ["1"]


def test_large_jobs_make_steps_short_and_huge_ones_are_counted(bed: Bed) -> None:
    for number in range(20):
        bed.job(f"{number:02}", "failed", score=number, data="x" * 100_000)
    bed.job("huge", "failed", score=99, data="x" * 300_000 + "needle")
    found = search(bed, JobState.FAILED, (["data"], ["needle"]))
    assert sum(step.looked_at for step in found) == 21
    assert max(step.looked_at for step in found) <= 4
    assert [step.too_large for step in found if step.too_large] == [1]
    assert [row for step in found for row in step.rows] == []
