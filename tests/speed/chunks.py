"""Operations on many jobs, with the work of each call counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import redis
from msgspec import Struct

from taskbull.core.keys import JobState
from taskbull.queue.queue import SyncQueue
from taskbull.queue.stores import Stores
from taskbull.scripts.call import Steps
from taskbull.scripts.change import promote_jobs, retry_jobs
from taskbull.scripts.cycle import sweep_stalled
from taskbull.scripts.removal import clean, drain, obliterate
from taskbull.store.address import parse
from tests.speed.counting import CountedStore
from tests.speed.player import DELAYED, LATER, PLAIN, Player

T = TypeVar("T")

BIG = "x" * 100_000

_FIRST_ID = 100_001
"""All ids have the same length."""


class Stage(Generic[T]):
    """A queue with jobs in a state, and a store that counts what each call does with them."""

    def __init__(self, url: str, count: Callable[[], T], state: str, jobs: int) -> None:
        self.jobs = jobs
        self._stores = Stores(url)
        self.player = Player(self._stores.sync_store())
        self.keys = self.player.keys
        self.admin = redis.Redis.from_url(url)
        self.admin.flushall()
        self.admin.set(self.keys.id, _FIRST_ID - 1)
        self._seed(state)
        self.store = CountedStore(parse(url), count)
        self.player.store = self._stores._sync = self.store

    def _seed(self, state: str) -> None:
        if state:
            self.player.add(self.jobs, options=DELAYED if state == "delayed" else PLAIN)
        if state == "completed":
            self.player.drain(250)
        if state in ("active", "dead"):
            self.player.take(250)
        if state == "dead":
            self.player.store.run(_sweep(self))  # the first sweep notes them
            self.admin.delete(self.keys.stalled_check)
            ids = range(_FIRST_ID, _FIRST_ID + self.jobs)
            locks = [self.keys.lock(str(job_id)) for job_id in ids]
            self.admin.delete(*locks)

    def add(self, jobs: int, data: object) -> None:
        """Add a bulk as an app does."""
        queue = SyncQueue(self.keys.queue, redis=self._stores)
        queue.add_bulk([queue.job("noop", data)] * jobs)

    def perform(self, steps: Steps[object]) -> None:
        self.store.run(steps)

    def close(self) -> None:
        self.store.close()
        self.admin.close()


def _sweep(stage: Stage[Any]) -> Steps[object]:
    return sweep_stalled(stage.keys, LATER, interval_ms=30_000, max_stalls=1)


Act = Callable[[Stage[Any]], object]


class Operation(Struct, frozen=True):
    """An operation on many jobs: their state before it, and the operation."""

    state: str
    act: Act
    many: int = 10_000
    """A backlog that is long for it."""


OPERATIONS = {
    "add in bulk": Operation("", lambda stage: stage.add(stage.jobs, {"n": 1})),
    "add 100 kB in bulk": Operation("", lambda stage: stage.add(stage.jobs, BIG), many=100),
    "run what waits": Operation("waiting", lambda stage: stage.player.drain(50)),
    "run what is due at one moment": Operation(
        "delayed", lambda stage: stage.player.drain(50, from_ms=LATER), many=20_000
    ),
    "promote all": Operation("delayed", lambda stage: stage.perform(promote_jobs(stage.keys))),
    "retry all": Operation(
        "completed", lambda stage: stage.perform(retry_jobs(stage.keys, LATER, "completed"))
    ),
    "clean completed": Operation(
        "completed", lambda stage: stage.perform(clean(stage.keys, JobState.COMPLETED, LATER))
    ),
    "drain": Operation("waiting", lambda stage: stage.perform(drain(stage.keys))),
    "obliterate": Operation(
        "completed", lambda stage: stage.perform(obliterate(stage.keys, force=True))
    ),
    "sweep, all alive": Operation("active", lambda stage: stage.perform(_sweep(stage))),
    "sweep, all dead": Operation("dead", lambda stage: stage.perform(_sweep(stage))),
}


def play(operation: str, url: str, count: Callable[[], T], jobs: int) -> list[T]:
    """Run it on this many jobs. Return the counts of each call."""
    stage = Stage(url, count, OPERATIONS[operation].state, jobs)
    OPERATIONS[operation].act(stage)
    stage.close()
    assert stage.store.calls, "nothing was counted"
    return stage.store.calls
