"""(7) Every worker takes a fresh job and is as at the start; (8) calls kept their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.nemesis.rules.case import Case, Violation

SLACK: Final = 3
"""How many times its deadline a call may take on a machine that is busy with other things."""

LATEST: Final = 10.0
"""Seconds after which a worker has a fresh job, at the latest: twice what a link may cost."""

MORE_THREADS: Final = 8  # those of the pool for sync functions are made when they are needed
MORE_SOCKETS: Final = 8
MORE_MEMORY: Final = 80_000_000


def workers_are_well(case: Case) -> Iterator[Violation]:
    """Hold the last look at each worker against the first at its part."""
    parts: dict[str, list[str]] = {}
    for who in case.book.vitals:
        parts.setdefault(who.rpartition(".")[0], []).append(who)
    for part, whos in parts.items():
        looks = sorted((one for who in whos for one in case.book.vitals[who]), key=lambda v: v.at)
        first, last = looks[0], looks[-1]
        too_much = {
            "threads": last.threads - first.threads > MORE_THREADS,
            "sockets": last.sockets - first.sockets > MORE_SOCKETS,
            "memory": last.memory - first.memory > MORE_MEMORY,
            "late": last.late - case.starved(last.at - last.late, last.at) > LATEST,
        }
        if any(too_much.values()):
            wrong = ", ".join(name for name, is_so in too_much.items() if is_so)
            yield Violation(7, f"{part} is not well: {wrong}", [str(first), str(last)])


def calls_in_time(case: Case) -> Iterator[Violation]:
    """Hold each call against its deadline."""
    for call in case.book.calls:
        starved = case.starved(call.at - call.took, call.at)
        if call.deadline and call.took - starved > call.deadline * SLACK:
            yield Violation(8, f"{call.what} of {call.who} took {call.took:.1f} s", [str(call)])
