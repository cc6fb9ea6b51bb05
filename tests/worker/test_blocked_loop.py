"""A task that blocks the event loop keeps its lock and is reported; one that hangs loses it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import anyio
import pytest
from anyio import create_task_group

from taskbull.core import events
from taskbull.scripts.cycle import sweep_stalled
from taskbull.store.address import parse
from taskbull.store.sync_store import SyncStore
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import WorkerBed, until
from tests.worker.scale import ROUGH_KINDS

LOCK = 1.5
SHORT: Any = {"lock_duration": LOCK, "heartbeat_interval": 0.2, "stalled_interval": 0.1}

pytestmark = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def _swept(bed: WorkerBed) -> Iterator[list[str]]:
    """Sweep continuously in a thread. Yields the ids of returned jobs."""
    put_back: list[str] = []
    over = threading.Event()
    store = SyncStore(parse(bed.url))

    def sweep() -> None:
        while not over.wait(0.02):
            bed.admin.delete(bed.keys.stalled_check)
            steps = sweep_stalled(bed.keys, 0, interval_ms=1, max_stalls=1)
            if found := store.run(steps, timeout=60):
                put_back.extend(found.put_back)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield put_back
    finally:
        over.set()
        thread.join(60)
        store.close()


@pytest.mark.parametrize("block", [_sleep, _compute])
async def test_a_job_that_blocks_the_loop_keeps_its_lock_and_is_logged(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture, block: Callable[[float], None]
) -> None:  # D6
    async def handler(job: RunningJob) -> str:
        if job.name == "greedy":
            block(2 * LOCK)
        return "done"

    handle = await bed.queue.add("greedy")
    with _swept(bed) as put_back:
        async with bed.worker(handler, **SHORT).running():
            await bed.record.wait_for(events.Completed)
            [told] = await bed.record.wait_for(events.LoopBlocked)
    assert put_back == []
    assert bed.record.of(events.Lost) == []
    first = handler.__code__.co_firstlineno
    named = re.search(rf"by job {handle.id} \(greedy\) at {re.escape(__file__)}:(\d+)", caplog.text)
    assert named is not None
    assert int(named[1]) == first + 2
    assert told.job is not None
    assert told.job.id == handle.id
    assert told.where.startswith(f"{__file__}:{first + 2} ")


class Other:
    """Another worker, in its own event loop and thread."""

    def __init__(self, bed: WorkerBed, backend: str) -> None:
        self._bed = bed
        self._backend = backend
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.completed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def wait(self, count: int) -> None:
        """Block until it has completed this many jobs."""
        limit = time.monotonic() + 60
        while len(self.completed) < count and time.monotonic() < limit:
            time.sleep(0.01)

    def _run(self) -> None:
        anyio.run(self._work, backend=self._backend)

    async def _work(self) -> None:
        async def handler(_: RunningJob) -> str:
            return "by the other"

        def note(event: events.Event) -> None:
            if isinstance(event, events.Completed):
                self.completed.append(event.job.id)

        worker = self._bed.worker(handler, record=note, worker_id="other", **SHORT)
        async with create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await until(self._over.is_set, 60)
            tasks.cancel_scope.cancel()


async def test_the_jobs_of_a_loop_that_hangs_go_to_another_worker(
    bed: WorkerBed, anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:  # D6
    handles = await bed.queue.add_bulk([("hang", {})] * 8)
    others: list[str] = []
    runs = 0

    async def handler(_: RunningJob) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            with Other(bed, anyio_backend_name) as other:
                other.wait(len(handles))
            others.extend(other.completed)
        return "too late"

    async with bed.worker(handler, concurrency=8, loop_block_limit=0.5, **SHORT).running():
        await until(lambda: others != [] and all(_balanced(bed, handle.id) for handle in handles))
    assert sorted(others) == sorted(handle.id for handle in handles)
    assert bed.record.of(events.Completed) == []
    assert len(bed.record.of(events.Lost)) >= 1
    assert "no longer renewing the locks" in caplog.text
    for handle in handles:
        assert (await bed.job(handle.id)).returnvalue == "by the other"


def _balanced(bed: WorkerBed, job_id: str) -> bool:
    """Return True if each started event of a job is followed by one event that ends the run.

    A job that did not start because its lock was gone is reported as lost.
    """
    told = [type(event) for event in bed.record.of(events.JobEvent) if event.job.id == job_id]
    told = [kind for kind in told if kind is not events.Stalled]
    if told[:1] == [events.Lost]:
        told = told[1:]
    starts, ends = told[::2], told[1::2]
    return (
        len(starts) == len(ends)
        and all(kind is events.Started for kind in starts)
        and all(issubclass(kind, events.Ended) for kind in ends)
    )


async def test_a_job_whose_lock_was_left_to_expire_is_not_started(bed: WorkerBed) -> None:  # F9
    locked: list[bool] = []

    async def handler(job: RunningJob) -> None:
        if job.name == "greedy" and job.job.attempts_started == 1:
            _sleep(3 * LOCK)
        elif job.name == "patient":
            locked.append(bool(bed.admin.exists(bed.keys.lock(job.id))))

    await bed.queue.add_bulk([("greedy", {}), ("patient", {}), ("patient", {})])
    async with bed.worker(handler, loop_block_limit=LOCK, **SHORT).running():
        await bed.record.wait_for(events.Completed, 3)
    assert locked == [True, True]
