"""The alarm of a worker: it rings at the earliest of the times that were set."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from anyio import create_task_group, wait_all_tasks_blocked

from taskbull.worker.run import Alarm
from tests.worker.bed import HandClock


class Rung:
    """An alarm that runs, and how often it has rung."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.alarm = Alarm(self.clock)
        self.times = 0

    def ring(self) -> None:
        self.times += 1

    def set(self, seconds: float) -> None:
        self.alarm.set(self.clock.now() + seconds)

    async def turn(self, seconds: float) -> int:
        """Turn the clock; return how often the alarm has rung in all."""
        self.clock.turn(seconds)
        await wait_all_tasks_blocked()
        return self.times


@asynccontextmanager
async def running() -> AsyncGenerator[Rung, None]:
    async with create_task_group() as tasks:
        rung = Rung()
        tasks.start_soon(rung.alarm.run, rung.ring)
        await wait_all_tasks_blocked()
        yield rung
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("times", "turns", "rings"),
    [
        ([100], [99, 2], [0, 1]),
        ([100, 50], [51, 50], [1, 1]),  # the later one is forgotten
        ([50, 100], [51, 50], [1, 1]),
        ([100], [500, 500], [1, 1]),
        ([], [1000], [0]),
    ],
)
async def test_it_rings_once_at_the_earliest_time(
    times: list[float], turns: list[float], rings: list[int]
) -> None:
    async with running() as rung:
        for seconds in times:
            rung.set(seconds)
        assert [await rung.turn(seconds) for seconds in turns] == rings


async def test_what_is_past_rings_immediately() -> None:
    async with running() as rung:
        rung.set(-1)
        assert await rung.turn(0) == 1


async def test_it_can_be_set_again_after_it_has_rung() -> None:
    async with running() as rung:
        rung.set(10)
        await rung.turn(11)
        rung.set(10)
        assert await rung.turn(11) == 2


async def test_it_can_be_set_before_it_runs() -> None:
    rung = Rung()
    rung.set(-1)
    async with create_task_group() as tasks:
        tasks.start_soon(rung.alarm.run, rung.ring)
        assert await rung.turn(0) == 1
        tasks.cancel_scope.cancel()
