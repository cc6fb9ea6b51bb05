"""What users may set, with defaults and limits: the field's default is the only default, and
`__post_init__` the only check."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core.backoff import DEFAULT_BACKOFF, Backoff
from taskbull.core.checks import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    check_type,
    refusal,
    shown,
)
from taskbull.core.durations import Duration, check_instant, instant_to_ms, seconds
from taskbull.core.keys import RESERVED_IDS
from taskbull.core.retention import DEFAULT_KEEP_COMPLETED, DEFAULT_KEEP_FAILED, Keep
from taskbull.core.states import MAX_DUE_MS, MAX_PRIORITY, MAX_SAFE_INTEGER
from taskbull.errors import ConfigurationError

ErrorBackoffs = Mapping[str | type[BaseException], Backoff]
"""A backoff for each kind of error, by its class or by the name of its class."""

ATTEMPTS = 3
"""How often a job of ours is tried, where nobody says otherwise."""

SIZE_LIMIT = 10_000_000
KEEP_LOGS = 1000
MAX_DATA_POINTS = 100_000  # ten weeks
MAX_CONCURRENCY = 100_000

_MANY_KEPT = 10_000


class Dedup(Struct, frozen=True):
    """Run one job of all that are added with the same key: BullMQ's deduplication.

    Until the first one has ended, or for `ttl`. `extend` starts the time anew with each
    duplicate, `replace` lets the newest take the place of one that is still delayed, and
    `keep_last` runs the newest once more after one that is already running.
    """

    key: str
    ttl: Duration | None = None
    extend: bool = False
    replace: bool = False
    keep_last: bool = False

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


class Limiter(Struct, frozen=True):
    """Start at most `max` jobs of the queue per `duration`, over all its workers."""

    max: int
    duration: Duration

    def __post_init__(self) -> None:
        check_int("limiter max", self.max, least=1, most=MAX_SAFE_INTEGER - 1)
        force_setattr(self, "duration", seconds("limiter duration", self.duration, positive=True))


class JobOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one job is to be queued, run and kept. None writes nothing: the worker's rules apply."""

    delay: Duration | None = None
    eta: datetime | None = None
    priority: int = 0
    lifo: bool = False
    attempts: int = ATTEMPTS
    backoff: Backoff | None = DEFAULT_BACKOFF
    error_backoffs: ErrorBackoffs | None = None
    job_id: str | None = None
    dedup: Dedup | str | None = None
    keep_completed: Keep | None = DEFAULT_KEEP_COMPLETED
    keep_failed: Keep | None = DEFAULT_KEEP_FAILED
    timeout: Duration | None = None
    keep_logs: int | None = KEEP_LOGS
    stack_trace_limit: int | None = None
    size_limit: int = SIZE_LIMIT

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
        if isinstance(self.dedup, str):
            force_setattr(self, "dedup", Dedup(self.dedup))
        elif self.dedup is not None:
            check_type("dedup", self.dedup, Dedup, "be a Dedup or its key")
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


class WorkerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker runs. `max_reconnect_attempts` 0 is without end."""

    concurrency: int = 10
    lock_duration: Duration = 30.0
    heartbeat_interval: Duration = 15.0
    stalled_interval: Duration = 30.0
    max_stalled_count: int = 1
    limiter: Limiter | None = None
    threads: int | None = None
    shutdown_timeout: Duration = 30.0
    max_reconnect_attempts: int = 0
    worker_id: str | None = None
    on_lost_lock: Literal["continue", "cancel"] = "continue"
    loop_block_limit: Duration = 300.0
    drain_delay: Duration = 5.0
    burst_wait: Duration = 30.0
    """How soon a delayed job must be due for a burst to wait for it."""
    metrics_data_points: int = 0
    """Minutes for which BullMQ's own counts per minute are kept in Redis; 0: none are."""

    def __post_init__(self) -> None:
        check_concurrency("concurrency", self.concurrency)
        for field in _POSITIVE_DURATIONS:
            force_setattr(self, field, seconds(field, getattr(self, field), positive=True))
        for field in ("shutdown_timeout", "burst_wait"):
            force_setattr(self, field, seconds(field, getattr(self, field)))
        if not _shorter(self.heartbeat_interval, self.lock_duration):
            raise refusal(
                "heartbeat_interval",
                f"be shorter than lock_duration ({self.lock_duration} s)",
                self.heartbeat_interval,
            )
        check_int("max_stalled_count", self.max_stalled_count, least=0)
        if self.limiter is not None:
            check_type("limiter", self.limiter, Limiter, "be a Limiter")
        if self.threads is not None:
            check_int("threads", self.threads, least=1)
        check_int("max_reconnect_attempts", self.max_reconnect_attempts, least=0)
        if self.worker_id is not None:
            check_worker_id(self.worker_id)
        check_choice("on_lost_lock", self.on_lost_lock, ("continue", "cancel"))
        check_int("metrics_data_points", self.metrics_data_points, least=0, most=MAX_DATA_POINTS)


class QueueOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of one queue, whichever worker serves it. None: there is no such rule."""

    concurrency: int | None = None
    """Jobs of this queue that run at once in each worker."""
    limiter: Limiter | None = None
    global_concurrency: int | None = None
    """Jobs of this queue that run at once in all workers together, those of Node among them."""

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency("concurrency", self.concurrency)
        if self.global_concurrency is not None:
            check_int("global_concurrency", self.global_concurrency, least=1, most=MAX_SAFE_INTEGER)
        if self.limiter is not None:
            check_type("limiter", self.limiter, Limiter, "be a Limiter")

    def over(self, worker: WorkerOptions) -> WorkerOptions:
        """Give a worker's options with the rules of this queue in them."""
        if self.concurrency is None and self.limiter is None:
            return worker
        concurrency, limiter = self.concurrency or worker.concurrency, self.limiter
        return replace(worker, concurrency=concurrency, limiter=limiter or worker.limiter)


NO_RULES = QueueOptions()

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


def check_job_id(job_id: object) -> None:
    """Refuse an id that BullMQ refuses, or that names another key of the queue."""
    text = check_text("job_id", job_id)
    parts = text.split(":")
    if re.fullmatch(r"-?[0-9]+", text):
        raise refusal("job_id", "not be an integer: those are the queue's own", text)
    if text.startswith("0:"):
        raise refusal("job_id", "not start with '0:': that is a marker of BullMQ", text)
    if len(parts) not in {1, 3}:
        raise refusal("job_id", "have no ':' (or exactly two of them)", text)
    if text in RESERVED_IDS or (len(parts) == 3 and parts[0] in RESERVED_IDS - {"repeat"}):
        raise refusal("job_id", "not name another key of the queue", text)


def check_worker_id(worker_id: object) -> None:
    """Refuse what cannot stand in the name of a Redis connection."""
    text = check_text("worker_id", worker_id, most=255)
    if not re.fullmatch(r"[!-~]+", text):
        raise refusal("worker_id", "be printable ASCII without spaces", text)


def check_error_backoffs(value: object) -> None:
    """Refuse all but a mapping of exception classes or their names to backoffs."""
    if not isinstance(value, Mapping):
        raise refusal("error_backoffs", "be a mapping of errors to backoffs", value)
    for error, backoff in cast("Mapping[object, object]", value).items():
        if not isinstance(error, str) and not _is_exception_class(error):
            raise refusal("a key of error_backoffs", "be an exception class or its name", error)
        check_type(f"error_backoffs[{shown(error)}]", backoff, Backoff, "be a Backoff")


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


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


def _shorter(one: Duration, other: Duration) -> bool:
    # Both are seconds by now, whatever was given.
    return seconds("", one) < seconds("", other)
