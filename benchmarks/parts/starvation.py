"""How long one customer waits behind another who has just added thousands of jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage
from benchmarks.table import percentile

FLOOD, FEW = 10_000, 10
AT_ONCE = 10
LIMIT = 300.0


def starvation(bench: Bench, side: Side) -> Values:
    """Let A add many jobs, then B a few; give the seconds until the jobs of B start to rest."""
    flood = bench.count(FLOOD)
    setting = Setting(slots=FEW + flood, at_once=AT_ONCE, task="rest")
    first, second = ({"group": "a"}, {"group": "b"}) if "groups" in side.peer.can else ({}, {})
    with Stage(bench, side, setting) as stage:
        stage.produce("in_bulk", count=flood, **first)
        stage.work()
        stage.await_first()
        added = stage.produce("paced", count=FEW, gap=0.0, first=flood, **second)["added"]
        end = time.monotonic() + LIMIT
        while not all(ran := stage.ticks.times()[flood:]):
            if time.monotonic() > end:
                raise SideFailed(f"{stage.name}: the jobs of B have not run in {LIMIT:.0f} s")
            time.sleep(0.05)
    waited = [(ended - began) / 1e9 for began, ended in zip(added, ran, strict=True)]
    return {"wait_p50": percentile(waited, 50), "wait_p95": percentile(waited, 95)}


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [Case(side, "s", partial(starvation, bench, side)) for side in sides]


PART = Part(
    "starvation",
    "Customer A adds 10,000 jobs of 20 ms, a worker starts on them (concurrency 10), and then "
    "customer B adds 10 jobs. The figures are the seconds from the call that adds a job of B to "
    "its end. In taskbull, each customer is a group.",
    (
        Metric("wait_p50", "p50 s", 2, compared=True),
        Metric("wait_p95", "p95 s", 2),
    ),
    cases,
    rounds=1,
    budget=400.0,
)
