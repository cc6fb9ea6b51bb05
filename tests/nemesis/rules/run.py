"""(3) No outcome was accepted from a run whose job was fetched again; extra runs are explained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.nemesis.rules.case import Case, Violation

AFTERMATH: Final = 6.0
"""Seconds for which a fault has consequences: a dead link is noticed within five."""


def last_run_counts(case: Case) -> Iterator[Violation]:
    """Compare the run that a job's outcome names with the number of times it was fetched."""
    for key, taken in case.takings.items():
        fields, kind = case.stored(key), case.kind(key)
        if not fields or not taken or not kind or not kind.names_run:
            continue
        text = fields.get("returnvalue") or fields.get("failedReason") or ""
        intent = re.escape(min(case.intents[key]))
        found = re.search(rf"{intent}/(\d+)", text)
        if found is None:
            yield case.violation(3, f"the end of job {key} names no run: {text[:100]}", key)
        elif int(found[1]) != len(taken):
            what = f"job {key} was taken {len(taken)} times, the end is of run {found[1]}"
            yield case.violation(3, what, key)


def extra_runs_explained(case: Case) -> Iterator[Violation]:
    """Look for the cause of extra runs of a job."""
    for key, runs in case.book.runs.items():
        for number, count in Counter(run.number for run in runs).items():
            if count > 1:
                yield case.violation(3, f"run {number} of job {key} began {count} times", key)
    for key, taken in case.takings.items():
        kind = case.kind(key)
        given_back = sum(told.event == "Released" for told in case.book.told[key])
        stalled = [one for one in taken if one.ending == "stalled"]
        count = len(case.book.runs[key])
        if kind and count - kind.runs > len(stalled) + given_back:
            what = f"{kind.name} {key} ran {count} times"
            yield case.violation(3, what, key, theirs=case.redirected(key))
        for one in stalled:
            if not case.broken_between(one.began_ms / 1000 - AFTERMATH, one.ended_ms / 1000):
                yield case.violation(3, f"job {key} stalled, and nothing was broken", key)


def count_extra(case: Case) -> int:
    """Count the runs in addition to those that the kinds require."""
    kinds = ((case.kind(key), runs) for key, runs in case.book.runs.items())
    return sum(max(0, len(runs) - kind.runs) for kind, runs in kinds if kind)
