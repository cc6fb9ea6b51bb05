"""What is looked at on the page of a queue: a state, from a place on."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.search import Terms, read_terms
from taskbull.core.states import JobState
from taskbull.dashboard.html import url
from taskbull.dashboard.messages import Form, Refused
from taskbull.queue.looked import After

TABS = {
    JobState.WAITING: "Waiting",
    JobState.ACTIVE: "Active",
    JobState.DELAYED: "Delayed",
    JobState.PRIORITIZED: "Prioritized",
    JobState.WAITING_CHILDREN: "Children",
    JobState.FAILED: "Failed",
    JobState.COMPLETED: "Done",
}


class Sight(Struct, frozen=True):
    """What is looked at: one state of a queue, from a place on."""

    queue: str
    state: JobState
    after: After
    typed: str
    follows: bool

    @property
    def address(self) -> str:
        """The address of this very page."""
        place = place_fields(self.after)
        return url("queue", q=self.queue, state=self.state, find=self.typed or None, **place)

    def at(self, after: After) -> Sight:
        """Return the same, from another place on."""
        return replace(self, after=after)

    @property
    def is_first(self) -> bool:
        """Whether it is the first page."""
        return self.after == After()


def read_sight(query: Form) -> Sight:
    """Read what is looked at from an address."""
    state = query.get("state", "waiting")
    if state not in TABS:
        raise Refused(400, f"There is no list of {state!r} jobs.")
    after = After(query.number("n"), query.get("score"), query.get("last"))
    follows = query.get("follow") != "no"
    return Sight(query.need("q"), JobState(state), after, query.get("find"), follows)


def read_typed(typed: str) -> Terms | None:
    """Read the terms of a filter; only those that may stand in an address."""
    return read_terms(typed, datetime.now(UTC).astimezone()) if typed else None


def place_fields(after: After) -> dict[str, str | int | None]:
    """Return a place as it stands in an address."""
    return {"n": after.place or None, "score": after.score or None, "last": after.id or None}
