"""Renew job locks from a thread, and detect a blocked event loop.

`Heartbeat` renews the locks of running jobs, so that a blocked event loop does not lose them.
`Watchdog` reports the code that blocks the loop.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Concatenate, ParamSpec

from anyio import CancelScope, Event, move_on_after
from msgspec import Struct

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.options import WorkerOptions
from taskbull.core.outcome import Discard, Loss, is_ours
from taskbull.core.validation import to_ms
from taskbull.errors import ServerUnavailable, TaskbullError
from taskbull.observability.logs import cut
from taskbull.scripts.cycle import Extended, extend_lock, extend_locks
from taskbull.store.address import Endpoint
from taskbull.store.backend import poster
from taskbull.store.sync_store import SyncStore
from taskbull.worker.batch import BatchCollector
from taskbull.worker.consumer import Runner
from taskbull.worker.context import QueueContext
from taskbull.worker.run import Reporter, Run
from taskbull.worker.threads import current_frames

# The watchdog.


logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds without a response before the event loop counts as blocked."""


class BlockingCall(Struct, frozen=True):
    """The code that blocks the event loop, and its job if there is one."""

    where: str
    job: Job | None

    def __str__(self) -> str:
        if self.job is None:
            return f"at {self.where}"
        return f"by job {cut(self.job.id)} ({cut(self.job.name)}) at {self.where}"


class Watchdog:
    """Pings the event loop from another thread."""

    def __init__(
        self, post: Callable[[Callable[[], object]], object], reporter: Reporter, worker_id: str
    ) -> None:
        self._post = post
        self._reporter = reporter
        self._worker_id = worker_id
        self._loop_thread = threading.get_ident()
        self._asked_at: float | None = None
        self._warn_after = PATIENCE
        self._culprit: BlockingCall | None = None

    def check(self) -> float:
        """Return for how many seconds the event loop has been blocked, and log long blocks.

        Call it often, from one thread.
        """
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at = monotonic()
            self._post(self._answer)
            return 0.0
        blocked = monotonic() - asked_at
        if blocked >= self._warn_after:
            self._warn_after = 2 * blocked
            self._culprit = culprit = find_culprit(current_frames().get(self._loop_thread))
            logger.warning(
                "Event loop has been blocked for %.1f s %s; no other job can run",
                blocked,
                culprit,
                extra={"worker_id": self._worker_id},
            )
        return blocked

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        culprit, self._culprit = self._culprit, None
        self._warn_after = PATIENCE
        if culprit is not None and asked_at is not None:
            self._reporter.emit(
                events.LoopBlocked,
                duration=monotonic() - asked_at,
                where=culprit.where,
                job=culprit.job,
            )


