"""How fast one process adds jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.catalogue import Side
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case, Values
from benchmarks.stage import Bench, Setting, Stage

WAYS: dict[str, tuple[str, int]] = {
    "one by one": ("one_by_one", 4_000),
    "from 100 tasks": ("from_tasks", 10_000),
    "in bulk of 1,000": ("in_bulk", 20_000),
}
SECONDS = 1.5


def enqueue(bench: Bench, side: Side, way: str, how: dict[str, Any]) -> Values:
    """Let a process add jobs to an empty queue."""
    with Stage(bench, side, Setting(slots=1)) as stage:
        before = stage.spent()
        told = stage.produce(way, **how)
        server = stage.spent() - before
        count, all_jobs = told["count"], told["count"] + told["warm"]
        return {
            "rate": count / told["seconds"],
            "cpu": told["cpu"] / count * 1e6,
            "server": server.cpu / all_jobs * 1e6,
            "commands": server.commands / all_jobs,
        }


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    made = []
    for title, (way, usual) in WAYS.items():
        how = {"count": bench.count(usual), "seconds": max(0.2, bench.seconds(SECONDS))}
        for side in sides:
            if way == "from_tasks" and "tasks" not in side.peer.can:
                continue
            made.append(Case(side, title, partial(enqueue, bench, side, way, how)))
    return made


PART = Part(
    "enqueue",
    "One process adds jobs of 100 bytes: each after the last, from 100 tasks of one event loop, "
    "and lists of 1,000 per call (where a peer has no such call: each after the last, or 100 at a "
    "time). For 1.5 s at most.",
    (RATE, *COSTS),
    cases,
    budget=270.0,
)
