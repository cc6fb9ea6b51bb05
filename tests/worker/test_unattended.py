from __future__ import annotations

from time import monotonic
from typing import Any

from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Outcome
from taskbull.worker.run import Run
from taskbull.worker.threads import ThreadPool
from taskbull.worker.unattended import Unattended
from tests.worker.bed import until


def settle(run: Run, value: Any, error: BaseException | None) -> Outcome:
    return Complete()


async def test_a_job_has_taken_as_long_as_its_function_though_the_loop_looks_later() -> None:
    threads, decided = ThreadPool(1), list[Run]()
    unattended = Unattended(
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
