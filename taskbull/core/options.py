"""Options of jobs, workers and queues, with their defaults and checks.

Each option appears twice. A TypedDict of keywords has the type that users may pass, and a Struct
field has the type that taskbull uses internally. A test compares the two. The field is the only
default and `__post_init__` the only check. `core.wire.options` defines how options are stored.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, Unpack, cast

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core.backoff import DEFAULT_BACKOFF, Backoff
from taskbull.core.groups import (
    MAX_CONCURRENCY,
    CostRule,
    GroupRule,
    Groups,
    Limiter,
    call_with,
    names_used,
    read_cost,
    read_group_id,
)
from taskbull.core.keys import MAX_DUE_MS, MAX_PRIORITY, RESERVED_IDS
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_function,
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


class Keep(Struct, frozen=True, kw_only=True):
    """Retention rule for finished jobs: a maximum age, a maximum number, or both.

    Without `age` and `count`, all jobs are kept. Old jobs are removed when another job finishes.

    Example:
        Keep(age=timedelta(days=1), count=1000)
    """

    age: float | None = None
    """Maximum age in seconds. `None` sets no limit."""
    count: int | None = None
    """Maximum number of jobs to keep. `None` sets no limit."""
    limit: int | None = None
    """Maximum number of jobs over `age` that one finishing job removes."""

    if TYPE_CHECKING:  # `age` may be a timedelta; it is stored in seconds.

        def __init__(
            self, *, age: Duration | None = None, count: int | None = None, limit: int | None = None
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
        """Return a rule that keeps every job."""
        return cls()

    @classmethod
    def none(cls) -> Keep:
        """Return a rule that removes each job as soon as it finishes."""
        return cls(count=0)


DEFAULT_KEEP_COMPLETED = Keep(age=timedelta(days=1), count=10_000)
DEFAULT_KEEP_FAILED = Keep(age=timedelta(days=14))


# Job options.


ErrorBackoffs = Mapping[str | type[BaseException], Backoff]
"""Backoffs by exception class or by the name of the class."""

ATTEMPTS = 3
"""Default number of attempts for jobs that taskbull adds."""

SIZE_LIMIT = 10_000_000
KEEP_LOGS = 1000

_MANY_KEPT = 10_000

STREAM_TTL: Final = 3600.0
"""Default for the seconds that a stream lives after its job has ended."""

STREAM_LIMIT: Final = 10_000
"""Default for the maximum number of entries in a stream."""


class StreamRules(Struct, frozen=True):
    """Settings of a task whose function yields items."""

    limit: int
    """Maximum number of entries in a job's stream."""
    life_ms: int
    """Milliseconds that a stream lives after its job has ended."""
    reduce: Callable[[list[Any]], Any] | None
    """Function that makes the job's result from the list of items. None discards the items."""


OnFailure: TypeAlias = Literal["fail", "ignore", "continue", "drop", "wait"]
"""Effect of a failed child on its parent."""

ON_FAILURE: Final = ("fail", "ignore", "continue", "drop", "wait")


class Dedup(Struct, frozen=True):
    """Deduplication rule: add only one job per key, as BullMQ's `deduplication` does.

    The first job holds the key until it finishes, or for `ttl` if that is set. Jobs added with the
    same key during that time are duplicates. They are not added, unless `replace` or `keep_last`
    applies.

    Example:
        Dedup("reindex-42", ttl=60, replace=True)
    """

    key: str
    """Key that the duplicates share."""
    ttl: float | None = None
    """Seconds to hold the key. If `None`, or with `keep_last`, hold it until the job finishes."""
    extend: bool = False
    """Restart `ttl` with each duplicate. Requires `ttl`."""
    replace: bool = False
    """Replace the first job with the duplicate while the first is still delayed."""
    keep_last: bool = False
    """Run the newest duplicate after the first job if that is already running."""

    if TYPE_CHECKING:  # `ttl` may be a timedelta; it is stored in seconds.

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
            raise ConfigurationError("dedup extend=True needs a ttl to extend")


DedupKey: TypeAlias = str | Dedup | Callable[..., str | Dedup | None]
"""Deduplication declared at a task: a format string over its arguments, such as
`"report-{user_id}"`, a `Dedup` with such a key, or a function of the arguments. A function gets
only the arguments that it names, and may return None for a job without a key."""


