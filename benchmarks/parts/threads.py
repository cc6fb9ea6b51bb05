"""Plain functions of a millisecond, on 40 threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.drain import FILLING, drain
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench, Setting

JOBS = 40_000
THREADS = 40


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    jobs = bench.count(JOBS)
    fill = ({"count": jobs, "seconds": FILLING},)
    setting = Setting(slots=jobs, at_once=THREADS, task="nap", fill=fill)
    title = f"{THREADS} threads"
    return [Case(side, title, partial(drain, bench, side, setting)) for side in sides]


PART = Part(
    "threads",
    "One worker process runs sync functions that sleep for 1 ms, on 40 threads. taskbull has a "
    "concurrency of 80, so that each thread finds its next job; Dramatiq prefetches as many on "
    "its own.",
    (RATE, *COSTS),
    cases,
    baseline="dramatiq",
)
