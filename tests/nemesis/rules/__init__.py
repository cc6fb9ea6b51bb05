"""Invariants at the end of a run: each rule is a function that returns its violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tests.nemesis.ledger import Book
from tests.nemesis.rules.added import acknowledged_once
from tests.nemesis.rules.case import Case, Violation
from tests.nemesis.rules.continued import readers_get_all_items, steps_run_once, waits_get_signals
from tests.nemesis.rules.ended import (
    began_in_time,
    ended_as_asked,
    parents_after_children,
    parents_have_all_results,
    schedules_go_on,
)
from tests.nemesis.rules.left import nothing_left
from tests.nemesis.rules.run import extra_runs_explained, last_run_counts
from tests.nemesis.rules.told import every_end_told, stream_heard_once, told_once_and_truly
from tests.nemesis.rules.well import calls_in_time, workers_are_well
from tests.nemesis.truth import Truth

Rule: TypeAlias = Callable[[Case], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    acknowledged_once,
    ended_as_asked,
    began_in_time,
    last_run_counts,
    extra_runs_explained,
    parents_after_children,
    parents_have_all_results,
    schedules_go_on,
    told_once_and_truly,
    every_end_told,
    stream_heard_once,
    nothing_left,
    workers_are_well,
    calls_in_time,
    steps_run_once,
    waits_get_signals,
    readers_get_all_items,
)


def check_all(truth: Truth, book: Book) -> list[Violation]:
    """Return all violations of all rules."""
    case = Case(truth, book)
    return [found for rule in RULES for found in rule(case)]
