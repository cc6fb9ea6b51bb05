"""The differential cases: each is done by several implementations, whose results are compared."""

from __future__ import annotations

from tests.interop.cases import (
    adding,
    changing,
    deduplicating,
    fetching,
    finishing,
    flows,
    looking,
    scheduling,
    stalling,
    whole_queue,
)
from tests.interop.stage import Case

CASES: tuple[Case, ...] = (
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

LIVE = {37, 90}
"""Numbers that need workers or listeners that run: they are in `live.py`."""
