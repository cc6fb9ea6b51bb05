"""Functions that hang, ignore signals, crash, fork and break things: only they are hurt."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from anyio import create_task_group

from taskbull import JobFailed
from taskbull.core import events
from taskbull.core.keys import JobState
from taskbull.core.outcome import Category
from taskbull.errors import ProcessDied
from tests.pool.conftest import PoolBed, is_there, lives
from tests.selection import in_full
from tests.worker.bed import until


@pytest.mark.parametrize(
    "how",
    [
        *("regex", "stubborn", "deaf"),
        *(in_full(how) for how in ("spin", "sleep", "gil", "power", "babble")),
    ],
)
async def test_a_hanging_function_is_killed_and_its_process_replaced(
    bed: PoolBed, how: str
) -> None:
    async with bed.working(process_pool=2) as worker:
        before = worker.pids
        innocent = await bed.hold.adelay("open")
        await bed.file("holds-open")
        event = await bed.ended("hang", how)
        assert event.failure.reason == "TimeoutError: the job took longer than its timeout of 0.5 s"
        assert event.failure.category is Category.TRANSIENT
        (bed.folder / "open").touch()
        survivor = await innocent.aresult(timeout=60)
        [hanged] = before - {survivor}
        await until(lambda: not is_there(hanged))
        await until(lambda: len(worker.pids) == 2)
        assert (await bed.result("who"))[1] == 0
        [ended] = bed.record.of(events.ProcessEnded)
        assert ended.pid == hanged


@pytest.mark.full
@pytest.mark.parametrize(("how", "line"), [("spin", "in spin"), ("power", "in power")])
async def test_the_stored_stack_tells_where_it_hung(bed: PoolBed, how: str, line: str) -> None:
    async with bed.working(process_pool=1):
        event = await bed.ended("hang", how)
    assert "Its process was ended here:" in event.failure.stack
    assert line in event.failure.stack
    assert JobFailed("hang", "1", "reason", [event.failure.stack]).error_type == "TimeoutError"


async def test_a_function_that_is_ended_can_clean_up(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        event = await bed.ended("hang", "tidy")
        assert "timeout" in event.failure.reason
        await bed.file("tidied")
        assert (await bed.app.job("default", event.job.id).alogs()).lines == ["cleaned up"]


async def test_a_result_that_comes_within_the_grace_counts(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        assert await bed.result("hang", "quick") == "just in time"


@pytest.mark.full
async def test_a_fork_bomb_ends_with_its_job_and_hurts_no_other(bed: PoolBed) -> None:
    async with bed.working(process_pool=2) as worker:
        innocent = await bed.hold.adelay("open")
        await bed.file("holds-open")
        job = await bed.stay.adelay("bomb")
        await until(lambda: len(list(bed.folder.glob("bomb-*[0-9]"))) == 32)
        pids = [int(path.name.removeprefix("bomb-")) for path in bed.folder.glob("bomb-*[0-9]")]
        await job.acancel()
        await bed.record.wait_for(events.Failed, where=lambda event: event.job.id == job.id)
        await until(lambda: not any(lives(pid) for pid in pids))
        await until(lambda: len(worker.pids) == 2)
        (bed.folder / "open").touch()
        assert await innocent.aresult(timeout=60) not in pids
        assert (await bed.result("who", 5))[1] == 5


async def test_what_a_function_has_started_ends_with_it(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        handle = await bed.hang.adelay("children")
        pids = [int(pid) for pid in (await bed.file("children")).split()]
        assert all(lives(pid) for pid in pids)
        await bed.record.wait_for(events.Failed, where=lambda event: event.job.id == handle.id)
        await until(lambda: not any(lives(pid) for pid in pids))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("segfault", "died: SIGSEGV"),
        in_full("exit", "died: exit code 3"),
        ("kill", "died: SIGKILL, perhaps out of memory (peak "),
        in_full("close", "died: exit code 70"),
        in_full("reopen", "died: exit code 70"),
        ("garbage", "was ended: what it wrote to its worker is wrong"),
        in_full("torn", "died: exit code 5"),
    ],
)
async def test_a_crash_fails_only_its_own_attempt(bed: PoolBed, how: str, told: str) -> None:
    async with bed.working(process_pool=2) as worker:
        before = worker.pids
        innocent = await bed.hold.adelay("open")
        await bed.file("holds-open")
        event = await bed.ended("crash", how)
        assert isinstance(event.failure.error, ProcessDied)
        assert event.failure.category is Category.UNKNOWN
        [ended] = await bed.record.wait_for(events.ProcessEnded)
        assert told in event.failure.reason
        assert ended.job is not None
        assert (ended.reason, ended.job.id) == (event.failure.reason, event.job.id)
        assert event.failure.reason.startswith(f"process {ended.pid} ")
        (bed.folder / "open").touch()
        assert await innocent.aresult(timeout=60) in before - {ended.pid}
        handles = await bed.app.aenqueue([bed.who.job(n) for n in range(20)])
        for handle in handles:
            await handle.aresult(timeout=60)


async def test_what_a_function_has_started_ends_also_when_it_crashes(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        event = await bed.ended("crash", "orphans")
        assert "exit code 4" in event.failure.reason
        pids = [int(pid) for pid in (await bed.file("orphans")).split()]
        await until(lambda: not any(lives(pid) for pid in pids))


@pytest.mark.full
async def test_a_task_that_closes_the_line_and_opens_files_writes_nothing_into_them(
    bed: PoolBed,
) -> None:
    async with bed.working(process_pool=1):
        await bed.ended("crash", "reopen")
        await bed.record.wait_for(events.ProcessEnded)
    files = list(bed.folder.glob("file*"))
    assert len(files) == 40
    assert [file.name for file in files if file.stat().st_size] == []


async def test_the_stack_of_a_segfault_is_stored(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        event = await bed.ended("crash", "segfault")
    stack = event.failure.stack
    assert "Fatal Python error: Segmentation fault" in stack
    assert "in string_at" in stack
    assert "in crash" in stack
    assert "taskbull/app" not in stack


async def test_a_crashed_job_is_retried(make_bed: Callable[[str], PoolBed]) -> None:
    bed = make_bed("""
