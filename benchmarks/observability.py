"""What it costs to be watched: the same drain with metrics, with traces, and with neither.

    python -m benchmarks.observability [--jobs N] [--rounds N] [--at-once N] [--only WORD ...]

All runs, each in a process of its own on the same private server, come in a random order: a fixed
one favours some. The table shows the least and the median CPU per job, and their ratios to those
of the worker that nobody watches; who scrapes does so in another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from random import Random
from statistics import median
from timeit import repeat
from typing import Any

import redis
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.observability_worker import QUEUE, WATCHES
from benchmarks.servers import spent
from taskbull.observability.tracing import current_tracer
from taskbull.queue.queue import SyncQueue
from taskbull.store.server_process import ServerProcess, valkey_binary

BASELINE = next(iter(WATCHES))
DATA = {"to": "ann@example.org", "subject": "Hi", "n": 1}
PLAIN: dict[str, Any] = {
    "attempts": 1,
    "backoff": None,
    "keep_completed": None,
    "keep_failed": None,
    "keep_logs": None,
}
_PROGRAM = (sys.executable, "-m", "benchmarks.observability_worker")


class Measure(Struct, frozen=True):
    """What one drain took: jobs per second, and CPU per job of the worker and of the server."""

    rate: float
    cpu_us: float
    redis_us: float


def measure(mode: str, server: ServerProcess, jobs: int, at_once: int) -> Measure:
    """Fill the queue and let one worker empty it."""
    with redis.Redis(port=server.port) as admin:
        admin.flushall()
        queue = SyncQueue(QUEUE, redis=server.url)
        job = queue.job("noop", DATA, **PLAIN)
        carry = mode.endswith("carry a context")
        queue.add_bulk([replace(job, telemetry=header(n)) if carry else job for n in range(jobs)])
        queue.close()
        before = spent([admin])
        command = [*_PROGRAM, mode, server.url, str(jobs), str(at_once)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        used = spent([admin]) - before
    told = json.loads(done.stdout)
    return Measure(jobs / told["seconds"], told["cpu_us"], used.cpu / jobs * 1e6)


def header(number: int) -> str:
    """Give the context of a span that was not sampled, as a producer writes it."""
    return f'{{"traceparent":"00-{number + 1:032x}-{number + 1:016x}-00"}}'


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=[""], help="kinds with these words")
    options = parser.parse_args()
    chosen = [
        mode for mode in WATCHES if mode == BASELINE or any(word in mode for word in options.only)
    ]
    taken: dict[str, list[Measure]] = {mode: [] for mode in chosen}
    order = chosen * options.rounds
    Random(1).shuffle(order)
    with ServerProcess(valkey_binary()) as server:
        for number, mode in enumerate(order):
            taken[mode].append(measure(mode, server, options.jobs, options.at_once))
            print(f"run {number + 1} of {len(order)} done", file=sys.stderr)
    asked = min(repeat(current_tracer, number=100_000, repeat=5)) / 100_000 * 1e6
    print(f"\nTo find out that nobody traces, once per call that adds jobs: {asked:.2f} µs\n")
    print("| watched by | jobs/s | least CPU per job, µs | x | median | x |")
    print("|---|---|---|---|---|---|")
    _, base_least, base_middle = summed_up(taken[BASELINE])
    for mode, measures in taken.items():
        rate, least, middle = summed_up(measures)
        print(
            f"| {mode} | {rate:,.0f} | {least:.1f} | {least / base_least:.2f} "
            f"| {middle:.1f} | {middle / base_middle:.2f} |"
        )


def summed_up(measures: list[Measure]) -> tuple[float, float, float]:
    """Give the median rate, the least CPU per job, and the median of that."""
    spent = [one.cpu_us for one in measures]
    return median(one.rate for one in measures), min(spent), median(spent)


if __name__ == "__main__":
    main()
