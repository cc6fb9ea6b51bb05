"""A model that is called for many jobs at once, and the same model called for each.

Both are our own: what is asked is what batches are worth. A call of the model costs 20 ms and
0.1 ms for each item, and it does one call at a time, as one GPU does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.drain import FILLING, drain
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench, Setting

JOBS = 10_000
AT_ONCE = 64
SECONDS = 10.0
"""In batches, that is enough for all of them; one by one, for 500."""

WAYS = {"one by one": "model", "in batches of 32": "batch"}


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    jobs = bench.count(JOBS)
    fill = ({"count": jobs, "seconds": FILLING},)
    return [
        Case(side, title, partial(drain, bench, side, setting, SECONDS))
        for title, task in WAYS.items()
        for setting in [Setting(slots=jobs, at_once=AT_ONCE, task=task, fill=fill)]
        for side in sides
    ]


PART = Part(
    "batches",
    "One worker process feeds 10,000 items to a model that does one call at a time, in 20 ms and "
    "0.1 ms for each item.",
    (RATE, *COSTS),
    cases,
    rounds=1,
)
