"""Writes of pool jobs while Redis refuses them, and systems with limited exit information."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from taskbull.core import events
from taskbull.core.keys import JobState
from taskbull.worker import writing
from taskbull.worker.pool import process
from taskbull.worker.writing import WriteKind
from tests.pool.conftest import PoolBed, is_there
from tests.worker.bed import until

WRITING = """
@app.task(process=True)
def write_later(until: str) -> str:
    hold.function(until)
    job = current_job()
    job.progress(50)
    job.log("a line")
    job.update_data({"new": True})
    return "written"
"""


async def test_data_that_redis_does_not_take_costs_no_attempt(
    make_bed: Callable[[str], PoolBed],
    admin: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writing, "DATA", WriteKind("data", 0.3, vital=True))
    bed = make_bed(WRITING)
    async with bed.working(process_pool=1):
        handle = await bed.write_later.adelay("open")
        await bed.file("holds-open")
        admin.config_set("maxmemory", 1)
        try:
            (bed.folder / "open").touch()
            await until(lambda: "without using an attempt" in caplog.text)
        finally:
            admin.config_set("maxmemory", 0)
        await bed.record.wait_for(events.Released)
        [released] = bed.record.of(events.Released)
        assert released.job.id == handle.id
        assert released.delay > 0
        assert await handle.aresult(timeout=60) == "written"
        assert (await handle.ainfo()).attempts_made == 1


async def test_a_job_that_lost_its_lock_is_reported_when_it_writes(
    make_bed: Callable[[str], PoolBed], admin: redis.Redis
) -> None:
    bed = make_bed(WRITING)
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        handle = await bed.write_later.adelay("open")
        await bed.file("holds-open")
        await bed.app.queue("default").obliterate(force=True)
        (bed.folder / "open").touch()
        [lost] = await bed.record.wait_for(events.Lost)
        assert lost.job.id == handle.id
        assert await handle.astate() is JobState.UNKNOWN
        assert (await bed.result("who"))[0] in pids


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "how", "told"),
    [
        ("crash", "segfault", "died: SIGSEGV"),
        ("crash", "exit", "died: exit code 3"),
        ("crash", "close", "died: exit code 70"),
        ("hang", "spin", "timeout"),
        ("hang", "deaf", "timeout"),
    ],
)
async def test_it_works_where_nothing_tells_of_a_death(
    bed: PoolBed, monkeypatch: pytest.MonkeyPatch, task: str, how: str, told: str
) -> None:
    """As on macOS, or with an old kernel."""
    monkeypatch.setattr(process, "_CAN_LOOK", False)
    monkeypatch.setattr(process, "_open_exit_fd", lambda _: None)
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        event = await bed.ended(task, how)
        assert told in event.failure.reason
        await until(lambda: not is_there(pid))
        assert (await bed.result("who", 4))[1] == 4
