"""Functions that block run in threads of the worker: a bounded number, whatever they do."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from subprocess import run
from typing import Any

import pytest
from anyio import CancelScope, create_task_group, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.core.job import ExecutionMode, Job
from taskbull.core.outcome import Category, Verdict
from taskbull.worker.attempt import Route
from taskbull.worker.running_job import RunningJob, current_job
from taskbull.worker.threads import ThreadCall, ThreadPool, TimeLimit
from tests.worker.bed import WorkerBed, until

colour: ContextVar[str] = ContextVar("colour")


class Gate:
    """Functions that wait in a thread until the test lets them go."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.inside = 0
        self.passed = 0

    def wait(self, *_: object) -> str:
        with self._lock:
            self.inside += 1
        try:
            assert self._open.wait(60)
        finally:
            with self._lock:
                self.inside -= 1
                self.passed += 1
        return "passed"

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def threads() -> Callable[[], int]:
    """Count the threads of pools that were made since the test began."""
    before = set(threading.enumerate())

    def count() -> int:
        new = set(threading.enumerate()) - before
        return sum(re.fullmatch(r"taskbull-\d+", thread.name) is not None for thread in new)

    return count


class Cancelling(TimeLimit):
    """A clock that cancels the call that waits for a thread, as soon as there is one."""

    def __init__(self) -> None:
        self.scope = CancelScope()

    def stop(self) -> None: ...

    def go_on(self) -> None:
        self.scope.cancel()


async def test_a_result_that_is_there_when_its_caller_is_cancelled_counts(gate: Gate) -> None:
    pool, cancelling, returned = ThreadPool(1), Cancelling(), threading.Event()
    found: list[str] = []

    def answer() -> str:
        returned.set()
        return "in time"

    async def call() -> None:
        with cancelling.scope:
            found.append(await pool.run(answer, clock=cancelling))

    with fail_after(60):
        async with create_task_group() as tasks:
            tasks.start_soon(pool.run, gate.wait)
            await until(lambda: gate.inside == 1)
            tasks.start_soon(call)
            await wait_all_tasks_blocked()
            gate.open()
            assert returned.wait(60)
            while len(pool.ended) < 2:  # in the event loop, which learns of all of it at once
                time.sleep(0.001)  # noqa: ASYNC251
    assert found == ["in time"]
    assert (pool.busy, pool.abandoned) == (0, 0)
    pool.close()


async def _abandon(pool: ThreadPool, gate: Gate) -> None:
    """Give up on a call that hangs in a thread."""
    inside = gate.inside
    async with create_task_group() as tasks:
        tasks.start_soon(pool.run, gate.wait)
        await until(lambda: gate.inside > inside)
        tasks.cancel_scope.cancel()


async def test_many_calls_share_a_few_threads(threads: Callable[[], int]) -> None:
    pool = ThreadPool(4)
    lock = threading.Lock()
    running = most = 0
    results: list[int] = []

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return number

    async def call(number: int) -> None:
        results.append(await pool.run(work, number))

    with fail_after(60):
        async with create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(call, number)
    assert sorted(results) == list(range(200))
    assert most == 4
    assert pool.busy == 0
    pool.close()
    await until(lambda: threads() == 0)


