"""Whether the masters of a cluster share the work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.drain import JOBS, drain
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench, Setting
from taskbull.core.keys import QueueKeys
from tests.servers.cluster import SLOTS, slot_of

MASTERS = 3


def queues() -> tuple[str, ...]:
    """Give the names of queues that different masters hold."""
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"bench{number}"
        master = slot_of(QueueKeys(name, hash_tag=True).wait) * MASTERS // SLOTS
        found.setdefault(master, name)
        if len(found) == MASTERS:
            return tuple(found.values())
    raise AssertionError


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    jobs = bench.count(JOBS)
    titles = {0: "one server, 3 queues", MASTERS: "3 masters, 3 queues"}
    return [
        Case(
            side,
            title,
            partial(
                drain,
                bench,
                side,
                Setting(
                    slots=jobs,
                    at_once=100,
                    queues=queues(),
                    masters=masters,
                    processes=count,
                    fill=({"count": jobs},),
                ),
            ),
        )
        for masters, title in titles.items()
        for count, title in ((1, f"{title}, 1 process"), (2, f"{title}, 2 processes"))
        for side in sides
    ]


PART = Part(
    "cluster",
    "`taskbull worker` drains three queues with concurrency 100 each: on one server, and in a "
    "cluster whose three masters hold one queue each. All share the cores of one machine, so "
    "with fewer than five cores only the costs per job are meaningful.",
    (RATE, *COSTS),
    cases,
    rounds=2,
)
