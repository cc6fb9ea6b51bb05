"""Steps, signals and sleep in pool processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anyio import fail_after

from taskbull.errors import JobFailed
from tests.pool.conftest import PoolBed
from tests.worker.bed import until

LIMIT = 60.0

TASKS = """
from taskbull import step

@step
def load(name: str) -> list[int]:
    with (HERE / "calls").open("a") as calls:
        calls.write(name + "\\n")
    return [len(name), os.getpid()]

@app.task(process=True, attempts=3, backoff=Backoff.none())
def build(name: str) -> list[int]:
    size, pid = load(name)
    if current_job().attempt == 1:
        os._exit(3)
    factor = current_job().wait_signal("factor", int)
    current_job().sleep(0.05)
    return [size * factor, load(name + name)[0]]

@app.task(process=True, attempts=2, backoff=Backoff.none())
def mismatched() -> None:
    load("a" * current_job().attempt)
    raise ConnectionError("away")

@app.task(process=True, attempts=1)
def catching() -> str:
    try:
        return current_job().wait_signal("answer", str)
    except Exception:
        return "no answer"
"""


async def test_a_process_continues_after_its_finished_steps(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(TASKS)
    with fail_after(LIMIT):
        async with bed.working():
            job = await bed.app.tasks["build"].adelay("abc")
            queue = bed.app.sync_queue(job.queue)
            await until(lambda: queue.counts()["waiting-children"] == 1)
            await job.asignal("factor", 5)
            assert await job.aresult() == [15, 6]
            assert [one.kind for one in await job.asteps()] == ["step", "signal", "sleep", "step"]
    assert (bed.folder / "calls").read_text().split() == ["abc", "abcabc"]


async def test_a_mismatch_in_a_process_fails_the_job_for_good(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(TASKS)
    with fail_after(LIMIT):
        async with bed.working():
            job = await bed.app.tasks["mismatched"].adelay()
            with pytest.raises(JobFailed, match="step 'load' with other arguments"):
                await job.aresult()
            assert (await job.ainfo()).attempts_made == 2


async def test_a_task_in_a_process_that_catches_all_exceptions_waits(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(TASKS)
    with fail_after(LIMIT):
        async with bed.working():
            job = await bed.app.tasks["catching"].adelay()
            queue = bed.app.sync_queue(job.queue)
            await until(lambda: queue.counts()["waiting-children"] == 1)
            await job.asignal("answer", "yes")
            assert await job.aresult() == "yes"
