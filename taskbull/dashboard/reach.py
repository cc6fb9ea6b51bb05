"""How far a search came: in which states, through how many jobs, and back to when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.dashboard.html import Node, li, p, ul
from taskbull.dashboard.words import clock, number, plural

_SHOWN: Final = 10
_NEWEST_FIRST: Final = frozenset({JobState.FAILED, JobState.COMPLETED})


class Reach(Struct, frozen=True):
    """How far a search came in one state of a queue."""

    queue: str
    state: JobState
    looked_at: int
    total: int
    until: datetime | None
    """When the last job that was looked at ended, was due, or was added."""

    @property
    def is_whole(self) -> bool:
        """Whether it went through all jobs."""
        return self.looked_at >= self.total


class Progress(Struct, frozen=True):
    """How far a search came in all; a form carries it from step to step."""

    found: int = 0
    looked_at: int = 0
    too_large: int = 0
    reached: list[Reach] = []
    """The states that were not gone through yet: the last one, and those that were left."""


def describe(progress: Progress, *, ended: bool, one_state: bool) -> Node:
    """Say how far a search came, and never that there is nothing if not all was looked at."""
    large = progress.too_large
    skipped = f", {number(large)} too large to be searched" if large else ""
    more = "" if ended else " None found does not mean that none exists."
    if one_state and len(progress.reached) == 1:
        return _said(
            f"{number(progress.found)} in ", _span(progress.reached[0]), f"{skipped}.{more}"
        )
    if one_state:
        return _said(f"{number(progress.found)} in all {number(progress.looked_at)}{skipped}.")
    jobs = plural(progress.looked_at, "job")
    return [
        _said(f"{number(progress.found)} found in {jobs}{skipped}.{more}"),
        _parts([each for each in progress.reached if not each.is_whole]),
    ]


def _parts(reached: Sequence[Reach]) -> Node:
    """List where a search has left jobs out."""
    if not reached:
        return None
    left = len(reached) - _SHOWN
    return ul(
        [li(f"{each.queue}, {each.state}: ", _span(each)) for each in reached[:_SHOWN]],
        li(f"and parts of {plural(left, 'other state')}") if left > 0 else None,
        class_="quiet",
    )


def _span(reach: Reach) -> Node:
    newest = reach.state in _NEWEST_FIRST
    words = "newest" if newest else "next"
    return [
        f"the {words} {number(reach.looked_at)} of {number(max(reach.total, reach.looked_at))}",
        None if reach.until is None else [" (", "back" if newest else "up", " to "],
        None if reach.until is None else [clock(reach.until), ")"],
    ]


def _said(*words: Node) -> Node:
    return p(words, class_="quiet", role="status")
