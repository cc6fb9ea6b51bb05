"""How long a job takes from one process to another, and its result back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage
from benchmarks.table import percentile

JOBS = 300
GAP = 0.005
DELAY = 0.5
AT_ONCE = 10


def latency(bench: Bench, side: Side) -> Values:
    """Ask one idle worker for all three: pickup, round trip, lateness of delayed jobs."""
    jobs = bench.count(JOBS)
    with Stage(bench, side, Setting(slots=jobs, at_once=AT_ONCE, results=True)) as stage:
        stage.start_idle()
        values = in_ms("pickup", paced(stage, jobs, 0.0))
        told = stage.produce("round_trips", count=jobs, seconds=1.5)
        values |= in_ms("trip", told["took"])
        if "delayed" in side.peer.can:
            values |= in_ms("late", paced(stage, bench.count(200), DELAY))
        return values


def paced(stage: Stage, jobs: int, delay: float) -> list[int]:
    """Add jobs one by one to an idle queue; give how long after it was due each one ran, in ns."""
    stage.ticks.clear()
    options = {"delay": delay} if delay else {}
    added = stage.produce("paced", count=jobs, gap=GAP, **options)["added"]
    if not stage.await_jobs(jobs, delay + 10.0):
        raise SideFailed(f"{stage.name}: not all of the {jobs} jobs ran")
    ran = stage.ticks.times()[:jobs]
    return [end - begin - int(delay * 1e9) for begin, end in zip(added, ran, strict=True)]


def in_ms(name: str, times: Sequence[int]) -> Values:
    ms = [one / 1e6 for one in times]
    return {f"{name}_p50": percentile(ms, 50), f"{name}_p99": percentile(ms, 99)}


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [Case(side, "ms", partial(latency, bench, side)) for side in sides]


PART = Part(
    "latency",
    "An idle worker (concurrency 10), and a producer in another process that adds a job every 5 "
    "ms. Pickup: from the call that adds the job to the body of the task. Round trip: until the "
    "result is back. Late: the delay of a job after its due time, for jobs delayed by 500 ms.",
    (
        Metric("pickup_p50", "pickup p50", 2, compared=True),
        Metric("pickup_p99", "p99", 2),
        Metric("trip_p50", "round trip p50", 2, compared=True),
        Metric("trip_p99", "p99", 2),
        Metric("late_p50", "late p50", 2, compared=True),
        Metric("late_p99", "p99", 2),
    ),
    cases,
    rounds=2,
    budget=240.0,
)
