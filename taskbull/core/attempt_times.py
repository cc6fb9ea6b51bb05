"""When the attempts of a job began and ended, read from what its queue's events tell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.durations import instant_from_ms

AttemptEnd: TypeAlias = Literal["running", "completed", "failed", "stalled", "again"]
"""How an attempt ended; `again`: the job goes on, because it failed or was put off."""

_ENDS: Final[dict[str, AttemptEnd]] = {
    "completed": "completed",
    "failed": "failed",
    "stalled": "stalled",
    "delayed": "again",
    "waiting": "again",
    "waiting-children": "again",
}


class PastEvent(Struct, frozen=True):
    """Something that happened to a job."""

    at_ms: int
    name: str
    previous: str = ""
    """The state from which it came."""


class JobHistory(Struct, frozen=True):
    """What the newest events of a queue tell about a job, the oldest first."""

    events: list[PastEvent]
    looked_at: int
    """How many events of the queue were looked at."""
    whole: bool
    """Whether there are no older ones."""


class AttemptTimes(Struct, frozen=True):
    """One attempt, as far as the events tell of it."""

    number: int
    """Counted from 1, by how often the job was started."""
    began: datetime | None
    ended: datetime | None = None
    end: AttemptEnd = "running"


def attempts_of(events: Iterable[PastEvent], started: int) -> list[AttemptTimes]:
    """Return the attempts that events tell of, given the oldest first; `started` is how many began.

    The stream forgets the oldest first, so that attempts are numbered from the last.
    """
    found: list[AttemptTimes] = []
    for event in events:
        if event.name == "active":
            found.append(AttemptTimes(0, instant_from_ms(event.at_ms)))
        elif found and event.name in _ENDS:
            last = found[-1]
            if last.end == "running":
                ended = instant_from_ms(event.at_ms)
                found[-1] = replace(last, ended=ended, end=_ENDS[event.name])
            elif event.name == "stalled" and last.end == "again":  # it was put back just before
                found[-1] = replace(last, end="stalled")
    first = started - len(found) + 1
    numbered = [replace(each, number=first + place) for place, each in enumerate(found)]
    return [each for each in numbered if each.number > 0]
