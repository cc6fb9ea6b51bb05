"""Measures all cases of a part in shuffled rounds, so that the machine's moods meet them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from benchmarks.catalogue import Side
from benchmarks.host import Seen
from benchmarks.stage import SideFailed

Values = dict[str, float]
"""The figures of one measurement, by the key of their `Metric`."""

SEED = 11
MUCH = 0.1
"""Of the time of all cores: a measurement in which others had more is marked."""


class Metric(Struct, frozen=True):
    """A figure of a part: a column of its tables."""

    key: str
    title: str
    digits: int = 1
    compared: bool = False
    """Whether the table also says how many times the baseline's it is."""


class Case(Struct, frozen=True):
    """One side in one setting; each setting is a table."""

    side: Side
    setting: str
    measure: Callable[[], Values]


class Sample(Struct, frozen=True):
    """A measurement, and the share of all cores that others had meanwhile."""

    values: Values
    stolen: float = 0.0
    """Other machines on the same host."""
    others: float = 0.0
    """Other programs on this machine."""

    @property
    def disturbed(self) -> bool:
        return self.stolen + self.others > MUCH


class Taken(Struct):
    """The samples of a part; those of one case are in the order of the rounds."""

    samples: dict[tuple[str, str], list[Sample]] = {}
    failures: dict[str, str] = {}
    seconds: float = 0.0

    def settings(self) -> list[str]:
        return list(dict.fromkeys(setting for setting, _ in self.samples))

    def all(self) -> list[Sample]:
        return [sample for samples in self.samples.values() for sample in samples]


def take(cases: Sequence[Case], rounds: int, budget: float = float("inf")) -> Taken:
    """Measure every case once in each round; a side that fails is left out from then on.

    No further round is begun that would not end within `budget` seconds.
    """
    taken, began = Taken(), time.monotonic()
    for case in cases:  # the order of the tables
        taken.samples[case.setting, case.side.name] = []
    for number in range(rounds):
        if number and (time.monotonic() - began) / number * (number + 1) > budget:
            break
        order = list(cases)
        Random(SEED + number).shuffle(order)
        for case in order:
            if case.side.name in taken.failures:
                continue
            try:
                sample = _measured(case)
            except SideFailed as error:
                taken.failures[case.side.name] = str(error)
                print(f"{case.setting}: {error}", file=sys.stderr)
            else:
                taken.samples[case.setting, case.side.name].append(sample)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    taken.seconds = time.monotonic() - began
    return taken


def _measured(case: Case) -> Sample:
    before = Seen.now()
    values = case.measure()
    after = Seen.now()
    return Sample(values, after.stolen_since(before), after.others_since(before))
