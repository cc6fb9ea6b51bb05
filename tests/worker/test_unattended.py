from __future__ import annotations

import logging
from time import monotonic
from typing import Any

import pytest

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Outcome
from taskbull.worker.run import Run
from taskbull.worker.running_job import RunningJob
from taskbull.worker.threads import ThreadDispatcher, ThreadPool
from tests.worker.bed import WorkerBed, until


def settle(run: Run, value: Any, error: BaseException | None) -> Outcome:
    return Complete()


async def test_a_job_has_taken_as_long_as_its_function_though_the_loop_looks_later() -> None:
    threads, decided = ThreadPool(1), list[Run]()
    unattended = ThreadDispatcher(
        threads,
        settle=settle,
        decided=lambda run, _: decided.append(run),
        will_collect=lambda _: True,
    )
    run = Run(Job(id="1"), "token", 0.0)
    run.began = monotonic()
    unattended.start(run, abs, -1)
    await until(lambda: len(threads.ended) == 1)
    seen = monotonic()
    threads.collect()
    assert decided == [run]
    assert 0 < run.duration <= seen - run.began
    threads.close()


def _hostile(base: type[BaseException], fault: type[BaseException]) -> type[BaseException]:
    """Return an error that raises when `isinstance` asks for its class, as a lazy proxy does."""

    class Hostile(base):  # type: ignore[valid-type, misc]
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise fault

    return Hostile


HOSTILE = [
    _hostile(base, fault)
    for base in (Exception, BaseException)
    for fault in (RuntimeError, SystemExit, KeyboardInterrupt)
]


def _raise(job: RunningJob) -> int:
    if job.data < 0:
        return 1
    raise HOSTILE[job.data]


async def _araise(job: RunningJob) -> int:
    return _raise(job)


@pytest.mark.parametrize("handler", [_raise, _araise])
async def test_an_error_that_cannot_be_examined_fails_its_job_alone(
    bed: WorkerBed, handler: Any
) -> None:  # H7
    given = [*range(len(HOSTILE)), *[-1] * 4]
    await bed.queue.add_bulk([("job", data) for data in given])
    async with bed.worker(handler, concurrency=2).running():
        await bed.record.wait_for(events.Completed, 4)
        await bed.record.wait_for(events.Failed, len(HOSTILE))
    counts = await bed.queue.counts()
    assert (counts["completed"], counts["failed"], counts["active"]) == (4, len(HOSTILE), 0)


async def test_a_listener_and_a_log_filter_that_raise_hold_up_no_job(bed: WorkerBed) -> None:
    # relative of H7
    def fail(*_: object) -> bool:
        raise SystemExit

    log = logging.getLogger("taskbull.worker.run")
    log.addFilter(fail)
    try:
        worker = bed.worker(_raise, concurrency=2)
        worker.on(events.Completed, fail)
        await bed.queue.add_bulk([("job", -1)] * 5)
        async with worker.running():
            await bed.record.wait_for(events.Completed, 5)
    finally:
        log.removeFilter(fail)
    assert await bed.count("completed") == 5
