"""Whether a second process helps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import structs

from benchmarks.catalogue import Side
from benchmarks.parts.drain import drain, filled
from benchmarks.parts.part import COSTS, RATE, Part
from benchmarks.rounds import Case
from benchmarks.stage import Bench


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [
        Case(
            side,
            f"{count} process{'es' if count > 1 else ''}",
            partial(drain, bench, side, structs.replace(filled(bench, 100), processes=count)),
        )
        for count in (1, 2)
        for side in sides
    ]


PART = Part(
    "processes",
    "The same as `drain` with concurrency 100, by `taskbull worker --processes N`, or this many "
    "processes of Node. The server uses another core.",
    (RATE, *COSTS),
    cases,
)
