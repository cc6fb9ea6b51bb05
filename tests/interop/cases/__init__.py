"""The differential cases: each is done by several implementations, whose results are compared."""

from __future__ import annotations

from tests.interop.cases import (
    adding,
    changing,
    crashing,
    deduplicating,
    fetching,
    finishing,
    flows,
    foreign,
    growing,
    limiting,
    looking,
    repeating,
    retrying,
    scheduling,
    stalling,
    whole_queue,
)
from tests.interop.stage import Case

BY_HAND: tuple[Case, ...] = (
    *adding.CASES,
    *deduplicating.CASES,
    *fetching.CASES,
    *finishing.CASES,
    *stalling.CASES,
    *changing.CASES,
    *whole_queue.CASES,
    *flows.CASES,
    *scheduling.CASES,
    *looking.CASES,
)
"""Cases in which a worker does one step when it is told to."""

RUNNING: tuple[Case, ...] = (
    *limiting.CASES,
    *foreign.CASES,
    *retrying.CASES,
    *crashing.CASES,
    *growing.CASES,
    *repeating.CASES,
)
"""Cases in which a worker runs by itself until nothing is left to do."""

CASES = (*BY_HAND, *RUNNING)

LIVE = {37, 90}
"""Numbers that need workers or listeners that run: they are in `live.py`."""
