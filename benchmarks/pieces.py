"""How long one call holds the server when an operation works on a million jobs.

    python -m benchmarks.pieces [--jobs N] [--kind valkey|redis] [--only NAME]

Each operation is seeded on an empty server and driven call by call. A call's time is the shorter of
what the server's statistics say of the command (other programs on the machine prolong it) and the
CPU time of the server's main thread meanwhile (housekeeping between commands counts in it).
"""

from __future__ import annotations

import itertools
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import redis
from msgspec import Struct

from taskbull.core.keys import JobState, QueueKeys
from taskbull.scripts import change, cycle, removal
from taskbull.scripts.call import Steps
from taskbull.store import address
from taskbull.store.server_process import ServerProcess, valkey_binary
from taskbull.store.sync_store import SyncStore

T = TypeVar("T")

NOW = 1_800_000_000_000
ACTIVE = 10_000
QUEUE = QueueKeys("bench")

# Adds the jobs first..last and puts each into a list or a set, with or without a lock.
_SEED = """
local base, into, first, last, locked = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now, every = tonumber(ARGV[6]), tonumber(ARGV[7])
for id = first, last do
  local timestamp = now - 1000 + (id % every == 0 and 0 or 2000)
  redis.call("HSET", base .. id, "name", "n", "data", '{"to":"ann@example.org","n":1}',
    "opts", '{"attempts":3}', "timestamp", timestamp, "delay", 0, "priority", 0)
  if locked == "1" then
    redis.call("SET", base .. id .. ":lock", "token", "PX", 3600000)
  end
  if into == "wait" or into == "paused" or into == "active" then
    redis.call("LPUSH", base .. into, id)
  elseif into == "delayed" then
    redis.call("ZADD", base .. into, (now + id) * 4096, id)
  elseif into == "prioritized" then
    redis.call("ZADD", base .. into, 4294967296 + id, id)
  else
    redis.call("ZADD", base .. into, now - 1000, id)
  end
end
"""

Seed = Callable[["Bench"], None]
Operate = Callable[[], Steps[Any]]


class Measure(Struct, frozen=True):
    """What an operation cost the server, in ms: its calls together, nearly all, the longest."""

    calls: int
    total_ms: float
    most_ms: float
    longest_ms: float


class Used(Struct, frozen=True):
    """What the server has used so far, in ms."""

    cpu: float
    command: float


class Bench:
    """A server, and what it is asked to do."""

    def __init__(self, admin: redis.Redis, store: SyncStore, jobs: int) -> None:
        self.admin = admin
        self.store = store
        self.jobs = jobs
        asked = [self._used("info").cpu for _ in range(100)]
        self._idle = min(after - before for before, after in itertools.pairwise(asked))

    def seed(
        self, into: str, count: int, *, locked: bool = False, start: int = 1, every: int = 1
    ) -> None:
        """Add `count` jobs; every so many of them is a second old, the others are younger."""
        add = self.admin.register_script(_SEED)
        for first in range(start, start + count, 5000):
            last = min(first + 4999, start + count - 1)
            add(args=[QUEUE.base, into, first, last, int(locked), NOW, every])

    def measure(self, steps: Steps[Any]) -> Measure:
        """Drive the operation; ask after each call how long it took."""
        taken: list[float] = []
        try:
            request = next(steps)
            while True:
                command = str(request.words[0])
                before = self._used(command)
                result = self.store.run(request)
                after = self._used(command)
                cpu = after.cpu - before.cpu - self._idle
                taken.append(min(cpu, after.command - before.command))
                request = steps.send(result)
        except StopIteration:
            most = sorted(taken)[int(len(taken) * 0.999)]
            return Measure(len(taken), sum(taken), most, max(taken))

    def _used(self, command: str) -> Used:
        used = self.admin.info("cpu")
        kinds = ("user", "sys")
        cpu = 1000 * sum(float(used[f"used_cpu_{kind}_main_thread"]) for kind in kinds)
        stats = self.admin.info("commandstats").get(f"cmdstat_{command.lower()}", {"usec": 0})
        return Used(cpu, float(stats["usec"]) / 1000)

    def finish(self, steps: Steps[Any]) -> None:
        """Drive the operation without measuring it."""
        self.measure(steps)


def _sweep() -> Steps[Any]:
    return cycle.sweep_stalled(QUEUE, NOW, interval_ms=30_000, max_stalls=1)


