"""What it costs to be watched: the same drain with nothing installed, with an SDK, with all of it.

    python -m benchmarks.observability [--jobs N] [--rounds N] [--at-once N] [--only N]

All runs, each in a process of its own on the same private server, come in a random order: a fixed
one favours some. The table shows medians with the quartiles of the CPU, and their ratios to those
of the worker whose hooks are taken out; what lies within the quartiles is noise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from random import Random
from statistics import median, quantiles
from timeit import repeat

import redis

from benchmarks.drain import DATA, PLAIN, Measure, cpu_of
from benchmarks.drain_worker import QUEUE
from benchmarks.observability_worker import WATCHES
from taskbull.observability.tracing import current_tracer
from taskbull.queue.sync_queue import SyncQueue
from taskbull.store.server import Server, valkey_binary

BASELINE = next(iter(WATCHES))
_PROGRAM = (sys.executable, "-m", "benchmarks.observability_worker")


def measure(mode: str, server: Server, jobs: int, at_once: int) -> Measure:
    """Fill the queue and let one worker empty it."""
    with redis.Redis(port=server.port) as admin:
        admin.flushall()
        queue = SyncQueue(QUEUE, redis=server.url)
        queue.add_bulk([("noop", DATA, PLAIN)] * jobs)
        queue.close()
        before = cpu_of(admin)
        command = [*_PROGRAM, mode, server.url, str(jobs), str(at_once)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        spent = cpu_of(admin) - before
    told = json.loads(done.stdout)
    return Measure(jobs / told["seconds"], told["cpu_us"], spent / jobs * 1e6)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--only", type=int, default=len(WATCHES), help="so many of the kinds")
    options = parser.parse_args()
    chosen = list(WATCHES)[: options.only]
    taken: dict[str, list[Measure]] = {mode: [] for mode in chosen}
    order = chosen * options.rounds
    Random(1).shuffle(order)
    with Server(valkey_binary()) as server:
        for number, mode in enumerate(order):
            taken[mode].append(measure(mode, server, options.jobs, options.at_once))
            print(f"run {number + 1} of {len(order)} done", file=sys.stderr)
    asked = min(repeat(current_tracer, number=100_000, repeat=5)) / 100_000 * 1e6
    print(f"\nTo find out that nobody traces, once per call that adds jobs: {asked:.2f} µs\n")
    print("| watched by | jobs/s | x | CPU per job, µs | x |")
    print("|---|---|---|---|---|")
    base_rate, _, base_cpu, _ = spread(taken[BASELINE])
    for mode, measures in taken.items():
        rate, low, cpu, high = spread(measures)
        print(
            f"| {mode} | {rate:,.0f} | {rate / base_rate:.2f} "
            f"| {cpu:.1f} ({low:.1f} to {high:.1f}) | {cpu / base_cpu:.2f} |"
        )


def spread(measures: list[Measure]) -> tuple[float, float, float, float]:
    """Give the median rate, and the quartiles of the CPU per job."""
    low, middle, high = quantiles([one.cpu_us for one in measures], n=4)
    return median(one.rate for one in measures), low, middle, high


if __name__ == "__main__":
    main()
