"""What users may set for a worker and for the queues it serves, in the manner of `core.options`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core.checks import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    check_type,
    refusal,
)
from taskbull.core.durations import Duration, seconds
from taskbull.core.states import MAX_SAFE_INTEGER

MAX_DATA_POINTS = 100_000  # ten weeks
MAX_CONCURRENCY = 100_000


class Limiter(Struct, frozen=True):
    """Start at most `max` jobs of the queue per `duration`, over all its workers."""

    max: int
    duration: float

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(self, max: int, duration: Duration) -> None: ...  # noqa: A002

    def __post_init__(self) -> None:
        check_int("limiter max", self.max, least=1, most=MAX_SAFE_INTEGER - 1)
        force_setattr(self, "duration", seconds("limiter duration", self.duration, positive=True))


OnLostLock: TypeAlias = Literal["continue", "cancel"]


class WorkerKeywords(TypedDict, total=False):
    """The options of a worker as users may give them."""

    concurrency: int
    lock_duration: Duration
    heartbeat_interval: Duration
    stalled_interval: Duration
    max_stalled_count: int
    limiter: Limiter | None
    threads: int | None
    process_pool: int | None
    process_max_jobs: int | None
    process_max_memory: int | None
    process_memory_limit: int | None
    shutdown_timeout: Duration
    max_reconnect_attempts: int
    worker_id: str | None
    on_lost_lock: OnLostLock
    loop_block_limit: Duration
    drain_delay: Duration
    burst_wait: Duration
    metrics_data_points: int
    records: bool


class WorkerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker runs. `max_reconnect_attempts` 0 is without end."""

    concurrency: int = 10
    lock_duration: float = 30.0
    heartbeat_interval: float = 15.0
    stalled_interval: float = 30.0
    max_stalled_count: int = 1
    limiter: Limiter | None = None
    threads: int | None = None
    process_pool: int | None = None
    """Processes for tasks with `process=True`; None: one for each core."""
    process_max_jobs: int | None = None
    """Jobs after which such a process is replaced."""
    process_max_memory: int | None = None
    """Megabytes of memory, in use after a job, above which it is replaced."""
    process_memory_limit: int | None = None
    """Megabytes of address space that it may have; beyond it is a `MemoryError`."""
    shutdown_timeout: float = 30.0
    max_reconnect_attempts: int = 0
    worker_id: str | None = None
    on_lost_lock: OnLostLock = "continue"
    loop_block_limit: float = 300.0
    drain_delay: float = 5.0
    burst_wait: float = 30.0
    """How soon a delayed job must be due for a burst to wait for it."""
    metrics_data_points: int = 1440
    """Minutes for which BullMQ's own counts per minute are kept in Redis; 0: none are."""
    records: bool = True
    """Whether it writes down who it is and how it fares, for `taskbull top` and the dashboard."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[WorkerKeywords]) -> None: ...

    def __post_init__(self) -> None:
        check_concurrency("concurrency", self.concurrency)
        for field in _POSITIVE_DURATIONS:
            force_setattr(self, field, seconds(field, getattr(self, field), positive=True))
        for field in ("shutdown_timeout", "burst_wait"):
            force_setattr(self, field, seconds(field, getattr(self, field)))
        if self.heartbeat_interval >= self.lock_duration:
            raise refusal(
                "heartbeat_interval",
                f"be shorter than lock_duration ({self.lock_duration} s)",
                self.heartbeat_interval,
            )
        check_int("max_stalled_count", self.max_stalled_count, least=0)
        if self.limiter is not None:
            check_type("limiter", self.limiter, Limiter, "be a Limiter")
        for field in _COUNTS:
            if (value := getattr(self, field)) is not None:
                check_int(field, value, least=1)
        check_int("max_reconnect_attempts", self.max_reconnect_attempts, least=0)
        if self.worker_id is not None:
            check_worker_id(self.worker_id)
        check_choice("on_lost_lock", self.on_lost_lock, ("continue", "cancel"))
        check_int("metrics_data_points", self.metrics_data_points, least=0, most=MAX_DATA_POINTS)
        check_bool("records", self.records)


class QueueKeywords(TypedDict, total=False):
    """The rules of one queue as users may give them."""

    concurrency: int | None
    limiter: Limiter | None
    global_concurrency: int | None


class QueueOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of one queue, whichever worker serves it. None: there is no such rule."""

    concurrency: int | None = None
    """Jobs of this queue that run at once in each worker."""
    limiter: Limiter | None = None
    global_concurrency: int | None = None
    """Jobs of this queue that run at once in all workers together, those of Node among them."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[QueueKeywords]) -> None: ...

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency("concurrency", self.concurrency)
        if self.global_concurrency is not None:
            check_int("global_concurrency", self.global_concurrency, least=1, most=MAX_SAFE_INTEGER)
        if self.limiter is not None:
            check_type("limiter", self.limiter, Limiter, "be a Limiter")

    def over(self, worker: WorkerOptions) -> WorkerOptions:
        """Return a worker's options with the rules of this queue in them."""
        if self.concurrency is None and self.limiter is None:
            return worker
        concurrency, limiter = self.concurrency or worker.concurrency, self.limiter
        return replace(worker, concurrency=concurrency, limiter=limiter or worker.limiter)


NO_RULES = QueueOptions()

_COUNTS = (
    "threads",
    "process_pool",
    "process_max_jobs",
    "process_max_memory",
    "process_memory_limit",
)

_POSITIVE_DURATIONS = (
    "lock_duration",
    "heartbeat_interval",
    "stalled_interval",
    "loop_block_limit",
    "drain_delay",
)


def check_concurrency(field: str, value: object) -> None:
    """Refuse a number of slots that no process can have: each costs memory before a job comes."""
    check_int(field, value, least=1, most=MAX_CONCURRENCY)


def check_worker_id(worker_id: object) -> None:
    """Refuse what cannot stand in the name of a Redis connection."""
    text = check_text("worker_id", worker_id, most=255)
    if not re.fullmatch(r"[!-~]+", text):
        raise refusal("worker_id", "be printable ASCII without spaces", text)
