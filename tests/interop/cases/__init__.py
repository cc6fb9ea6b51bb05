"""The differential cases. Several implementations run each one, and the results are compared."""

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
"""Cases in which a worker runs single steps."""

RUNNING: tuple[Case, ...] = (
    *limiting.CASES,
    *foreign.CASES,
    *retrying.CASES,
    *crashing.CASES,
    *growing.CASES,
    *repeating.CASES,
)
"""Cases in which a worker runs until nothing is left to do."""

CASES = (*BY_HAND, *RUNNING)

LIVE = {37, 90}
"""Numbers of cases with running workers or listeners, which are in `live.py`."""
