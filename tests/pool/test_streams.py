"""Plain generators in pool processes: their items go through the worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anyio import fail_after

from taskbull.errors import JobCancelled, JobFailed
from taskbull.queue.handle import JobHandle
from tests.pool.conftest import PoolBed

TASKS = """
from collections.abc import Iterator
from taskbull import current_job

@app.task(process=True, reduce=sum)
def count(to: int) -> Iterator[int]:
    yield from range(to)

@app.task(process=True, attempts=2, backoff=None)
def stumble() -> Iterator[str]:
    yield "a"
    if current_job().attempt == 1:
        os._exit(3)
    yield "b"

@app.task(process=True)
def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1

@app.task(process=True)
def odd() -> Iterator[object]:
    yield 1
    yield object()
"""


async def collect(job: JobHandle[object]) -> list[object]:
    with fail_after(60):
        return [item async for item in job.astream()]


async def test_items_of_a_process_reach_readers(make_bed: Callable[[str], PoolBed]) -> None:
    bed = make_bed(TASKS)
    tasks = bed.app.tasks
    async with bed.working():
        job = await tasks["count"].adelay(1200)
        assert await collect(job) == list(range(1200))
        assert await job.aresult() == sum(range(1200))
        job = await tasks["stumble"].adelay()
        assert await collect(job) == ["a", "a", "b"]
        job = await tasks["odd"].adelay()
        with pytest.raises(JobFailed, match="item"):
            await collect(job)


async def test_cancelling_ends_the_stream_of_a_process(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(TASKS)

    async def read(job: JobHandle[object]) -> None:
        count = 0
        async for _ in job.astream():
            count += 1
            if count == 50:
                await job.acancel()

    async with bed.working():
        with fail_after(60), pytest.raises(JobCancelled):
            await read(await bed.app.tasks["endless"].adelay())
