"""Renews the locks of running jobs, from a thread: a blocked event loop loses no lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic

from anyio import CancelScope, Event, move_on_after

from taskbull.core import events
from taskbull.core.durations import seconds, to_ms
from taskbull.core.options import WorkerOptions
from taskbull.errors import TaskbullError
from taskbull.scripts.locks import extend_locks
from taskbull.store.backend import poster
from taskbull.store.sync import SyncStore
from taskbull.worker.lease import Lease
from taskbull.worker.side import QueueSide
from taskbull.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)

_TICK = 0.5
"""Seconds between two looks at the event loop."""

_SOON = 1.0
"""Seconds after which a renewal that failed is tried again, at the latest."""

_PIECE = 500
"""Locks that one call renews."""


class Heartbeat:
    """Renews the locks of all queues of a worker; lives in a thread of its own.

    If the event loop has not moved for `loop_block_limit`, it stops renewing: the process hangs,
    and its jobs are to go to another.
    """

    def __init__(
        self,
        sides: Sequence[QueueSide],
        store: SyncStore,
        options: WorkerOptions,
        watchdog: Watchdog,
        post: Callable[[Callable[[], object]], object],
    ) -> None:
        self._sides = sides
        self._store = store
        self._lock_duration = seconds("lock_duration", options.lock_duration)
        self._interval = seconds("heartbeat_interval", options.heartbeat_interval)
        self._block_limit = seconds("loop_block_limit", options.loop_block_limit)
        self._cancel_lost = options.on_lost_lock == "cancel"
        self._watchdog = watchdog
        self._post = post
        self._over = threading.Event()
        self._blocked = 0.0  # the longest time for which the loop did not move since the last beat
        self._away_since: float | None = None
        self._due = 0.0

    def run(self, ended: Callable[[], None]) -> None:
        """Beat until `stop`; the thread's own function."""
        self._due = monotonic() + self._interval
        while not self._over.wait(max(0.0, min(_TICK, self._due - monotonic()))):
            try:
                self._tick()
            except Exception:
                # Whatever it was: the locks of all jobs depend on the next beat.
                if not self._over.is_set():
                    logger.exception("The heartbeat failed, and goes on")
                    self._due = monotonic() + min(_SOON, self._interval)
        with suppress(RuntimeError):  # the event loop is over
            self._post(ended)

    def _tick(self) -> None:
        blocked = self._watchdog.look()
        self._blocked = max(blocked, self._blocked)
        if monotonic() < self._due:
            return
        pause = self._interval
        if blocked >= self._block_limit:
            logger.error(
                "The event loop has been blocked for %.0f s: the locks of its jobs are left to "
                "expire",
                blocked,
            )
        elif not self._beat():
            pause = min(_SOON, self._interval)
        self._due = monotonic() + pause

    def stop(self) -> None:
        """End the thread as soon as it is free."""
        self._over.set()

    def _beat(self) -> bool:
        """Renew all locks; False if some could not be."""
        renewed = True
        for side in self._sides:
            leases = side.leases.copy()
            for first in range(0, len(leases), _PIECE):
                renewed &= self._renew(side, leases[first : first + _PIECE])
        if renewed:
            self._away_since = None
            self._blocked = 0.0
        return renewed

    def _renew(self, side: QueueSide, leases: list[Lease]) -> bool:
        began = monotonic()
        held = [(lease.job.id, lease.token) for lease in leases]
        call = extend_locks(side.keys, held, to_ms(self._lock_duration))
        try:
            lost = set(self._store.run(call, timeout=min(self._interval, 5.0)))
        except TaskbullError as error:
            reason = str(error)
            if self._away_since is None:
                self._away_since = began
            self._tell(side, events.HeartbeatFailed, count=len(leases), reason=reason)
            return False
        for lease in leases:
            if lease.job.id not in lost:
                lease.renewed = began
        self._tell(
            side, events.LocksRenewed, count=len(leases) - len(lost), duration=monotonic() - began
        )
        if lost:
            gone = [lease for lease in leases if lease.job.id in lost]
            reason = self._reason()
            self._post(lambda: self._revoke(side, gone, reason))
        return True

    def _tell(self, side: QueueSide, kind: type[events.Event], **fields: object) -> None:
        self._post(lambda: side.reporter.tell(kind, **fields))

    def _reason(self) -> str:
        if self._away_since is not None:
            return f"Redis could not be reached for {monotonic() - self._away_since:.1f} s"
        if self._blocked >= self._lock_duration:
            return f"the event loop was blocked for {self._blocked:.1f} s"
        return "the lock was removed, or another worker has taken the job"

    def _revoke(self, side: QueueSide, leases: list[Lease], reason: str) -> None:
        """Take in that locks are gone; in the event loop."""
        for lease in leases:
            if side.leases.revoke(lease, reason):
                side.reporter.lost(lease, reason)
                if self._cancel_lost and lease.scope is not None:
                    lease.scope.cancel()


@asynccontextmanager
async def beating(
    sides: Sequence[QueueSide], store: SyncStore, options: WorkerOptions, worker_id: str
) -> AsyncGenerator[None, None]:
    """Renew the locks of all sides during the block."""
    post = poster()
    watchdog = Watchdog(post, sides[0].reporter, worker_id)
    heartbeat = Heartbeat(sides, store, options, watchdog, post)
    ended = Event()
    thread = threading.Thread(
        target=heartbeat.run, args=(ended.set,), name="taskbull-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        heartbeat.stop()
        with CancelScope(shield=True), move_on_after(2.0):  # it may be waiting for Redis
            await ended.wait()
