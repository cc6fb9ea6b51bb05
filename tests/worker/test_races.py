"""Two workers compete for a job: exactly one gets it, and the other is notified."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import pytest
from anyio import Event, create_task_group, fail_after, move_on_after, sleep, sleep_forever
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.scripts.cycle import sweep_chunk
from taskbull.store.address import parse
from taskbull.store.async_store import Store, open_store
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import Recorder, WorkerBed, until
from tests.worker.chores import Chores
from tests.worker.looking import (
    ends,
    entries,
    keep_all_entries,
    last_entry_id,
    listed,
    lock_of,
    locks,
)
from tests.worker.scale import ROUGH_KINDS, SEED, scaled

ROUNDS = scaled(30, 500)
JOBS = scaled(200, 5000)
FAR = 86_400

pytestmark = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)


async def _sweep(store: Store, bed: WorkerBed, max_stalls: int = 1000) -> list[str]:
    """Sweep once, whenever the last sweep was; give the ids of the jobs that were put back."""
    bed.admin.delete(bed.keys.stalled_check)
    swept = await store.run(sweep_chunk(bed.keys, 0, 1, max_stalls))
    return swept.put_back


class Held:
    """A handler whose jobs run until the test lets them go."""

    def __init__(self) -> None:
        self.go = Event()
        self.cancelled = 0

    async def __call__(self, _: RunningJob) -> str:
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return "done"


async def test_exactly_one_of_a_finish_and_a_sweep_succeeds(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:  # NFR-4
    caplog.set_level(logging.CRITICAL, "taskbull")
    random = Random(SEED)
    outcomes: Counter[str] = Counter()
    async with open_store(parse(bed.url)) as store:
        for number in range(1, ROUNDS + 1):
            held, record = Held(), Recorder()
            handle = await bed.queue.add("work", keep_completed=None)
            async with bed.worker(held, record=record, stalled_interval=FAR).running():
                await record.wait_for(events.Started)
                await _sweep(store, bed)  # marks it
                bed.admin.pexpire(lock_of(bed, handle.id), random.randint(1, 5))
                async with create_task_group() as tasks:
                    tasks.start_soon(_keep_sweeping, store, bed)
                    await sleep(random.random() * 0.006)  # the lock may live as long, or not
                    held.go.set()
                    await record.wait_for(events.Completed)
                    tasks.cancel_scope.cancel()
            told = [type(event) for event in record.of(events.Ended)]
            # The late one may come after that of the run that was begun in its place.
            assert sorted(kind.__name__ for kind in told) in (["Completed"], ["Completed", "Lost"])
            outcomes["sweep" if events.Lost in told else "finish"] += 1
            assert ends(bed)[handle.id] == 1
            assert await bed.count("completed") == number
    print(f"won: {dict(outcomes)}")
    assert await bed.count("active") == 0


async def _keep_sweeping(store: Store, bed: WorkerBed) -> None:
    while True:
        await _sweep(store, bed)


@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_a_job_whose_lock_another_took_is_lost(bed: WorkerBed, policy: str) -> None:  # FR-2
    held = Held()
    handle = await bed.queue.add("work")
    lock = lock_of(bed, handle.id)
    worker = bed.worker(
        held, on_lost_lock=policy, lock_duration=10, heartbeat_interval=0.1, stalled_interval=FAR
    )
    async with worker.running() as shutdown:
        await bed.record.wait_for(events.Started)
        bed.admin.set(lock, "another's")
        [lost] = await bed.record.wait_for(events.Lost)
        assert lost.job.id == handle.id
        assert held.cancelled == 0 or policy == "cancel"
        if policy == "cancel":
            await until(lambda: held.cancelled == 1)
        held.go.set()
        shutdown.begin()
    assert bed.record.of(events.Completed) == []
    assert len(bed.record.of(events.Ended)) == 1
    assert bed.admin.get(lock) == b"another's"
    assert await bed.count("active") == 1
    assert ends(bed) == Counter()


async def test_a_finish_without_the_lock_is_reported_as_lost(bed: WorkerBed) -> None:  # FR-2
    held = Held()
    handle = await bed.queue.add("work")
    async with bed.worker(held, stalled_interval=FAR).running():
        await bed.record.wait_for(events.Started)
        bed.admin.set(lock_of(bed, handle.id), "another's")
        held.go.set()
        [ended] = await bed.record.wait_for(events.Ended)
    assert isinstance(ended, events.Lost)
    assert bed.record.of(events.Completed) == []
    assert await bed.count("active") == 1


async def _obliterate(bed: WorkerBed) -> None:
    await bed.queue.obliterate(force=True)


async def _flush(bed: WorkerBed) -> None:
    bed.admin.flushall()


async def _remove(bed: WorkerBed) -> None:
    for job_id in ("1", "2"):
        bed.admin.delete(bed.keys.job(job_id), lock_of(bed, job_id))
        bed.admin.lrem(bed.keys.active, 0, job_id)


@pytest.mark.parametrize("removed", [_obliterate, _flush, _remove])
@pytest.mark.parametrize("found_by", ["finish", "heartbeat"])
async def test_jobs_that_are_removed_while_they_run_are_lost_and_nothing_more(
    bed: WorkerBed, removed: Callable[[WorkerBed], Any], found_by: str
) -> None:
    held = Held()
    await bed.queue.add_bulk([("work", {})] * 2)
    interval = 0.1 if found_by == "heartbeat" else 15
    async with bed.worker(
        held, heartbeat_interval=interval, stalled_interval=FAR, drain_delay=0.1
    ).running():
        await bed.record.wait_for(events.Started, 2)
        await removed(bed)
        if found_by == "heartbeat":
            await bed.record.wait_for(events.Lost, 2)
        held.go.set()
        await bed.record.wait_for(events.Lost, 2)
        await bed.queue.resume()  # obliterate has paused it
        handle = await bed.queue.add("after")
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.job.id == handle.id
    assert len(bed.record.of(events.Ended)) == 3
    assert await bed.count("active") == 0
    assert locks(bed) == []


async def test_scripts_that_the_server_forgot_are_loaded_again(bed: WorkerBed) -> None:
    chores = Chores(bed, Random(SEED))
    worker = bed.worker(
        chores.handler, record=chores, heartbeat_interval=0.05, stalled_interval=0.1
    )
    with fail_after(60):
        async with worker.running():
            for _ in range(scaled(10, 100)):
                await chores.add(20)
                bed.admin.script_flush()
                await chores.at_most(5)
            await chores.at_most(0)
    chores.check()


async def test_pausing_and_resuming_lose_no_job_and_stop_all_starts(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    chores = Chores(bed, Random(SEED))
    one, two = (bed.worker(chores.handler, record=chores, drain_delay=0.2) for _ in range(2))
    over = False

    async def add() -> None:
        for _ in range(JOBS // 20):
            await chores.add(20)
            await chores.at_most(60)

    with fail_after(60 + JOBS / 50):
        async with one.running(), two.running(), create_task_group() as tasks:
            tasks.start_soon(add)
            while not over:
                await bed.queue.pause()
                paused_at = last_entry_id(bed)
                for _ in range(5):
                    await checkpoint()
                assert "active" not in [entry.event for entry in entries(bed, paused_at)]
                await bed.queue.resume()
                with move_on_after(0.002):
                    await sleep_forever()
                over = len(chores.plans) == JOBS // 20 * 20 and chores.outstanding == 0
    chores.check()


@pytest.mark.parametrize("limit", [None, 3])
async def test_two_workers_and_a_sweep_end_each_job_once(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    chores = Chores(bed, Random(SEED))
    await bed.queue.set_global_concurrency(limit)
    options: Any = {
        "record": chores,
        "concurrency": 10,
        "lock_duration": 5,
        "heartbeat_interval": 0.05,
        "stalled_interval": 0.02,
        "drain_delay": 0.05,
    }
    one, two = (bed.worker(chores.handler, **options) for _ in range(2))
    sweeps = most = 0
    over = False

    async def sweep() -> None:
        nonlocal sweeps, most
        while not over:
            assert await _sweep(store, bed) == []
            sweeps += 1
            most = max(most, int(bed.admin.llen(bed.keys.active)))

    with fail_after(60 + JOBS / 50):
        async with (
            open_store(parse(bed.url)) as store,
            one.running(),
            two.running(),
            create_task_group() as tasks,
        ):
            tasks.start_soon(sweep)
            for _ in range(JOBS // 50):
                await chores.add(50)
                await chores.at_most(50)
            await chores.at_most(0)
            over = True
    print(f"{len(chores.plans)} jobs, {sweeps} sweeps, {most} active at the most")
    assert most <= (limit or 20)
    chores.check()


async def test_locks_that_are_removed_at_random_end_each_job_once(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its lock, the sweep gives the job to another worker. The first to finish it wins."""
    caplog.set_level(logging.CRITICAL, "taskbull")
    random = Random(SEED)
    keep_all_entries(bed)
    record = Recorder()
    completed: Counter[str] = Counter()
    lost = 0

    def note(event: events.Event) -> None:
        nonlocal lost
        if isinstance(event, events.Completed):
            completed[event.job.id] += 1
            record(event)
        lost += isinstance(event, events.Lost)

    async def handler(_: RunningJob) -> None:
        await sleep(random.random() * 0.01)

    async def tear() -> None:
        while True:
            for job_id in listed(bed, bed.keys.active):
                if random.random() < 0.1:
                    bed.admin.delete(lock_of(bed, job_id))
            await _sweep(store, bed)

    options: Any = {"record": note, "heartbeat_interval": 0.05, "max_stalled_count": 1000}
    one, two = (bed.worker(handler, stalled_interval=FAR, **options) for _ in range(2))
    handles = await bed.queue.add_bulk([("work", {})] * JOBS)
    with fail_after(60 + JOBS / 20):
        async with (
            open_store(parse(bed.url)) as store,
            one.running(),
            two.running(),
            create_task_group() as tasks,
        ):
            tasks.start_soon(tear)
            await until(lambda: len(completed) == JOBS, 60 + JOBS / 20)
            tasks.cancel_scope.cancel()
    print(f"{JOBS} jobs, {lost} runs lost")
    assert lost > 0
    assert completed == Counter(handle.id for handle in handles)
    assert ends(bed) == completed
    assert await bed.count("active") == 0