async def test_a_call_runs_in_the_context_of_its_caller_and_changes_nothing_there() -> None:
    pool = ThreadPool(1)

    def work() -> str:
        seen = colour.get()
        colour.set("changed in the thread")
        return seen

    colour.set("red")
    assert await pool.run(work) == "red"
    assert colour.get() == "red"
    pool.close()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("wrong"), ValueError),
        (StopIteration(3), RuntimeError),  # no coroutine may raise it
        (SystemExit(2), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
async def test_what_a_function_raises_is_raised_where_it_is_awaited(
    raised: BaseException, expected: type[BaseException]
) -> None:
    pool = ThreadPool(1)

    def work() -> None:
        raise raised

    caught: BaseException | None = None
    try:
        await pool.run(work)
    except BaseException as error:  # noqa: BLE001 - all kinds are meant
        caught = error
    assert isinstance(caught, expected)
    assert await pool.run(lambda: "the thread lives") == "the thread lives"
    assert pool.busy == 0
    pool.close()


async def test_a_call_that_is_given_up_is_counted_until_its_function_ends(
    gate: Gate, threads: Callable[[], int]
) -> None:
    told: list[int] = []
    pool = ThreadPool(1, lambda pool, _: told.append(pool.abandoned))
    await _abandon(pool, gate)
    assert (pool.abandoned, pool.busy, told) == (1, 0, [1])
    with fail_after(60):
        assert await pool.run(lambda: "in another thread") == "in another thread"
    gate.open()
    await until(lambda: pool.abandoned == 0)
    pool.close()
    await until(lambda: threads() == 0)


async def test_abandoned_threads_are_replaced_but_not_without_end(
    gate: Gate, threads: Callable[[], int]
) -> None:
    pool = ThreadPool(2)
    with fail_after(60):
        for _ in range(4):
            await _abandon(pool, gate)
        assert pool.abandoned == 4
        assert threads() == 4
        async with create_task_group() as tasks:
            tasks.start_soon(pool.run, time.monotonic)
            await until(lambda: pool.busy == 1)
            assert threads() == 4  # it waits for one of them
            gate.open()
        await until(lambda: pool.abandoned == 0)
        assert await pool.run(lambda: "on") == "on"
        await until(lambda: threads() == 2)
    pool.close()
    await until(lambda: threads() == 0)


async def test_a_call_given_up_before_its_turn_is_not_counted(gate: Gate) -> None:
    told: list[object] = []
    pool = ThreadPool(1, lambda *_: told.append(1))
    ran: list[int] = []
    second = Gate()
    with fail_after(60):
        await _abandon(pool, gate)
        async with create_task_group() as tasks:
            tasks.start_soon(pool.run, second.wait)  # in the thread that replaces the first
            await until(lambda: second.inside == 1)
            async with create_task_group() as waiting:
                waiting.start_soon(pool.run, ran.append, 1)
                await until(lambda: pool.busy == 2)
                waiting.cancel_scope.cancel()
            assert pool.abandoned == 1
            second.open()
        assert await pool.run(lambda: "the next") == "the next"
    assert ran == []
    assert len(told) == 1
    assert pool.abandoned == 1  # the first one still hangs
    gate.open()
    await until(lambda: pool.abandoned == 0)
    pool.close()


async def test_a_call_that_is_cancelled_when_its_function_has_ended_has_ended(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("trio delivers no cancellation to a task that is about to go on")
    told: list[object] = []
    pool = ThreadPool(1, lambda *_: told.append(1))
    ended = threading.Event()
    task = asyncio.ensure_future(pool.run(ended.set))
    await checkpoint()
    assert ended.wait(60)
    time.sleep(0.1)  # noqa: ASYNC251 - the loop is to see the end and the cancellation together
    asyncio.get_running_loop().call_soon(task.cancel)
    assert await task is None
    assert (pool.busy, pool.abandoned, told) == (0, 0, [])
    with fail_after(60):
        assert await pool.run(lambda: "the next") == "the next"
    pool.close()


async def test_a_closed_pool_lets_its_threads_end(gate: Gate, threads: Callable[[], int]) -> None:
    pool = ThreadPool(3)
    await _abandon(pool, gate)
    async with create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(pool.run, time.sleep, 0.001)
    pool.close()
    await until(lambda: threads() == 1)
    gate.open()
    await until(lambda: threads() == 0)


class Told:
    """Hears of calls that were started; the loop is woken for their ends only if it is `idle`."""

    def __init__(self, pool: ThreadPool, *, idle: bool = True) -> None:
        self._pool = pool
        self._idle = idle
        self.calls: list[ThreadCall] = []
        self.depth = 0

    def start(self, function: Callable[..., Any], *args: Any) -> ThreadCall:
        return self._pool.start(function, args, self._hear, lambda _: not self._idle)

    def _hear(self, call: ThreadCall) -> None:
        self.depth += 1
        self._pool.collect()  # Like a task that writes for its job.
        assert self.depth == 1
        self.depth -= 1
        self.calls.append(call)


async def test_an_unawaited_call_is_notified_when_it_has_finished() -> None:
    pool, wrong = ThreadPool(2), ValueError("wrong")
    told, here = Told(pool), threading.get_ident()

    def fail() -> None:
        raise wrong

    colour.set("red")
    ended = [told.start(colour.get), told.start(threading.get_ident), told.start(fail)]
    await until(lambda: len(told.calls) == 3)
    assert ended[0].value == "red"
    assert ended[1].value != here
    assert [call.error for call in ended] == [None, None, wrong]
    assert pool.busy == 0
    pool.close()


async def test_the_event_loop_is_not_woken_for_what_it_will_collect() -> None:
    pool = ThreadPool(4)
    told = Told(pool, idle=False)
    started = [told.start(abs, -number) for number in range(100)]
    await until(lambda: len(pool.ended) == 100)
    await checkpoint()
    assert told.calls == []
    pool.collect()
    assert set(told.calls) == set(started)
    assert [call.value for call in started] == list(range(100))
    assert pool.busy == 0
    pool.close()


async def test_a_call_that_nobody_awaits_can_be_withdrawn_or_abandoned(gate: Gate) -> None:
    abandoned: list[int] = []
    pool, late = ThreadPool(1, lambda pool, _: abandoned.append(pool.abandoned)), KeyError("late")
    told, ran = Told(pool), list[int]()
    hanging = told.start(gate.wait)
    await until(lambda: gate.inside == 1)
    hanging.withdraw(late)  # too late for that
    waiting, forgotten = told.start(ran.append, 1), told.start(ran.append, 2)
    waiting.withdraw(late)
    assert (told.calls, waiting.error) == ([waiting], late)
    pool.abandon(forgotten)
    pool.abandon(hanging)
    assert (pool.busy, abandoned) == (0, [1])
    gate.open()
    await until(lambda: pool.abandoned == 0)
    with fail_after(60):
        assert await pool.run(lambda: "the next") == "the next"
    assert (told.calls, ran) == ([waiting], [])
    pool.close()


async def test_slots_begin_other_jobs_while_plain_functions_run(bed: WorkerBed, gate: Gate) -> None:
    async def handler(job: RunningJob) -> str:
        return job.name

    def resolve(job: Job) -> Route:
        if job.name == "plain":
            return Route(gate.wait, execution_mode=ExecutionMode.THREAD)
        return Route(handler)

    await bed.queue.add_bulk([("plain", None)] * 3)
    async with bed.worker(None, resolve=resolve, concurrency=4, threads=3).running():
        await until(lambda: gate.inside == 3)
        await bed.queue.add_bulk([("awaited", None)] * 5)
        completed = await bed.record.wait_for(events.Completed, 5)
        assert {event.value for event in completed} == {"awaited"}
        more = await bed.queue.add_bulk([("plain", None)] * 2)
        await bed.record.wait_for(events.Started, 9)
        assert len(bed.record.of(events.Started)) == 9  # no more than four at once
        gate.open()
        await bed.record.wait_for(events.Completed, 10)
    assert {one.id for one in more} <= set(bed.record.jobs(events.Completed))


async def test_plain_functions_that_end_while_the_worker_stops_complete_their_jobs(
    bed: WorkerBed, gate: Gate
) -> None:
    jobs = await bed.queue.add_bulk([("work", None)] * 4)
    with fail_after(60):
        async with bed.worker(gate.wait, concurrency=4, threads=2).running() as shutdown:
            await until(lambda: gate.inside == 2)
            shutdown.begin()
            await wait_all_tasks_blocked()
            assert bed.record.of(events.Ended) == []
            gate.open()
    assert sorted(bed.record.jobs(events.Completed)) == sorted(job.id for job in jobs)


async def test_two_hundred_jobs_run_on_four_threads(
    bed: WorkerBed, threads: Callable[[], int]
) -> None:
    lock = threading.Lock()
    running = most = 0

    def handler(job: RunningJob) -> Any:
        nonlocal running, most
        assert current_job() is job
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.0005)
        with lock:
            running -= 1
        return job.data

    await bed.queue.add_bulk([("work", number) for number in range(200)])
    async with bed.worker(handler, concurrency=20, threads=4).running():
        completed = await bed.record.wait_for(events.Completed, 200)
    assert sorted(event.value for event in completed) == list(range(200))
    assert most <= 4
    await until(lambda: threads() == 0)


async def test_a_thread_that_outlives_its_timeout_blocks_no_slot(
    bed: WorkerBed, gate: Gate
) -> None:
    def handler(job: RunningJob) -> Any:
        return gate.wait() if job.name == "hang" else job.name

    hanging = await bed.queue.add("hang", timeout=0.1, attempts=1)
    async with bed.worker(handler, concurrency=1).running():
        [failed] = await bed.record.wait_for(events.Failed)
        assert failed.job.id == hanging.id
        assert isinstance(failed.failure.error, TimeoutError)
        assert failed.failure.category is Category.TRANSIENT
        assert failed.verdict is Verdict.EXHAUSTED
        _, _, where = failed.failure.stack.partition("Its thread is here:")  # U36
        assert "in handler" in where
        assert "gate.wait()" in where
        [abandoned] = bed.record.of(events.ThreadAbandoned)
        assert (abandoned.job.id, abandoned.abandoned) == (hanging.id, 1)
        await bed.queue.add("go")
        [completed] = await bed.record.wait_for(events.Completed)
        assert completed.value == "go"
        assert gate.inside == 1
        gate.open()
        await until(lambda: gate.passed == 1)
    job = await bed.job(hanging.id)
    assert job.returnvalue is None
    assert job.failed_reason is not None
    assert "timeout" in job.failed_reason


async def test_every_hanging_function_is_reported_with_the_number_of_such_threads(
    bed: WorkerBed, gate: Gate
) -> None:
    for _ in range(5):
        await bed.queue.add("hang", timeout=0.1, attempts=1)
    async with bed.worker(gate.wait, concurrency=2).running():
        await bed.record.wait_for(events.Failed, 4)
        assert [event.abandoned for event in bed.record.of(events.ThreadAbandoned)] == [1, 2, 3, 4]
        assert gate.inside == 4  # two threads and two in their place: the fifth waits for one
        gate.open()
        await bed.queue.add("go")
        await bed.record.wait_for(events.Completed, 2)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("wrong"), "wrong"),
        (StopIteration(3), "StopIteration"),
        (SystemExit("enough"), "enough"),
        (asyncio.CancelledError("elsewhere"), "elsewhere"),
    ],
)
async def test_whatever_a_plain_function_raises_fails_its_job_only(
    bed: WorkerBed, raised: BaseException, reason: str
) -> None:
    def handler(job: RunningJob) -> None:
        if job.name == "raise":
            raise raised

    await bed.queue.add("raise", attempts=1)
    await bed.queue.add("go")
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
        await bed.record.wait_for(events.Completed)
    assert reason in failed.failure.reason


