"""Jobs that wait for a slot, and slots that wait for a job."""

from __future__ import annotations

from anyio import create_task_group, wait_all_tasks_blocked

from taskbull.core.job import Job
from taskbull.worker.run import ReadyJobs, Run


def runs(*ids: str) -> list[Run]:
    return [Run(Job(id=name), "token", 0.0) for name in ids]


class Slots:
    """Slots that take jobs until there are no more."""

    def __init__(self, ready: ReadyJobs) -> None:
        self._ready = ready
        self.taken: list[str] = []
        self.ended = 0

    async def take_all(self) -> None:
        while (run := await self._ready.wait()) is not None:
            self.taken.append(run.job.id)
        self.ended += 1

    async def take_one(self) -> None:
        run = await self._ready.wait()
        assert run is not None
        self.taken.append(run.job.id)


async def test_jobs_are_taken_in_the_order_in_which_they_were_put() -> None:
    ready = ReadyJobs()
    ready.put(runs("1", "2"))
    ready.put(runs("3"))
    assert [one.job.id for one in ready.jobs] == ["1", "2", "3"]
    first = await ready.wait()
    assert first is not None
    assert first.job.id == "1"


async def test_a_slot_waits_until_there_is_a_job() -> None:
    ready = ReadyJobs()
    slots = Slots(ready)
    async with create_task_group() as tasks:
        tasks.start_soon(slots.take_one)
        await wait_all_tasks_blocked()
        assert slots.taken == []
        ready.put(runs("1"))
    assert slots.taken == ["1"]


async def test_every_slot_gets_a_job_if_there_are_as_many() -> None:
    ready = ReadyJobs()
    slots = Slots(ready)
    ids = [str(number) for number in range(100)]
    async with create_task_group() as tasks:
        for _ in ids:
            tasks.start_soon(slots.take_one)
        await wait_all_tasks_blocked()
        ready.put(runs(*ids))
    assert sorted(slots.taken, key=int) == ids


async def test_closing_wakes_all_slots_and_returns_the_remaining_jobs() -> None:
    ready = ReadyJobs()
    slots = Slots(ready)
    async with create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(slots.take_all)
        await wait_all_tasks_blocked()
        ready.put(runs("1", "2"))
        left = ready.close()  # before a slot that was woken has come to it
    assert [one.job.id for one in left] == ["1", "2"]
    assert (slots.taken, slots.ended) == ([], 3)
    assert await ready.wait() is None
