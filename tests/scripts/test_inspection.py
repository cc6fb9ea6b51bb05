"""Reading a queue without changing it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from taskbull.core.job import Ending
from taskbull.core.keys import JobState
from taskbull.errors import JobNotFound
from taskbull.scripts import browse, read
from taskbull.scripts.read import Logs, QueueMetrics
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW, Bed
from tests.servers.kinds import KINDS, PrivateServers

PLACES = {
    JobState.WAITING: "wait",
    JobState.PAUSED: "paused",
    JobState.ACTIVE: "active",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.DELAYED: "delayed",
    JobState.PRIORITIZED: "prioritized",
    JobState.WAITING_CHILDREN: "waiting-children",
}


@pytest.fixture(autouse=True)
def nothing_is_changed(bed: Bed) -> Iterator[None]:
    """Every key is after the test as the test has seeded it."""
    yield
    assert not [name for name in bed.state() if name.startswith(("tb:", "events", "meta"))]


def ids(bed: Bed, state: JobState, start: int, stop: int, *, up: bool, page: int) -> list[str]:
    steps = browse.get_jobs(bed.queue, state, start, stop, ascending=up, chunk=page)
    return [job.id for job in bed.go(steps)]


def test_jobs_are_counted_by_state(bed: Bed) -> None:
    for count, place in enumerate(PLACES.values()):
        for n in range(count):
            bed.put(f"{place}-{n}", place)
    counts = bed.run(read.count_jobs(bed.queue))
    assert counts == {state: count for count, state in enumerate(PLACES)}
    assert counts["waiting-children"] == 7  # users may ask by the name


def test_jobs_are_counted_by_priority(bed: Bed) -> None:
    bed.put("1", "wait")
    bed.put("2", "paused")
    for n, priority in enumerate((1, 2, 2, 2_097_151)):
        bed.put(f"p{n}", "prioritized", score=priority * 2**32 + n)
    found = bed.run(read.count_priorities(bed.queue, [0, 1, 2, 3, 2_097_151]))
    assert found == {0: 2, 1: 1, 2: 2, 3: 0, 2_097_151: 1}
    assert bed.run(read.count_priorities(bed.queue, [])) == {}


@pytest.mark.parametrize("page", [1, 2, 3, 100])
@pytest.mark.parametrize("state", PLACES)
def test_jobs_are_listed_in_pages(bed: Bed, state: JobState, page: int) -> None:
    for n in range(7):
        bed.job(str(n), PLACES[state], score=NOW + n)
    oldest_first = [str(n) for n in range(7)]
    for start, stop in ((0, -1), (0, 0), (2, 4), (5, 99), (7, 9), (3, -2), (0, -8)):
        whole = slice(start, None if stop == -1 else stop + 1)
        for up in (True, False):
            expected = (oldest_first if up else oldest_first[::-1])[whole]
            if stop == -8:
                expected = []
            assert ids(bed, state, start, stop, up=up, page=page) == expected


@pytest.mark.parametrize("page", [1, 3, 100])
def test_jobs_that_wait_are_listed_wherever_they_are(bed: Bed, page: int) -> None:
    for n in range(4):
        bed.job(f"old-{n}", "paused")
    for n in range(3):
        bed.job(f"new-{n}", "wait")
    oldest_first = ["old-0", "old-1", "old-2", "old-3", "new-0", "new-1", "new-2"]
    for start in range(8):
        for stop in range(8):
            expected = oldest_first[start : stop + 1]
            assert ids(bed, JobState.WAITING, start, stop, up=True, page=page) == expected
            expected = oldest_first[::-1][start : stop + 1]
            assert ids(bed, JobState.WAITING, start, stop, up=False, page=page) == expected


@pytest.mark.parametrize("state", PLACES)
def test_what_is_no_job_is_left_out(bed: Bed, state: JobState) -> None:
    bed.job("1", PLACES[state])
    bed.put("ghost", PLACES[state])
    bed.admin.set(bed.queue.job("text"), "no hash")
    bed.put("text", PLACES[state])
    assert ids(bed, state, 0, -1, up=True, page=2) == ["1"]


def test_there_is_no_list_of_unknown_jobs(bed: Bed) -> None:
    with pytest.raises(ValueError, match="unknown"):
        bed.run(browse.list_jobs(bed.queue, JobState.UNKNOWN))


def test_a_listed_job_is_whole(bed: Bed) -> None:
    bed.job("1", data='{"v":1}', opts='{"attempts":4}', ats=2, progress="50")
    [job] = bed.go(browse.get_jobs(bed.queue, JobState.WAITING))
    assert job == bed.run(read.get_job(bed.queue, "1"))
    assert (job.data, job.options.attempts, job.attempts_started) == ({"v": 1}, 4, 2)
    assert job.progress == 50
    assert bed.run(read.get_job(bed.queue, "missing")) is None


@pytest.mark.parametrize("state", [*PLACES, JobState.UNKNOWN])
def test_the_state_of_a_job(bed: Bed, state: JobState) -> None:
    bed.job("1", PLACES.get(state, ""))
    shown = JobState.WAITING if state is JobState.PAUSED else state  # as in BullMQ
    assert bed.run(read.get_state(bed.queue, "1")) is shown


def test_how_a_job_has_ended(bed: Bed) -> None:
    bed.job("good", "completed", returnvalue="[1]")
    bed.job("bad", "failed", failedReason="broke")
    bed.job("bare", "completed")
    bed.job("busy", "active")
    endings = {
        job_id: bed.run(read.get_ending(bed.queue, job_id))
        for job_id in ("good", "bad", "bare", "busy")
    }
    assert endings == {
        "good": Ending(JobState.COMPLETED, raw_value=b"[1]"),
        "bad": Ending(JobState.FAILED, failed_reason="broke"),
        "bare": Ending(JobState.COMPLETED, raw_value=b"null"),
        "busy": None,
    }
    with pytest.raises(JobNotFound):
        bed.run(read.get_ending(bed.queue, "missing"))


@pytest.mark.parametrize(
    ("start", "stop", "lines"),
    [(0, -1, ["0", "1", "2", "3"]), (1, 2, ["1", "2"]), (-2, -1, ["2", "3"]), (9, 9, [])],
)
def test_pages_of_a_log(bed: Bed, start: int, stop: int, lines: list[str]) -> None:
    bed.admin.rpush(bed.queue.logs("1"), "0", "1", "2", "3")
    found = bed.run(read.get_logs(bed.queue, "1", start, stop))
    assert found == Logs(lines, 4)


def test_metrics(bed: Bed) -> None:
    assert bed.run(read.get_metrics(bed.queue, JobState.FAILED)) == QueueMetrics(0, 0, 0, [], 0)
    bed.hset("metrics:completed", {"count": 5, "prevTS": NOW, "prevCount": 3})
    bed.admin.rpush(bed.queue.metrics_completed_data, 1, 0, 2)
    found = bed.run(read.get_metrics(bed.queue, JobState.COMPLETED, 0, 1))
    assert found == QueueMetrics(5, NOW, 3, [1, 0], 3)


@pytest.mark.parametrize("place", ["wait", "completed"])
def test_a_page_is_filled_where_jobs_are_gone(bed: Bed, place: str) -> None:  # G8
    state = JobState.WAITING if place == "wait" else JobState.COMPLETED
    for number in range(1, 6):
        bed.job(str(number), place, score=number)
    bed.admin.delete(bed.queue.job("2"))
    assert ids(bed, state, 0, 2, up=True, page=500) == ["1", "3", "4"]
    assert ids(bed, state, 0, 2, up=False, page=500) == ["5", "4", "3"]
    assert ids(bed, state, 0, -1, up=True, page=2) == ["1", "3", "4", "5"]


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
@pytest.mark.parametrize("place", ["wait", "completed"])
def test_a_server_that_gives_little_at_once_is_read_in_pieces(  # G10
    private_server: PrivateServers, prefix: str, place: str
) -> None:
    state = JobState.WAITING if place == "wait" else JobState.COMPLETED
    strict = private_server()
    with redis.Redis.from_url(strict.url) as admin:
        admin.config_set("client-output-buffer-limit", "normal 65536 0 0")
        store = SyncStore(address.parse(strict.url))
        bed = Bed(admin, store, prefix)
        for number in range(200):
            bed.job(str(number), place, score=number, data='"' + "x" * 20_000 + '"')
        found = ids(bed, state, 0, -1, up=True, page=500)
        store.close()
    assert found == [str(number) for number in range(200)]
