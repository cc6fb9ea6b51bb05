"""Many callers, cancelled at random, over connections that are killed, cut and black-holed.

The default run is small. `nox -s soak` reads over a million replies.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from time import monotonic

import anyio
import redis
from anyio import create_task_group, fail_after, move_on_after, to_thread

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.scripts.call import Call
from taskbull.store.address import parse
from taskbull.store.async_store import Store, open_store
from taskbull.store.connection import ConnectionOptions
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy
from tests.store.sample import script

REPLIES = int(os.environ.get("TASKBULL_SOAK_REPLIES", "10000"))  # per event loop
CALLERS = 60
DEADLINE = 0.3
OPTIONS = ConnectionOptions(longest_delay=0.05, response_timeout=0.5, connect_timeout=0.5)

COUNT_AND_ECHO = script("redis.call('HINCRBY', KEYS[1], ARGV[1], 1) return ARGV[2]")


class Caller:
    """Calls a script that counts its runs, and records the replies."""

    def __init__(self, number: int, store: Store, key: str, random: Random) -> None:
        self._field = f"caller {number}"
        self._store = store
        self._key = key
        self._random = random
        self._calls = 0
        self.told: Counter[str] = Counter()
        self.slowest = 0.0

    async def call(self) -> None:
        """Make one call of a random kind, and record its result."""
        random = self._random
        self._calls += 1
        text = f"{self._field}-{self._calls}-" + "x" * random.choice((1, 10, 3000))
        call = Call(COUNT_AND_ECHO, (self._key,), (self._field, text), bytes.decode)
        kind = random.random()
        timeout = DEADLINE if 0.1 <= kind < 0.2 else None
        patience = random.random() * 0.002 if kind < 0.1 else None
        began = monotonic()
        outcome = "cancelled"
        try:
            with move_on_after(patience):
                reply = await self._store.run(call, timeout=timeout)
                outcome = "answered" if reply == text else "wrong reply"
        except MaybeExecuted:
            outcome = "maybe executed"
        except ConnectionLost:
            outcome = "not executed"
        self.told[outcome] += 1
        if timeout is not None:
            self.slowest = max(self.slowest, monotonic() - began)

    def agrees_with(self, runs: int) -> bool:
        """Return True if the count in Redis is consistent with this caller's replies."""
        certain = self.told["answered"]
        possible = certain + self.told["maybe executed"] + self.told["cancelled"]
        return certain <= runs <= possible


class Troublemaker:
    """Kills, cuts and black-holes connections until it is stopped."""

    def __init__(self, admin: redis.Redis, proxy: Proxy, random: Random) -> None:
        self._admin = admin
        self._proxy = proxy
        self._random = random
        self.stopped = False
        self.made: Counter[str] = Counter()

    async def run(self) -> None:
        while not self.stopped:
            await anyio.sleep(self._random.random() * 0.1)
            await to_thread.run_sync(self._make)

    def _make(self) -> None:
        trouble = self._random.choice(("kill", "kill", "cut", "cut reply", "black hole"))
        self.made[trouble] += 1
        match trouble:
            case "kill":
                self._admin.client_kill_filter(_type="normal", skipme=True)
            case "cut":
                self._proxy.cut()
            case "cut reply":
                self._proxy.cut_before_reply()
            case "black hole":
                self._proxy.black_hole()
                self._proxy.heal()  # Open connections stay dead. A new one works.


async def test_no_reply_is_misdelivered_and_no_script_runs_more_often_than_reported(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    seed = int(os.environ.get("TASKBULL_SOAK_SEED", "20261"))
    random = Random(seed)
    callers: list[Caller] = []
    with (
        redis.Redis(port=server.port) as admin,
        Proxy(("127.0.0.1", server.port)) as proxy,
        fail_after(120 + REPLIES / 1000),
    ):
        trouble = Troublemaker(admin, proxy, random)
        async with (
            open_store(parse(server.url), OPTIONS, lambda _: None) as straight,
            open_store(parse(proxy.url), OPTIONS, lambda _: None) as through,
            create_task_group() as tasks,
        ):

            async def keep_calling(caller: Caller) -> None:
                while sum(caller.told["answered"] for caller in callers) < REPLIES:
                    for _ in range(20):
                        await caller.call()

            for number in range(CALLERS):
                store = through if number % 6 == 0 else straight
                callers.append(Caller(number, store, prefix, Random(seed + number)))
            tasks.start_soon(trouble.run)
            async with create_task_group() as calling:
                for caller in callers:
                    calling.start_soon(keep_calling, caller)
            trouble.stopped = True
        counts = {field.decode(): int(runs) for field, runs in admin.hgetall(prefix).items()}
    told = sum((caller.told for caller in callers), Counter[str]())
    slowest = max(caller.slowest for caller in callers)
    print(f"callers were told {dict(told)}; trouble made: {dict(trouble.made)}; seed {seed}")
    print(f"the longest call with a deadline of {DEADLINE} s took {slowest:.2f} s")
    assert told["answered"] >= REPLIES
    assert told["wrong reply"] == 0
    assert slowest < DEADLINE + 5  # Otherwise it would hang.
    for number, caller in enumerate(callers):
        assert caller.agrees_with(counts.get(f"caller {number}", 0)), (number, caller.told)
