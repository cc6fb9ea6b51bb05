"""Functions that compute, on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.drain import FILLING, drain
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench, Setting

JOBS = 3_000
SECONDS = 4.0
AT_ONCE = 10


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    jobs = bench.count(JOBS)
    fill = ({"count": jobs, "seconds": FILLING},)
    setting = Setting(slots=jobs, at_once=AT_ONCE, task="compute", fill=fill)
    measure = partial(drain, bench, setting=setting, seconds=bench.seconds(SECONDS))
    return [Case(side, "a process for each core", partial(measure, side=side)) for side in sides]


PART = Part(
    "processes_cpu",
    "A worker runs sync functions that compute for 5 to 10 ms in pure Python, in as many "
    "processes as there are cores: a process pool of taskbull, prefork of Celery, processes of "
    "Dramatiq, a worker pool of RQ. The CPU includes that of the functions.",
    (RATE, *COSTS),
    cases,
    baseline="celery",
)
