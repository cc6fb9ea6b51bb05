"""One attempt of a job, without a worker and without Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from anyio import sleep_forever

from taskbull.core.job import ExecutionMode, Job
from taskbull.core.outcome import Complete, Fail, Outcome, RetryAfter, SnoozeFor
from taskbull.core.retry import RetryPolicy
from taskbull.errors import PermanentError, Snooze
from taskbull.worker.attempt import RELEASE_PAUSE, Executor, Route
from taskbull.worker.run import PortMethod, Run
from taskbull.worker.running_job import JobEnvironment, RunningJob, current_job
from taskbull.worker.threads import ThreadPool


class Memory:
    """What a job has written."""

    def __init__(self) -> None:
        self.written: list[object] = []
        self.redis_wait_seconds = 0.0
        self.is_virtual = False
        self.has_stream = False
        self.trouble: Exception | None = None

    def caused(self, error: BaseException) -> bool:
        return error is self.trouble

    def call(self, method: PortMethod, *arguments: Any) -> None:
        if method == "update_data" and self.trouble is not None:
            raise self.trouble
        self.written.extend(arguments)

    async def acall(self, method: PortMethod, *arguments: Any) -> None:
        self.call(method, *arguments)

    async def arecord_unknown_task(self, patience: float) -> float:
        return patience


class Case:
    """A job and what it writes to."""

    def __init__(self, **fields: Any) -> None:
        self.memory = Memory()
        self.run = Run(Job(id="1", name="work", **fields), "token", 0.0)

    async def attempt(self, route: Route | Callable[[Job], Route]) -> Outcome:
        place = JobEnvironment("q", "me", lambda _: self.memory)
        resolve = route if callable(route) else lambda _: route
        threads = ThreadPool(1)
        try:
            return await Executor(place, resolve, threads=threads).attempt(self.run)
        finally:
            threads.close()

    def without_a_loop(self, route: Route) -> Outcome:
        place = JobEnvironment("q", "me", lambda _: self.memory)
        attempt = Executor(place, lambda _: route, threads=None).attempt(self.run)
        with pytest.raises(StopIteration) as end:
            attempt.send(None)
        outcome: Outcome = end.value.value
        return outcome


def raising(error: BaseException) -> Route:
    async def function(_: RunningJob) -> None:
        raise error

    return Route(function, RetryPolicy(attempts=2))


async def test_what_the_function_returns_is_the_result() -> None:
    async def function(job: RunningJob) -> object:
        return {"id": job.id, "same": current_job() is job}

    assert await Case().attempt(Route(function)) == Complete(b'{"id":"1","same":true}')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), RetryAfter),
        (PermanentError("no"), Fail),
        (Snooze(5), SnoozeFor),
    ],
)
async def test_its_error_is_judged_by_the_rules_of_its_route(error: Exception, kind: type) -> None:
    case = Case()
    assert isinstance(await case.attempt(raising(error)), kind)
    assert case.run.policy.attempts == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_what_is_not_an_exception_is_for_the_caller_to_judge(error: BaseException) -> None:
    with pytest.raises(type(error)):
        await Case().attempt(raising(error))


async def test_a_route_that_cannot_be_found_is_the_jobs_failure() -> None:
    def resolve(_: Job) -> Route:
        raise PermanentError("there is no such task")

    assert isinstance(await Case().attempt(resolve), Fail)


async def test_a_doomed_job_is_not_run() -> None:
    called: list[RunningJob] = []
    outcome = await Case(deferred_failure="it stalled").attempt(Route(called.append))
    assert isinstance(outcome, Fail)
    assert called == []


async def test_a_plain_function_runs_in_a_thread_and_what_surrounds_it_in_the_loop() -> None:
    seen: list[tuple[str, bool]] = []

    def note(what: str) -> None:
        seen.append((what, threading.current_thread() is threading.main_thread()))

    def layer(name: str) -> Any:
        async def around(job: RunningJob, call_next: Any) -> object:
            note(name)
            return [name, await call_next(job)]

        return around

    def function(_: RunningJob) -> str:
        note("function")
        return "done"

    route = Route(
        function, execution_mode=ExecutionMode.THREAD, layers=(layer("outer"), layer("inner"))
    )
    assert await Case().attempt(route) == Complete(b'["outer",["inner","done"]]')
    assert seen == [("outer", True), ("inner", True), ("function", False)]


async def test_time_that_is_up_is_an_error() -> None:
    async def function(_: RunningJob) -> None:
        await sleep_forever()

    case = Case()
    outcome = await case.attempt(Route(function, RetryPolicy(attempts=2), timeout=0.01))
    assert isinstance(outcome, RetryAfter)
    assert outcome.failure.reason == "TimeoutError: the job took longer than its timeout of 0.01 s"
    assert case.run.scope is None


async def test_time_that_redis_has_taken_is_not() -> None:
    async def function(job: RunningJob) -> None:
        await job.alog("here")
        await sleep_forever()

    case = Case()
    case.memory.redis_wait_seconds = 1.0
    assert await case.attempt(Route(function, timeout=0.01)) == SnoozeFor(RELEASE_PAUSE)


async def test_an_error_of_what_it_writes_to_spends_no_attempt() -> None:
    async def function(job: RunningJob) -> None:
        await job.aupdate_data({})

    case = Case()
    case.memory.trouble = ConnectionError("away")
    assert await case.attempt(Route(function)) == SnoozeFor(RELEASE_PAUSE)


def test_without_a_loop_a_plain_function_runs_here_and_no_time_is_kept() -> None:
    def function(job: RunningJob) -> int:
        job.progress(1)
        job.log("line")
        job.update_data([2])
        return threading.get_ident()

    case = Case()
    outcome = case.without_a_loop(
        Route(function, timeout=1e-9, execution_mode=ExecutionMode.THREAD)
    )
    assert outcome == Complete(str(threading.get_ident()).encode())
    assert case.memory.written == [b"1", "line", b"[2]"]
    assert case.run.raw_progress == b"1"
