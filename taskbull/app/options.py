"""What may be said about a task where it is declared, and about one call of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar, cast

from msgspec import structs

from taskbull.app.arguments import Extra
from taskbull.core.backoff import Backoff
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.celery import SETTINGS, celery_hint
from taskbull.core.checks import did_you_mean
from taskbull.core.classification import Classifier
from taskbull.core.durations import Duration
from taskbull.core.options import Dedup, ErrorBackoffs, JobOptions
from taskbull.core.retention import Keep
from taskbull.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


class TaskOptions(TypedDict, total=False):
    """The options of `@app.task`; what is None, or not there, is the app's."""

    name: str | None
    queue: str | None
    attempts: int | None
    backoff: Backoff | None
    error_backoffs: ErrorBackoffs | None
    circuit_breaker: CircuitBreaker | None
    timeout: Duration | None
    priority: int
    lifo: bool
    keep_completed: Keep | None
    keep_failed: Keep | None
    classify: Classifier | None
    extra: Extra


class CallOptions(TypedDict, total=False):
    """The options of `task.options`, for one call or many; what is not there is the task's."""

    delay: Duration | None
    eta: datetime | None
    priority: int
    lifo: bool
    attempts: int
    backoff: Backoff | None
    error_backoffs: ErrorBackoffs | None
    job_id: str | None
    dedup: Dedup | str | None
    keep_completed: Keep | None
    keep_failed: Keep | None
    timeout: Duration | None
    queue: str


_STORED_BY_TASK = (
    "attempts",
    "backoff",
    "error_backoffs",
    "timeout",
    "priority",
    "lifo",
    "keep_completed",
    "keep_failed",
)


def takes_settings(function: F) -> F:
    """Let a function say more about a keyword that it does not take than Python does."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        for name in settings:
            if name not in known:
                hint = celery_hint(name, SETTINGS) or did_you_mean(name, known)
                raise TypeError(f"App() got an unexpected keyword argument {name!r}{hint}")
        return function(*args, **settings)

    return cast("F", call)


def of_task(app: JobOptions, given: TaskOptions) -> JobOptions:
    """Give what the jobs of a task store: the task's own options over the app's."""
    values = cast("Mapping[str, Any]", given)
    said = {name: values[name] for name in _STORED_BY_TASK if values.get(name) is not None}
    return structs.replace(app, **said)


def of_call(task: JobOptions, given: CallOptions) -> JobOptions:
    """Give what one job stores: the call's options over the task's."""
    values = cast("Mapping[str, Any]", given)
    said = {name: value for name, value in values.items() if name != "queue"}
    _refuse_functions(said.get("backoff"), said.get("error_backoffs"))
    if said.get("delay") is not None:
        said.setdefault("eta", None)
    elif said.get("eta") is not None:
        said.setdefault("delay", None)
    return structs.replace(task, **said)


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
