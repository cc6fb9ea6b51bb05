"""Doing something with many jobs: in pieces, at a rate, until it is done or somebody stops it.

It goes on in this process after the answer was sent, and is written down after each piece: any
dashboard shows how far it is, and can stop it. If the process ends it stops halfway, and what it
has done is done; begun again, it finds the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from math import ceil
from secrets import token_hex

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.dashboard.visit import Visit
from taskbull.errors import TaskbullError
from taskbull.queue.board_operations import OperationRecord
from taskbull.queue.groups import GroupStep
from taskbull.queue.queue import Queue

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
