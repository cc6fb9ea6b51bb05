"""How fast a worker empties a queue of jobs that do nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case, Values
from benchmarks.stage import Bench, Setting, Stage, settle

JOBS = 50_000
FILLING = 4.0
"""Seconds: those who add slowly drain slowly, and need fewer jobs."""
WARM_UP = 0.25
"""Seconds of a worker's life that do not count: Node's compiler is at work then."""
SECONDS = 1.0


def drain(
    bench: Bench,
    side: Side,
    setting: Setting,
    seconds: float = SECONDS,
    meanwhile: Callable[[Stage], object] = lambda _: None,
) -> Values:
    """Let a worker empty a filled queue, for so many seconds at most.

    `meanwhile` is called before it begins, with what others may use.
    """
    with Stage(bench, side, setting) as stage:
        meanwhile(stage)
        stage.work()
        stage.await_first()
        time.sleep(bench.seconds(WARM_UP))
        before = stage.read()
        stage.await_jobs(setting.slots, seconds)
        settle()
        after = stage.read()
        return {"rate": rate(stage.ticks.times(), bench.seconds(WARM_UP)), **after.per_job(before)}


def rate(ticks: Sequence[int], warm_up: float) -> float:
    """Give the jobs per second after the warm-up, if there were any, or of all."""
    times = sorted(tick for tick in ticks if tick)
    counted = [one for one in times if one > times[0] + warm_up * 1e9]
    if len(counted) < 2:
        counted = times
    return (len(counted) - 1) / max(1e-9, (counted[-1] - counted[0]) / 1e9)


def filled(bench: Bench, at_once: int) -> Setting:
    """Give a queue with jobs in it."""
    jobs = bench.count(JOBS)
    return Setting(slots=jobs, at_once=at_once, fill=({"count": jobs, "seconds": FILLING},))


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [
        Case(side, f"{at_once} at once", partial(drain, bench, side, filled(bench, at_once)))
        for at_once in bench.at_once
        for side in sides
    ]


PART = Part(
    "drain",
    "One worker process empties a queue of 50,000 jobs that do nothing. The rate is that of the "
    "second after the first quarter of a second.",
    (RATE, *COSTS),
    cases,
    budget=390.0,
)