def _active(bench: Bench, count: int, *, dead: int) -> None:
    """Have `count` active jobs, all marked by a sweep; the workers of every `dead`th are gone."""
    bench.seed("active", count, locked=True)
    bench.finish(_sweep())
    bench.admin.delete(QUEUE.stalled_check)
    for first in range(0, count, 5000):
        gone = [QUEUE.lock(str(n)) for n in range(first, first + 5000) if dead and n % dead == 0]
        if gone:
            bench.admin.delete(*gone)


def _both_lists(bench: Bench) -> None:
    bench.seed("wait", bench.jobs // 2)
    bench.seed("paused", bench.jobs // 2, start=bench.jobs)


def _everywhere(bench: Bench) -> None:
    states = ("wait", "paused", "active", "delayed", "prioritized", "completed", "failed")
    share = bench.jobs // len(states)
    for place, state in enumerate(states):
        bench.seed(state, share, start=place * share + 1, locked=state == "active")


def _in(state: str, *, every: int = 1) -> Seed:
    return lambda bench: bench.seed(state, bench.jobs, every=every)


def _clean(state: JobState) -> Operate:
    return lambda: removal.clean(QUEUE, state, NOW)


OPERATIONS: dict[str, tuple[Seed, Operate]] = {
    f"stalled sweep, {ACTIVE:,} active, all alive": (lambda b: _active(b, ACTIVE, dead=0), _sweep),
    f"stalled sweep, {ACTIVE:,} active, half dead": (lambda b: _active(b, ACTIVE, dead=2), _sweep),
    f"stalled sweep, {ACTIVE:,} active, all dead": (lambda b: _active(b, ACTIVE, dead=1), _sweep),
    "stalled sweep, all jobs active and alive": (lambda b: _active(b, b.jobs, dead=0), _sweep),
    "drain wait": (_in("wait"), lambda: removal.drain(QUEUE)),
    "drain prioritized": (_in("prioritized"), lambda: removal.drain(QUEUE)),
    "drain delayed": (_in("delayed"), lambda: removal.drain(QUEUE, delayed=True)),
    "clean completed": (_in("completed"), _clean(JobState.COMPLETED)),
    "clean wait, none is old": (_in("wait", every=10**9), _clean(JobState.WAITING)),
    "clean wait, every 10th is old": (_in("wait", every=10), _clean(JobState.WAITING)),
    "clean delayed, every 2nd is old": (_in("delayed", every=2), _clean(JobState.DELAYED)),
    "obliterate, jobs in all states": (
        _everywhere,
        lambda: removal.obliterate(QUEUE, force=True),
    ),
    "promote all": (_in("delayed"), lambda: change.promote_jobs(QUEUE)),
    "retry all": (_in("failed"), lambda: change.retry_jobs(QUEUE, NOW)),
    "pause": (_in("wait"), lambda: change.pause(QUEUE)),
    "pause, half of the jobs parked": (_both_lists, lambda: change.pause(QUEUE)),
    "resume, half of the jobs parked": (_both_lists, lambda: change.resume(QUEUE)),
}


def measures(bench: Bench, wanted: str) -> Iterator[tuple[str, Measure]]:
    """Measure each operation whose name has `wanted` in it."""
    for name, (seed, operate) in OPERATIONS.items():
        if wanted in name:
            bench.admin.flushall()
            seed(bench)
            yield name, bench.measure(operate())


def server_binary(kind: str) -> Path:
    """Give the program: the Valkey that pip brings, or the Redis of the system."""
    if kind == "valkey":
        return valkey_binary()
    return Path(shutil.which("redis-server") or sys.exit("there is no redis-server here"))


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--only", default="", help="part of the name of an operation")
    options = parser.parse_args()
    with (
        ServerProcess(server_binary(options.kind)) as server,
        redis.Redis(port=server.port) as admin,
    ):
        store = SyncStore(address.parse(server.url))
        print(f"{options.jobs:,} jobs on {options.kind}; ms of the server\n")
        print("| operation | calls | all of them | 99.9 % under | the longest |")
        print("|---|---|---|---|---|")
        for name, measure in measures(Bench(admin, store, options.jobs), options.only):
            row = f"{measure.calls:,} | {measure.total_ms:,.0f} | {measure.most_ms:.1f}"
            print(f"| {name} | {row} | {measure.longest_ms:.1f} |", flush=True)
        store.close()


if __name__ == "__main__":
    main()
