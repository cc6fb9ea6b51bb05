"""Steps, signals and sleep in a box, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from taskbull import (
    App,
    Backoff,
    ConfigurationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobState,
    SignalTimeout,
    StepMismatch,
    TaskbullError,
    WaitForChildren,
    WrongState,
    current_job,
    step,
)
from taskbull.testing import recorded

NOWHERE = "redis://127.0.0.1:1/0"


@dataclass
class Approval:
    ok: bool
    by: str = ""


class Shop:
    """Tasks with steps and waits, and a record of the calls."""

    def __init__(self) -> None:
        self.app = app = App("shop", redis=NOWHERE, enqueue_timeout=0.2, backoff=Backoff.fixed(60))
        self.calls: list[str] = []

        @step
        async def charge(order: str) -> tuple[int, str]:
            self.calls.append(f"charge {order}")
            return 5, order

        @step
        def label(number: int) -> str:
            self.calls.append(f"label {number}")
            return f"label {number}"

        @app.task
        async def fulfil(order: str) -> str:
            total, _ = await charge(order)
            if current_job().attempt == 1:
                raise ConnectionError("the warehouse is away")
            answer = await current_job().await_signal(
                "approval", Approval, timeout=timedelta(days=2)
            )
            await current_job().asleep(timedelta(hours=1))
            return f"{total} by {answer.by}"

        @app.task
        def pack(count: int) -> list[str]:
            labels = [label(number) for number in range(count)]
            if current_job().attempt == 1:
                raise ConnectionError("the printer is away")
            try:
                current_job().wait_signal("address", str, timeout=60)
            except SignalTimeout:
                labels.append("no address")
            current_job().sleep(10)
            return labels

        self.fulfil, self.pack, self.charge, self.label = fulfil, pack, charge, label


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("timeout", [None, 100])
def test_a_job_that_expires_while_it_waits_fails(timeout: float | None) -> None:
    app = App("shop", redis=NOWHERE)

    @app.task(expires=60)
    async def publish() -> None:
        await current_job().await_signal("approval", timeout=timeout)

    with recorded(app) as box:
        job = publish.delay()
        box.run()
        box.advance(59)
        assert job.state() is JobState.WAITING_CHILDREN
        box.advance(2, check=False)
        with pytest.raises(JobExpired):
            job.result()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_finished_step_is_not_called_again_and_waits_continue(shop: Shop, backend: str) -> None:
    with recorded(shop.app) as box:
        job = shop.fulfil.delay("o1")
        box.run(backend=backend)
        assert job.state() is JobState.WAITING_CHILDREN
        box.signal(job, "approval", Approval(ok=True, by="ann"))
        box.run(backend=backend)
        assert job.state() is JobState.WAITING_CHILDREN
        box.advance(minutes=59, backend=backend)
        assert not box.jobs[0].ended
        box.advance(minutes=1, backend=backend)
        assert job.result() == "5 by ann"
        assert shop.calls == ["charge o1"]
        assert box.jobs[0].attempts == 2
        kinds = [(one.kind, one.name, one.status) for one in job.steps()]
        assert kinds == [
            ("step", "charge", "done"),
            ("signal", "approval", "done"),
            ("sleep", "", "done"),
        ]


def test_a_plain_function_has_steps_timeouts_and_sleeps(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = shop.pack.delay(2)
        box.run()
        box.advance(seconds=59)
        assert not box.jobs[0].ended
        box.advance(seconds=11)
        assert job.result() == ["label 0", "label 1", "no address"]
        assert shop.calls == ["label 0", "label 1"]
        assert [one.status for one in job.steps()] == ["done", "done", "timed out", "done"]


async def test_a_box_in_an_event_loop_knows_waits(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = await shop.fulfil.adelay("o1")
        await box.arun()
        await job.asignal("approval", {"ok": True, "by": "bob"})
        await box.arun()
        await box.aadvance(hours=1)
        assert await job.aresult() == "5 by bob"
        assert len(await job.asteps()) == 3


def test_a_signal_is_kept_until_its_wait(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = shop.pack.delay(0)
        box.signal(job.id, "address", "5 Main St")
        box.run()
        box.advance(seconds=10)
        assert job.result() == []


def test_signals_to_no_job_and_to_an_ended_one_are_refused(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = shop.pack.delay(0)
        with pytest.raises(JobNotFound):
            box.signal("nothing", "address")
        with pytest.raises(ConfigurationError, match="the job must be a handle"):
            box.signal(5, "address")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="signal name must not contain ':'"):
            box.signal(job, "a:b")
        box.run()
        job.cancel("no longer needed")
        with pytest.raises(JobCancelled):
            job.result()
        with pytest.raises(WrongState, match="Cannot send signal 'address'"):
            job.signal("address")


def test_other_steps_in_a_rerun_fail_the_job_for_good() -> None:
    app = App("shop", redis=NOWHERE, backoff=Backoff.fixed(60))

    @step
    def first() -> int:
        return 1

    @step(name="another")
    def second() -> int:
        return 2

    @app.task
    def switch() -> None:
        first() if current_job().attempt == 1 else second()
        raise ConnectionError

    @app.task
    def change() -> None:
        numbered(current_job().attempt)
        raise ConnectionError

    @step
    def numbered(number: int) -> int:
        return number

    with recorded(app) as box:
        job = switch.delay()
        with pytest.raises(JobFailed, match="called step 'first', and this run called step 'anoth"):
            box.run()
        assert box.jobs[0].attempts == 2
        assert isinstance(box.jobs[0].failure and box.jobs[0].failure.error, StepMismatch)
        with pytest.raises(JobFailed):
            job.result()
        box.clear()
        change.delay()
        with pytest.raises(JobFailed, match="step 'numbered' with other arguments"):
            box.run()


def test_a_step_retries_by_itself_without_waiting() -> None:
    app = App("shop", redis=NOWHERE)
    tries: list[int] = []

    @step(attempts=3, backoff=Backoff.fixed(3600))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    @app.task
    async def call() -> int:
        return await flaky()

    with recorded(app) as box:
        job = call.delay()
        box.run()
        assert job.result() == 3
        assert box.jobs[0].attempts == 1


def test_a_step_cannot_wait() -> None:
    app = App("shop", redis=NOWHERE, attempts=1)

    @step
    def wrong() -> None:
        current_job().sleep(1)

    @app.task
    def call() -> None:
        wrong()

    with recorded(app) as box:
        call.delay()
        with pytest.raises(JobFailed, match="Step 'wrong' cannot wait"):
            box.run()


async def test_outside_a_job_a_step_is_the_plain_function(shop: Shop) -> None:
    assert await shop.charge("o1") == (5, "o1")
    assert shop.label(1) == "label 1"
    with pytest.raises(TaskbullError, match="outside a running task"):
        current_job().sleep(1)


@pytest.mark.parametrize("inline", [True, "raise"])
def test_inline_jobs_continue_with_their_signals(inline: Any) -> None:
    app = App("inline", inline=inline)

    @app.task
    async def publish() -> str:
        await current_job().asleep(timedelta(days=1))
        answer = await current_job().await_signal("answer", str)
        await current_job().asleep(60)
        return answer

    job = publish.delay()
    assert job.state() is JobState.WAITING_CHILDREN
    with pytest.raises(TimeoutError, match="waits: signal 'answer'"):
        job.result()
    job.signal("answer", "yes")
    assert job.result() == "yes"
    assert [one.kind for one in job.steps()] == ["sleep", "signal", "sleep"]


async def test_inline_jobs_continue_in_an_event_loop() -> None:
    app = App("inline")

    @app.task
    async def publish() -> str:
        return await current_job().await_signal("answer", str)

    with recorded(app, inline=True) as box:
        first, second = await publish.adelay(), await publish.adelay()
        await first.asignal("answer", "yes")
        await box.asignal(second, "answer", "no")
        assert [await first.aresult(), await second.aresult()] == ["yes", "no"]


@pytest.mark.parametrize("timeout", [None, 60])
def test_concurrent_waits_continue_when_all_have_ended(timeout: float | None) -> None:
    app = App("shop", redis=NOWHERE)
    starts: list[int] = []

    @app.task
    async def publish() -> list[str]:
        starts.append(current_job().job.attempts_started)
        job, answers = current_job(), list[str]()

        async def wait(name: str, timeout: float | None) -> None:
            try:
                answers.append(await job.await_signal(name, str, timeout=timeout))
            except SignalTimeout:
                answers.append("too late")

        await asyncio.gather(wait("first", timeout), wait("second", None))
        return answers

    with recorded(app) as box:
        job = publish.delay()
        box.run()
        box.signal(job, "second", "b")
        box.run()
        assert starts == [1]
        if timeout is None:
            box.signal(job, "first", "a")
        box.advance(60)
        assert starts == [1, 2]
        assert job.result() == ["a" if timeout is None else "too late", "b"]
        assert job.info().attempts_started == 2


def test_a_job_waits_for_its_children_and_for_a_signal() -> None:
    app = App("shop", redis=NOWHERE)
    starts: list[int] = []

    @app.task
    async def price(number: int) -> int:
        return number

    @app.task
    async def offer() -> list[Any]:
        job = current_job()
        starts.append(job.job.attempts_started)
        if job.job.attempts_started == 1:
            await job.aspawn([price.job(3)])
        answer = await job.await_signal("answer", str)
        return [answer, *await job.achildren(price)]

    with recorded(app) as box:
        job = offer.options(delay=60).delay()
        box.run()
        assert job.state() is JobState.WAITING_CHILDREN
        box.signal(job, "answer", "yes")
        box.run()
        assert job.result() == ["yes", 3]
        assert (starts, box.now) == ([1, 2], 60)  # The delay passes once.


def test_a_wait_that_is_over_is_nothing_to_wait_for() -> None:
    app = App("shop", redis=NOWHERE)
    starts: list[int] = []

    @app.task
    async def publish() -> None:
        starts.append(current_job().job.attempts_started)
        await current_job().asleep(1)
        raise WaitForChildren

    with recorded(app) as box:
        job = publish.delay()
        box.advance(10, check=False)
        with pytest.raises(JobFailed, match="twice in a row"):
            job.result()
    assert starts == [1, 2, 3]


def test_a_signal_to_a_job_that_is_about_to_wait_is_not_lost() -> None:
    app = App("shop", redis=NOWHERE)

    @app.task
    async def publish() -> str:
        job = current_job()
        try:
            return await job.await_signal("answer", str)
        finally:
            if job.job.attempts_started == 1:
                await app.job(job.queue, job.id).asignal("answer", "yes")

    with recorded(app) as box:
        job = publish.delay()
        box.run()
        assert job.result() == "yes"


def test_time_passes_in_seconds_or_as_a_timedelta() -> None:
    app = App("time")

    @app.task
    async def doze() -> str:
        await current_job().asleep(timedelta(hours=2))
        return "awake"

    with recorded(app) as box:
        job = doze.delay()
        box.run()
        box.advance(3600)
        with pytest.raises(TimeoutError, match="waits: sleep"):
            job.result()
        box.advance(timedelta(hours=1))
        assert job.result() == "awake"
        with pytest.raises(ConfigurationError):
            box.advance(-1)
