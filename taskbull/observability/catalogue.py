"""The definitions of all metrics: name, kind, labels and help text."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Labels: TypeAlias = tuple[str, ...]
"""The names of a metric's labels, or their values in the same order."""


class Metric(Struct, frozen=True):
    """One metric: its name, kind, labels and help text."""

    name: str
    kind: Kind
    labels: Labels
    help: str
    unit: str = ""
    buckets: tuple[float, ...] = ()
    least: bool = False
    """True to show the lowest value, not the highest, when several processes report a gauge."""


_RUN = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_WAIT = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_TRIP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
_LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

_Q = ("queue",)
_QT = ("queue", "task")
_W = ("worker_id",)
_QW = ("queue", "worker_id")


def _count(name: str, labels: Labels, text: str) -> Metric:
    return Metric(name, "counter", labels, text, "1")


def _times(name: str, labels: Labels, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", labels, text, "s", buckets)


def _level(name: str, labels: Labels, text: str, unit: str = "1", *, least: bool = False) -> Metric:
    return Metric(name, "gauge", labels, text, unit, least=least)


PROCESSED = _count(
    "bullmq_jobs_processed_total",
    ("queue", "status", "task"),
    "Attempts that ended, by what became of the job: completed, failed, retried, cancelled, "
    "expired.",
)
FAILED = _count(
    "bullmq_jobs_failed_total",
    ("queue", "reason", "task"),
    "Jobs that failed for good: transient_exhausted, permanent, cancelled or expired.",
)
ERRORS = _count(
    "bullmq_job_errors_total",
    ("queue", "category", "task"),
    "Attempts that failed, by the kind of error: transient, permanent, unknown.",
)
RELEASED = _count("bullmq_jobs_released_total", _Q, "Jobs given back with no attempt spent.")
DURATION = _times("bullmq_job_duration_seconds", _QT, "How long attempts took.", _RUN)
WAIT = _times(
    "bullmq_job_wait_seconds",
    _QT,
    "How long jobs waited for their first attempt, from when they were due.",
    _WAIT,
)
RUNNING = _level("bullmq_jobs_running", _QW, "Jobs that a worker has started and not ended.")
LENGTH = _level(
    "bullmq_queue_length",
    ("queue", "state"),
    "Jobs in each state, sampled by one worker of the queue or by an exporter.",
)
OLDEST = _level(
    "bullmq_oldest_job_age_seconds",
    _Q,
    "How long the next job has been due, also in a paused queue; 0 if none waits.",
    "s",
)
STALLED = _count(
    "bullmq_stalled_jobs_total", _Q, "Jobs whose worker was gone, put back or condemned."
)
SWEEPS = _count("bullmq_stalled_checker_runs_total", _Q, "Checks for stalled jobs.")
SWEEPS_SKIPPED = _count(
    "bullmq_stalled_checker_skipped_total",
    _Q,
    "Checks for stalled jobs skipped because one still ran.",
)
HEARTBEATS = _count("bullmq_heartbeat_success_total", _Q, "Renewals of the locks of running jobs.")
HEARTBEATS_FAILED = _count("bullmq_heartbeat_failure_total", _Q, "Renewals of locks that failed.")
LOCK_EXTEND = _times(
    "bullmq_lock_extend_duration_seconds", _Q, "How long renewals of locks took.", _TRIP
)
LOCKS_LOST = _count(
    "bullmq_locks_lost_total",
    ("queue", "reason"),
    "Jobs whose lock was lost while they ran: redis_away, loop_blocked, expired, taken, refused.",
)
WORKERS = _level("bullmq_active_workers", _QW, "1 for each running worker.")
CONNECTED = _level(
    "bullmq_redis_connection_status", (), "1 while Redis can be reached, else 0.", least=True
)
REFUSED = _level(
    "bullmq_redis_writes_refused",
    (),
    "1 while Redis refuses writes, because its memory is full or it cannot save, else 0.",
)
RECONNECTS = _count(
    "bullmq_redis_reconnect_attempts_total", (), "Failed attempts to connect to Redis."
)
BREAKER = _level("bullmq_circuit_breaker_state", _QW, "0 closed, 1 half-open, 2 open.")
BREAKER_OPENED = _count(
    "bullmq_circuit_breaker_opened_total", _Q, "How often the circuit breaker opened."
)
LAG = _times(
    "bullmq_event_loop_lag_seconds",
    (),
    "How late a timer of the event loop rang, measured once a second.",
    _LAG,
)
THREADS = _level("bullmq_threads", _W, "Threads that a worker may use for plain functions.")
THREADS_BUSY = _level("bullmq_threads_busy", _W, "Functions that run in a thread or wait for one.")
THREADS_ABANDONED = _level(
    "bullmq_threads_abandoned",
    _W,
    "Threads whose function still runs although its job was given up.",
)
PROCESSES = _level("bullmq_pool_processes", _W, "Processes that a worker has for tasks.")
PROCESSES_BUSY = _level("bullmq_pool_processes_busy", _W, "Processes that run a job.")
PROCESSES_ENDED = _count(
    "bullmq_pool_processes_ended_total",
    ("cause",),
    "Processes that were replaced: died (or had to be ended with their job), recycled.",
)

# Of an exporter or a dashboard, which also measure while no worker runs.

QUEUES = _level("bullmq_queues", (), "Queues that were found, including those left out.")
READABLE = _level("bullmq_queue_readable", _Q, "1 if the queue could be read, else 0.")
PAUSED = _level("bullmq_queue_paused", _Q, "1 while the queue is paused, else 0.")
CONNECTED_WORKERS = _level(
    "bullmq_connected_workers", _Q, "Connected workers of the queue, including Node's."
)
FINISHED = _count(
    "bullmq_jobs_finished_total",
    ("queue", "status"),
    "Jobs that completed or failed for good, as counted by BullMQ's metrics in Redis.",
)
FINISH_RATE = _level(
    "bullmq_jobs_finished_per_second",
    ("queue", "status"),
    "Jobs that completed or failed for good per second, over the last five minutes.",
)
LATENESS = _level(
    "bullmq_schedule_lateness_seconds",
    _Q,
    "How long the next scheduled run has been due; 0 if none is late.",
    "s",
)
MEMORY_USED = _level(
    "bullmq_redis_memory_used_bytes", ("node",), "Memory that a Redis server uses.", "By"
)
MEMORY_LIMIT = _level(
    "bullmq_redis_memory_limit_bytes",
    ("node",),
    "Memory limit of a Redis server (maxmemory); 0 if it has none.",
    "By",
)

ALL: tuple[Metric, ...] = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
BY_NAME = {metric.name: metric for metric in ALL}
