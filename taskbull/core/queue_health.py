"""Throughput and state of a queue.

Throughput comes from BullMQ's metrics or from the finished jobs that are still kept. `QueueFacts`
is the snapshot that diagnoses are made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from taskbull.core.keys import JobState
from taskbull.core.outcome import scrubbed
from taskbull.core.validation import Foreign
from taskbull.core.worker_record import WorkerRecord, is_made_id

MINUTE_MS: Final = 60_000
RECENT: Final = 1
"""Number of whole minutes to average a rate over, in addition to the current one."""

Source: TypeAlias = Literal["metrics", "kept"]
"""Source of counts: BullMQ's metrics, or the finished jobs that are kept."""


class EndCounts(Struct, frozen=True):
    """BullMQ's metrics for completed or for failed jobs."""

    count: int
    previous_ms: int
    previous_count: int
    points: Sequence[int] = ()
    """Counts of the minutes before that of `previous_ms`, newest first."""


class Kept(Struct, frozen=True):
    """Per-minute counts of finished jobs that are still kept."""

    minute_ms: int
    """Start of the newest minute."""
    counts: Sequence[int]
    """Number of jobs per minute, newest first."""
    since_ms: float | None
    """Time when the oldest kept job finished, or `None` if no job is kept."""


class Throughput(Struct, frozen=True):
    """Number of jobs that finished in each minute."""

    minutes: list[int | None]
    """Counts, newest first, starting with the current minute. Unknown counts are `None`."""
    source: Source | None
    """Source of the counts, or `None` if there are neither metrics nor kept jobs."""

    def recent(self, elapsed: float, minutes: int = RECENT) -> float | None:
        """Return the jobs per second over the last minutes, or `None` if unknown.

        `elapsed` is the number of seconds since the current minute began.
        """
        known = [count for count in self.minutes[1 : minutes + 1] if count is not None]
        running = self.minutes[0] if self.minutes else None
        if running is None and not known:
            return None
        seconds = 60.0 * len(known) + (0 if running is None else elapsed)
        return (sum(known) + (running or 0)) / max(seconds, 1.0)

    def total(self, minutes: int) -> int:
        """Return the known number of jobs in the current minute and the `minutes` before it."""
        return sum(filter(None, self.minutes[: minutes + 1]))


def throughput(
    tally: EndCounts | None, kept: Kept | None, now_ms: int, minutes: int = 60
) -> Throughput:
    """Return the number of jobs that finished in each minute, from the better of two sources.

    Metrics miss the jobs of workers that do not write them. So the kept jobs are used if there are
    more of them.
    """
    counted = None if tally is None else from_metrics(tally, now_ms, minutes)
    found = None if kept is None else from_kept(kept, now_ms, minutes)
    return better_counts(counted, found or [None] * minutes)


def better_counts(counted: list[int | None] | None, found: list[int | None]) -> Throughput:
    """Return the counts from metrics, or those of kept jobs if they are more or the only ones."""
    if counted is None:
        unknown = all(count is None for count in found)
        return Throughput(found, None if unknown else "kept")
    return Throughput(found, "kept") if _exceeds(found, counted) else Throughput(counted, "metrics")


