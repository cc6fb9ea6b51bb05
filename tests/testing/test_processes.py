"""Tasks of the process pool in a box: they run here, by the same JSON."""

from __future__ import annotations

import os
from datetime import date

import pytest

from taskbull import App, PermanentError, current_batch, current_job
from taskbull.errors import JobFailed
from taskbull.testing import recorded


@pytest.fixture
def app() -> App:
    return App("shop", redis="redis://127.0.0.1:1")


def test_they_run_inline_with_a_json_round_trip(app: App) -> None:
    @app.task(process=True, timeout=5, grace=1)
    def compute(day: date) -> tuple[int, str]:
        current_job().progress(50)
        return os.getpid(), day.isoformat()

    with recorded(app) as box:
        handle = compute.delay(date(2026, 11, 17))
        box.run()
        assert handle.result() == (os.getpid(), "2026-11-17")
        [job] = box.jobs
        assert (job.data, job.progress) == ({"day": "2026-11-17"}, 50)
        assert job.value == [os.getpid(), "2026-11-17"]


async def test_they_run_inline_in_an_event_loop_too(app: App) -> None:
    @app.task(process=True)
    def compute(n: int) -> int:
        if n > 2:
            raise PermanentError("too many")
        return n + os.getpid()

    with recorded(app) as box:
        handle = await compute.adelay(1)
        await box.arun()
        assert handle.result() == 1 + os.getpid()
        await compute.adelay(3)
        with pytest.raises(JobFailed, match="too many"):
            await box.arun()


def test_batches_of_them_run_inline_too(app: App) -> None:
    @app.batch_task(size=3, process=True, timeout=5, grace=1)
    def compute(days: list[date]) -> list[tuple[int, str]]:
        for job in current_batch():
            job.progress(len(days))
        return [(os.getpid(), day.isoformat()) for day in days]

    with recorded(app) as box:
        handles = [compute.delay(date(2026, 11, day)) for day in (16, 17)]
        box.run()
        assert [handle.result() for handle in handles] == [
            (os.getpid(), "2026-11-16"),
            (os.getpid(), "2026-11-17"),
        ]
        assert [job.progress for job in box.jobs] == [2, 2]
