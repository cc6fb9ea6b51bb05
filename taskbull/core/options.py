"""How many finished jobs are kept, and for how long."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict, Unpack, cast

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core.backoff import DEFAULT_BACKOFF, Backoff
from taskbull.core.keys import RESERVED_IDS
from taskbull.core.states import MAX_DUE_MS, MAX_PRIORITY, MAX_SAFE_INTEGER
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_instant,
    check_int,
    check_text,
    check_type,
    instant_to_ms,
    refusal,
    seconds,
    shown,
)
from taskbull.errors import ConfigurationError

# How many finished jobs are kept, and for how long.


class Keep(Struct, frozen=True, kw_only=True):
    """Keep finished jobs up to an age and a number; without either, all of them.

    `limit` bounds how many too old jobs one finishing job removes.
    """

    age: float | None = None
    count: int | None = None
    limit: int | None = None

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(
            self,
            *,
            age: Duration | None = None,
            count: int | None = None,
            limit: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.age is not None:
            force_setattr(self, "age", seconds("keep age", self.age))
        if self.count is not None:
            check_int("keep count", self.count, least=0)
        if self.limit is not None:
            check_int("keep limit", self.limit, least=1)

    @classmethod
    def all(cls) -> Keep:
        """Keep every job."""
        return cls()

    @classmethod
    def none(cls) -> Keep:
        """Remove each job when it has finished."""
        return cls(count=0)


DEFAULT_KEEP_COMPLETED = Keep(age=timedelta(days=1), count=10_000)
DEFAULT_KEEP_FAILED = Keep(age=timedelta(days=14))


# What users may set for a job: its field is the only default, `__post_init__` the only check.
#
# Each option stands twice: among the keywords, with the type that users may give and where they
# may give it, and as a field of `JobOptions`, with the type that it has inside. A test holds them
# against each other. How it is stored is in `core.wire.options`.


ErrorBackoffs = Mapping[str | type[BaseException], Backoff]
"""A backoff for each kind of error, by its class or by the name of its class."""

ATTEMPTS = 3
"""How often a job of ours is tried, where nobody says otherwise."""

SIZE_LIMIT = 10_000_000
KEEP_LOGS = 1000

_MANY_KEPT = 10_000

OnFailure: TypeAlias = Literal["fail", "ignore", "continue", "drop", "wait"]
"""What the failure of a child means for its parent."""

ON_FAILURE: Final = ("fail", "ignore", "continue", "drop", "wait")


class Dedup(Struct, frozen=True):
    """Run one job of all that are added with the same key: BullMQ's deduplication.

    Until the first one has ended, or for `ttl`. `extend` starts the time anew with each
    duplicate, `replace` lets the newest take the place of one that is still delayed, and
    `keep_last` runs the newest once more after one that is already running.
    """

    key: str
    ttl: float | None = None
    extend: bool = False
    replace: bool = False
    keep_last: bool = False

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(
            self,
            key: str,
            ttl: Duration | None = None,
            extend: bool = False,
            replace: bool = False,
            keep_last: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_text("dedup key", self.key)
        if self.ttl is not None:
            force_setattr(self, "ttl", seconds("dedup ttl", self.ttl, positive=True))
        check_bool("dedup extend", self.extend)
        check_bool("dedup replace", self.replace)
        check_bool("dedup keep_last", self.keep_last)
        if self.extend and self.ttl is None:
            raise ConfigurationError(
                "dedup extend=True needs a ttl: without one there is nothing to extend"
            )


class AppKeywords(TypedDict, total=False):
    """The job options of an app, and of all below: tasks, calls and `queue.add`."""

    backoff: Backoff | None
    error_backoffs: ErrorBackoffs | None
    keep_completed: Keep | None
    keep_failed: Keep | None
    timeout: Duration | None


class TaskKeywords(AppKeywords, total=False):
    """The job options of a task, and of all below."""

    expires: Duration | datetime | None
    priority: int
    lifo: bool


class CallKeywords(TaskKeywords, total=False):
    """The job options of one call, and of `queue.add`.

    Apps and tasks have `attempts` too, but None there: then nothing is said to foreign jobs.
    """

    attempts: int
    delay: Duration | None
    eta: datetime | None
    job_id: str | None
    dedup: Dedup | str | None
    on_failure: OnFailure | None


class JobKeywords(CallKeywords, total=False):
    """The job options of `queue.add`: all of them."""

    keep_logs: int | None
    stack_trace_limit: int | None
    size_limit: int


class JobOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one job is to be queued, run and kept. None writes nothing: the worker's rules apply."""

    delay: float | None = None
    eta: datetime | None = None
    priority: int = 0
    lifo: bool = False
    attempts: int = ATTEMPTS
    backoff: Backoff | None = DEFAULT_BACKOFF
    error_backoffs: ErrorBackoffs | None = None
    job_id: str | None = None
    dedup: Dedup | None = None
    on_failure: OnFailure | None = None
    """As a child of a flow; None: as its parent says."""
    keep_completed: Keep | None = DEFAULT_KEEP_COMPLETED
    keep_failed: Keep | None = DEFAULT_KEEP_FAILED
    timeout: float | None = None
    expires: float | datetime | None = None
    """When it must have begun: so many seconds after it was added, or an instant."""
    keep_logs: int | None = KEEP_LOGS
    stack_trace_limit: int | None = None
    size_limit: int = SIZE_LIMIT

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[JobKeywords]) -> None: ...

    def __post_init__(self) -> None:
        self._check_time()
        check_int("priority", self.priority, least=0, most=MAX_PRIORITY)
        check_bool("lifo", self.lifo)
        check_int("attempts", self.attempts, least=1, most=MAX_SAFE_INTEGER)
        if self.backoff is not None:
            check_type("backoff", self.backoff, Backoff, "be a Backoff")
        if self.error_backoffs is not None:
            check_error_backoffs(self.error_backoffs)
        if self.job_id is not None:
            check_job_id(self.job_id)
        if self.dedup is not None:
            force_setattr(self, "dedup", _read_dedup(self.dedup))
        if self.on_failure is not None:
            check_choice("on_failure", self.on_failure, ON_FAILURE)
        _check_keep("keep_completed", self.keep_completed)
        _check_keep("keep_failed", self.keep_failed)
        if self.keep_logs is not None:
            check_int("keep_logs", self.keep_logs, least=0)
        if self.stack_trace_limit is not None:
            check_int("stack_trace_limit", self.stack_trace_limit, least=0)
        check_int("size_limit", self.size_limit, least=1)

    def _check_time(self) -> None:
        if self.delay is not None:
            force_setattr(self, "delay", seconds("delay", self.delay))
        if self.eta is not None:
            if self.delay is not None:
                raise ConfigurationError(
                    f"delay ({self.delay:g} s) and eta ({shown(self.eta)}) say the same thing: "
                    "give one of them"
                )
            check_instant("eta", self.eta)
            if instant_to_ms(self.eta) > MAX_DUE_MS:
                raise refusal("eta", "be before September 2039, where BullMQ ends", self.eta)
        if self.timeout is not None:
            force_setattr(self, "timeout", seconds("timeout", self.timeout, positive=True))
        if self.expires is not None:
            self._check_expires(self.expires)

    def _check_expires(self, expires: float | datetime) -> None:
        if isinstance(expires, datetime):
            check_instant("expires", expires)
            if self.eta is not None and expires <= self.eta:
                raise refusal("expires", f"be later than eta, {self.eta}", expires)
            return
        limit = seconds("expires", expires, positive=True)
        force_setattr(self, "expires", limit)
        if self.delay is not None and limit <= self.delay:
            raise ConfigurationError(
                f"expires ({limit:g} s) must be later than delay ({self.delay:g} s): both count "
                "from when the job is added"
            )