async def test_a_worker_that_takes_its_own_lost_job_again_runs_it_twice_and_ends_it_once(
    bed: WorkerBed,
) -> None:
    first, runs = Event(), 0

    async def handler(_: RunningJob) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            await first.wait()
            return 1
        return 2

    handle = await bed.queue.add("work")
    async with (
        open_store(parse(bed.url)) as store,
        bed.worker(handler, stalled_interval=FAR).running(),
    ):
        await bed.record.wait_for(events.Started)
        await _sweep(store, bed)
        bed.admin.delete(lock_of(bed, handle.id))
        assert await _sweep(store, bed) == [handle.id]
        [completed] = await bed.record.wait_for(events.Completed)
        assert completed.value == 2
        first.set()
        await bed.record.wait_for(events.Lost)
    assert ends(bed) == Counter([handle.id])
    assert (await bed.job(handle.id)).returnvalue == 2


async def test_a_job_whose_lock_is_gone_before_its_turn_is_not_run(bed: WorkerBed) -> None:
    handles = await bed.queue.add_bulk([("work", {})] * 8)
    ran: list[str] = []

    async def handler(job: RunningJob) -> None:
        ran.append(job.id)
        if len(ran) == 1:
            for handle in handles:
                bed.admin.delete(lock_of(bed, handle.id))
            time.sleep(0.5)  # noqa: ASYNC251 - the heartbeat finds out while the loop stands still
        await checkpoint()

    worker = bed.worker(handler, concurrency=8, heartbeat_interval=0.05, stalled_interval=FAR)
    async with worker.running():
        await bed.record.wait_for(events.Lost, 8)
        await checkpoint()
    for handle in handles:
        told = [e for e in bed.record.of(events.JobEvent) if e.job.id == handle.id]
        assert [type(e) for e in told] in ([events.Started, events.Lost], [events.Lost])
        assert ran.count(handle.id) == (len(told) == 2)
