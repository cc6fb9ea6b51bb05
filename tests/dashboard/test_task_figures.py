"""Statistics of each task, from the jobs that finished last."""

from __future__ import annotations

from typing import Any

from taskbull import JobState
from taskbull.core.job import Job
from taskbull.dashboard.pages.queue import figures_of
from taskbull.monitor.browse import JobRow
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import complete, fail
from tests.dashboard.test_pages import texts


def row(name: str, took_ms: int, state: JobState = JobState.COMPLETED) -> JobRow:
    job = Job(id="1", name=name, created_ms=1000, processed_ms=3000, finished_ms=3000 + took_ms)
    return JobRow("q", job, state, 1)


def test_each_task_has_its_figures() -> None:
    rows = [row("send", 100 * n) for n in range(1, 20)] + [row("send", 9000, JobState.FAILED)]
    rows += [row("render", 500)] * 5
    found = figures_of(rows)
    send, render = found.tasks
    assert (found.examined, send.name, send.share, send.failed) == (25, "send", 0.8, 0.05)
    assert (send.waited, send.took, send.took_long) == (2.0, 1.1, 9.0)
    assert (render.name, render.took, render.failed) == ("render", 0.5, 0.0)


def test_jobs_that_say_nothing_have_no_figures() -> None:
    empty = JobRow("q", Job(id="1", name="x"), JobState.FAILED, 1)
    [task] = figures_of([empty]).tasks
    assert (task.waited, task.took, task.took_long, task.failed) == (None, None, None, 1.0)
    gone = JobRow("q", Job(id="1"), JobState.FAILED, 1, gone=True)
    assert figures_of([gone]).tasks == []


def test_cancelled_jobs_are_no_failures() -> None:  # V35
    job = Job(id="1", name="x", failed_reason="cancelled: by request")
    [task] = figures_of([JobRow("q", job, JobState.FAILED, 1)]).tasks
    assert task.failed == 0


async def test_they_stand_on_the_page_of_the_queue(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    for number in range(3):
        complete(admin, emails, f"c{number}")
    fail(admin, emails, "f", "x")
    read = texts((await visitor.get("queue?q=emails")).text)
    assert "send 100 % · waits 4.8 s · runs 200 ms, 95 % below 2.0 s · 25 % fail" in read
