"""How fast a worker empties a queue of jobs that do nothing: taskbull against Node BullMQ.

    python -m benchmarks.drain [--jobs N] [--rounds N] [--at-once N ...] [--only NAME ...]

Each round runs every worker once, one after the other, each in a process of its own, on the same
private server with the same jobs. Events are on, everything is kept, results are stored. The table
shows medians; machines are noisy, so only the ratios say something. Needs Node, as the interop
tests do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import redis
from msgspec import Struct

from benchmarks.drain_worker import QUEUE
from taskbull.queue.sync_queue import SyncQueue
from taskbull.store.server import Server, valkey_binary
from tests.interop.install import require_node_modules

BASELINE = "Node bullmq 6"
DATA = {"to": "ann@example.org", "subject": "Hi", "n": 1}
PLAIN: dict[str, Any] = {
    "attempts": 1,
    "backoff": None,
    "keep_completed": None,
    "keep_failed": None,
    "keep_logs": None,
}
_NODE = str(Path(__file__).with_name("drain_node.mjs"))

WORKERS: dict[str, list[str]] = {
    BASELINE: ["node", _NODE, "bullmq6"],
    "Node bullmq 5.62": ["node", _NODE, "bullmq5"],
    "taskbull asyncio": [sys.executable, "-m", "benchmarks.drain_worker", "asyncio"],
    "taskbull uvloop": [sys.executable, "-m", "benchmarks.drain_worker", "uvloop"],
    "taskbull trio": [sys.executable, "-m", "benchmarks.drain_worker", "trio"],
}


class Measure(Struct, frozen=True):
    """What one drain took."""

    rate: float
    cpu_us: float
    """The worker's own CPU per job."""
    redis_us: float
    """The server's CPU per job."""


def measure(words: list[str], server: Server, jobs: int, at_once: int) -> Measure:
    """Fill the queue and let one worker empty it."""
    with redis.Redis(port=server.port) as admin:
        admin.flushall()
        queue = SyncQueue(QUEUE, redis=server.url)
        queue.add_bulk([("noop", DATA, PLAIN)] * jobs)
        queue.close()
        before = cpu_of(admin)
        command = [*words, server.url, str(jobs), str(at_once)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        spent = cpu_of(admin) - before
        completed = admin.zcard(f"bull:{QUEUE}:completed")
        assert completed == jobs, f"{completed} of {jobs} jobs completed"
    told = json.loads(done.stdout)
    return Measure(jobs / told["seconds"], told["cpu_us"], spent / jobs * 1e6)


def cpu_of(admin: redis.Redis) -> float:
    info: Any = admin.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[100, 10, 1])
    parser.add_argument("--only", nargs="+", choices=list(WORKERS), default=list(WORKERS))
    parser.add_argument("--server", type=Path, help="the program; Valkey's if not given")
    options = parser.parse_args()
    require_node_modules()
    taken: dict[tuple[str, int], list[Measure]] = {}
    with Server(options.server or valkey_binary()) as server:
        for number in range(options.rounds):
            for at_once in options.at_once:
                jobs = options.jobs if at_once >= 10 else options.jobs // 10
                for name in options.only:
                    one = measure(WORKERS[name], server, jobs, at_once)
                    taken.setdefault((name, at_once), []).append(one)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    report(taken, options.only, options.at_once)


def report(
    taken: dict[tuple[str, int], list[Measure]], names: list[str], at_once: list[int]
) -> None:
    """Print medians, and each worker's ratio to the baseline in the same rounds."""
    print(f"\nx: times {BASELINE}; CPU: the worker's, µs per job; Redis: the server's\n")
    print("| worker | " + " | ".join(f"{n} at once: jobs/s, x, CPU, Redis" for n in at_once) + " |")
    print("|---|" + "---|" * len(at_once))
    for name in names:
        cells: list[str] = []
        for count in at_once:
            mine = taken[name, count]
            base = taken.get((BASELINE, count), mine)
            ratio = median(a.rate / b.rate for a, b in zip(mine, base, strict=True))
            cells.append(
                f"{_mid(mine, lambda m: m.rate):,.0f}, {ratio:.2f}, "
                f"{_mid(mine, lambda m: m.cpu_us):.1f}, {_mid(mine, lambda m: m.redis_us):.1f}"
            )
        print(f"| {name} | " + " | ".join(cells) + " |")


def _mid(measures: list[Measure], of: Callable[[Measure], float]) -> float:
    return median(of(one) for one in measures)


if __name__ == "__main__":
    main()
