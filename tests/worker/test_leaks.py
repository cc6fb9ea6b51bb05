"""A worker that has run many jobs and stopped leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from anyio import fail_after
from anyio.lowlevel import checkpoint
from msgspec import Struct, structs

from taskbull.core import events
from taskbull.core.job import ExecutionMode, Job
from taskbull.core.options import Keep
from taskbull.worker.attempt import Route
from taskbull.worker.run import Run
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed, until
from tests.worker.scale import ROUGH_KINDS, scaled

JOBS = scaled(4000, 100_000)  # per event loop
WARM_UP = 1000
BATCH = 1000
MEGABYTES = 25
"""Memory that the interpreter may keep. In a soak, a leak of 300 bytes per job exceeds it."""

pytestmark = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)


class Footprint(Struct, frozen=True):
    """Resources of a process that it must release."""

    tasks: int
    threads: int
    files: int
    clients: int
    runs: int

    def within(self, other: Footprint) -> bool:
        """Return True if no resource exceeds that of the other."""
        mine, others = structs.astuple(self), structs.astuple(other)
        return all(one <= two for one, two in zip(mine, others, strict=True))


def _tasks(event_loop: str) -> int:
    if event_loop == "asyncio":
        return len(asyncio.all_tasks())
    import trio  # noqa: PLC0415 - trio is optional

    return trio.lowlevel.current_statistics().tasks_living


def _footprint(bed: WorkerBed, event_loop: str) -> Footprint:
    gc.collect()
    return Footprint(
        tasks=_tasks(event_loop),
        threads=threading.active_count(),
        files=len(os.listdir("/proc/self/fd")),
        clients=len(bed.admin.client_list()),
        runs=sum(type(one) is Run or type(one) is RunningJob for one in gc.get_objects()),
    )


def _resident() -> float:
    """Return the memory of the process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _handler(job: RunningJob) -> object:
    await checkpoint()
    if int(job.id) % 10 == 0:
        raise ValueError(job.id)
    return job.data


def _in_thread(job: RunningJob) -> object:
    return job.data


def _resolve(job: Job) -> Route:
    return (
        Route(_in_thread, execution_mode=ExecutionMode.THREAD)
        if int(job.id) % 4 == 1
        else Route(_handler)
    )


async def _run(bed: WorkerBed, count: int) -> None:
    """Run this many jobs in a worker that stops when they have finished."""
    ended = 0

    def note(event: events.Event) -> None:
        nonlocal ended
        ended += isinstance(event, events.Completed | events.Failed)

    worker = bed.worker(None, resolve=_resolve, record=note, concurrency=50, threads=8)
    gone = Keep.none()
    async with worker.running():
        for added in range(0, count, BATCH):
            job = bed.queue.job(
                "work", {"x": "y" * 100}, attempts=1, keep_completed=gone, keep_failed=gone
            )
            await bed.queue.add_bulk([job] * BATCH)
            await until(lambda added=added: ended >= added, 60)  # type: ignore[misc]
        await until(lambda: ended == count, 60)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts by /proc")
async def test_a_worker_leaves_nothing_behind(
    bed: WorkerBed, anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    with fail_after(120 + JOBS / 200):
        await _run(bed, WARM_UP)
        await until(lambda: _quiet(bed))
        before, resident = _footprint(bed, anyio_backend_name), _resident()
        await _run(bed, JOBS)
        with suppress(TimeoutError):
            await until(lambda: _footprint(bed, anyio_backend_name).within(before))
        after, grown = _footprint(bed, anyio_backend_name), _resident() - resident
    print(f"{JOBS} jobs: {grown:+.1f} MB, {before} before, {after} after")
    assert after.within(before), after
    assert grown < MEGABYTES


def _quiet(bed: WorkerBed) -> bool:
    """Return True if the connections and threads of a stopped worker are gone."""
    names = [thread.name for thread in threading.enumerate()]
    blocked = [client for client in bed.admin.client_list() if client["cmd"] == "bzpopmin"]
    return not blocked and not any(name.startswith("taskbull-") for name in names)
