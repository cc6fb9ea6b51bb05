"""How fast flows are added, and run: a parent that waits for 1,000 children."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.drain import WARM_UP, rate
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case, Values
from benchmarks.stage import Bench, Setting, Stage, settle

CHILDREN = 1_000
ADDED = 20
"""Flows that are added, if there is time for so many."""
RUN = 30
SECONDS = 1.5
AT_ONCE = 100


def add(bench: Bench, side: Side) -> Values:
    """Let a process add flows to an empty queue."""
    children = bench.count(CHILDREN)
    with Stage(bench, side, Setting(slots=1)) as stage:
        stage.produce("in_flows", count=1, children=10)  # the scripts are there, as usual
        before = stage.spent()
        seconds = max(0.2, bench.seconds(SECONDS))
        told = stage.produce(
            "in_flows", count=jobs(bench, ADDED), children=children, seconds=seconds
        )
        server = stage.spent() - before
        return {
            "rate": told["count"] / told["seconds"],
            "cpu": told["cpu"] / told["count"] * 1e6,
            "server": server.cpu / told["count"] * 1e6,
            "commands": server.commands / told["count"],
        }


def run(bench: Bench, side: Side) -> Values:
    """Let a worker run flows that are there, for so many seconds at most."""
    children = bench.count(CHILDREN)
    setting = Setting(slots=jobs(bench, RUN), at_once=AT_ONCE)
    with Stage(bench, side, setting) as stage:
        stage.produce("in_flows", count=setting.slots, children=children)
        stage.work()
        stage.await_first()
        time.sleep(bench.seconds(WARM_UP))
        before = stage.read()
        stage.await_jobs(setting.slots, SECONDS)
        settle()
        after = stage.read()
        return {"rate": rate(stage.ticks.times(), bench.seconds(WARM_UP)), **after.per_job(before)}


def jobs(bench: Bench, flows: int) -> int:
    """Give how many jobs so many flows are; in a quick run they are smaller."""
    return flows * (bench.count(CHILDREN) + 1)


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    made = [Case(side, "adding", partial(add, bench, side)) for side in sides]
    return made + [
        Case(side, f"running, {AT_ONCE} at once", partial(run, bench, side))
        for side in sides
        if side.peer.variant != "sync"
    ]


PART = Part(
    "flows",
    "Flows of a parent with 1,000 children that do nothing: one process adds them, each after the "
    "last, for 1.5 s at most; then one worker process runs 30 of them.",
    (RATE, *COSTS),
    cases,
)
