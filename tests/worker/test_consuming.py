"""Jobs run in BullMQ's order, with as many concurrently as there are slots."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest
from anyio import Event

from taskbull.core import events
from taskbull.core.groups import Limiter
from taskbull.core.outcome import Verdict
from taskbull.core.retry import CircuitBreaker
from taskbull.errors import ConfigurationError, RateLimited
from taskbull.worker.running_job import RunningJob, current_job
from taskbull.worker.worker import Worker
from tests.worker.bed import HandClock, WorkerBed, echo, until
from tests.worker.looking import listed


async def test_a_job_is_run_and_its_result_is_kept(bed: WorkerBed) -> None:  # FR-1, FR-6
    handle = await bed.queue.add("greet", {"to": "Ann"})
    async with bed.worker(echo).running():
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.job.id == handle.id
    assert completed.value == {"to": "Ann"}
    job = await bed.job(handle.id)
    assert job.returnvalue == {"to": "Ann"}
    assert job.attempts_made == 1
    assert await bed.count("completed") == 1


async def test_each_start_is_reported_before_its_end_with_worker_and_queue(bed: WorkerBed) -> None:
    await bed.queue.add("greet")
    worker = bed.worker(echo, worker_id="me")
    async with worker.running():
        await bed.record.wait_for(events.Completed)
    kinds = [type(event) for event in bed.record.of(events.JobEvent)]
    assert kinds == [events.Started, events.Completed]
    assert {(event.worker_id, event.queue) for event in bed.record.of(events.JobEvent)} == {
        ("me", "q")
    }


async def test_jobs_start_in_order_of_priority(bed: WorkerBed) -> None:
    for name, priority in (("c", 5), ("b", 1), ("a", 0)):
        await bed.queue.add(name, priority=priority)
    async with bed.worker(echo, concurrency=1).running():
        await bed.record.wait_for(events.Completed, 3)
    assert [event.job.name for event in bed.record.of(events.Started)] == ["a", "b", "c"]


@pytest.mark.parametrize("concurrency", [1, 7, 120])
async def test_no_more_jobs_run_concurrently_than_there_are_slots(
    bed: WorkerBed, concurrency: int
) -> None:
    running = most_running = most_active = 0

    async def handler(_: RunningJob) -> None:
        nonlocal running, most_running, most_active
        running += 1
        most_running = max(running, most_running)
        most_active = max(most_active, int(bed.admin.llen(bed.keys.active)))
        await anyio.lowlevel.checkpoint()
        running -= 1

    total = 3 * concurrency
    await bed.queue.add_bulk([("work", {})] * total)
    async with bed.worker(handler, concurrency=concurrency).running():
        await bed.record.wait_for(events.Completed, total)
    assert most_running <= concurrency
    assert most_active <= concurrency


async def test_all_slots_are_used_by_jobs_that_wait_for_each_other(bed: WorkerBed) -> None:
    everybody = Event()
    here = 0

    async def handler(_: RunningJob) -> None:
        nonlocal here
        here += 1
        if here == 20:
            everybody.set()
        await everybody.wait()

    await bed.queue.add_bulk([("meet", {})] * 20)
    async with bed.worker(handler, concurrency=20).running():
        await bed.record.wait_for(events.Completed, 20)


async def test_a_job_that_is_added_while_the_worker_waits_is_run_immediately(
    bed: WorkerBed,
) -> None:
    async with bed.worker(echo, drain_delay=60).running():
        for number in range(1, 4):
            await bed.queue.add("one")
            await bed.record.wait_for(events.Completed, number)


async def test_a_delayed_job_runs_when_it_is_due_and_not_before(bed: WorkerBed) -> None:
    async with bed.worker(echo, drain_delay=60).running():
        handle = await bed.queue.add("later", delay=0.4)
        await bed.record.wait_for(events.Completed)
    job = await bed.job(handle.id)
    assert job.processed_ms is not None
    assert job.created_ms is not None
    assert job.processed_ms >= job.created_ms + 400


async def test_an_earlier_job_overtakes_the_one_that_is_awaited(bed: WorkerBed) -> None:
    await bed.queue.add("late", delay=3600)
    async with bed.worker(echo, drain_delay=60).running():
        await bed.queue.add("soon", delay=0.2)
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.job.name == "soon"


async def test_nothing_is_fetched_while_the_queue_is_paused(bed: WorkerBed) -> None:
    await bed.queue.pause()
    await bed.queue.add("one")
    async with bed.worker(echo, drain_delay=0.05).running():
        await bed.queue.add("two")
        await _polls(bed, 3)
        assert bed.record.of(events.Started) == []
        await bed.queue.resume()
        await bed.record.wait_for(events.Completed, 2)


async def _polls(bed: WorkerBed, count: int) -> None:
    """Wait until workers have come back to the marker so often."""

    def waits() -> int:
        return int(bed.admin.info("commandstats").get("cmdstat_bzpopmin", {}).get("calls", 0))

    before = waits()
    await until(lambda: waits() >= before + count)


async def test_a_limiter_spreads_the_starts(bed: WorkerBed) -> None:
    await bed.queue.add_bulk([("work", {})] * 5)
    async with bed.worker(echo, limiter=Limiter(max=2, duration=0.3)).running():
        completed = await bed.record.wait_for(events.Completed, 5)
    starts = sorted([(await bed.job(event.job.id)).processed_ms or 0 for event in completed])
    assert starts[2] - starts[0] >= 290
    assert starts[4] - starts[2] >= 290


async def test_the_global_rate_limit_of_a_queue_is_respected(bed: WorkerBed) -> None:
    await bed.queue.set_global_rate_limit(1, 0.3)
    await bed.queue.add_bulk([("work", {})] * 2)
    async with bed.worker(echo).running():
        completed = await bed.record.wait_for(events.Completed, 2)
    starts = sorted([(await bed.job(event.job.id)).processed_ms or 0 for event in completed])
    assert starts[1] - starts[0] >= 290


async def test_global_concurrency_holds_across_two_workers(bed: WorkerBed) -> None:
    await bed.queue.set_global_concurrency(2)
    await bed.queue.add_bulk([("work", {})] * 12)
    most = 0

    async def handler(_: RunningJob) -> None:
        nonlocal most
        most = max(most, int(bed.admin.llen(bed.keys.active)))
        await anyio.lowlevel.checkpoint()

    one, two = (bed.worker(handler, drain_delay=0.05) for _ in range(2))
    async with one.running(), two.running():
        await bed.record.wait_for(events.Completed, 12)
    assert most == 2


async def test_several_queues_in_one_worker(bed: WorkerBed) -> None:
    other = type(bed.queue)("r", redis=bed.url, prefix=bed.prefix)
    await bed.queue.add("here")
    await other.add("there")
    async with bed.worker(echo, queues=["q", "r"]).running():
        await bed.record.wait_for(events.Completed, 2)
    told = {(event.queue, event.job.name) for event in bed.record.of(events.Completed)}
    assert told == {("q", "here"), ("r", "there")}


async def test_the_worker_is_listed_by_its_name(bed: WorkerBed) -> None:
    async with bed.worker(echo, worker_id="hera").running():
        with anyio.fail_after(60):
            while not (workers := await bed.queue.workers()):
                await anyio.lowlevel.checkpoint()
        handle = await bed.queue.add("one")
        await bed.record.wait_for(events.Completed)
    assert [worker.name for worker in workers] == ["hera"]
    assert (await bed.job(handle.id)).processed_by == "hera"


async def test_a_worker_that_is_busy_from_its_start_on_is_listed(bed: WorkerBed) -> None:
    gate = Event()

    async def work(job: RunningJob) -> None:
        await gate.wait()

    for _ in range(3):
        await bed.queue.add("send")
    async with bed.worker(work, concurrency=1).running():
        await bed.record.wait_for(events.Started)
        with anyio.fail_after(60):
            while not await bed.queue.workers():
                await anyio.lowlevel.checkpoint()
        assert not bed.record.of(events.Completed)
        gate.set()


async def test_a_burst_ends_when_the_queue_is_empty(bed: WorkerBed) -> None:
    await bed.queue.add_bulk([("work", {})] * 130)
    await bed.queue.add("later", delay=3600)
    with anyio.fail_after(60):
        await bed.worker(echo, concurrency=3).run(burst=True)
    assert await bed.count("completed") == 130
    assert await bed.count("delayed") == 1


async def test_a_plain_function_runs_in_a_thread_with_its_job(bed: WorkerBed) -> None:
    def handler(job: RunningJob) -> Any:
        assert current_job() is job
        job.progress({"step": 1})
        job.log("half way")
        job.update_data({"new": True})
        with contextlib.suppress(RuntimeError):  # there is no event loop in this thread
            anyio.get_current_task()
            return "in the event loop"
        return "in a thread"

    handle = await bed.queue.add("work", {"old": True})
    async with bed.worker(handler).running():
        [completed] = await bed.record.wait_for(events.Completed)
    assert completed.value == "in a thread"
    job = await bed.job(handle.id)
    assert job.progress == {"step": 1}
    assert job.data == {"new": True}
    assert (await bed.queue.logs(handle.id)).lines == ["half way"]


async def test_an_async_handler_tells_its_progress(bed: WorkerBed) -> None:  # FR-5
    async def handler(job: RunningJob) -> None:
        await job.aprogress(50)
        await job.alog("half way")
        await job.aupdate_data([1])
        assert (job.attempt, job.attempts, job.queue) == (1, 3, "q")
        assert current_job() is job

    handle = await bed.queue.add("work")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    job = await bed.job(handle.id)
    assert (job.progress, job.data) == (50, [1])
    assert (await bed.queue.logs(handle.id)).lines == ["half way"]


async def test_unreadable_data_fails_the_job_for_good(bed: WorkerBed) -> None:
    handle = await bed.queue.add("work")
    bed.admin.hset(bed.keys.job(handle.id), "data", b"{no json")
    async with bed.worker(echo).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.PERMANENT
    assert "data" in failed.failure.reason


async def test_a_result_that_is_no_json_fails_the_job_for_good(bed: WorkerBed) -> None:
    async def handler(_: RunningJob) -> object:
        return object()

    await bed.queue.add("work")
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.verdict is Verdict.PERMANENT
    assert "result" in failed.failure.reason


async def test_the_errors_of_listeners_go_no_further(
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: events.Completed) -> None:
        raise ZeroDivisionError("a listener's own trouble")

    await bed.queue.add("work")
    async with bed.worker(echo, on={events.Completed: broken}).running():
        await bed.record.wait_for(events.Completed)
    assert "A listener failed on Completed" in caplog.text
    assert await bed.count("completed") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Worker("q"),
        lambda: Worker([], echo),
        lambda: Worker(["q", "q"], echo),
        lambda: Worker("a:b", echo),
        lambda: Worker(None, echo),  # type: ignore[arg-type]
        lambda: Worker([["q"]], echo),  # type: ignore[list-item]
        lambda: Worker("q", echo, on=print),  # type: ignore[arg-type]
        lambda: Worker("q", echo, redis="http://nowhere"),
        lambda: Worker("q", echo, options={}),  # type: ignore[arg-type]
        lambda: Worker("q", echo, circuit_breaker={"q": 5}),  # type: ignore[dict-item]
        lambda: Worker("q", echo).on(str, print),  # type: ignore[type-var]
        lambda: Worker("q", echo).on(events.Completed, echo, thread=True),
        lambda: Worker("q", echo).circuit_breaker_state("other"),
    ],
)
def test_a_wrong_worker_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_the_circuit_of_a_worker_that_does_not_run() -> None:  # VAL-16
    breaker = CircuitBreaker(threshold=1, duration=1)
    assert Worker("q", echo).circuit_breaker_state("q") is None
    assert Worker("q", echo, circuit_breaker=breaker).circuit_breaker_state("q") == "closed"


async def test_a_worker_runs_once_at_a_time(bed: WorkerBed) -> None:
    worker = bed.worker(echo)
    async with worker.running():
        with pytest.raises(ConfigurationError, match="already running"):
            await worker.run()
    async with worker.running():
        await bed.queue.add("again")
        await bed.record.wait_for(events.Completed)


async def test_one_of_two_concurrent_starts_is_refused(bed: WorkerBed) -> None:
    worker, refused = bed.worker(echo), 0

    async def start() -> None:
        nonlocal refused
        try:
            async with worker.running():
                await until(lambda: refused > 0)
        except ConfigurationError:
            refused += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        tasks.start_soon(start)
    assert refused == 1
    async with worker.running():  # it can be started again
        pass


async def test_hundreds_of_jobs_that_are_due_at_one_moment_all_run(bed: WorkerBed) -> None:
    clock = HandClock()
    await bed.queue.add_bulk([("n", {}, {"delay": 60})] * 250)
    async with bed.worker(echo, clock=clock, concurrency=3).running():
        clock.turn(61)
        await bed.record.wait_for(events.Completed, 250)
    assert await bed.count("delayed") == 0


async def test_they_wait_also_while_the_queue_is_paused(bed: WorkerBed) -> None:
    clock = HandClock()
    await bed.queue.add_bulk([("n", {}, {"delay": 60})] * 250)
    await bed.queue.pause()
    async with bed.worker(echo, clock=clock, concurrency=3).running():
        clock.turn(61)
        await until(lambda: bed.admin.zcard(bed.keys.delayed) == 0)
        assert not bed.record.of(events.Started)
        await bed.queue.resume()
        await bed.record.wait_for(events.Completed, 250)


async def test_a_job_that_is_due_while_the_queue_is_limited_waits_with_the_others(
    bed: WorkerBed,
) -> None:  # K3
    clock = HandClock()
    due = await bed.queue.add("later", delay=5)
    await bed.queue.add_bulk([("now", {})] * 2)
    async with bed.worker(echo, limiter=Limiter(max=1, duration=3600), clock=clock).running():
        await bed.record.wait_for(events.Completed)
        clock.turn(6)
        await until(lambda: due.id in listed(bed, bed.keys.wait))


@pytest.mark.parametrize("limiter", [None, Limiter(max=5, duration=1)], ids=["none", "limiter"])
async def test_a_job_that_is_due_while_a_job_limits_the_queue_waits_with_the_others(
    bed: WorkerBed, limiter: Limiter | None
) -> None:  # K3
    clock = HandClock()
    due = await bed.queue.add("later", delay=5)
    first = await bed.queue.add("limits")

    async def handler(job: RunningJob) -> None:
        if job.name == "limits" and not bed.record.of(events.Released):
            raise RateLimited(3600)

    async with bed.worker(handler, limiter=limiter, clock=clock).running():
        await bed.record.wait_for(events.Released)
        await clock.turn_until(lambda: due.id in listed(bed, bed.keys.wait))
        added = await bed.queue.add("later", delay=60)
        await clock.turn_until(lambda: added.id in listed(bed, bed.keys.wait))
        assert len(bed.record.of(events.Started)) == 1
        bed.admin.delete(f"{bed.prefix}:q:limiter")
        await clock.turn_until(lambda: len(bed.record.of(events.Completed)) == 3)
    completed = {event.job.id for event in bed.record.of(events.Completed)}
    assert completed == {first.id, due.id, added.id}


async def test_a_job_that_is_due_while_somebody_limits_the_queue_waits_with_the_others(
    bed: WorkerBed,
) -> None:  # K3
    clock = HandClock()
    await bed.queue.rate_limit(3600)
    due = await bed.queue.add("later", delay=5)
    async with bed.worker(echo, limiter=Limiter(max=9, duration=1), clock=clock).running():
        await clock.turn_until(lambda: due.id in listed(bed, bed.keys.wait))
        assert not bed.record.of(events.Started)
