"""Threads and processes that a task leaves behind: they disturb no later job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pool.conftest import PoolBed

LEFT = """
import threading

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)

ASKED = {
    "progress": lambda job: job.progress(99),
    "log": lambda job: job.log("late"),
    "update_data": lambda job: job.update_data({"late": True}),
    "children": lambda job: job.children("who"),
    "spawn": lambda job: job.spawn([who.job(1)]),
}

def ask(job, what, name):
    try:
        ASKED[what](job)
        note(name, "done")
    except Exception as error:
        note(name, f"{type(error).__name__}: {error}")

@app.task(process=True)
def leave_a_thread(what: str) -> str:
    job = current_job()

    def ask_late():
        wait_for("late")
        ask(job, what, "asked")

    threading.Thread(target=ask_late, daemon=True).start()
    return job.id

@app.task(process=True)
def leave_asking(number: int) -> int:
    job = current_job()
    for n in range(3):
        threading.Thread(target=ask, args=(job, "log", f"asked-{number}-{n}"), daemon=True).start()
    return number

@app.task(process=True)
def ask_together(count: int) -> int:
    job = current_job()
    threads = [threading.Thread(target=job.log, args=(str(n),)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.log("after")
    return count

@app.task(process=True)
def ask_in_a_fork() -> int:
    pid = os.fork()
    if pid == 0:
        ask(current_job(), "log", "asked")
        os._exit(0)
    os.waitpid(pid, 0)
    current_job().log("by the task")
    return 1
"""

LOST = "LockLost: This worker no longer holds the lock of job '{}' in queue 'default'"


@pytest.fixture
def bed(make_bed: Callable[[str], PoolBed]) -> PoolBed:
    return make_bed(LEFT)


@pytest.mark.parametrize("what", ["progress", "log", "update_data", "children", "spawn"])
async def test_a_thread_that_asks_while_its_process_is_idle_is_refused(
    bed: PoolBed, what: str
) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        job_id = await bed.result("leave_a_thread", what)
        (bed.folder / "late").touch()
        assert await bed.file("asked") == LOST.format(job_id)
        for n in range(3):  # none of these orders goes astray
            assert (await bed.result("who", n))[1] == n
        assert worker.pids == pids
        job = bed.app.job("default", job_id)
        info = await job.ainfo()
        assert (info.progress, info.data) == (0, {"what": what})
        assert (await job.alogs()).lines == []
        assert (await bed.app.queue("default").counts())["completed"] == 4  # and no child


@pytest.mark.full
async def test_a_thread_does_not_write_for_the_next_job_of_its_process(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        job_id = await bed.result("leave_a_thread", "progress")
        other = await bed.hold.adelay("open")
        await bed.file("holds-open")
        (bed.folder / "late").touch()
        assert await bed.file("asked") == LOST.format(job_id)
        (bed.folder / "open").touch()
        await other.aresult(timeout=60)
        assert (await other.ainfo()).progress == 0


@pytest.mark.full
async def test_threads_that_ask_while_their_function_returns_take_no_order(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        handles = await bed.app.aenqueue([bed.leave_asking.job(n) for n in range(40)])
        assert [await handle.aresult(timeout=60) for handle in handles] == [*range(40)]
        for n, handle in enumerate(handles):
            for m in range(3):
                said = await bed.file(f"asked-{n}-{m}")
                assert said in {"done", LOST.format(handle.id)}
        assert worker.pids == pids


async def test_threads_of_a_running_function_each_get_their_answer(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        handle = await bed.ask_together.adelay(20)
        assert await handle.aresult(timeout=60) == 20
        lines = (await handle.alogs()).lines
        assert sorted(lines[:-1], key=int) == [str(n) for n in range(20)]
        assert lines[-1] == "after"


async def test_a_forked_process_cannot_ask_and_takes_no_answer(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        handle = await bed.ask_in_a_fork.adelay()
        assert await handle.aresult(timeout=60) == 1
        assert "forked by a task" in await bed.file("asked")
        assert (await handle.alogs()).lines == ["by the task"]
