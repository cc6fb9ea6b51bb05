"""Settings of tasks, calls and queues, merged with the defaults of the app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct, structs
from msgspec.structs import asdict, replace

from taskbull.app.signature import Extra
from taskbull.core.backoff import Backoff
from taskbull.core.events import FailureHook, SuccessHook
from taskbull.core.groups import Cost, GroupBy, GroupRule
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import (
    ATTEMPTS,
    NO_RULES,
    STREAM_LIMIT,
    STREAM_TTL,
    AppKeywords,
    CallKeywords,
    DedupKey,
    DedupRule,
    JobOptions,
    QueueOptions,
    StreamRules,
    TaskKeywords,
    check_concurrency,
)
from taskbull.core.outcome import Classifier
from taskbull.core.retry import CircuitBreaker, RetryKeywords, RetryPolicy, UnknownErrors
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_function,
    check_int,
    check_text,
    check_type,
    refusal,
    seconds,
    takes,
    to_ms,
)
from taskbull.errors import ConfigurationError

if TYPE_CHECKING:
    from taskbull.core.schedule import Rule


# Task and call options


GRACE: Final = 5.0
"""Seconds that a function in a pool process has to clean up when it is stopped."""


TaskNames: TypeAlias = Literal["function", "module"]
"""Default name of a task: its function's name, with or without the module."""


class TaskOptions(RetryKeywords, TaskKeywords, total=False):
    """Options of `@app.task`. An option that is missing or None uses the app's value."""

    name: str | None
    queue: str | None
    attempts: int | None
    circuit_breaker: CircuitBreaker | None
    classify: Classifier | None
    extra: Extra
    schedule: Rule | None
    process: bool
    grace: Duration
    dedup: DedupKey | None
    group_by: GroupBy | None
    cost: Cost
    on_success: SuccessHook | None
    on_failure: FailureHook | None
    stream_ttl: Duration
    stream_limit: int


class RemoteOptions(TaskKeywords, total=False):
    """Options of `@app.remote`. An option that is missing or None uses the app's value."""

    name: str | None
    queue: str | None
    attempts: int | None
    dedup: DedupKey | None
    group_by: GroupBy | None
    cost: Cost


class GroupOptions(RetryKeywords, AppKeywords, total=False):
    """Defaults that apps and groups accept for all their tasks."""

    process: bool
    grace: Duration
    dedup: DedupKey | None
    tz: str
    names: TaskNames


class CallOptions(CallKeywords, total=False):
    """Options of `task.options`. A missing option uses the task's value."""

    cost: Cost
    queue: str


class TaskSettings(Struct, frozen=True, kw_only=True):
    """Settings of a task, including the app's defaults."""

    name: str
    queue: str
    options: JobOptions
    policy: RetryPolicy
    circuit_breaker: CircuitBreaker | None
    extra: Extra
    process: bool = False
    """True if the function runs in a pool process."""
    grace: float = GRACE
    """Seconds that the function has to clean up when its process is stopped."""
    on_success: SuccessHook | None = None
    """Function to call with each completed job and its result."""
    on_failure: FailureHook | None = None
    """Function to call with each permanently failed job and its failure."""

    stream: StreamRules | None = None
    """Settings of the job's stream if the function yields, otherwise None."""

    @property
    def has_hooks(self) -> bool:
        """True if the task has functions to call when its jobs have ended."""
        return self.on_success is not None or self.on_failure is not None

    @property
    def timeout(self) -> float | None:
        """The time limit of one attempt, in seconds."""
        return self.options.timeout


class Defaults(Struct, frozen=True):
    """Defaults of an app or group for all its tasks."""

    queue: str
    options: JobOptions
    policy: RetryPolicy
    process: bool = False
    """True if sync functions run in a pool process. An `async def` never does."""
    grace: float = GRACE
    tz: str | None = None
    """Time zone of `Cron` rules without a time zone."""

    def with_task(self, name: str, given: TaskOptions, *, is_async: bool = False) -> TaskSettings:
        """Return the settings of a task.

        Raises:
            ConfigurationError: If an option is invalid.
        """
        queue = given.get("queue")
        breaker = given.get("circuit_breaker")
        if breaker is not None:
            check_type("circuit_breaker", breaker, CircuitBreaker, "be a CircuitBreaker")
        extra = given.get("extra", "error")
        check_choice("extra", extra, ("error", "ignore"))
        process = given.get("process", self.process and not is_async)
        check_bool("process", process)
        if "grace" in given and not process:
            raise ConfigurationError(
                "grace needs process=True: only a function in a process can be stopped"
            )
        own = RetryPolicy(**_fields_of(RetryPolicy, given))
        said = _fields_of(JobOptions, given)
        said = {name: value for name, value in said.items() if value is not None}
        said.pop("on_failure", None)  # The hook, not the option of a child in a flow.
        if "dedup" in said:
            said["dedup"] = DedupRule(said["dedup"])
        group_by = given.get("group_by")
        if group_by is not None:
            said["group"] = GroupRule(group_by)
        return TaskSettings(
            name=check_text("task name", name, most=NAME_LIMIT),
            queue=self.queue if queue is None else queue,
            options=structs.replace(self.options, **said),
            policy=own.over(self.policy),
            circuit_breaker=breaker,
            extra=extra,
            process=process,
            grace=seconds("grace", given.get("grace", self.grace)),
            on_success=_hook("on_success", given.get("on_success")),
            on_failure=_hook("on_failure", given.get("on_failure")),
        )