def find_culprit(frame: FrameType | None) -> BlockingCall:
    """Return the job that a frame runs, and the line of the task's own code."""
    innermost = frame
    line: FrameType | None = None
    for outer in _outwards(frame):
        if (job := Runner.job_in(outer) or BatchCollector.job_in(outer)) is not None:
            return BlockingCall(_location(line or innermost), job)
        # Report the handler's own line rather than the library code that it calls.
        if not _is_ours(outer) and not _is_library(outer):
            line = outer
    return BlockingCall(_location(innermost), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return is_ours(frame.f_code.co_filename)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" in name or name.startswith(("<", sys.base_prefix + "/lib"))


def _location(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


# The heartbeat.


P = ParamSpec("P")

_TICK = 0.5
"""Seconds between checks of the event loop."""

_SOON = 1.0
"""Maximum seconds before a failed renewal is retried."""

_LONGEST = 5.0
"""Timeout of one renewal in seconds."""

_FAILING_NODE_TIMEOUT = 0.5
"""Timeout in seconds if the queue's node has just failed. It doubles with each failure."""

_PIECE = 500
"""Maximum number of locks that one call renews."""


class QueueHeartbeat(Struct, eq=False):
    """The renewal state of one queue."""

    context: QueueContext
    due: float
    node: Endpoint | None = None
    """The queue's Cluster node at the last renewal."""
    failures: int = 0
    """Number of consecutive failed renewals."""
    unreachable_since: float | None = None
    blocked: float = 0.0
    """Longest time in seconds that the event loop was blocked since the last renewal."""


class Heartbeat:
    """Renews the locks of a worker's queues from a dedicated thread.

    Queues that failed, or whose node failed, come last and get a shorter timeout. A dead Cluster
    node therefore does not cost the locks on other nodes. If the event loop is blocked for
    `loop_block_limit`, no lock is renewed: the process hangs, and other workers should run its
    jobs.

    A worker may have 1,000 queues. Queues without running jobs cost no call, and no step is
    quadratic in the number of queues.
    """

    def __init__(
        self,
        contexts: Sequence[QueueContext],
        store: SyncStore,
        options: WorkerOptions,
        watchdog: Watchdog,
        post: Callable[[Callable[[], object]], object],
    ) -> None:
        self._store = store
        self._lock_duration = options.lock_duration
        self._interval = options.heartbeat_interval
        self._block_limit = options.loop_block_limit
        self._cancel_lost = options.on_lost_lock == "cancel"
        self._watchdog = watchdog
        self._post = post
        self._over = threading.Event()
        self._queues = [
            QueueHeartbeat(context, monotonic() + self._interval) for context in contexts
        ]
        self._due = monotonic() + self._interval  # time of the next renewal of any queue
        self._failing: Counter[Endpoint | None] = Counter()  # number of failing queues, by node

    def run(self, ended: Callable[[], None]) -> None:
        """Renew locks until `stop`, then schedule `ended` on the event loop. Runs in the thread."""
        while not self._over.wait(max(0.0, min(_TICK, self._due - monotonic()))):
            try:
                self._tick()
            except Exception:
                # Keep the thread alive: all jobs' locks depend on the next beat.
                if not self._over.is_set():
                    logger.exception("Heartbeat failed; the next one will run as usual")
                    self._postpone(min(_SOON, self._interval))
        with suppress(RuntimeError):  # The event loop is closed.
            self._post(ended)

    def stop(self) -> None:
        """Stop the thread when it finishes its current step."""
        self._over.set()

    def _tick(self) -> None:
        blocked = self._watchdog.check()
        if blocked:
            for queue in self._queues:
                queue.blocked = max(queue.blocked, blocked)
        if monotonic() < self._due:
            return
        if blocked >= self._block_limit:
            logger.error(
                "Event loop has been blocked for %.0f s; no longer renewing the locks of its jobs",
                blocked,
            )
            self._postpone(self._interval)
        else:
            self._beat_all()

    def _beat_all(self) -> None:
        """Renew the queues that are due, those on healthy nodes first.

        After a node failure, or when a tick has passed, leave the rest to the next call. It sorts
        the queues again, because others may have become more urgent.
        """
        began = monotonic()
        failing = len(self._failing)
        for queue in self._due_queues(began):
            self._beat(queue)
            if len(self._failing) > failing or monotonic() - began > _TICK or self._over.is_set():
                break
        self._due = min(queue.due for queue in self._queues)
        self._store.close_stale()  # Threads that wrote progress have left connections behind.

    def _due_queues(self, now: float) -> list[QueueHeartbeat]:
        """Return the queues with locks to renew now, in order."""
        due: list[QueueHeartbeat] = []
        for queue in self._queues:
            if queue.due <= now:
                if queue.context.runs:
                    due.append(queue)
                else:
                    self._succeeded(queue)
        return sorted(due, key=lambda one: (self._is_node_failing(one), one.due))

    def _is_node_failing(self, queue: QueueHeartbeat) -> bool:
        """Return True if the queue's node is failing: renew it last, with a shorter timeout."""
        if not self._failing:
            return False
        return (self._store.known_node(queue.context.keys.meta) or queue.node) in self._failing

    def _postpone(self, pause: float) -> None:
        now = monotonic()
        for queue in self._queues:
            queue.due = max(queue.due, now + pause)
        self._due = now + pause

    def _beat(self, queue: QueueHeartbeat) -> None:
        began = monotonic()
        limit = min(self._interval, _LONGEST)
        if self._is_node_failing(queue):
            limit = min(limit, _FAILING_NODE_TIMEOUT * 2.0 ** min(queue.failures, 10))
        node = self._store.known_node(queue.context.keys.meta) or queue.node
        runs = queue.context.runs.copy()
        try:
            for first in range(0, len(runs), _PIECE):
                self._renew(queue, runs[first : first + _PIECE], limit)
        except TaskbullError as error:
            self._failed(queue, node, began)
            self._emit(queue.context, events.HeartbeatFailed, count=len(runs), reason=str(error))
        else:
            self._succeeded(queue)
            queue.node = node

    def _failed(self, queue: QueueHeartbeat, node: Endpoint | None, began: float) -> None:
        self._forget_failure(queue)
        queue.node = node
        self._failing[node] += 1
        queue.failures += 1
        if queue.unreachable_since is None:
            queue.unreachable_since = began
        queue.due = monotonic() + min(_SOON, self._interval)

    def _succeeded(self, queue: QueueHeartbeat) -> None:
        self._forget_failure(queue)
        queue.failures = 0
        queue.unreachable_since = None
        queue.blocked = 0.0
        queue.due = monotonic() + self._interval

    def _forget_failure(self, queue: QueueHeartbeat) -> None:
        if queue.failures:
            self._failing[queue.node] -= 1
            if not self._failing[queue.node]:
                del self._failing[queue.node]

    def _renew(self, queue: QueueHeartbeat, runs: list[Run], limit: float) -> None:
        began = monotonic()
        extended = self._extend(queue.context, runs, limit)
        lost = extended.lost
        gone = [run for run in runs if run.job.id in lost]
        outcome = self._loss(queue, gone)
        for run in runs:
            if run.job.id not in lost:
                run.renewed = began
        self._emit(
            queue.context,
            events.LocksRenewed,
            count=len(runs) - len(lost),
            duration=monotonic() - began,
        )
        for run in runs if extended.cancelled else ():
            self._stop(run, extended.cancelled.get(run.job.id))
        if gone:
            self._post(lambda: self._revoke(queue.context, gone, outcome))

    def _stop(self, run: Run, reason: str | None) -> None:
        """Stop a cancelled job if its stop request was lost."""
        if reason is not None and run.cancelled is None:
            # Set it from this thread so that a sync function sees it even while the loop is
            # blocked.
            run.cancelled = reason
            self._post(lambda: run.cancel(reason))

    def _extend(self, context: QueueContext, runs: list[Run], limit: float) -> Extended:
        life = to_ms(self._lock_duration)
        held = [(run.job.id, run.token) for run in runs]
        try:
            call = extend_locks(context.keys, held, life)
            return self._store.run(call, timeout=limit, keep_trying=False)
        except ServerUnavailable as error:
            if error.code != "TRYAGAIN":
                raise
        # The hash slot is migrating between two Cluster nodes, which may take long. Each lock is on
        # one of them, so renew the locks one by one.
        calls = [extend_lock(context.keys, job_id, token, life) for job_id, token in held]
        kept = self._store.run_all(calls, timeout=limit)
        return Extended(
            {job_id for (job_id, _), is_held in zip(held, kept, strict=True) if not is_held}
        )

    def _emit(
        self,
        context: QueueContext,
        kind: Callable[Concatenate[str, str, P], events.Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        self._post(lambda: context.reporter.emit(kind, *args, **fields))

    def _loss(self, queue: QueueHeartbeat, gone: list[Run]) -> Discard:
        """Return the most likely reason for the lost locks."""
        now = monotonic()
        if queue.unreachable_since is not None:
            return Discard(Loss.REDIS_AWAY, f"{now - queue.unreachable_since:.1f} s")
        if queue.blocked >= self._lock_duration:
            return Discard(Loss.LOOP_BLOCKED, f"{queue.blocked:.1f} s")
        late = max((now - run.renewed for run in gone), default=0.0)
        if late >= self._lock_duration:
            return Discard(Loss.NOT_RENEWED, f"{late:.1f} s")
        return Discard(Loss.TAKEN)

    def _revoke(self, context: QueueContext, runs: list[Run], outcome: Discard) -> None:
        """Mark jobs as lost. Runs in the event loop."""
        for run in runs:
            if context.runs.revoke(run, outcome):
                context.reporter.lost(run, outcome)
                if self._cancel_lost and run.scope is not None:
                    run.scope.cancel()


@asynccontextmanager
async def beating(
    contexts: Sequence[QueueContext], store: SyncStore, options: WorkerOptions, worker_id: str
) -> AsyncGenerator[None, None]:
    """Renew the locks of all queues during the `async with` block."""
    post = poster()
    watchdog = Watchdog(post, contexts[0].reporter, worker_id)
    heartbeat = Heartbeat(contexts, store, options, watchdog, post)
    ended = Event()
    thread = threading.Thread(
        target=heartbeat.run, args=(ended.set,), name="taskbull-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        heartbeat.stop()
        with CancelScope(shield=True), move_on_after(2.0):  # The thread may be waiting for Redis.
            await ended.wait()