@app.task(process=True, attempts=2, backoff=Backoff.fixed(0.01))
def once() -> str:
    if current_job().attempt == 1:
        os._exit(9)
    return "second time"
""")
    async with bed.working(process_pool=1):
        assert await bed.result("once") == "second time"
        [retried] = bed.record.of(events.Retried)
        assert "exit code 9" in retried.failure.reason


async def test_an_idle_process_that_dies_is_replaced(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        await bed.result("who")
        os.kill(pid, signal.SIGKILL)
        [ended] = await bed.record.wait_for(events.ProcessEnded)
        assert (ended.pid, ended.job) == (pid, None)
        assert (await bed.result("who"))[0] != pid


@pytest.mark.full
async def test_signals_of_others_end_nothing(bed: PoolBed) -> None:
    """At a stop, systemd sends SIGTERM to every process of a service."""
    async with bed.working(process_pool=2) as worker:
        pids = worker.pids
        job = await bed.hold.adelay("open")
        await bed.file("holds-open")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        (bed.folder / "open").touch()
        assert await job.aresult(timeout=60) in pids
        assert worker.pids == pids


async def test_a_job_that_is_stopped_with_its_worker_is_given_back(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, shutdown_timeout=0):
        handle = await bed.stay.adelay("tidy")
        await bed.record.wait_for(events.Started)
        await until(lambda: list(bed.folder.glob("stays-*")) != [])
    assert (bed.folder / "tidied").exists()
    [released] = bed.record.of(events.Released)
    assert released.job.id == handle.id
    assert await handle.astate() is JobState.WAITING


async def test_a_deaf_function_does_not_keep_its_worker_from_stopping(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, shutdown_timeout=0):
        handle = await bed.stay.adelay("deaf")
        await bed.file("deaf")
    assert await handle.astate() is JobState.WAITING


async def test_a_function_may_end_while_its_worker_stops(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, shutdown_timeout=30) as worker:
        handle = await bed.hold.adelay("open")
        await bed.file("holds-open")

        async def let_go() -> None:
            (bed.folder / "open").touch()

        async with create_task_group() as tasks:
            tasks.start_soon(let_go)
        assert worker.pids
    assert await handle.astate() is JobState.COMPLETED


async def test_a_lost_lock_ends_the_process_where_it_is_to_cancel(bed: PoolBed) -> None:
    options = {"lock_duration": 30, "heartbeat_interval": 0.2, "on_lost_lock": "cancel"}
    async with bed.working(process_pool=1, **options) as worker:
        [pid] = worker.pids
        handle = await bed.stay.adelay("sleep")
        await bed.file(f"stays-{pid}")
        queue = bed.app.queue("default")
        await queue.obliterate(force=True)
        await bed.record.wait_for(events.Lost, where=lambda event: event.job.id == handle.id)
        await until(lambda: not is_there(pid))
        await bed.record.wait_for(events.ProcessEnded)


async def test_a_function_learns_that_the_lock_of_its_job_is_lost(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, lock_duration=30, heartbeat_interval=0.2) as worker:
        pids = worker.pids
        await bed.stay.adelay("watch_lock")
        await bed.file(f"stays-{min(pids)}")
        await bed.app.queue("default").obliterate(force=True)
        await bed.file("lost")
        assert (await bed.result("who"))[0] in pids


@pytest.mark.full
async def test_no_more_memory_is_an_error_of_the_job(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, process_memory_limit=400) as worker:
        event = await bed.ended("eat", 1000)
        assert event.failure.reason.startswith("MemoryError")
        assert event.failure.category is Category.TRANSIENT
        pid, eaten = await bed.result("eat", 10)
        assert (pid in worker.pids, eaten) == (True, 10 << 20)


@pytest.mark.full
async def test_a_process_is_replaced_after_its_share_of_jobs(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, process_max_jobs=3) as worker:
        [first] = worker.pids
        for n in range(3):
            assert await bed.result("who", n) == [first, n]
        [recycled] = await bed.record.wait_for(events.ProcessRecycled)
        assert recycled.pid == first
        pid, _ = await bed.result("who")
        assert pid != first
        await until(lambda: not is_there(first))
        assert bed.record.of(events.ProcessEnded) == []


async def test_a_process_that_has_grown_is_replaced(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, process_max_memory=150) as worker:
        [first] = worker.pids
        assert await bed.result("keep", 1) == first
        assert worker.pids == {first}
        assert await bed.result("keep", 150) == first
        await bed.record.wait_for(events.ProcessRecycled)
        await until(lambda: not is_there(first))
        assert await bed.result("keep", 1) != first


async def test_a_call_that_an_idle_process_did_not_begin_goes_to_another(  # H5
    bed: PoolBed,
) -> None:
    async with bed.working(process_pool=1) as worker:
        first = worker.pids
        for one in first:
            os.kill(one, signal.SIGSTOP)  # it reads no order
        job = await bed.who.options(attempts=1).adelay(7)
        pool = worker._processes  # pyright: ignore[reportPrivateUsage]
        assert pool is not None
        await until(lambda: pool.busy == 1)
        for one in first:
            os.kill(one, signal.SIGKILL)
        pid, number = await job.aresult(timeout=60)
        assert (number, pid in first) == (7, False)
