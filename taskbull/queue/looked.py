"""What was seen when somebody looked at queues."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from taskbull.queue.job_row import JobRow
from taskbull.scripts.peeking import START, After
from taskbull.scripts.servers import ConnectedWorker
from taskbull.scripts.survey import Surveyed

__all__ = ["START", "After", "ConnectedWorker", "Crew", "QueueSample", "SearchStep", "Surveyed"]


class QueueSample(Struct, frozen=True):
    """A queue at one moment."""

    name: str
    at: float
    """When it was looked at, by our clock, in seconds since 1970."""
    found: Surveyed
    problem: str | None = None
    """Why it could not be read; None: it could."""


class Crew(Struct, frozen=True):
    """Who is connected: the workers of each queue, Node's among them, whether asked for or not."""

    workers: dict[str, list[ConnectedWorker]]
    told: bool = True
    """Whether all servers list their connections; some providers do not let them."""
    clients: int = 0
    """How many connections there are in all."""


class SearchStep(Struct, frozen=True):
    """What a step of a search has found."""

    rows: list[JobRow]
    looked_at: int
    too_large: int
    """Jobs with a field of more than 256 kB, which was not looked at."""
    after: After | None
    """Where the next step begins; None: all has been looked at."""
    total: int = 0
    """How many jobs are in the state that is searched."""
    reached: datetime | None = None
    """How far it came in time: when the last job that was looked at ended; was due, if it is
    delayed; else was added."""