def stream_rules(
    given: TaskOptions, reduce: Callable[[list[Any]], Any] | None, *, yields: bool
) -> StreamRules | None:
    """Return the settings of a task's streams, or None if its function does not yield.

    Raises:
        ConfigurationError: If an option is invalid, or the function does not yield.
    """
    if not yields:
        for option in ("stream_ttl", "stream_limit"):
            if option in given:
                raise ConfigurationError(f"{option} needs a function that yields")
        if reduce is not list:
            raise ConfigurationError("reduce needs a function that yields")
        return None
    if reduce is not None:
        rule = "be a sync function that takes the list of items, or None"
        check_function("reduce", reduce, rule, 1)
    limit = given.get("stream_limit", STREAM_LIMIT)
    check_int("stream_limit", limit, least=1)
    life = seconds("stream_ttl", given.get("stream_ttl", STREAM_TTL), positive=True)
    return StreamRules(limit, max(1, to_ms(life)), reduce)


H = TypeVar("H")


def _hook(field: str, function: H) -> H:
    if function is not None and not (callable(function) and takes(function, 2)):
        result = "result" if field == "on_success" else "failure"
        raise refusal(field, f"be a function that takes the job and its {result}", function)
    return function


def defaults_of(
    queue: str,
    attempts: int | None,
    classify: Classifier | None,
    unknown_errors: UnknownErrors,
    given: GroupOptions,
) -> Defaults:
    """Return the defaults that an app or group was created with.

    Raises:
        ConfigurationError: If an option is invalid.
    """
    said = _fields_of(JobOptions, given)
    if said.get("dedup") is not None:
        said["dedup"] = DedupRule(said["dedup"])
    jobs = JobOptions(attempts=ATTEMPTS if attempts is None else attempts, **said)
    retries: dict[str, Any] = {**_fields_of(RetryPolicy, given), "backoff": jobs.backoff}
    policy = RetryPolicy(
        attempts=attempts, classify=classify, unknown_errors=unknown_errors, **retries
    )
    process = given.get("process", False)
    check_bool("process", process)
    tz = given.get("tz")
    if tz is not None:
        from taskbull.core.schedule import Cron  # noqa: PLC0415 - few apps have a time zone

        Cron("@daily", tz=tz)  # It raises if the zone is unknown.
    return Defaults(
        queue,
        jobs,
        policy,
        process=process,
        grace=seconds("grace", given.get("grace", GRACE)),
        tz=tz,
    )


def with_call(task: JobOptions, given: CallOptions) -> JobOptions:
    """Return the options to store in a job: the call's options over the task's.

    Raises:
        ConfigurationError: If a backoff is a function, which cannot be stored.
    """
    said = _fields_of(JobOptions, given)
    _refuse_functions(said.get("backoff"), said.get("error_backoffs"))
    if said.get("delay") is not None:
        said.setdefault("eta", None)
    elif said.get("eta") is not None:
        said.setdefault("delay", None)
    return structs.replace(task, **said)


def _fields_of(
    kind: type[JobOptions | RetryPolicy], given: TaskOptions | CallOptions | GroupOptions
) -> dict[str, Any]:
    """Return only the options that are fields of this class."""
    return {name: value for name, value in given.items() if name in kind.__struct_fields__}


def _refuse_functions(backoff: object, error_backoffs: object) -> None:
    by_error: Mapping[Any, object] = {}
    if isinstance(error_backoffs, Mapping):
        by_error = cast("Mapping[Any, object]", error_backoffs)
    for each in (backoff, *by_error.values()):
        if isinstance(each, Backoff) and each.function is not None:
            raise ConfigurationError(
                "Backoff.custom(…) cannot be used for a single call, because a job cannot store a "
                "function. Pass it to @app.task or to App"
            )


# Queue rules that apply to all workers of the app


Queues: TypeAlias = str | Sequence[str] | Mapping[str, int | None]
"""One queue, several, or a mapping of queues to concurrency. None means the default."""


class QueueRules:
    """Holds the rules declared for queues."""

    def __init__(self) -> None:
        self._declared: dict[str, QueueOptions] = {}

    @property
    def queues(self) -> list[str]:
        """The queues that have rules."""
        return list(self._declared)

    def declare(self, queue: str, options: QueueOptions) -> None:
        """Add rules for a queue.

        Raises:
            ConfigurationError: If a rule contradicts one that is already declared.
        """
        known = asdict(self._declared.get(queue, NO_RULES))
        new = {name: value for name, value in asdict(options).items() if value is not None}
        for name, value in new.items():
            if known[name] is not None and known[name] != value:
                raise ConfigurationError(
                    f"Queue '{queue}' has two different values for {name}: {known[name]!r} and "
                    f"{value!r}. app.queue_options() can be called several times for a queue, but "
                    "only with the same values"
                )
        self._declared[queue] = QueueOptions(**{**known, **new})

    def for_worker(self, queues: Queues) -> dict[str, QueueOptions]:
        """Return the rules for a worker's queues. A number in `queues` overrides a declared one."""
        if isinstance(queues, str):
            queues = [queues]
        check_type("queues", queues, Iterable, "be a queue, a list of them, or a mapping")
        numbers = queues if isinstance(queues, Mapping) else dict.fromkeys(queues)
        return {queue: self._with(queue, number) for queue, number in numbers.items()}

    def _with(self, queue: str, concurrency: int | None) -> QueueOptions:
        rules = self._declared.get(queue, NO_RULES)
        if concurrency is None:
            return rules
        check_concurrency(f"concurrency of queue {queue}", concurrency)
        return replace(rules, concurrency=concurrency)
