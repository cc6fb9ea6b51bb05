"""Whether a long queue is slower than a short one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.catalogue import Side
from benchmarks.parts.drain import drain
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench, Setting

JOBS = 30_000
HOUR = 3600.0


def behind(bench: Bench) -> dict[str, tuple[dict[str, Any], ...]]:
    """Give what waits: the jobs that are counted come first."""
    jobs = bench.count(JOBS)

    def more(usual: int, **options: Any) -> dict[str, Any]:
        return {"count": bench.count(usual), "first": jobs, **options}

    first = {"count": jobs}
    return {
        "1,000 more wait": (first, more(1_000)),
        "1,000,000 more wait": (first, more(1_000_000)),
        "100,000 more are delayed": (first, more(100_000, delay=HOUR)),
        "prioritized, 1,000 more wait": ({**first, "priority": 1}, more(1_000, priority=2)),
        "prioritized, 100,000 more wait": ({**first, "priority": 1}, more(100_000, priority=2)),
    }


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    # All of them write the same format; taskbull is the fastest.
    writer = next((side for side in sides if side.tree), None)
    return [
        Case(
            side,
            title,
            partial(
                drain,
                bench,
                side,
                Setting(slots=bench.count(JOBS), at_once=100, fill=fill, filled_by=writer),
            ),
        )
        for title, fill in behind(bench).items()
        for side in sides
    ]


PART = Part(
    "backlog",
    "One worker with concurrency 100 runs the same 30,000 jobs, with this many more behind them.",
    (RATE, *COSTS),
    cases,
    rounds=2,
)
