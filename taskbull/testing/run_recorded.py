"""Running one recorded job here and now, as a worker would."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from random import random
from types import SimpleNamespace
from typing import Any, cast

from anyio import move_on_after, to_thread

from taskbull.app.app import App
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import Complete, Written
from taskbull.core.retry import NO_POLICY, RetryPolicy, decide, doomed
from taskbull.core.wire.job import encode_data, encode_progress, encode_value
from taskbull.testing.recorded_job import RecordedJob
from taskbull.worker.context import QueueContext
from taskbull.worker.lease import Lease
from taskbull.worker.running_job import RunningJob, enter, leave

WORKER_ID = "taskbull.testing"


class _Threads:
    """Stands for a worker's threads: in an event loop one is used, without one none is needed."""

    def __init__(self, *, in_loop: bool) -> None:
        self._in_loop = in_loop

    async def run(self, function: Callable[..., Any], /, *args: Any, clock: Any = None) -> Any:
        if self._in_loop:
            return await to_thread.run_sync(functools.partial(function, *args))
        return function(*args)


class _JobHere(RunningJob):
    """A running job whose progress and log lines stay in the box."""

    __slots__ = ("_recorded",)

    def __init__(self, recorded: RecordedJob, context: QueueContext, policy: RetryPolicy) -> None:
        super().__init__(Lease(recorded.as_job(), "", 0.0), context, policy)
        self._recorded = recorded

    def progress(self, value: Any) -> None:
        encode_progress(value)
        self._recorded.progress = value

    async def aprogress(self, value: Any) -> None:
        self.progress(value)

    def log(self, line: str) -> None:
        self._recorded.logs.append(line)

    async def alog(self, line: str) -> None:
        self.log(line)

    def update_data(self, data: Any) -> None:
        self._recorded.raw_data = encode_data(data)

    async def aupdate_data(self, data: Any) -> None:
        self.update_data(data)

    async def aunclaimed(self, patience: float) -> float:
        return patience  # no other worker will come


def is_plain(app: App, recorded: RecordedJob) -> bool:
    """Tell whether a job needs no event loop: its function is plain, and nothing is around it."""
    task = app.tasks.get(recorded.name)
    return task is not None and not task.is_async and not app.has_middleware


async def run_here(app: App, recorded: RecordedJob, *, in_loop: bool) -> Written:
    """Run one attempt of a job and tell what becomes of it."""
    job = recorded.as_job()
    policy = NO_POLICY
    if (fate := doomed(job)) is not None:
        return fate
    try:
        route = app.resolve(job)
        policy = route.policy
        context = cast(
            "QueueContext",  # nothing goes to Redis
            SimpleNamespace(
                keys=QueueKeys(recorded.queue),
                worker_id=WORKER_ID,
                threads=_Threads(in_loop=in_loop),
            ),
        )
        running = _JobHere(recorded, context, policy)
        token = enter(running)
        try:
            timeout, limit = job.options.timeout or route.timeout, job.options.result_limit
            if not in_loop or timeout is None:
                return Complete(encode_value(await route.handler(running), limit))
            with move_on_after(timeout):
                return Complete(encode_value(await route.handler(running), limit))
        finally:
            leave(token)
        raise TimeoutError(f"the job took longer than its timeout of {timeout:g} s")
    except Exception as error:  # noqa: BLE001 - what becomes of it is the question
        return decide(error, job, policy, random=random)


def run_without_loop(coroutine: Coroutine[Any, Any, Written]) -> Written:
    """Run a coroutine that awaits nothing that has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        outcome: Written = end.value
        return outcome
    coroutine.close()
    raise RuntimeError("a plain function cannot wait for an event loop")
