"""Actions that users submit with forms, and bulk operations on failed jobs."""

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

from taskbull.core.keys import JobState
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.html import Node
from taskbull.dashboard.messages import Form, Refused
from taskbull.errors import TaskbullError
from taskbull.monitor.audit import OperationRecord
from taskbull.queue.failures import GroupStep
from taskbull.queue.queue import Queue

# Orders: forms are validated completely before anything is changed.


MOST_IDS: Final = 1_000

_BACK = re.compile(
    r"(?:\./|queue|job|errors|groups|schedules|workers|operations|redis)(?:\?[^#\s\\]*)?"
)
_ONCE = re.compile(r"[0-9a-f]{16,64}")

Subject: TypeAlias = Literal["job", "jobs", "queue", "group", "job group", "schedule", "worker"]
"""Kind of thing that an action changes. A "group" has failed jobs with the same error."""


class ActionRequest(Struct, frozen=True):
    """An action that a form requests."""

    queue: str
    ids: tuple[str, ...]
    state: JobState | None
    """The jobs' state when the page was shown."""
    form: Form
    back: str
    """The page to return to."""

    @property
    def id(self) -> str:
        """The id of the first job or schedule; many actions have only one."""
        return self.ids[0]


class UndoOffer(Struct, frozen=True):
    """An offer to undo an action: another action with the previous values."""

    action: str
    words: str
    fields: Mapping[str, str]
    until: float = inf
    """When the offer expires, in seconds since 1970."""


class Notice(Struct, frozen=True):
    """A message to the user on the next page."""

    message: str
    back: str
    """The address of that page."""
    offer: UndoOffer | None = None


class ActionResult(Struct, frozen=True):
    """The result of an action."""

    message: str
    """A sentence for the user."""
    count: int = 1
    """Number of jobs or queues changed."""
    about: str = ""
    """Text for the operations page, such as a reason or a group. Never job data."""
    back: str | None = None
    """The next page, if not the one that the order came from."""
    after: Callable[[], Awaitable[None]] | None = None
    """Callback that continues the action after the response has been sent."""
    offer: UndoOffer | None = None
    file: bytes | None = None
    """Copies of jobs to send as the response, if any."""


class DashboardAction(Struct, frozen=True):
    """An action that users can take, with its confirmation form."""

    name: str
    label: str
    subject: Subject
    question: Callable[[RequestContext, ActionRequest], Awaitable[Node]]
    """Function that returns the question to confirm: the number of jobs, the form fields."""
    perform: Callable[[RequestContext, ActionRequest], Awaitable[ActionResult]]
    typed: bool = False
    """True if the user must type the queue name, because the action cannot be undone."""
    carries: tuple[str, ...] = ()
    """Names of form fields that the question passes on unchanged."""
    danger: bool = False
    by_default: bool = True
    """True if the action is enabled by default."""


def read_request(action: DashboardAction, form: Form) -> ActionRequest:
    """Read an order from a form.

    Raises:
        Refused: If the form is invalid or does not match the action.
    """
    ids = tuple(form.all("id"))
    if len(ids) > MOST_IDS:
        raise Refused(413, f"Select at most {MOST_IDS:,} jobs.")
    if action.subject in {"job", "jobs", "job group", "schedule", "worker"} and not ids:
        raise Refused(400, "Nothing is selected. Select jobs first.")
    if action.subject in {"job", "job group", "schedule", "worker"} and len(ids) > 1:
        raise Refused(400, f"{action.label}: select only one.")
    state = form.get("state")
    if state and state not in set(JobState):
        raise Refused(400, "Unknown state.")
    return ActionRequest(
        form.need("q"), ids, JobState(state) if state else None, form, read_back(form.get("back"))
    )


def read_back(address: str) -> str:
    """Return the address if it is a dashboard page, otherwise the overview's address."""
    return address if _BACK.fullmatch(address) else "./"


def read_once(form: Form) -> str:
    """Return the one-time number that prevents a form from being processed twice."""
    number = form.get("once")
    if not _ONCE.fullmatch(number):
        raise Refused(400, "This form has expired. Reload the page.")
    return number


# Bulk operations: change many jobs in chunks, at a limited rate, until done or stopped.
#
# An operation continues in this process after the response was sent, and records its progress
# after each chunk. So every dashboard can show it and stop it. If the process exits, the operation
# stops halfway and completed changes are kept. A new operation handles the remaining jobs.


_log = logging.getLogger("taskbull.dashboard")


class BulkTarget(Struct, frozen=True):
    """The failed jobs that a bulk operation changes, newest first."""

    queue: str
    fingerprint: str
    """Fingerprint of the error group, or an empty string for all failed jobs."""
    what: str
    """Description of the group for users."""
    total: int
    """Number of failed jobs in the queue, in this group or not."""
    most: int | None
    """Maximum number of jobs to change. `None` means no limit."""
    per_second: float | None
    """Maximum number of jobs to change per second. `None` means no limit."""


Change = Callable[[Queue, GroupStep | None, int | None], Awaitable[GroupStep]]
"""Function that takes the next step of an operation.

Its arguments are the queue, the previous step (`None` at the start) and the maximum number of jobs
to change (`None` for no limit).
"""


class GroupChange:
    """A bulk operation on failed jobs."""

    def __init__(self, ctx: RequestContext, action: str, group: BulkTarget, change: Change) -> None:
        self._server = ctx.server
        self._throttle = ctx.throttle
        self._group = group
        self._change = change
        now_ms = int(time.time() * 1000)
        self.record = OperationRecord(
            id=token_hex(8),
            action=action,
            queue=group.queue,
            what=group.what,
            by=ctx.access.user,
            began_ms=now_ms,
            beat_ms=now_ms,
            total=group.total,
        )

    async def begin(self) -> None:
        """Record the start, so that the operation is visible before the response is sent."""
        await self._server.record_operation(self.record)

    async def run(self) -> None:
        """Run the operation to its end and record the outcome.

        It never raises: errors are logged and shown on the operations page.
        """
        try:
            outcome = await self._work()
        except TaskbullError as error:
            outcome = f"failed: {type(error).__name__}"
        except Exception:  # noqa: BLE001 - logged: there is no caller to report to
            _log.exception("%s of a group failed", self.record.action)
            outcome = "failed"
        now_ms = int(time.time() * 1000)
        self.record = replace(self.record, ended_ms=now_ms, beat_ms=now_ms, outcome=outcome)
        try:
            await self._server.record_operation(self.record)
        except TaskbullError as error:
            _log.warning("could not record the outcome of %s: %s", self.record.action, error)
        _log.info(
            "%s queue=%r group=%r count=%d by=%r: %s",
            *(self.record.action, self.record.queue, self._group.fingerprint, self.record.count),
            *(self.record.by, outcome),
        )

    async def _work(self) -> str:
        group, step = self._group, None
        queue = self._server.queue(group.queue)
        while True:
            await self._throttle()
            before = self.record.count
            step = await self._change(queue, step, self._limit)
            self.record = replace(
                self.record,
                examined=step.examined,
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
        """Maximum number of jobs for the next step: the rest, or one second's share."""
        group = self._group
        left = None if group.most is None else group.most - self.record.count
        shares = [left, None if not group.per_second else ceil(group.per_second)]
        return min((share for share in shares if share is not None), default=None)