async def test_the_time_of_a_job_begins_when_a_thread_is_free(
    bed: WorkerBed, gate: Gate
) -> None:  # F19
    other = Gate()

    def handler(job: RunningJob) -> str:
        return {"first": gate.wait, "slow": other.wait}.get(job.name, lambda: "quick")()

    await bed.queue.add("first")
    async with bed.worker(handler, threads=1, concurrency=3).running():
        await until(lambda: gate.inside == 1)
        quick = await bed.queue.add("quick", timeout=1, attempts=1)
        slow = await bed.queue.add("slow", timeout=1, attempts=1)
        await bed.record.wait_for(events.Started, 3)
        over = time.monotonic() + 1.2
        await until(lambda: time.monotonic() > over)
        assert bed.record.of(events.Ended) == []
        gate.open()
        await bed.record.wait_for(events.Failed)
        other.open()
    assert quick.id in bed.record.jobs(events.Completed)
    assert bed.record.jobs(events.Failed) == [slow.id]


async def test_a_job_for_which_no_thread_gets_free_is_put_off_unspent(
    bed: WorkerBed, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:  # F19
    monkeypatch.setattr("taskbull.worker.threads.THREAD_PATIENCE", 0.3)
    await bed.queue.add("first")
    async with bed.worker(gate.wait, threads=1, concurrency=2).running():
        await until(lambda: gate.inside == 1)
        second = await bed.queue.add("second", timeout=5, attempts=1)
        [released] = await bed.record.wait_for(events.Released)
        assert released.job.id == second.id
        assert released.delay > 0
        gate.open()
    assert (await bed.job(second.id)).attempts_made == 0


# A finalizer that starts a thread needs the lock that Python holds while it lists the frames.
COLLECT_WHILE_LISTING = """
import faulthandler, gc, os, threading
from taskbull.worker.threads import current_frames

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        Cycle()  # for the next collection

faulthandler.dump_traceback_later(20, exit=True)
stop = threading.Event()
for _ in range(5):
    threading.Thread(target=stop.wait).start()
gc.set_threshold(1)
Cycle()
for _ in range(20):
    assert len(current_frames()) >= 6
    assert gc.isenabled()
gc.disable()
current_frames()
assert not gc.isenabled()
os._exit(0)
"""


def test_garbage_collected_while_frames_are_listed_does_not_stop_the_process() -> None:
    run([sys.executable, "-c", COLLECT_WHILE_LISTING], check=True, timeout=120)