class DedupRule(Struct, frozen=True):
    """Deduplication that a task declares for all its jobs, before the arguments are known.

    It takes the place of a `Dedup` in a task's options until a job is made.
    """

    key: DedupKey

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            check_text("dedup key", self.key)
        elif not isinstance(self.key, Dedup):
            rule = "be a key, a Dedup or a sync function of the arguments"
            check_function("dedup", self.key, rule)
        for name in self.names:
            if not name.isidentifier():
                raise refusal("dedup", "name parameters in its braces", self.key)

    @property
    def names(self) -> list[str]:
        """The parameters that the format string or the function uses."""
        key = self.key.key if isinstance(self.key, Dedup) else self.key
        if not isinstance(key, str):
            return names_used(key)
        try:
            fields = [field for _, field, _, _ in Formatter().parse(key) if field is not None]
        except ValueError as error:
            raise refusal("dedup", f"be a valid format string ({error})", key) from None
        return [re.split(r"[.\[]", field)[0] for field in fields]

    def of(self, arguments: Mapping[str, Any]) -> Dedup | None:
        """Return the deduplication of a job with these arguments.

        Raises:
            ConfigurationError: If the function returns something else than a key.
        """
        key = self.key
        if isinstance(key, Dedup):
            return replace(key, key=_formatted(key.key, arguments))
        if isinstance(key, str):
            return Dedup(_formatted(key, arguments))
        made = call_with("dedup", key, arguments)
        return Dedup(made) if isinstance(made, str) else _made_dedup(made)


def _formatted(key: str, arguments: Mapping[str, Any]) -> str:
    try:
        return key.format_map(arguments)
    except KeyError as error:
        raise ConfigurationError(f"dedup uses the argument {error}, which the call lacks") from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"dedup {key!r} does not fit the arguments: {error}") from None


