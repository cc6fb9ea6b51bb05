"""Added and finished jobs leave no memory behind, counted in blocks.

What a bulk takes at its peak: tests/app/test_bulk_memory.py.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio import Event, fail_after

import taskbull
from taskbull import App
from taskbull.events import Completed
from tests.servers.kinds import KINDS, Reachable, SharedServers

JOBS = 2000
WARM_UP = 500
MOST = 0.5
"""Blocks per job that may be left. It was 0.00 of jobs that are added, and 0.02 to 0.18 of those
that are run, for msgspec keeps up to 512 strings; of a leak it is 1 at the least."""

_OURS = (tracemalloc.Filter(True, f"{Path(taskbull.__file__).parent}/*"),)
"""Blocks that taskbull's own lines made: trio keeps a thousand old deadlines before it cleans."""


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind is enough: it is the interpreter's memory that is counted."""
    return shared_servers.emptied(KINDS[0])


@pytest.fixture
def app(server: Reachable, prefix: str) -> Iterator[App]:
    app = App("memory", redis=server.url, prefix=prefix)
    if tracemalloc.is_tracing():
        pytest.skip("somebody else traces allocations in this process")
    tracemalloc.start()
    yield app
    tracemalloc.stop()
    app.close()


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if blocks that were made in the block are still there at its end."""
    gc.collect()
    before = tracemalloc.take_snapshot().filter_traces(_OURS)
    yield
    gc.collect()
    changes = tracemalloc.take_snapshot().filter_traces(_OURS).compare_to(before, "lineno")
    left = sum(change.count_diff for change in changes) / JOBS
    print(f"{left:.4f} blocks per job found, at most {MOST} allowed")
    changes.sort(key=lambda change: -change.count_diff)
    where = [f"{change.count_diff:+} at {change.traceback}" for change in changes[:10]]
    assert left <= MOST, "\n".join([f"{left:.4f} blocks per job left, {MOST} allowed", *where])


@pytest.mark.parametrize("at_once", [100, 1])
@pytest.mark.full
async def test_a_worker_keeps_nothing_of_its_jobs(at_once: int, app: App) -> None:
    missing, none_missing = 0, Event()

    @app.task(name="noop")
    async def noop(number: int) -> int:
        return number

    @app.on(Completed)
    def note(event: Completed) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            none_missing.set()

    async def run(jobs: int) -> None:
        nonlocal missing, none_missing
        missing, none_missing = jobs, Event()
        await app.aenqueue([noop.job(number) for number in range(jobs)])
        await none_missing.wait()

    with fail_after(60):
        async with app.worker(concurrency=at_once).running():
            await run(WARM_UP)
            with nothing_left():
                await run(JOBS)


@pytest.mark.full
async def test_adding_in_an_event_loop_keeps_nothing(app: App) -> None:
    @app.task(name="noop")
    async def noop(number: int) -> None: ...

    async def add(jobs: int) -> None:
        for number in range(jobs):
            await noop.adelay(number)

    with fail_after(60):
        await add(WARM_UP)
        with nothing_left():
            await add(JOBS)


@pytest.mark.full
def test_adding_without_an_event_loop_keeps_nothing(app: App) -> None:
    @app.task(name="noop")
    async def noop(number: int) -> None: ...

    def add(jobs: int) -> None:
        for number in range(jobs):
            noop.delay(number)

    add(WARM_UP)
    with nothing_left():
        add(JOBS)
