"""A schedule as it stands in Redis: BullMQ calls it a job scheduler."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.checks import check_text, refusal
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.rules import Rule
from taskbull.core.wire.options import StoredOptions

_MOST_COLONS = 3


class Schedule(Struct, frozen=True, kw_only=True):
    """A job scheduler as it stood in Redis when it was read."""

    id: str
    queue: str
    task: str
    """The name of its jobs."""
    rule: Rule | None
    """When it runs; None if whoever wrote it wrote something that is not a rule."""
    raw_data: bytes = b"{}"
    raw_options: bytes = b"{}"
    options: StoredOptions = StoredOptions()
    next_run: datetime | None
    """When the next run is due; None when it has ended."""
    count: int
    """How many runs were made so far, the pending one included."""
    ended: bool
    """Whether its limit or its end is reached."""
    last_due: datetime | None = None
    """When the newest run that was made is due, or was: also of one that has ended."""
    declared_by: str | None = None
    """The name of the app whose code declares it, if one does."""
    is_pending: bool = True
    """Whether the job of its next run is there, and has not begun."""
    is_old: bool = False
    """Whether it is a repeatable job of BullMQ 3, 4 or early 5, which BullMQ 6 does not run."""

    def __repr__(self) -> str:
        # Without its data, which may be large or secret.
        return f"<Schedule {self.id} of {self.task} in {self.queue}: {self.describe()}>"

    @property
    def data(self) -> Any:
        """The payload of its jobs."""
        return payload.decode(self.raw_data)

    def describe(self) -> str:
        """Return its rule in words: `every day at 03:00, Europe/Berlin`."""
        return "a rule that cannot be read" if self.rule is None else self.rule.describe()


def check_schedule_id(schedule_id: object) -> None:
    """Refuse what cannot be the id of a schedule."""
    given = check_text("schedule id", schedule_id, most=NAME_LIMIT)
    if given.count(":") > _MOST_COLONS:
        raise refusal(
            "schedule id",
            f"have at most {_MOST_COLONS} colons (BullMQ 5 takes one with more for a repeatable "
            "job of the old kind)",
            given,
        )
