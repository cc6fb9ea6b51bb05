"""Pages, positions and searches of jobs with any contents."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.job import JobRow
from taskbull.core.keys import JobState
from taskbull.scripts import browse
from taskbull.scripts.browse import START, After, JobDetails, JobRows, SearchStep
from taskbull.scripts.read import ChildCounts
from tests.scripts.bed import NOW, Bed


def pages(bed: Bed, state: JobState, limit: int, **bound: Any) -> list[JobRows]:
    """Read page after page, to the last."""
    found: list[JobRows] = []
    after: After | None = START
    while after is not None:
        found.append(bed.run(browse.list_jobs(bed.queue, state, after, limit, **bound)))
        after = found[-1].after
    return found


def found(bed: Bed, job_id: str) -> JobDetails:
    details = bed.run(browse.find_job(bed.queue, job_id))
    assert details is not None
    return details


def ids(rows: list[JobRow]) -> list[str]:
    return [row.job.id for row in rows]


def test_an_empty_state_is_one_empty_page(bed: Bed) -> None:
    for state in (JobState.WAITING, JobState.FAILED):
        assert pages(bed, state, 5) == [JobRows([], 0, None)]


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
    first = bed.run(browse.list_jobs(bed.queue, JobState.FAILED, START, 6))
    assert ids(first.rows) == ["11", "10", "09", "08", "07", "06"]
    bed.job("new", "failed", score=9)
    bed.admin.zrem(bed.queue.failed, "06", "10")  # Including the last one of the page.
    assert first.after is not None
    second = bed.run(browse.list_jobs(bed.queue, JobState.FAILED, first.after, 3))
    assert ids(second.rows) == ["05", "04", "03"]


def test_a_page_ends_at_a_score(bed: Bed) -> None:
    for number in range(6):
        bed.job(str(number), "failed", score=number)
    [page] = pages(bed, JobState.FAILED, 10, bound=3)
    assert ids(page.rows) == ["5", "4", "3"]
    begun = After(score="4", id="\uffff")
    page = bed.run(browse.list_jobs(bed.queue, JobState.FAILED, begun, 10, bound=3))
    assert ids(page.rows) == ["4", "3"]


def test_long_fields_are_cut_and_large_ones_only_sized(bed: Bed) -> None:
    bed.job("1", "failed", failedReason="é" * 500, data="x" * 70_000, opts='{"attempts":5}')
    [page] = pages(bed, JobState.FAILED, 5)
    [row] = page.rows
    assert row.job.failed_reason == "é" * 150
    assert row.job.options.attempts == 5
    assert row.data == ""  # was not read
    assert (row.sizes["data"], row.sizes["reason"]) == (70_000, 1_000)


def test_a_call_reads_a_bounded_number_of_bytes(bed: Bed) -> None:
    for number in range(50):
        bed.job(f"{number:02}", "failed", score=number, data="x" * 60_000)
    [page] = pages(bed, JobState.FAILED, 50)[:1]
    assert [bool(row.data) for row in page.rows] == [True] * 4 + [False] * 46
    assert {row.sizes["data"] for row in page.rows} == {60_000}


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.FAILED])
def test_whole_jobs_are_read_as_far_as_they_fit(bed: Bed, state: JobState) -> None:
    place = "wait" if state is JobState.WAITING else "failed"
    for number in range(5):
        bed.job(str(number), place, score=5 - number, data='"' + "x" * 20_000 + '"')
    found = pages(bed, state, 10, fields=None)
    assert [ids(page.rows) for page in found] == [["0", "1"], ["2", "3"], ["4"]]
    rows = [row for page in found for row in page.rows]
    assert {len(row.job.data) for row in rows} == {20_000}
    assert {row.sizes["data"] for row in rows} == {20_002}
    assert rows[0].raw_options == bed.admin.hget(bed.queue.job("0"), "opts")


def test_a_whole_job_is_found(bed: Bed) -> None:
    bed.job("1", "failed", data="x" * 100_000)
    details = bed.run(browse.find_job(bed.queue, "1", fields=None))
    assert details is not None
    assert details.row.data == "x" * 100_000
    assert details.row.state is JobState.FAILED
    bed.admin.set(bed.queue.job("text"), "no hash")
    assert bed.run(browse.find_job(bed.queue, "text", fields=None)) is None


def test_what_is_no_job_is_on_the_page_without_fields(bed: Bed) -> None:
    bed.put("gone", "failed", score=1)
    bed.put("text", "failed", score=2)
    bed.admin.set(bed.queue.job("text"), "no hash")
    [page] = pages(bed, JobState.FAILED, 5)
    assert [(row.job.id, row.score, row.gone) for row in page.rows] == [
        ("text", 2.0, True),
        ("gone", 1.0, True),
    ]


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "prioritized"])
def test_a_job_in_a_set_is_placed(bed: Bed, state: str) -> None:
    bed.job("first", state, score=3)
    bed.job("it", state, score=4)
    bed.admin.set(bed.queue.id, 7)
    placed = found(bed, "it")
    assert (placed.row.state, placed.row.score, placed.sure) == (state, 4.0, True)
    assert placed.before == (1 if state in {"delayed", "prioritized"} else None)
    assert (placed.last_id, placed.row.lock_seconds) == (7, None)


@pytest.mark.parametrize(
    ("into", "state"), [("wait", "waiting"), ("paused", "paused"), ("active", "active")]
)
def test_a_job_in_a_list_is_placed(bed: Bed, into: str, state: str) -> None:
    for name in ("first", "second", "it", "last"):
        bed.job(name, into)
    bed.lock("it")
    placed = found(bed, "it")
    assert (placed.row.state, placed.before, placed.sure) == (state, 2, True)
    assert placed.row.lock_seconds is not None
    assert 0 < placed.row.lock_seconds <= 30


def test_a_job_that_is_nowhere_has_no_state(bed: Bed) -> None:
    bed.job("lost", "")
    placed = found(bed, "lost")
    assert (placed.row.state, placed.sure) == ("unknown", True)
    assert bed.run(browse.find_job(bed.queue, "never")) is None


def test_children_are_counted_with_a_job(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("a", "top")
    bed.admin.hset(bed.queue.processed("top"), mapping={"x": 1, "y": 1})
    bed.admin.hset(bed.queue.failed_children("top"), mapping={"d": 1, "e": 1, "f": 1})
    bed.admin.zadd(bed.queue.unsuccessful("top"), {"g": 1})
    placed = found(bed, "top")
    assert placed.children == ChildCounts(processed=2, unprocessed=1, ignored=3, failed=1)


def long_list(bed: Bed, jobs: int) -> None:
    """Fill `wait` with ids whose timestamps grow; the middle has its jobs."""
    chunk = 10_000
    for start in range(0, jobs, chunk):
        bed.admin.lpush(bed.queue.wait, *range(start, start + chunk))
    pipe = bed.admin.pipeline(transaction=False)
    for number in range(jobs):
        pipe.hset(bed.queue.job(str(number)), "timestamp", NOW + number // 3)
    pipe.execute()


def test_a_job_in_the_middle_of_a_long_list_is_found_by_its_timestamp(bed: Bed) -> None:
    long_list(bed, 60_000)
    placed = found(bed, "30001")
    assert (placed.row.state, placed.before, placed.sure) == ("waiting", 30_001, True)
    bed.admin.hset(bed.queue.job("30001"), "timestamp", NOW + 9_000)
    placed = found(bed, "30001")  # it says that it is elsewhere
    assert (placed.row.state, placed.before, placed.sure) == ("waiting", 27_000, False)


def search(bed: Bed, state: JobState, *wanted: tuple[list[str], list[str]]) -> list[SearchStep]:
    found: list[SearchStep] = []
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
    assert [step.examined for step in found] == [100, 100, 50]
    hits = [row.job.id for step in found for row in step.rows]
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
    assert sum(step.examined for step in found) == 21
    assert max(step.examined for step in found) <= 4
    assert [step.too_large for step in found if step.too_large] == [1]
    assert [row for step in found for row in step.rows] == []
