"""Commands and bytes per job, as counted by the server.

Through the scripts, the counts are the same each time and on every kind of server: not one command
or byte more is allowed. A real worker sends what has gathered as soon as it may; how many jobs go
with a call depends on the moment then, and those bounds have slack.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anyio import Event, fail_after
from msgspec import structs

from taskbull import App
from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess
from taskbull.store.sync_store import SyncStore
from tests.servers.kinds import KINDS
from tests.speed.bounds import check_not_grown
from tests.speed.counting import Counter, Counts
from tests.speed.player import Player

JOBS = 1000

WERE = {
    "add 250 per call": Counts(commands=3_033, scripts=4, received=54_656, sent=106),
    "add 1 per call": Counts(commands=9_001, scripts=1_000, received=451_893, sent=8_893),
    "take and end 50 per call": Counts(commands=8_337, scripts=22, received=74_687, sent=126_549),
    "take and end 10 per call": Counts(commands=9_617, scripts=102, received=114_267, sent=128_849),
    "take and end 1 per call": Counts(
        commands=22_017, scripts=1_002, received=552_433, sent=154_949
    ),
    "add a flow": Counts(commands=3_076, scripts=5, received=67_913, sent=4_032),
    "take and end 50 children per call": Counts(
        commands=9_430, scripts=22, received=84_786, sent=246_546
    ),
    "take and end 10 children per call": Counts(
        commands=11_030, scripts=102, received=124_286, sent=248_846
    ),
}
"""Of 1,000 jobs through the scripts, when the bounds were set. Write less when it is less."""

WORKER_WAS = {
    # A call goes when a quarter of the slots have ended, sooner only if no other is under way.
    # One command of each call counts per minute (0.5 %, 2 % and 4 % of the commands).
    100: {"commands": 8_797, "scripts": 44},
    10: {"commands": 11_827, "scripts": 204},
    1: {"commands": 25_030, "scripts": 1_004},
}
"""For 1,000 jobs in a worker with this concurrency, including its start and stop."""

WORKER_SLACK = 0.15
WORKER_JOBS = 2000

WAYS: dict[str, Callable[[Player], None]] = {
    "add 250 per call": lambda player: player.add(JOBS, 250),
    "add 1 per call": lambda player: player.add(JOBS, 1),
    "take and end 50 per call": lambda player: player.drain(50),
    "take and end 10 per call": lambda player: player.drain(10),
    "take and end 1 per call": lambda player: player.drain(1),
    "add a flow": lambda player: player.add_family(JOBS),
    "take and end 50 children per call": lambda player: player.drain(50),
    "take and end 10 children per call": lambda player: player.drain(10),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_costs_no_more_commands_and_bytes(way: str, lone_server: ServerProcess) -> None:
    address = parse(lone_server.url)
    store, counter = SyncStore(address), Counter(address)
    load_scripts(store)
    player = Player(store)
    if "children" in way:
        player.add_family(JOBS)
    elif way.startswith("take"):
        player.add(JOBS)
    counter.count()
    WAYS[way](player)
    counts = counter.count()
    store.close()
    counter.close()
    check_not_grown(structs.asdict(counts), structs.asdict(WERE[way]))


def load_scripts(store: SyncStore) -> None:
    other = Player(store, "other")
    other.add(1)
    other.add_family(1)
    other.add(2)
    other.drain(1)


@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
@pytest.mark.parametrize("at_once", WORKER_WAS)
async def test_a_worker_needs_no_more_calls(at_once: int, lone_server: ServerProcess) -> None:
    app = App("counted", redis=lone_server.url)
    begun, all_begun = 0, Event()

    @app.task(name="noop")
    async def noop(number: int) -> None:
        nonlocal begun
        begun += 1
        if begun == WORKER_JOBS:
            all_begun.set()

    await app.aenqueue([noop.job(number) for number in range(WORKER_JOBS)])
    counter = Counter(parse(lone_server.url))
    with fail_after(60):
        async with app.worker(concurrency=at_once).running():
            await all_begun.wait()
    counts = counter.count()
    counter.close()
    found = {name: 1000 * count / WORKER_JOBS for name, count in structs.asdict(counts).items()}
    check_not_grown(found, WORKER_WAS[at_once], WORKER_SLACK)
