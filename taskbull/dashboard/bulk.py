"""Doing something with many jobs: in pieces, at a rate, until it is done or somebody stops it.

It goes on in this process after the answer was sent, and is written down after each piece: any
dashboard shows how far it is, and can stop it. If the process ends it stops halfway, and what it
has done is done; begun again, it finds the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from secrets import token_hex

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.dashboard.visit import Visit
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.queue.board_operations import OperationRecord
from taskbull.queue.looked import START
from taskbull.queue.queue import Queue

_log = logging.getLogger("taskbull.dashboard")


class MeantJobs(Struct, frozen=True):
    """The failed jobs that are meant: those alike, the newest first."""

    queue: str
    fingerprint: str
    error: str
    """What they have in common, in words."""
    total: int
    """How many failed jobs there are, alike or not."""
    most: int | None
    """How many are to be changed; None: all of them."""
    per_second: float | None
    """How many in a second; None: as fast as it goes."""


Change = Callable[[Queue, str], Awaitable[object]]
"""What is done with each of them."""


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
            what=group.error,
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
        group, after = self._group, START
        while True:
            await self._pace()
            step = await self._server.failed_alike(
                group.queue, group.fingerprint, after=after, until_ms=self.record.began_ms
            )
            left = None if group.most is None else group.most - self.record.count
            changed = await self._change_all(step.ids[:left])
            self.record = replace(
                self.record,
                looked_at=self.record.looked_at + step.looked_at,
                count=self.record.count + changed,
                beat_ms=int(time.time() * 1000),
            )
            if step.after is None or self.record.count == group.most:
                return "done"
            await self._server.record_operation(self.record)
            if await self._server.is_stopped(self.record.id):
                return "stopped"
            after = step.after

    async def _change_all(self, ids: list[str]) -> int:
        """Change jobs; one that has moved on meanwhile is left alone."""
        queue, changed = self._server.queue(self._group.queue), 0
        for job_id in ids:
            try:
                await self._change(queue, job_id)
                changed += 1
            except (JobNotFound, WrongState):
                continue
            if self._group.per_second:
                await sleep(1 / self._group.per_second)
        return changed
