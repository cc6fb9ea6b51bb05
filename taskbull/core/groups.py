"""Groups of jobs: fair turns and limits per key, and the rate limit that queues have too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from taskbull.core.validation import (
    MAX_SAFE_INTEGER,
    Duration,
    check_bool,
    check_function,
    check_int,
    check_text,
    check_type,
    refusal,
    seconds,
)
from taskbull.errors import ConfigurationError

ID_LIMIT: Final = 255
"""Maximum length of a group's id, in characters."""

MAX_WEIGHT: Final = 1000

MAX_CONCURRENCY: Final = 100_000

GroupBy: TypeAlias = str | Callable[..., str | int | None]
"""Rule for the group of a job: the name of a parameter, or a function of the arguments. A
value of None means no group. A function gets only the arguments that it names."""

Cost: TypeAlias = int | str | Callable[..., int]
"""Cost of a job in its group's limiter: a number, the name of a parameter, or a function of
the arguments."""


class Limiter(Struct, frozen=True):
    """Rate limit: start at most `max` jobs of a queue per `duration`, across all its workers.

    As the limiter of a group, it counts the `cost` of the group's jobs, which is 1 by default.

    Example:
        Limiter(100, 60)  # 100 jobs per minute
    """

    max: int
    """Number of jobs that may start in each window."""
    duration: float
    """Length of the window in seconds."""

    if TYPE_CHECKING:  # `duration` may be a timedelta; it is stored in seconds.

        def __init__(self, max: int, duration: Duration) -> None: ...  # noqa: A002

    def __post_init__(self) -> None:
        check_int("limiter max", self.max, least=1, most=MAX_SAFE_INTEGER - 1)
        force_setattr(self, "duration", seconds("limiter duration", self.duration, positive=True))


class Groups(Struct, frozen=True, kw_only=True):
    """Rules for every group of a queue. `queue.set_group` overrides them for one group.

    Example:
        app.queue_options("llm", groups=Groups(concurrency=2, weights={"enterprise": 5}))
    """

    concurrency: int | None = None
    """Maximum number of jobs of a group that run concurrently across all taskbull workers."""
    limiter: Limiter | None = None
    """Rate limit of each group. It counts the `cost` of the jobs."""
    weights: Mapping[str, int] = {}
    """Number of jobs that a group may start per turn. Groups that are missing here have 1."""

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_group_concurrency(self.concurrency)
        if self.limiter is not None:
            check_type("groups limiter", self.limiter, Limiter, "be a Limiter")
        check_type("groups weights", self.weights, Mapping, "be a mapping of groups to numbers")
        weights = {read_group_id(group): weight for group, weight in self.weights.items()}
        for group, weight in weights.items():
            check_weight(f"weight of group {group!r}", weight)
        force_setattr(self, "weights", weights)


class GroupChanges(Struct, frozen=True, kw_only=True):
    """Changes of the settings of one group. None removes a setting, and UNSET keeps it."""

    concurrency: int | UnsetType | None = UNSET
    limiter: Limiter | UnsetType | None = UNSET
    weight: int | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency is not UNSET:
            check_group_concurrency(self.concurrency)
        if self.limiter is not None and self.limiter is not UNSET:
            check_type("group limiter", self.limiter, Limiter, "be a Limiter")
        if self.weight is not None and self.weight is not UNSET:
            check_weight("group weight", self.weight)
        if self.paused is not UNSET:
            check_bool("group paused", self.paused)


class GroupInfo(Struct, frozen=True):
    """State of one group of a queue."""

    id: str
    waiting: int
    """Number of waiting jobs that may start in the group's turn."""
    active: int
    """Number of running jobs."""
    held: int
    """Number of waiting jobs that may not start now, because of a limit or a pause."""
    paused: bool
    limited_until: datetime | None
    """End of the limiter's window, if its limit is reached."""
    concurrency: int | None
    """Maximum number of running jobs, or None for no limit."""
    weight: int
    """Number of jobs that the group may start per turn."""
    limiter: Limiter | None = None
    """Limit of the jobs started per window, or None for no limit."""


def check_group_concurrency(value: object) -> None:
    """Raise `ConfigurationError` unless `value` is a valid concurrency of a group."""
    check_int("group concurrency", value, least=1, most=MAX_CONCURRENCY)


