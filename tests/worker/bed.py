"""A queue with a dedicated worker, and a record of the worker's events."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from anyio import Event, fail_after, move_on_after, sleep

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.options import WorkerOptions
from taskbull.queue.queue import Queue
from taskbull.worker.run import Clock
from taskbull.worker.worker import Worker
from tests.servers.kinds import Reachable

E = TypeVar("E", bound=events.Event)

LIMIT = 60.0
"""Timeout for an awaited event, in seconds."""


class Recorder:
    """Records all events, and lets tests wait for some of them."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._change = Event()

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)
        self._change.set()
        self._change = Event()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(
        self,
        kind: type[E],
        count: int = 1,
        where: Callable[[E], bool] = lambda _: True,
        limit: float = LIMIT,
    ) -> list[E]:
        """Return the first `count` events of a kind, as soon as they have been emitted."""
        with fail_after(limit):
            while len(found := [event for event in self.of(kind) if where(event)]) < count:
                await self._change.wait()
        return found[:count]

    def jobs(self, kind: type[events.JobEvent]) -> list[str]:
        return [event.job.id for event in self.of(kind)]


class HandClock(Clock):
    """A clock that tests advance by hand, together with the wall-clock time."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0
        self._turned = Event()

    def now(self) -> float:
        return super().now() + self._ahead

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._ahead * 1000)

    async def sleep_until(self, at: float) -> None:
        while self.now() < at:
            if math.isinf(at) or at - self.now() > 0.5:
                await self._turned.wait()
            else:
                await super().sleep_until(at - self._ahead)

    def turn(self, seconds: float) -> None:
        """Advance the time."""
        self._ahead += seconds
        self._turned.set()
        self._turned = Event()

    async def turn_until(self, condition: Callable[[], bool]) -> None:
        """Advance the time until the condition holds, in steps shorter than a lock.

        One large step may not suffice: a worker that reads a late reply starts to wait after it.
        """
        with fail_after(LIMIT):
            while not condition():
                self.turn(16)
                with move_on_after(1):
                    await until(condition)


class WorkerBed:
    """One queue on a real server."""

    def __init__(self, server: Reachable, admin: redis.Redis, prefix: str) -> None:
        self.url = server.url
        self.admin = admin
        self.prefix = prefix
        self.queue = Queue("q", redis=server.url, prefix=prefix)
        self.keys = self.queue.keys
        self.record = Recorder()

    def worker(self, handler: Any, **more: Any) -> Worker:
        """Make a worker for the queue. `more` holds its options and other arguments."""
        own = {"resolve", "policy", "circuit_breaker", "clock", "redis", "on"}
        given = {name: more.pop(name) for name in own & set(more)}
        queues = more.pop("queues", "q")
        record = more.pop("record", self.record)
        given.setdefault("redis", self.url)
        worker = Worker(queues, handler, prefix=self.prefix, options=WorkerOptions(**more), **given)
        worker.on(events.Event, record)
        return worker

    async def job(self, job_id: str) -> Job:
        job = await self.queue.get_job(job_id)
        assert job is not None
        return job

    async def count(self, state: str) -> int:
        return (await self.queue.counts())[state]


async def until(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    """Wait for a state without an event: of a server, a thread or another process."""
    with fail_after(limit):
        while not condition():  # noqa: ASYNC110 - nobody would set an event
            await sleep(0.01)


async def echo(job: Any) -> Any:
    """Return the job's data."""
    return job.data
