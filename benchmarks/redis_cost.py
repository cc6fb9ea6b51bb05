"""What one job costs Redis: its own time per job, added in bulk and drained, Node beside us.

    python -m benchmarks.redis_cost [--rounds N] [--server redis-server]

The server counts the time of all script calls (INFO commandstats). Both sides leave the same state
and the same events; jobs carry the same options. Needs Node, as the interop tests do.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import redis

from taskbull.core.job import Job, NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import JobOptions
from taskbull.core.outcome import Complete
from taskbull.core.wire.job import encode_job
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.cycle import FetchOptions, Packed, cycle, pack_outcome
from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess, valkey_binary
from taskbull.store.sync_store import SyncStore
from tests.interop.install import require_node_modules
from tests.interop.node import Node
from tests.interop.node_actor import NodeActor
from tests.servers.waiting import wait_until

JOBS = 10_000
SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha")
DATA = {"to": "ann@example.org", "subject": "Hi", "n": 1}
RESULT = {"ok": True}
NOW = 1_800_000_000_000
PLAIN = JobOptions(attempts=1, backoff=None, keep_completed=None, keep_failed=None, keep_logs=None)


class Costs:
    """Asks the server what it spent on scripts."""

    def __init__(self, admin: redis.Redis) -> None:
        self._admin = admin

    def per_job(self, action: Callable[[], None]) -> float:
        """Give the µs of script time per job of `JOBS`."""
        self._admin.config_resetstat()
        action()
        stats: Any = self._admin.info("commandstats")
        spent = sum(int(stats[name]["usec"]) for name in SCRIPTS if name in stats)
        return spent / JOBS


class Ours:
    """taskbull's scripts, so many jobs per call, two calls in flight."""

    def __init__(self, store: SyncStore, at_once: int) -> None:
        self._store = store
        self._at_once = at_once
        self._keys = QueueKeys("ours")
        self._sequence = CallSequence("bench", 0)

    def add(self) -> None:
        job = encode_job(NewJob("noop", DATA, PLAIN), NOW)
        for _ in range(JOBS // self._at_once):
            self._sequence.calls += 1
            self._store.run(add_jobs(self._keys, [job] * self._at_once, NOW, self._sequence))

    def drain(self) -> None:
        taking, now = FetchOptions(30_000), NOW
        running: list[list[Job]] = [[], []]
        while True:
            now += 1
            calls = [
                cycle(
                    self._keys,
                    now,
                    [_done(job, now) for job in jobs],
                    self._at_once,
                    "t:0",
                    taking,
                )
                for jobs in running
            ]
            running = [cycled.jobs for cycled in self._store.run_all(calls)]
            if not any(running):
                return


def _done(job: Job, now_ms: int) -> Packed:
    return pack_outcome(job, "t:0", Complete(b'{"ok":true}'), 1, now_ms)


class Theirs:
    """Node BullMQ: addBulk, and a worker with as many jobs at once."""

    def __init__(self, actor: NodeActor, admin: redis.Redis, at_once: int) -> None:
        self._actor = actor
        self._admin = admin
        self._at_once = at_once

    def add(self) -> None:
        job = {"name": "noop", "data": DATA, "opts": {"attempts": 1}}
        for _ in range(JOBS // self._at_once):
            self._actor.add_bulk([job] * self._at_once)

    def drain(self) -> None:
        behaviour = {"*": [[["return", RESULT]]]}
        completed = QueueKeys(self._actor.queue).completed
        with self._actor.running(behaviour, concurrency=2 * self._at_once):
            wait_until(lambda: self._admin.zcard(completed) == JOBS, "all jobs are done", 120)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--server", type=Path, default=None, help="the program; Valkey's if not given"
    )
    options = parser.parse_args()
    require_node_modules()
    rows: dict[tuple[str, int], list[float]] = {}
    with (
        ServerProcess(options.server or valkey_binary()) as server,
        redis.Redis(port=server.port) as admin,
        Node(server.url) as node,
    ):
        store = SyncStore(parse(server.url))
        costs = Costs(admin)
        for _ in range(options.rounds):
            for at_once in (1, 50):
                sides: dict[str, Ours | Theirs] = {"taskbull": Ours(store, at_once)}
                if at_once == 50:
                    for version in (5, 6):
                        actor = NodeActor(node, version, "bull", f"node{version}")
                        sides[f"Node {version}"] = Theirs(actor, admin, at_once)
                for name, side in sides.items():
                    admin.flushall()
                    rows.setdefault((f"{name}: add", at_once), []).append(costs.per_job(side.add))
                    rows.setdefault((f"{name}: drain", at_once), []).append(
                        costs.per_job(side.drain)
                    )
        store.close()
    print(f"\nµs of Redis per job, median of {options.rounds} rounds of {JOBS:,} jobs\n")
    print("| what | jobs per call (Node: at once) | µs |\n|---|---|---|")
    for (what, at_once), taken in sorted(rows.items()):
        print(f"| {what} | {at_once} | {median(taken):.1f} |")


if __name__ == "__main__":
    main()
