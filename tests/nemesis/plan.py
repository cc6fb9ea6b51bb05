"""The schedule of faults, drawn from one seed."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

from msgspec import Struct

from tests.nemesis.faults import FAULTS, Lane

LANES: Final[tuple[Lane, ...]] = ("process", "network", "server")
LONGEST_PAUSE: Final = 2.4
"""Seconds between two faults of a lane; with three lanes that is about one fault per second."""


class Planned(Struct, frozen=True):
    """A fault to come, `pause` seconds after the last one of its lane is over."""

    pause: float
    fault: str
    seed: int


def make_plan(seed: int, seconds: float, names: Collection[str]) -> dict[Lane, list[Planned]]:
    """Draw the faults of each lane, of those that are named; more than there is time for."""
    plan: dict[Lane, list[Planned]] = {}
    for lane in LANES:
        random = Random(f"{seed}-{lane}")
        possible = sorted(name for name in names if FAULTS[name].lane == lane)
        plan[lane] = []
        left = seconds
        bag: list[str] = []
        while possible and left > 0:
            if not bag:  # each comes once before any comes again
                bag = random.sample(possible, len(possible))
            one = Planned(random.uniform(0.2, LONGEST_PAUSE), bag.pop(), random.getrandbits(32))
            plan[lane].append(one)
            left -= one.pause
    return plan
