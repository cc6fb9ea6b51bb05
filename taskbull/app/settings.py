"""What a task was declared with, checked, its app's values filled in."""

from __future__ import annotations

from msgspec import Struct

from taskbull.app.arguments import Extra
from taskbull.app.options import TaskOptions, of_task
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.checks import check_choice, check_text, check_type
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import JobOptions
from taskbull.core.retry import RetryPolicy


class TaskSettings(Struct, frozen=True, kw_only=True):
    """What a task was declared with, its app's values filled in."""

    name: str
    queue: str
    options: JobOptions
    policy: RetryPolicy
    circuit_breaker: CircuitBreaker | None
    extra: Extra

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
        """Give the settings of a task; refuse what is not valid."""
        queue = given.get("queue")
        breaker = given.get("circuit_breaker")
        if breaker is not None:
            check_type("circuit_breaker", breaker, CircuitBreaker, "be a CircuitBreaker")
        extra = given.get("extra", "error")
        check_choice("extra", extra, ("error", "ignore"))
        own = RetryPolicy(
            attempts=given.get("attempts"),
            backoff=given.get("backoff"),
            error_backoffs=given.get("error_backoffs"),
            classify=given.get("classify"),
        )
        return TaskSettings(
            name=check_text("task name", name, most=NAME_LIMIT),
            queue=self.queue if queue is None else queue,
            options=of_task(self.options, given),
            policy=own.over(self.policy),
            circuit_breaker=breaker,
            extra=extra,
        )
