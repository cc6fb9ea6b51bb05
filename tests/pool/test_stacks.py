"""The stack of a running job, as its worker reports it: coroutine, thread, process, batch (V25)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anyio import to_thread

from taskbull.core import events
from taskbull.core.job import JobStack
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.monitor.server import Server, SyncServer
from tests.pool.conftest import PoolBed
from tests.servers.kinds import Reachable
from tests.worker.bed import until

TASKS = """
import threading, anyio
from pathlib import Path

release = threading.Event()

async def deep():
    await anyio.sleep_forever()

def blocked(path=None):
    if path is not None:
        Path(path).write_text("here")
    release.wait(60)

@app.task()
async def in_the_loop():
    await deep()

@app.task(timeout=600)
async def in_the_loop_with_a_limit():
    async with anyio.create_task_group():
        await deep()

@app.task()
def in_a_thread():
    blocked()

@app.task(timeout=600)
def in_a_thread_with_a_limit():
    blocked()

@app.task(process=True, grace=0.5)
def in_a_process(path: str):
    blocked(path)

@app.batch_task(size=2, wait=0.01)
async def batch_in_the_loop(items: list[int]) -> list[None]:
    await deep()

@app.batch_task(size=2, wait=0.01)
def batch_in_a_thread(items: list[int]) -> list[None]:
    blocked()

@app.batch_task(size=2, wait=0.01, process=True, grace=0.5)
def batch_in_a_process(items: list[str]) -> list[None]:
    blocked(items[0])
"""


@pytest.fixture
def bed(make_bed: Callable[[str], PoolBed]) -> PoolBed:
    return make_bed(TASKS)


@pytest.mark.parametrize(
    ("task", "place", "line"),
    [
        ("in_the_loop", "event loop", "in deep"),
        ("in_the_loop_with_a_limit", "event loop", "in deep"),
        ("in_a_thread", "thread", "in blocked"),
        ("in_a_thread_with_a_limit", "thread", "in blocked"),
        ("in_a_process", "process", "in blocked"),
        ("batch_in_the_loop", "event loop", "in deep"),
        ("batch_in_a_thread", "thread", "in blocked"),
        ("batch_in_a_process", "process", "in blocked"),
    ],
)
async def test_the_stack_shows_the_line_where_a_job_waits(
    bed: PoolBed, server: Reachable, prefix: str, task: str, place: str, line: str
) -> None:
    looking = Server(server.url, prefix=prefix)
    path = bed.folder / "here"
    if "process" in task:
        arguments: tuple[object, ...] = (str(path),)
    else:
        arguments = (1,) if "batch" in task else ()
    async with bed.working(shutdown_timeout=0.1) as worker:
        handle = await bed.app.tasks[task].adelay(*arguments)
        await bed.record.wait_for(events.Started)
        if "process" in task:
            await until(path.exists)

        found: JobStack | None = None
        while found is None or line not in found.stack:  # It may not be there yet.
            found = await looking.stack("default", handle.id)
        assert (found.worker, found.place) == (worker.id, place)
        assert found.seconds > 0
        assert f"in {task}" in found.stack
        assert found.stack.index(f"in {task}") < found.stack.index(line)
        assert "taskbull/worker" not in found.stack.partition(task)[0]
        await handle.acancel()
        _release(bed)


def _release(bed: PoolBed) -> None:
    bed.app.tasks["in_a_thread"].function.__globals__["release"].set()


async def test_sync_code_gets_the_same_stack(bed: PoolBed, server: Reachable, prefix: str) -> None:
    looking = SyncServer(server.url, prefix=prefix)
    async with bed.working(shutdown_timeout=0.1):
        handle = await bed.in_a_thread.adelay()
        await bed.record.wait_for(events.Started)
        found = await to_thread.run_sync(looking.stack, "default", handle.id)
        _release(bed)
    assert found.place == "thread"
    looking.close()


async def test_jobs_that_do_not_run_have_no_stack(
    bed: PoolBed, server: Reachable, prefix: str
) -> None:
    looking = Server(server.url, prefix=prefix)
    with pytest.raises(JobNotFound):
        await looking.stack("default", "none")
    handle = await bed.in_the_loop.adelay()
    with pytest.raises(WrongState, match=r"Cannot show the stack of job '1' .* is waiting"):
        await looking.stack("default", handle.id)


async def test_a_worker_that_does_not_reply_is_reported(
    bed: PoolBed, server: Reachable, prefix: str
) -> None:
    looking = Server(server.url, prefix=prefix)
    handle = await bed.in_the_loop.adelay()
    async with bed.working(shutdown_timeout=0.1):
        await bed.record.wait_for(events.Started)
        with pytest.raises(TaskbullError, match="did not report its stack within 0 s"):
            await looking.stack("default", handle.id, timeout=0)