ID_LIMIT: Final = 1_000
"""Characters of an id that a producer may choose; ids that Node has written may be longer."""


def check_job_id(job_id: object, *, most: int = ID_LIMIT) -> None:
    """Refuse an id that BullMQ refuses, or that names another key of the queue."""
    text = check_text("job_id", job_id, most=most)
    parts = text.split(":")
    if re.fullmatch(r"-?[0-9]+", text):
        raise refusal("job_id", "not be an integer: those are the queue's own", text)
    if text.startswith("0:"):
        raise refusal("job_id", "not start with '0:': that is a marker of BullMQ", text)
    if len(parts) not in {1, 3}:
        raise refusal("job_id", "have no ':' (or exactly two of them)", text)
    if text.startswith("repeat:"):
        raise refusal("job_id", "not start with 'repeat:': those are runs of schedules", text)
    if text in RESERVED_IDS or (len(parts) == 3 and parts[0] in RESERVED_IDS):
        raise refusal("job_id", "not name another key of the queue", text)


_MOST_ERROR_BACKOFFS = 100


def check_error_backoffs(value: object) -> None:
    """Refuse all but a mapping of exception classes or their names to backoffs."""
    if not isinstance(value, Mapping):
        raise refusal("error_backoffs", "be a mapping of errors to backoffs", value)
    backoffs = cast("Mapping[object, object]", value)
    if len(backoffs) > _MOST_ERROR_BACKOFFS:
        raise refusal(
            "error_backoffs", f"have at most {_MOST_ERROR_BACKOFFS} entries", len(backoffs)
        )
    for error, backoff in backoffs.items():
        if not isinstance(error, str) and not _is_exception_class(error):
            raise refusal("a key of error_backoffs", "be an exception class or its name", error)
        check_type(f"error_backoffs[{shown(error)}]", backoff, Backoff, "be a Backoff")


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _read_dedup(value: object) -> object:
    if isinstance(value, str):
        return Dedup(value)
    check_type("dedup", value, Dedup, "be a Dedup or its key")
    return value


def _check_keep(field: str, keep: Keep | None) -> None:
    if keep is None:
        return
    check_type(field, keep, Keep, "be a Keep, such as Keep(count=1000)")
    if keep.count is not None and keep.count > _MANY_KEPT:
        warnings.warn(
            f"{field} keeps {keep.count} jobs in Redis; above {_MANY_KEPT} they cost memory and "
            "time",
            stacklevel=3,
        )


# What users may set for a worker and for the queues it serves, in the manner of `core.options`.


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
