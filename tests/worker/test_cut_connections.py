"""The link is cut at random: before a request, in the middle of a reply, between both.

Each job ends exactly once, and none waits for the sweep: what a lost call did is found in Redis.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import pytest
import redis
from anyio import create_task_group, fail_after

from taskbull.core import events
from taskbull.scripts.cycle import CYCLE, SETTLE_CYCLE
from taskbull.store.connection import ConnectionOptions
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.worker.bed import WorkerBed, until
from tests.worker.chores import Chores
from tests.worker.scale import SEED, scaled

CUTS = scaled(100, 2000)  # per event loop
HOLES = scaled(2, 50)

_CYCLE = CYCLE.sha.encode()
_SETTLEMENT = SETTLE_CYCLE.sha.encode()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep tens of thousands of lines out of the reports."""
    caplog.set_level(logging.CRITICAL, "taskbull")


@pytest.fixture
def way(private_server: PrivateServers, prefix: str) -> Iterator[tuple[WorkerBed, Proxy]]:
    """A queue, and the way to it, which can be cut."""
    server = private_server()
    with redis.Redis.from_url(server.url) as admin, Proxy(("127.0.0.1", server.port)) as proxy:
        yield WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix), proxy


class Cutter:
    """Cuts connections, each time in one way or another."""

    def __init__(self, proxy: Proxy, random: Random) -> None:
        self._proxy = proxy
        self._random = random
        self._ways: dict[str, Callable[[], None]] = {
            "reply of a cycle": partial(proxy.cut_before_reply, _CYCLE),
            "request of a cycle": partial(proxy.cut_before_request, _CYCLE),
            "any reply": proxy.cut_before_reply,
            "any request": proxy.cut_before_request,
            "middle of a reply": lambda: proxy.cut_after(random.randint(1, 5000)),
            "all at once": self._cut_all,
        }
        self._at_once = 0
        self.made: Counter[str] = Counter()

    async def cut(self) -> None:
        """Cut once, and return when that has happened."""
        name = self._random.choice(list(self._ways))
        await self._done(name, self._ways[name])
        if name == "reply of a cycle" and self._random.random() < 0.5:
            with suppress(TimeoutError):  # the reply that was lost was a heartbeat's, or the like
                settlement = partial(self._proxy.cut_before_reply, _SETTLEMENT)
                await self._done("reply of a settlement", settlement, 0.5)

    async def _done(self, name: str, order: Callable[[], None], limit: float = 20.0) -> None:
        before = self._count
        order()
        await until(lambda: self._count > before, limit)
        self.made[name] += 1

    @property
    def _count(self) -> int:
        return self._proxy.cuts + self._at_once

    def _cut_all(self) -> None:
        self._proxy.cut()
        self._at_once += 1


@asynccontextmanager
async def _kept_busy(chores: Chores) -> AsyncGenerator[None, None]:
    """See to it that there are jobs during the block; then wait until all have ended."""

    over = False

    async def add() -> None:
        while not over:  # to be cancelled would leave jobs that have no plan
            await chores.add(50)
            await chores.at_most(100)

    async with create_task_group() as tasks:
        tasks.start_soon(add)
        yield
        over = True
    await chores.at_most(0)


async def test_each_job_finishes_once_despite_repeated_disconnects(
    way: tuple[WorkerBed, Proxy],
) -> None:  # NFR-2
    bed, proxy = way
    random = Random(SEED)
    chores = Chores(bed, random)
    cutter = Cutter(proxy, random)
    worker = bed.worker(
        chores.handler,
        redis=proxy.url,
        record=chores,
        concurrency=20,
        heartbeat_interval=0.5,
        stalled_interval=86_400,
        drain_delay=1,
    )
    with fail_after(60 + CUTS / 5):
        async with worker.running(), _kept_busy(chores):
            while cutter.made.total() < CUTS:
                await cutter.cut()
            proxy.heal()
    print(f"{len(chores.plans)} jobs, {cutter.made.total()} cuts {dict(cutter.made)}, seed {SEED}")
    print(f"lost calls: {dict(chores.recovered)}")
    chores.check()
    assert chores.recovered["adopted"] > 0
    assert chores.recovered["settled"] > 0
    assert chores.recovered["resent"] > 0


async def test_each_job_ends_once_though_links_fall_silent(
    way: tuple[WorkerBed, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, proxy = way
    # Users cannot set it. The default of ten seconds is too long for a test.
    impatient = partial(ConnectionOptions, response_timeout=0.3, connect_timeout=0.3)
    monkeypatch.setattr("taskbull.worker.worker.ConnectionOptions", impatient)
    chores = Chores(bed, Random(SEED))
    worker = bed.worker(
        chores.handler,
        redis=proxy.url,
        record=chores,
        concurrency=20,
        stalled_interval=86_400,
        drain_delay=0.2,
    )
    with fail_after(60 + 3 * HOLES):
        async with worker.running(), _kept_busy(chores):
            for lost in range(HOLES):
                await chores.more(100)
                proxy.black_hole()
                await until(lambda lost=lost: chores.others[events.RedisLost] > lost)  # type: ignore[misc]
                proxy.heal()
                await until(lambda lost=lost: chores.others[events.RedisBack] > lost)  # type: ignore[misc]
    print(f"{len(chores.plans)} jobs, {HOLES} black holes; {dict(chores.recovered)}")
    chores.check()