def from_metrics(tally: EndCounts, now_ms: int, minutes: int) -> list[int | None]:
    """Return counts per minute from BullMQ's metrics, starting with the current minute.

    No job has finished after the minute of `previous_ms`. The count of that minute is the increase
    since `previous_count`, and `points` has the minutes before it. Minutes that BullMQ no longer
    counts are `None`.
    """
    # Never negative, although the clock of the worker that wrote it may be ahead.
    behind = max(now_ms // MINUTE_MS - tally.previous_ms // MINUTE_MS, 0)
    since = max(tally.count - tally.previous_count, 0)
    known: list[int | None] = [*[0] * min(behind, minutes), since, *tally.points]
    return [*known[:minutes], *[None] * (minutes - len(known))]


def from_kept(kept: Kept, now_ms: int, minutes: int) -> list[int | None]:
    """Return counts per minute from kept jobs.

    A minute is known only if the oldest kept job finished before that minute began.
    """
    passed = max(now_ms // MINUTE_MS - kept.minute_ms // MINUTE_MS, 0)
    whole = 0
    if kept.since_ms is not None and kept.since_ms <= kept.minute_ms:
        since_ms = max(kept.since_ms, kept.minute_ms - len(kept.counts) * MINUTE_MS)
        whole = 1 + int((kept.minute_ms - since_ms) // MINUTE_MS)
    # Start with the minutes that began after the jobs were counted.
    found: list[int | None] = [*[None] * min(passed, minutes), *kept.counts[:whole]]
    return [*found[:minutes], *[None] * (minutes - len(found))]


def empty_in(waiting: int, out: float | None, into: float | None) -> float | None:
    """Return the seconds until no job waits: infinity if the queue grows, `None` if unknown."""
    if waiting == 0:
        return 0.0
    if out is None or (not out and not into):
        return None
    net = out - (into or 0.0)
    return waiting / net if net > 0 else float("inf")


def rate(before: tuple[float, int], after: tuple[float, int]) -> float | None:
    """Return a count's change per second between two samples, or `None` if it was reset.

    A sample is a time in seconds and a count.
    """
    seconds, change = after[0] - before[0], after[1] - before[1]
    return change / seconds if seconds > 0 and change >= 0 else None


def _exceeds(found: Sequence[int | None], counted: Sequence[int | None]) -> bool:
    # Leave out the current minute, and allow for small differences at the edges of minutes.
    pairs = [
        (one, other or 0)
        for one, other in zip(found[1:], counted[1:], strict=False)
        if one is not None
    ]
    return sum(one for one, _ in pairs) > sum(other for _, other in pairs) + len(pairs) // 10


# The snapshot of a queue.


_NOTHING = Throughput([], None)


class PauseNote(Foreign, frozen=True):
    """The user, time and reason of a pause."""

    by: str = ""
    at_ms: int = 0
    why: str = ""


class RunningSince(Struct, frozen=True):
    """The job of a queue that has been running for the longest time."""

    label: str
    """Name and id of the job, such as `fetch#13`."""
    started: datetime
    id: str
    worker: str = ""


class QueueFacts(Struct, frozen=True, kw_only=True):
    """Snapshot of a queue. Unknown values are `None`."""

    name: str
    now: datetime
    """Time of the snapshot. Texts show times in its time zone."""
    counts: Mapping[str, int]
    """Number of jobs by state."""
    group_jobs: Mapping[tuple[str, str], int] = {}
    """Number of jobs by group and state, if they were read. The group "" is the sum of others."""
    problem: str | None = None
    """Error if the queue could not be read. The other values are then unknown."""
    paused: bool = False
    note: PauseNote | None = None
    version: str | None = None
    versions: frozenset[str] = frozenset()
    """All library versions seen in the queue, such as `bullmq:5.62.0`."""
    waiting_since: datetime | None = None
    next_due: datetime | None = None
    next_scheduled: datetime | None = None
    concurrency: int | None = None
    """Global concurrency limit."""
    rate_max: int | None = None
    """Number of jobs that may start per `rate_window`."""
    rate_window: float | None = None
    """Window of the rate limit in seconds."""
    started: int = 0
    """Number of jobs that started in the current window of the rate limit."""
    limited_for: float | None = None
    """Seconds until the current window of the rate limit ends."""
    connected: Sequence[str] | None = None
    """Names of the connected workers, or `None` if the server does not list connections."""
    records: Sequence[WorkerRecord] = ()
    """Status records of the live taskbull workers."""
    gone: Mapping[str, datetime] = {}
    """Taskbull workers that are gone, and when each was last seen."""
    silent: Mapping[str, datetime] = {}
    """Connected taskbull workers that missed two records, and when each was last seen."""
    last_seen: datetime | None = None
    """Time when a taskbull worker was last seen."""
    completed: Throughput = _NOTHING
    failed: Throughput = _NOTHING
    completed_total: int | None = None
    """Total of completed jobs from BullMQ's metrics, or `None` if no worker counts them."""
    failed_total: int | None = None
    """Same as `completed_total`, for failed jobs."""
    arrivals: float | None = None
    """Jobs added per second over the window of the samples, at most a minute."""
    finishes: float | None = None
    """Jobs finished per second over the same window, or `None` if workers keep no metrics."""
    unknown_tasks: Mapping[str, int] = {}
    """Numbers of delayed jobs, among the next ones, whose task no worker has, by task."""
    longest: RunningSince | None = None
    """The longest-running job."""
    lockless: int = 0
    """Number of running jobs that had no lock in two samples, because their workers died."""
    refusal: str = ""
    """Reason why Redis refuses writes, so that no job can be added or fetched, or ""."""
    ahead: float = 0.0
    """Seconds that the clock of this machine is ahead of Redis's. `now` is Redis's time."""
    cancelled_share: float = 0.0
    """Share of the failed jobs that were cancelled, from 0 to 1."""
    worst_error: str = ""
    """Most frequent error of the failed jobs."""
    worst_share: float = 0.0
    """Share of the failed jobs that have the most frequent error, from 0 to 1."""
    worst_of: int = 0
    """Number of newest failed jobs that `worst_share` refers to, or 0 if it refers to all."""

    @property
    def waiting(self) -> int:
        """Number of jobs that a worker could run now, including those in a paused queue."""
        return sum(
            self.counts.get(state, 0)
            for state in (JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED)
        )

    @property
    def overdue(self) -> float | None:
        """Seconds since the next delayed job was due, or `None` if it is not due yet."""
        if self.next_due is None or not self.counts.get(JobState.DELAYED, 0):
            return None
        late = (self.now - self.next_due).total_seconds()
        return late if late > 0 else None

    @property
    def foreign(self) -> int:
        """Number of connected workers without a status record, mostly Node's."""
        return sum(name not in self.silent for name in self._unrecorded)

    @property
    def responding(self) -> list[WorkerRecord]:
        """Records of the taskbull workers that still write theirs."""
        return [record for record in self.records if record.id not in self.silent]

    @property
    def lost(self) -> int:
        """Number of jobs that still use a slot of a worker but have lost their lock."""
        return sum(record.lost for record in self.responding)

    @property
    def is_unresponsive(self) -> bool:
        """True if there are workers, and none of them responds."""
        return bool(self.silent) and not self.responding and not self.foreign

    @property
    def python_workers(self) -> int:
        """Number of taskbull workers. One that cannot write its record has a name of our form."""
        others = (name in self.silent or is_made_id(name) for name in self._unrecorded)
        return len(self.records) + sum(others)

    @property
    def other_workers(self) -> int:
        """Number of the other workers, most of them in Node."""
        return self.workers - self.python_workers

    @property
    def _unrecorded(self) -> list[str]:
        known = {record.id for record in self.records}
        return [name for name in self.connected or () if name not in known]

    @property
    def workers(self) -> int:
        """Number of known workers of the queue."""
        return len(self.records) + len(self._unrecorded)

    @property
    def busy_slots(self) -> int:
        """Number of slots of all workers if every slot runs a job, or 0 if one may be free.

        Workers that do not respond have no free slots, and do not count.
        """
        ours = self.responding
        if self.foreign or not all(one.running >= one.concurrency > 0 for one in ours):
            return 0
        return sum(record.concurrency for record in ours)

    @property
    def is_stuck(self) -> bool:
        """True if jobs are due, all slots are busy, and no job has finished for a minute."""
        finished = self.completed.total(1) + self.failed.total(1)
        is_due = self.waiting > 0 or self.overdue is not None
        if not is_due or finished or not self.busy_slots:
            return False
        if self.longest is None:
            return self.lost > 0
        return (self.now - self.longest.started).total_seconds() > 60

    @property
    def out(self) -> float | None:
        """Jobs that finish per second, or `None` if unknown.

        The rate is over the window of `arrivals` if it is known, or else over the last one to two
        minutes.
        """
        if self.finishes is not None:
            return self.finishes
        elapsed = self.now.timestamp() % 60
        rates = [self.completed.recent(elapsed), self.failed.recent(elapsed)]
        known = [one for one in rates if one is not None]
        return sum(known) if known else None

    @property
    def pace(self) -> float | None:
        """The value of `out` if it can be used for an estimate, or `None`.

        It cannot if the queue is paused, has no worker that responds or does not move. Without
        samples, jobs must have finished for a whole minute: the mean of a shorter time is too low.
        """
        has_no_worker = self.workers == 0 and self.connected is not None
        if self.paused or self.is_stuck or has_no_worker or self.is_unresponsive or self.refusal:
            return None
        if self.finishes is None and not all(self._finished_in(minute) for minute in (1, 2)):
            return None
        return self.out

    @property
    def seconds_left(self) -> float | None:
        """Seconds until no job waits: infinity if the queue grows, `None` without an estimate."""
        return empty_in(self.waiting, self.pace, self.arrivals)

    def _finished_in(self, minute: int) -> int:
        counts = (each.minutes[minute : minute + 1] for each in (self.completed, self.failed))
        return sum(count or 0 for [*found] in counts for count in found)


def read_note(raw: bytes) -> PauseNote | None:
    """Decode the note of a pause. Return `None` if there is none or it is invalid."""
    try:
        return msgspec.json.decode(raw, type=PauseNote) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def encode_note(by: str, at_ms: int, why: str) -> bytes:
    """Encode the note of a pause for storage. Long texts are truncated."""
    return msgspec.json.encode(PauseNote(scrubbed(by[:100]), at_ms, scrubbed(why[:500])))


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as JSON values, with datetimes in ISO 8601."""
    return {
        name: value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
        for name, value in facts.items()
    }


# The Redis servers.


class RedisNode(Struct, frozen=True):
    """A Redis server that holds queues. Unknown values are `None`."""

    name: str
    """Its address."""
    memory_used: int | None = None
    """Bytes that count towards the memory limit."""
    memory_limit: int | None = None
    """Memory limit in bytes; 0 if there is none."""
    refusal: str = ""
    """Reason why it refuses writes, or an empty string."""
    problem: str = ""
    """Error if the server does not answer, or an empty string."""
    info: Mapping[str, str] = {}
    """All fields of its INFO."""
    ahead: float = 0.0
    """Seconds that the clock of this machine is ahead of the server's; 0 if they agree."""

    @property
    def version(self) -> str:
        """Name and version of the server, such as `Valkey 8.1.0`."""
        if "valkey_version" in self.info:
            return f"Valkey {self.info['valkey_version']}"
        return f"Redis {self.info['redis_version']}" if "redis_version" in self.info else ""

    @property
    def share_used(self) -> float | None:
        """Share of the memory limit in use, or `None` without a limit."""
        return (self.memory_used or 0) / self.memory_limit if self.memory_limit else None


def read_node(name: str, info: Mapping[str, str], settings: Mapping[str, str]) -> RedisNode:
    """Return a server's state from its INFO.

    `settings` has its settings for failed snapshots. Defaults replace unknown ones.
    """
    if "used_memory" not in info:
        return RedisNode(name)
    # Redis does not count the buffers of replicas and of the append-only file.
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    limit = int(info.get("maxmemory", 0))
    refusal = ""
    if 0 < limit < used and not info.get("maxmemory_policy", "").startswith("allkeys"):
        refusal = "its memory is full"
    elif _cannot_save(info, settings):
        refusal = "it cannot save its data to disk"
    elif info.get("min_slaves_good_slaves") == "0":
        refusal = "it needs replicas, and none is connected"
    elif info.get("role") == "slave" and info.get("slave_read_only", "1") == "1":
        refusal = "it is a read-only replica"
    return RedisNode(name, used, limit, refusal, info=info)


SKEW: Final = 2.0
"""Smallest difference of two clocks that is corrected, in seconds."""


def clock_ahead(info: Mapping[str, str], before: float, after: float) -> float:
    """Return by how many seconds this machine's clock is ahead of the one in a server's INFO.

    `before` and `after` are the times when INFO was requested and received. It returns 0 if
    the difference is below `SKEW`, or not certain because the reply took longer.
    """
    if "server_time_usec" not in info:
        return 0.0
    ahead = (before + after) / 2 - int(info["server_time_usec"]) / 1e6
    return ahead if abs(ahead) >= SKEW + (after - before) else 0.0


def _cannot_save(info: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    if info.get("aof_enabled") == "1" and info.get("aof_last_write_status") == "err":
        return True
    return (
        info.get("rdb_last_bgsave_status") == "err"
        and settings.get("stop-writes-on-bgsave-error", "yes") == "yes"
        and settings.get("save", "default") != ""
    )
