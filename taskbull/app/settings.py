"""What users say about a task and about one call of it, over what they say about the app."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from msgspec import Struct, structs
from msgspec.structs import asdict, replace

from taskbull.app.signature import Extra
from taskbull.core.backoff import Backoff
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.failure import Classifier
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import (
    NO_RULES,
    CallKeywords,
    JobOptions,
    QueueOptions,
    TaskKeywords,
    check_concurrency,
)
from taskbull.core.retry import RetryPolicy
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_text,
    check_type,
    seconds,
)
from taskbull.errors import ConfigurationError

if TYPE_CHECKING:
    from taskbull.core.schedule import Rule


# What users say about a task and about one call of it, over what they say about the app.


GRACE: Final = 5.0
"""Seconds that a function in a process has to end when it is told to."""


class TaskOptions(TaskKeywords, total=False):
    """The options of `@app.task`; what is None, or not there, is the app's."""

    name: str | None
    queue: str | None
    attempts: int | None
    circuit_breaker: CircuitBreaker | None
    classify: Classifier | None
    extra: Extra
    schedule: Rule | None
    process: bool
    grace: Duration


class CallOptions(CallKeywords, total=False):
    """The options of `task.options`, for one call or many; what is not there is the task's."""

    queue: str


class TaskSettings(Struct, frozen=True, kw_only=True):
    """What a task was declared with, its app's values filled in."""

    name: str
    queue: str
    options: JobOptions
    policy: RetryPolicy
    circuit_breaker: CircuitBreaker | None
    extra: Extra
    process: bool = False
    """Whether the function runs in a process of the pool."""
    grace: float = GRACE
    """Seconds that it has to end there when it is told to."""

    @property
    def timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        return self.options.timeout


class Defaults(Struct, frozen=True):
    """What an app says for all its tasks."""

    queue: str
    options: JobOptions
    policy: RetryPolicy

    def with_task(self, name: str, given: TaskOptions) -> TaskSettings:
        """Return the settings of a task; refuse what is not valid."""
        queue = given.get("queue")
        breaker = given.get("circuit_breaker")
        if breaker is not None:
            check_type("circuit_breaker", breaker, CircuitBreaker, "be a CircuitBreaker")
        extra = given.get("extra", "error")
        check_choice("extra", extra, ("error", "ignore"))
        process = given.get("process", False)
        check_bool("process", process)
        if "grace" in given and not process:
            raise ConfigurationError(
                "grace is for tasks with process=True: no other function can be ended"
            )
        own = RetryPolicy(
            attempts=given.get("attempts"),
            backoff=given.get("backoff"),
            error_backoffs=given.get("error_backoffs"),
            classify=given.get("classify"),
        )
        said = {name: value for name, value in _of_job(given).items() if value is not None}
        return TaskSettings(
            name=check_text("task name", name, most=NAME_LIMIT),
            queue=self.queue if queue is None else queue,
            options=structs.replace(self.options, **said),
            policy=own.over(self.policy),
            circuit_breaker=breaker,
            extra=extra,
            process=process,
            grace=seconds("grace", given.get("grace", GRACE)),
        )


def with_call(task: JobOptions, given: CallOptions) -> JobOptions:
    """Return what one job stores: the call's options over the task's."""
    said = _of_job(given)
    _refuse_functions(said.get("backoff"), said.get("error_backoffs"))
    if said.get("delay") is not None:
        said.setdefault("eta", None)
    elif said.get("eta") is not None:
        said.setdefault("delay", None)
    return structs.replace(task, **said)


def _of_job(given: TaskOptions | CallOptions) -> dict[str, Any]:
    """Return the options that a job stores, without those of the task itself."""
    fields = JobOptions.__struct_fields__
    return {name: value for name, value in given.items() if name in fields}


def _refuse_functions(backoff: object, error_backoffs: object) -> None:
    by_error: Mapping[Any, object] = {}
    if isinstance(error_backoffs, Mapping):
        by_error = cast("Mapping[Any, object]", error_backoffs)
    for each in (backoff, *by_error.values()):
        if isinstance(each, Backoff) and each.function is not None:
            raise ConfigurationError(
                "Backoff.custom(…) cannot be given to one call: a function cannot be stored with a "
                "job. Give it to @app.task or to the App"
            )


# What an app says about its queues, for all workers of the app that serve them.


Queues: TypeAlias = str | Sequence[str] | Mapping[str, int | None]
"""One queue or several; a mapping gives each a concurrency of its own, None: the usual one."""


class QueueRules:
    """Knows the rules of the queues."""

    def __init__(self) -> None:
        self._declared: dict[str, QueueOptions] = {}

    @property
    def queues(self) -> list[str]:
        """The queues that have any."""
        return list(self._declared)

    def declare(self, queue: str, options: QueueOptions) -> None:
        """Note rules; more of them may follow elsewhere, but none that contradicts another."""
        known = asdict(self._declared.get(queue, NO_RULES))
        new = {name: value for name, value in asdict(options).items() if value is not None}
        for name, value in new.items():
            if known[name] not in {None, value}:
                raise ConfigurationError(
                    f"Queue {queue} would have two different values of {name}: {known[name]!r} and "
                    f"{value!r}. app.queue_options may be called several times for a queue, but "
                    "each rule has one value"
                )
        self._declared[queue] = QueueOptions(**{**known, **new})

    def for_worker(self, queues: Queues) -> dict[str, QueueOptions]:
        """Return the rules of a worker's queues; a number in `queues` overrides a declared one."""
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
