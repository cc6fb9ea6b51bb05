"""What somebody wants done: read from a form, checked before anything happens."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.dashboard.html import Node
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.visit import Visit

MOST_IDS: Final = 1_000

_BACK = re.compile(r"(?:\./|queue|job|errors|schedules|workers|operations)(?:\?[^#\s\\]*)?")
_ONCE = re.compile(r"[0-9a-f]{16,64}")

Subject: TypeAlias = Literal["job", "jobs", "queue", "group", "schedule"]


class BoardOrder(Struct, frozen=True):
    """What a form asks for."""

    queue: str
    ids: tuple[str, ...]
    state: JobState | None
    """The state in which the page showed the jobs."""
    form: Form
    back: str
    """The page to return to."""

    @property
    def id(self) -> str:
        """The only job, or the schedule, that it is about."""
        return self.ids[0]


class Offer(Struct, frozen=True):
    """A way back from what was just done: another action, with what it was before."""

    action: str
    words: str
    fields: Mapping[str, str]
    until: float = inf
    """When it is too late, in seconds since 1970."""


class Notice(Struct, frozen=True):
    """What a person is told on the next page."""

    said: str
    back: str
    """That page."""
    offer: Offer | None = None


class Acted(Struct, frozen=True):
    """What became of an order."""

    said: str
    """One sentence for the person."""
    count: int = 1
    """How many jobs, or queues, were changed."""
    about: str = ""
    """What others are told of it: a reason, a group. Never a job's data."""
    back: str | None = None
    """Where to go on, if not where the order came from."""
    after: Callable[[], Awaitable[None]] | None = None
    """What goes on after the answer."""
    offer: Offer | None = None
    file: bytes | None = None
    """Copies of jobs, which are the answer then."""


class BoardAction(Struct, frozen=True):
    """Something that can be done, and how it is asked."""

    name: str
    label: str
    subject: Subject
    question: Callable[[Visit, BoardOrder], Awaitable[Node]]
    """What the person is asked: the number of jobs, the fields of the form."""
    perform: Callable[[Visit, BoardOrder], Awaitable[Acted]]
    typed: bool = False
    """Whether the name of the queue must be typed, because nothing brings back what is lost."""
    carries: tuple[str, ...] = ()
    """Fields that the question hands on without asking for them."""
    danger: bool = False
    by_default: bool = True
    """Whether it can be done without being allowed by name."""


def read_order(action: BoardAction, form: Form) -> BoardOrder:
    """Read a form; refuse one that cannot be of this dashboard."""
    ids = tuple(form.all("id"))
    if len(ids) > MOST_IDS:
        raise Refused(413, f"At most {MOST_IDS:,} jobs can be chosen at once.")
    if action.subject in {"job", "jobs", "schedule"} and not ids:
        raise Refused(400, "Nothing is chosen: tick the jobs first.")
    if action.subject in {"job", "schedule"} and len(ids) > 1:
        raise Refused(400, f"{action.label}: one at a time.")
    state = form.get("state")
    if state and state not in set(JobState):
        raise Refused(400, "There is no such state.")
    return BoardOrder(
        form.need("q"), ids, JobState(state) if state else None, form, read_back(form.get("back"))
    )


def read_back(address: str) -> str:
    """Return the page to go on with: one of the dashboard's, whatever the form says."""
    return address if _BACK.fullmatch(address) else "./"


def read_once(form: Form) -> str:
    """Return the number that makes a form count once."""
    number = form.get("once")
    if not _ONCE.fullmatch(number):
        raise Refused(400, "The form has no number of its own: open the page again.")
    return number
