"""(7) Every worker runs a new job and is healthy; (8) calls kept their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.nemesis.rules.case import Case, Violation

SLACK: Final = 3
"""Factor by which a call may exceed its deadline on a busy machine."""

LATEST: Final = 10.0
"""Maximum seconds until a worker starts a new job: twice the time to replace a dead link."""

MORE_THREADS: Final = 8  # Threads for sync functions are created when needed.
MORE_SOCKETS: Final = 8
MORE_MEMORY: Final = 80_000_000


def workers_are_well(case: Case) -> Iterator[Violation]:
    """Compare the last state of each worker with the first one of its role."""
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
    """Compare each call's duration with its deadline."""
    for call in case.book.calls:
        starved = case.starved(call.at - call.took, call.at)
        if call.deadline and call.took - starved > call.deadline * SLACK:
            yield Violation(8, f"{call.what} of {call.who} took {call.took:.1f} s", [str(call)])