def check_weight(field: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is a valid weight."""
    check_int(field, value, least=1, most=MAX_WEIGHT)


def check_cost(value: object) -> int:
    """Return a valid cost of a job.

    Raises:
        ConfigurationError: If it is not an int from 0.
    """
    check_int("cost", value, least=0)
    return cast("int", value)


def check_added_cost(value: object) -> int:
    """Return a valid correction of a cost.

    Raises:
        ConfigurationError: If it is not an int.
    """
    check_int("cost", value, least=-MAX_SAFE_INTEGER)
    return cast("int", value)


def read_group_id(value: object) -> str:
    """Return the id of a group as text.

    Raises:
        ConfigurationError: If it is not a non-empty str of at most 255 characters, or an int.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return check_text("group", value, most=ID_LIMIT)


class GroupRule(Struct, frozen=True):
    """Group and cost that a task declares for all its jobs, before the arguments are known.

    They take the place of the group and the cost in a task's options until a job is made.
    """

    group_by: GroupBy

    def __post_init__(self) -> None:
        if callable(self.group_by):
            check_function("group_by", self.group_by, "be a parameter's name or a sync function")
        else:
            check_text("group_by", self.group_by)

    @property
    def names(self) -> list[str]:
        """The parameters of the task that the rule uses."""
        return names_used(self.group_by)

    def of(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the group of a job with these arguments, or None if it has none.

        Raises:
            ConfigurationError: If the value is not a group's id.
        """
        found = _value("group_by", self.group_by, arguments)
        return None if found is None else read_group_id(found)


class CostRule(Struct, frozen=True):
    """Cost that depends on the arguments: the name of a parameter, or a function of them."""

    cost: str | Callable[..., object]

    def __post_init__(self) -> None:
        if callable(self.cost):
            check_function("cost", self.cost, "be an int, a parameter's name or a sync function")
        else:
            check_text("cost", self.cost)

    @property
    def names(self) -> list[str]:
        """The parameters of the task that the rule uses."""
        return names_used(self.cost)

    def of(self, arguments: Mapping[str, Any]) -> int:
        """Return the cost of a job with these arguments.

        Raises:
            ConfigurationError: If the value is not an int from 0.
        """
        return check_cost(_value("cost", self.cost, arguments))


def read_cost(value: object) -> int | CostRule:
    """Return the cost of a task or a call, as a number or as a rule.

    Raises:
        ConfigurationError: If it is not an int, the name of a parameter, or a function.
    """
    if isinstance(value, CostRule):
        return value
    if isinstance(value, str) or callable(value):
        return CostRule(value)
    if not isinstance(value, int):
        raise refusal("cost", "be an int, the name of a parameter, or a function", value)
    return check_cost(value)


_NAMED: Final = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@lru_cache(maxsize=1024)
def _read_names(function: Callable[..., Any]) -> tuple[list[str], list[str]] | None:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    named = [each for each in parameters if each.kind in _NAMED]
    required = [each.name for each in named if each.default is each.empty]
    return [each.name for each in named], required


def _names_of(function: Callable[..., Any]) -> tuple[list[str], list[str]] | None:
    """Return the names of all parameters and of the required ones, or None for any names."""
    try:
        return _read_names(function)
    except (TypeError, ValueError):  # It has no signature, or is not hashable.
        return None


def names_used(source: str | Callable[..., Any]) -> list[str]:
    """Return the parameters of a task that a rule needs: a name, or those that a function takes."""
    if isinstance(source, str):
        return [source]
    names = _names_of(source)
    return [] if names is None else names[1]


def call_with(field: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call the function of an option with those of a job's arguments that it takes.

    Raises:
        ConfigurationError: If the function needs an argument that the job does not have.
    """
    names = _names_of(function)
    if names is None:
        return function(**arguments)
    for name in names[1]:
        check_used(field, name, arguments)
    return function(**{name: arguments[name] for name in names[0] if name in arguments})


def check_used(field: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if a job lacks an argument that an option uses."""
    if name not in arguments:
        raise ConfigurationError(f"{field} uses the argument {name!r}, which the call lacks")


def _value(field: str, source: str | Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if not isinstance(source, str):
        return call_with(field, source, arguments)
    check_used(field, source, arguments)
    return arguments[source]
