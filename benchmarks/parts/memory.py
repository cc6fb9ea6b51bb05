"""What a worker needs in memory, and whether that grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage

JOBS = (10_000, 90_000)


def memory(bench: Bench, side: Side) -> Values:
    """Weigh a worker before its jobs and after them."""
    some, more = (bench.count(jobs) for jobs in JOBS)
    with Stage(bench, side, Setting(slots=some + more, at_once=100)) as stage:
        stage.start_idle()
        values = {"idle": stage.memory()}
        for key, first, jobs in (("some", 0, some), ("all", some, more)):
            stage.produce("in_bulk", count=jobs, first=first)
            if not stage.await_jobs(first + jobs, 60.0):
                raise SideFailed(f"{side.name}: not all jobs ran in 60 s")
            time.sleep(bench.seconds(1.0))
            values[key] = stage.memory()
        return values


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [Case(side, "MB", partial(memory, bench, side)) for side in sides]


PART = Part(
    "memory",
    "The resident memory of a worker with concurrency 100: idle, a second after 10,000 jobs, "
    "and a second after 100,000.",
    (
        Metric("idle", "idle"),
        Metric("some", "after 10,000 jobs"),
        Metric("all", "after 100,000"),
    ),
    cases,
    rounds=1,
)
