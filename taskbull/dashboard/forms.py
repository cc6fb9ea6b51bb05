"""What somebody wants done: read from a form, checked before anything happens."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from math import ceil, inf
from secrets import token_hex
from typing import Final, Literal, TypeAlias

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.states import JobState
from taskbull.dashboard.html import Node
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.visit import Visit
from taskbull.errors import TaskbullError
from taskbull.monitor.audit import OperationRecord
from taskbull.queue.failures import GroupStep
from taskbull.queue.queue import Queue

# What somebody wants done: read from a form, checked before anything happens.


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


# Doing something with many jobs: in pieces, at a rate, until it is done or somebody stops it.
#
# It goes on in this process after the answer was sent, and is written down after each piece: any
# dashboard shows how far it is, and can stop it. If the process ends it stops halfway, and what it
# has done is done; begun again, it finds the rest.


_log = logging.getLogger("taskbull.dashboard")


class MeantJobs(Struct, frozen=True):
    """The failed jobs that are meant, the newest first."""

    queue: str
    fingerprint: str
    """What they have in common; empty: nothing."""
    what: str
    """The same in words."""
    total: int
    """How many failed jobs there are, alike or not."""
    most: int | None
    """How many are to be changed; None: all of them."""
    per_second: float | None
    """How many in a second; None: as fast as it goes."""


Change = Callable[[Queue, GroupStep | None, int | None], Awaitable[GroupStep]]
"""Takes the next step: where it begins, and how many jobs it may change; None: any number."""


class GroupChange:
    """One operation on a group."""

    def __init__(self, visit: Visit, action: str, group: MeantJobs, change: Change) -> None:
        self._server = visit.server
        self._pace = visit.pace
        self._group = group
        self._change = change
        now_ms = int(time.time() * 1000)
        self.record = OperationRecord(
            id=token_hex(8),
            action=action,
            queue=group.queue,
            what=group.what,
            by=visit.access.user,
            began_ms=now_ms,
            beat_ms=now_ms,
            total=group.total,
        )

    async def begin(self) -> None:
        """Write down that it begins; so it is known before the answer is sent."""
        await self._server.record_operation(self.record)

    async def run(self) -> None:
        """Do it to its end; it never raises: there is nobody to tell but the operations page."""
        try:
            outcome = await self._work()
        except TaskbullError as error:
            outcome = f"failed: {type(error).__name__}"
        except Exception:  # noqa: BLE001 - told by the log: there is nobody else
            _log.exception("%s of a group failed", self.record.action)
            outcome = "failed"
        now_ms = int(time.time() * 1000)
        self.record = replace(self.record, ended_ms=now_ms, beat_ms=now_ms, outcome=outcome)
        try:
            await self._server.record_operation(self.record)
        except TaskbullError as error:
            _log.warning("what became of %s was not written down: %s", self.record.action, error)
        _log.info(
            "%s queue=%r group=%r count=%d by=%r: %s",
            *(self.record.action, self.record.queue, self._group.fingerprint, self.record.count),
            *(self.record.by, outcome),
        )

    async def _work(self) -> str:
        group, step = self._group, None
        queue = self._server.queue(group.queue)
        while True:
            await self._pace()
            before = self.record.count
            step = await self._change(queue, step, self._limit)
            self.record = replace(
                self.record,
                looked_at=step.looked_at,
                count=step.done,
                beat_ms=int(time.time() * 1000),
            )
            if step.over or step.done == group.most:
                return "done"
            await self._server.record_operation(self.record)
            if await self._server.is_stopped(self.record.id):
                return "stopped"
            if group.per_second:
                await sleep((step.done - before) / group.per_second)

    @property
    def _limit(self) -> int | None:
        """How many jobs the next step may change: what is left, or a second's share of it."""
        group = self._group
        left = None if group.most is None else group.most - self.record.count
        shares = [left, None if not group.per_second else ceil(group.per_second)]
        return min((share for share in shares if share is not None), default=None)
