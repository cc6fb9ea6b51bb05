"""A warning about tasks that wait for a job in their own queue: both need a slot."""

from __future__ import annotations

import logging

import pytest
from anyio import fail_after

from taskbull.app.app import App

LIMIT = 60.0


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "in its own queue" in line]


async def test_it_is_reported_once_for_each_task(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(n: int) -> int:
        return await (await child.adelay(n)).aresult()

    @app.task
    def plain_parent(n: int) -> int:
        return child.delay(n).result()

    with fail_after(LIMIT), caplog.at_level(logging.WARNING):
        async with app.worker().running():
            for n in range(2):
                for task in (parent, plain_parent):
                    assert await (await task.adelay(n)).aresult() == n
    first, second = sorted(warnings_of(caplog))
    assert first.startswith("Task parent (job ")
    assert "waits for the result of child (job " in first
    assert "own queue default" in first
    assert "Put child in another queue" in first
    assert second.startswith("Task plain_parent (job ")


async def test_another_queue_and_a_job_that_is_only_looked_up_are_fine(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="children")
    async def child(n: int) -> int:
        return n

    @app.task(queue="parents")
    async def parent(n: int) -> int:
        return await (await child.adelay(n)).aresult()

    @app.task(queue="parents")
    async def reader(job_id: str) -> int:
        value: int = await app.job("parents", job_id).aresult()
        return value

    with fail_after(LIMIT), caplog.at_level(logging.WARNING):
        async with app.worker().running():
            job = await parent.adelay(5)
            assert await job.aresult() == 5
            assert await (await reader.adelay(job.id)).aresult() == 5
    assert warnings_of(caplog) == []