def with_dedup_key(
    options: JobOptions, arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> JobOptions:
    """Return the options with the deduplication key of a job with these arguments."""
    rule = cast("object", options.dedup)
    if not isinstance(rule, DedupRule):
        return options
    return replace(options, dedup=rule.of({**defaults, **arguments}))


# Options of tasks with a group resolve to few different ones. Each entry keeps its task's options
# alive, so that no id is reused.
_grouped: dict[tuple[int, str | None, int], tuple[JobOptions, JobOptions]] = {}
_GROUPED_KEPT = 256


def with_group(
    options: JobOptions, arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> JobOptions:
    """Return the options with the group and the cost of a job with these arguments."""
    rule, price = cast("object", options.group), cast("object", options.cost)
    if not isinstance(rule, GroupRule) and not isinstance(price, CostRule):
        return options
    known = {**defaults, **arguments}
    group = rule.of(known) if isinstance(rule, GroupRule) else options.group
    cost = price.of(known) if isinstance(price, CostRule) else options.cost
    entry = _grouped.get((id(options), group, cost))
    if entry is None:
        if len(_grouped) >= _GROUPED_KEPT:
            _grouped.clear()
        entry = options, replace(options, group=group, cost=cost)
        _grouped[id(options), group, cost] = entry
    return entry[1]


def _made_dedup(value: object) -> Dedup | None:
    if value is not None:
        check_type("the result of the dedup function", value, Dedup, "be a key, a Dedup or None")
    return cast("Dedup | None", value)


class AppKeywords(TypedDict, total=False):
    """Job options accepted by apps, tasks, calls and `queue.add`."""

    backoff: Backoff | None
    error_backoffs: ErrorBackoffs | None
    keep_completed: Keep | None
    keep_failed: Keep | None
    timeout: Duration | None
    expires: Duration | datetime | None


class TaskKeywords(AppKeywords, total=False):
    """Job options accepted by tasks, calls and `queue.add`."""

    priority: int
    lifo: bool


class CallKeywords(TaskKeywords, total=False):
    """Job options accepted by calls and `queue.add`.

    Apps and tasks declare `attempts` separately, because it can be `None` there. `None` leaves the
    attempts of jobs added by other producers unchanged.
    """

    attempts: int
    delay: Duration | None
    eta: datetime | None
    job_id: str | None
    dedup: Dedup | str | None
    on_failure: OnFailure | None
    headers: Mapping[str, str] | None
    group: str | int | None


class JobKeywords(CallKeywords, total=False):
    """Job options accepted by `queue.add`, which takes all of them."""

    cost: int
    keep_logs: int | None
    stack_trace_limit: int | None
    size_limit: int


_NO_COST: Final = 1


class JobOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that control how a job is queued, run and kept.

    An option that is `None` is not stored with the job, so the worker's rules apply.

    Raises:
        ConfigurationError: An option is invalid. The message names the option, its value and the
            rule.
    """

    delay: float | None = None
    """Seconds to wait before the job may run. Cannot be combined with `eta`."""
    eta: datetime | None = None
    """Time before which the job does not run. Must be aware."""
    priority: int = 0
    """Priority from 1 (most urgent) to 2,097,151. Jobs with 0 run before all others."""
    lifo: bool = False
    """Run the job before those that are already waiting."""
    attempts: int = ATTEMPTS
    """Total number of attempts, the first included."""
    backoff: Backoff | None = DEFAULT_BACKOFF
    """Delay between attempts."""
    error_backoffs: ErrorBackoffs | None = None
    """Backoffs for specific errors, which take precedence over `backoff`."""
    job_id: str | None = None
    """Custom id. A second job with the same id is not added."""
    dedup: Dedup | None = None
    """Deduplication rule. A string is taken as its key."""
    on_failure: OnFailure | None = None
    """Effect on the parent if this child of a flow fails. `None` uses the parent's setting."""
    headers: Mapping[str, str] | None = None
    """Metadata of the job, such as a request id. Not part of its arguments."""
    group: str | None = None
    """Group of the job, for fair turns and limits per key. Cannot be combined with `priority`."""
    cost: int = 1
    """Cost of the job in the limiter of its group."""
    keep_completed: Keep | None = DEFAULT_KEEP_COMPLETED
    """Retention rule for completed jobs."""
    keep_failed: Keep | None = DEFAULT_KEEP_FAILED
    """Retention rule for failed jobs."""
    timeout: float | None = None
    """Seconds that one attempt may take on a taskbull worker."""
    expires: float | datetime | None = None
    """Deadline for the job to start: seconds after it was added, or an aware datetime."""
    keep_logs: int | None = KEEP_LOGS
    """Maximum number of log lines to keep."""
    stack_trace_limit: int | None = None
    """Maximum number of stack traces to keep."""
    size_limit: int = SIZE_LIMIT
    """Maximum size in bytes of the data and options together, and of the result."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[JobKeywords]) -> None: ...

    def __post_init__(self) -> None:
        self._check_time()
        check_int("priority", self.priority, least=0, most=MAX_PRIORITY)
        check_bool("lifo", self.lifo)
        check_int("attempts", self.attempts, least=1)
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
        if self.headers is not None:
            force_setattr(self, "headers", _read_headers(self.headers))
        if self.group is not None or self.cost is not _NO_COST:
            self._check_group(self.group)
        _check_keep("keep_completed", self.keep_completed)
        _check_keep("keep_failed", self.keep_failed)
        if self.keep_logs is not None:
            check_int("keep_logs", self.keep_logs, least=0)
        if self.stack_trace_limit is not None:
            check_int("stack_trace_limit", self.stack_trace_limit, least=0)
        check_int("size_limit", self.size_limit, least=1)

    def _check_group(self, group: object) -> None:
        force_setattr(self, "cost", read_cost(self.cost))
        if group is None:
            return
        if not isinstance(group, GroupRule):
            force_setattr(self, "group", read_group_id(group))
        if self.priority:
            raise ConfigurationError(
                f"group and priority ({self.priority}) cannot be used together: the turns of the "
                "groups decide when a job starts"
            )

    def _check_time(self) -> None:
        if self.delay is not None:
            force_setattr(self, "delay", seconds("delay", self.delay))
        if self.eta is not None:
            if self.delay is not None:
                raise ConfigurationError(
                    f"delay ({self.delay:g} s) and eta ({shown(self.eta)}) cannot be used together"
                )
            check_instant("eta", self.eta)
            if instant_to_ms(self.eta) > MAX_DUE_MS:
                raise refusal("eta", "be before September 2039 (BullMQ's limit)", self.eta)
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
"""Maximum length of a custom job id, in characters. Ids written by Node may be longer."""


def check_job_id(job_id: object, *, most: int = ID_LIMIT) -> None:
    """Raise `ConfigurationError` if BullMQ rejects the id or it names another queue key."""
    text = check_text("job_id", job_id, most=most)
    parts = text.split(":")
    if re.fullmatch(r"-?[0-9]+", text):
        raise refusal("job_id", "not be an integer (the queue assigns those)", text)
    if text.startswith("0:"):
        raise refusal("job_id", "not start with '0:' (BullMQ uses it as a marker)", text)
    if len(parts) not in {1, 3}:
        raise refusal("job_id", "contain no ':', or exactly two", text)
    if text.startswith("repeat:"):
        raise refusal("job_id", "not start with 'repeat:' (used for runs of schedules)", text)
    if text in RESERVED_IDS or (len(parts) == 3 and parts[0] in RESERVED_IDS):
        raise refusal("job_id", "not be the name of another queue key", text)


_MOST_ERROR_BACKOFFS = 100


def check_error_backoffs(value: object) -> None:
    """Raise `ConfigurationError` unless `value` maps exception classes or names to backoffs."""
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
    check_type("dedup", value, (Dedup, DedupRule), "be a Dedup or its key")
    return value


_HEADERS_LIMIT = 64
_HEADER_LIMIT = 4096


def _read_headers(value: object) -> Mapping[str, str] | None:
    """Return a copy of valid headers, or `None` for an empty mapping."""
    if not isinstance(value, Mapping):
        raise refusal("headers", "be a mapping of names to strings", value)
    headers = dict(cast("Mapping[object, object]", value))
    if len(headers) > _HEADERS_LIMIT:
        raise refusal("headers", f"have at most {_HEADERS_LIMIT} entries", len(headers))
    for name, text in headers.items():
        check_text("header name", name, most=_HEADER_LIMIT)
        if not isinstance(text, str):
            raise refusal(f"header {name!r}", "be a string", text)
        if len(text) > _HEADER_LIMIT:
            raise refusal(f"header {name!r}", f"have at most {_HEADER_LIMIT} characters", len(text))
    return cast("dict[str, str]", headers) or None


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


# Worker and queue options.


MAX_DATA_POINTS = 100_000  # ten weeks


OnLostLock: TypeAlias = Literal["continue", "cancel"]


class WorkerKeywords(TypedDict, total=False):
    """Worker options with the types that users may pass."""

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
    process_env: Mapping[str, str] | None
    shutdown_timeout: Duration
    max_reconnect_attempts: int
    worker_id: str | None
    on_lost_lock: OnLostLock
    loop_block_limit: Duration
    drain_delay: Duration
    burst_wait: Duration
    metrics_data_points: int
    records: bool
    step_ttl: Duration


class WorkerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that control how a worker runs. Durations are in seconds.

    Raises:
        ConfigurationError: An option is invalid. The message names the option, its value and the
            rule.
    """

    concurrency: int = 10
    """Number of jobs that run concurrently in each queue."""
    lock_duration: float = 30.0
    """Time until a job's lock expires unless it is renewed."""
    heartbeat_interval: float = 15.0
    """Interval between lock renewals. Must be shorter than `lock_duration`."""
    stalled_interval: float = 30.0
    """Interval between checks for jobs whose worker died."""
    max_stalled_count: int = 1
    """Number of times that a job may stall before it fails."""
    limiter: Limiter | None = None
    """Rate limit of the queues, shared by all their workers."""
    threads: int | None = None
    """Number of threads for sync functions. `None` means one per slot, at most 64."""
    process_pool: int | None = None
    """Number of processes for tasks with `process=True`. `None` means one per core."""
    process_max_jobs: int | None = None
    """Number of jobs that a pool process runs before it is replaced."""
    process_max_memory: int | None = None
    """Memory in MB above which a pool process is replaced after a job."""
    process_memory_limit: int | None = None
    """Address space limit of a pool process in MB. Exceeding it raises `MemoryError`."""
    process_env: Mapping[str, str] | None = None
    """Environment variables of pool processes. `{n}` is the process's number, from 0.

    A process that replaces another one gets its number. So `{"CUDA_VISIBLE_DEVICES": "{n}"}` gives
    each process its own GPU.
    """
    shutdown_timeout: float = 30.0
    """Time for running jobs to finish when the worker stops."""
    max_reconnect_attempts: int = 0
    """Number of failed connection attempts before the worker gives up. 0 means no limit."""
    worker_id: str | None = None
    """Name in logs, in `CLIENT LIST` and in the jobs that it ran. Generated if `None`."""
    on_lost_lock: OnLostLock = "continue"
    """Handling of a running job that lost its lock: "continue" or "cancel"."""
    loop_block_limit: float = 300.0
    """Maximum time that the event loop may be blocked. Beyond it, locks are not renewed."""
    drain_delay: float = 5.0
    """Interval between an idle worker's checks for jobs if nothing wakes it up."""
    burst_wait: float = 30.0
    """Time within which a delayed job must be due for a burst to wait for it."""
    metrics_data_points: int = 1440
    """Number of minutes to keep BullMQ's per-minute counts in Redis. 0 disables them."""
    records: bool = True
    """Publish status records for `taskbull top` and the dashboard."""
    step_ttl: float = 7 * 86_400.0
    """Time to keep the results of a job's steps after the last one, unless the job is removed."""

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
        if self.process_env is not None:
            _check_environment(self.process_env)
        check_int("max_reconnect_attempts", self.max_reconnect_attempts, least=0)
        if self.worker_id is not None:
            check_worker_id(self.worker_id)
        check_choice("on_lost_lock", self.on_lost_lock, ("continue", "cancel"))
        check_int("metrics_data_points", self.metrics_data_points, least=0, most=MAX_DATA_POINTS)
        check_bool("records", self.records)


class QueueKeywords(TypedDict, total=False):
    """Queue options with the types that users may pass."""

    concurrency: int | None
    limiter: Limiter | None
    global_concurrency: int | None
    groups: Groups | None


class QueueOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one queue that apply in every worker of the app.

    An option that is `None` sets no rule for the queue.
    """

    concurrency: int | None = None
    """Maximum number of jobs that run concurrently in each worker."""
    limiter: Limiter | None = None
    """Rate limit of the queue. Overrides the worker's."""
    global_concurrency: int | None = None
    """Maximum number of jobs that run concurrently across all workers, including Node's."""
    groups: Groups | None = None
    """Limits and weights of the queue's groups."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[QueueKeywords]) -> None: ...

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency("concurrency", self.concurrency)
        if self.global_concurrency is not None:
            check_int("global_concurrency", self.global_concurrency, least=1)
        if self.groups is not None:
            check_type("groups", self.groups, Groups, "be Groups")
        if self.limiter is not None:
            check_type("limiter", self.limiter, Limiter, "be a Limiter")

    def over(self, worker: WorkerOptions) -> WorkerOptions:
        """Return a worker's options overridden by those of this queue."""
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
    "step_ttl",
)


def check_concurrency(field: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is an int from 1 to `MAX_CONCURRENCY`.

    The upper limit exists because each slot uses memory even while it is idle.
    """
    check_int(field, value, least=1, most=MAX_CONCURRENCY)


def _check_environment(variables: object) -> None:
    check_type("process_env", variables, Mapping, "be a dict of environment variables")
    for name, value in cast("Mapping[object, object]", variables).items():
        text = check_text("a name in process_env", name)
        if "=" in text or "\0" in text:
            raise refusal("a name in process_env", "not contain '=' or NUL", name)
        if not isinstance(value, str) or "\0" in value:
            raise refusal(f"process_env[{text!r}]", "be a string without NUL", value)


def check_worker_id(worker_id: object) -> None:
    """Raise `ConfigurationError` if a Redis client name cannot contain the id."""
    text = check_text("worker_id", worker_id, most=255)
    if not re.fullmatch(r"[!-~]+", text):
        raise refusal("worker_id", "be printable ASCII without spaces", text)
