"""Observation of one queue over time. It derives facts and rates from samples, without I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import Final

from taskbull.core.job import JobRow
from taskbull.core.queue_health import Kept, QueueFacts, RunningSince, rate, throughput
from taskbull.core.states import JobState
from taskbull.core.validation import instant_from_ms
from taskbull.core.worker_record import Seen
from taskbull.errors import TaskbullError
from taskbull.monitor.browse import QueueSample, Workers
from taskbull.queue.failures import Failures
from taskbull.scripts.browse import EndsByMinute

_MEMORY: Final = 300.0
"""Length of the window for the arrival rate, in seconds."""

_RECORD_LIFE: Final = 60.0
"""Maximum age of a worker record in seconds, even if its key has not expired."""

_BUSY_LIFE, _IDLE_LIFE = 12.0, 30.0
"""Maximum age in seconds of the record of a worker that has no connection: a busy worker writes
every 5 s, an idle one every 25 s. A worker that always had jobs may not have connected yet."""


class QueueWatch:
    """The observations of one queue. Add each read to it; `facts` summarizes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sampled_at = self.met_at = self.failures_at = -inf
        """Times of the last reads by the monotonic clock, maintained by the caller."""
        self.sample: QueueSample | None = None
        self._arrived: deque[tuple[float, int]] = deque()
        self._versions: set[str] = set()
        self._ends: EndsByMinute | None = None
        self.workers: Workers | None = None
        self._seen: Sequence[Seen] = ()
        self._failures: Failures | None = None
        self._without_lock: frozenset[str] = frozenset()
        self._lockless: frozenset[str] = frozenset()
        self._longest: RunningSince | None = None
        self._unknown: Counter[str] = Counter()
        self._problem: str | None = None

    @property
    def is_busy(self) -> bool:
        """True if a job was running at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.ACTIVE] > 0

    @property
    def has_delayed(self) -> bool:
        """True if there was a delayed job at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.DELAYED] > 0

    @property
    def has_failed(self) -> bool:
        """True if there was a failed job at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.FAILED] > 0

    def sampled(self, sample: QueueSample) -> None:
        """Add a sample."""
        self.sample = sample
        if sample.problem is not None:
            return
        if sample.version is not None:
            self._versions.add(sample.version)
        if self._arrived and sample.last_id < self._arrived[-1][1]:
            self._arrived.clear()  # The queue was removed and created again.
        self._arrived.append((sample.at, sample.last_id))
        while sample.at - self._arrived[0][0] > _MEMORY:
            self._arrived.popleft()

    def counted(self, ends: EndsByMinute) -> None:
        """Set the per-minute counts of finished jobs."""
        self._ends = ends

    def misread(self, error: TaskbullError | None) -> None:
        """Set the error from reading slowly changing information, or None if it was read."""
        self._problem = None if error is None else str(error)

    def met(self, workers: Workers | None, seen: Sequence[Seen]) -> None:
        """Set the connected workers and the records of taskbull workers."""
        self.workers = workers
        self._seen = seen

    def checked(self, active: Sequence[JobRow]) -> None:
        """Set the longest-running jobs. A job without a lock counts from the second time on."""
        now = frozenset(row.job.id for row in active if row.lock_seconds is None)
        self._lockless, self._without_lock = now & self._without_lock, now
        started = [(row.job.processed_on, row.job) for row in active]
        running = [(began, job) for began, job in started if began is not None]
        if running:
            began, job = min(running, key=lambda one: one[0])
            self._longest = RunningSince(f"{job.name}#{job.id}", began)
        else:
            self._longest = None

    def delayed(self, rows: Sequence[JobRow]) -> None:
        """Set the delayed jobs that are due next, to find those whose task no worker has."""
        self._unknown = Counter(row.job.name for row in rows if row.unknown_task is not None)

    def failed(self, failures: Failures) -> None:
        """Set the groups of failed jobs."""
        self._failures = failures

    def facts(self, now: datetime | None = None) -> QueueFacts:
        """Return the facts about the queue. At least one sample is required."""
        assert self.sample is not None, "nothing was seen yet"  # noqa: S101 - callers check it
        now = datetime.now(UTC).astimezone() if now is None else now
        found, ends = self.sample, self._ends
        now_ms = int(now.timestamp() * 1000)
        done = broken = None
        if ends is not None:
            done = Kept(ends.minute_ms, ends.completed, ends.completed_since_ms)
            broken = Kept(ends.minute_ms, ends.failed, ends.failed_since_ms)
        connected = self._connected()
        alive = [one.record for one in self._seen if _is_alive(one, connected, now_ms)]
        records = [record for record in alive if record is not None]
        known = {record.id for record in records}
        gone = {one.id: instant_from_ms(one.at_ms) for one in self._seen if one.id not in known}
        last_ms = max((one.at_ms for one in self._seen), default=None)
        error, share = _worst(self._failures)
        return QueueFacts(
            name=self.name,
            now=now,
            counts=found.counts,
            problem=self.sample.problem or self._problem,
            paused=found.paused,
            note=found.note,
            version=found.version,
            versions=frozenset(self._versions),
            waiting_since=found.waiting_since,
            next_due=found.next_due,
            next_scheduled=found.next_scheduled,
            concurrency=found.concurrency,
            rate_max=found.rate_max,
            rate_window=found.rate_window,
            started=found.started,
            limited_for=found.limited_for,
            connected=connected,
            records=records,
            gone={name: at for name, at in gone.items() if at is not None},
            last_seen=None if last_ms is None else instant_from_ms(last_ms),
            completed=throughput(found.completed, done, now_ms),
            failed=throughput(found.failed, broken, now_ms),
            completed_total=None if found.completed is None else found.completed.count,
            failed_total=None if found.failed is None else found.failed.count,
            arrivals=rate(self._arrived[0], self._arrived[-1]) if self._arrived else None,
            unknown_tasks={
                name: count
                for name, count in self._unknown.items()
                if records and not any(name in (record.tasks or ()) for record in records)
            },
            longest=self._longest,
            lockless=len(self._lockless),
            worst_error=error,
            worst_share=share,
        )

    def _connected(self) -> Sequence[str] | None:
        workers = self.workers
        if workers is None or workers.refusal is not None:
            return None
        return [worker.name for worker in workers.by_queue.get(self.name, ())]


def _is_alive(worker: Seen, connected: Sequence[str] | None, now_ms: int) -> bool:
    age = (now_ms - worker.at_ms) / 1000
    if worker.record is None or age >= _RECORD_LIFE:
        return False
    if connected is None or worker.id in connected:
        return True
    return age < (_BUSY_LIFE if worker.record.running else _IDLE_LIFE)


def _worst(failures: Failures | None) -> tuple[str, float]:
    if failures is None or not failures.groups:
        return "", 0.0
    worst = failures.groups[0]
    all_of_them = sum(group.about for group in failures.groups)
    return worst.error, worst.about / max(all_of_them, 1)
