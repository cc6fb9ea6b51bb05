"""What the size of a job's data costs, against a plain SET of as much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import YARDSTICK, Side
from benchmarks.parts.part import CPU, SERVER, Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage, settle

SIZES = {"1 kB": (1_000, 2_000), "100 kB": (100_000, 200), "1 MB": (1_000_000, 40)}
SECONDS = 3.0


def payloads(bench: Bench, side: Side, size: int, usual: int) -> Values:
    """Add jobs of that size one by one, then let a worker run them."""
    jobs = bench.count(usual)
    with Stage(bench, side, Setting(slots=jobs)) as stage:
        before = stage.spent()
        told = stage.produce("one_by_one", count=jobs, seconds=SECONDS, size=size, warm=0)
        added = stage.spent() - before
        done = told["count"]
        values = {
            "add": told["seconds"] / done * 1000,
            "cpu": told["cpu"] / done * 1e6,
            "server": added.cpu / done * 1e6,
        }
        return values if side.name == YARDSTICK else values | run(stage, done)


def run(stage: Stage, jobs: int) -> Values:
    """Run what has been added."""
    before = stage.spent()
    stage.work()
    if not stage.await_jobs(jobs, 30.0):
        raise SideFailed(f"{stage.name}: not all jobs ran in 30 s")
    settle()
    times = [time for time in stage.ticks.times() if time]
    return {
        "run": (max(times) - min(times)) / 1e6 / max(1, jobs - 1),
        "run_server": (stage.spent() - before).cpu / jobs * 1e6,
    }


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [
        Case(side, title, partial(payloads, bench, side, size, jobs))
        for title, (size, jobs) in SIZES.items()
        for side in sides
    ]


PART = Part(
    "payloads",
    "Jobs with this much data are added one by one, and then run by a worker with concurrency "
    "10. `plain-set` writes the same amount with redis-py's `SET`.",
    (
        Metric("add", "ms to add", 3, compared=True),
        CPU,
        SERVER,
        Metric("run", "ms to run", 3),
        Metric("run_server", "server CPU µs to run"),
    ),
    cases,
    baseline=YARDSTICK,
)
