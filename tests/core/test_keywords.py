"""The keywords that type checkers know, and the fields that they become, are the same."""

from __future__ import annotations

from datetime import timedelta
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from taskbull.core.backoff import Backoff
from taskbull.core.options import (
    JobKeywords,
    JobOptions,
    Keep,
    QueueKeywords,
    QueueOptions,
    WorkerKeywords,
    WorkerOptions,
)
from taskbull.core.validation import check_keywords
from taskbull.core.wire.options import encode_options
from taskbull.errors import ConfigurationError

CONVERTED = {timedelta, str, int}
"""Alternative types of arguments: of seconds, of a `Dedup`, and of a group id."""


@pytest.mark.parametrize(
    ("options", "keywords"),
    [(JobOptions, JobKeywords), (WorkerOptions, WorkerKeywords), (QueueOptions, QueueKeywords)],
)
def test_each_field_has_a_keyword_of_its_type(options: type, keywords: type) -> None:
    fields, given = get_type_hints(options), get_type_hints(keywords)
    assert fields.keys() == given.keys()
    for name, held in fields.items():
        assert members(held) <= members(given[name]), name
        assert members(given[name]) - members(held) <= CONVERTED, name


@pytest.mark.parametrize("options", [JobOptions, WorkerOptions, QueueOptions])
def test_no_field_holds_what_is_converted(options: type) -> None:
    for name, held in get_type_hints(options).items():
        assert timedelta not in members(held), name


@pytest.mark.parametrize(
    ("options", "given"),
    [(JobOptions, JobKeywords), (WorkerOptions, WorkerKeywords)],
)
def test_a_duration_is_float_seconds_once_it_is_given(options: type, given: type) -> None:
    hints = get_type_hints(given)
    durations = [name for name, hint in hints.items() if timedelta in members(hint)]
    assert durations
    for name in durations:
        for value in (2, 2.0, timedelta(seconds=2)):
            extra: dict[str, Any] = {"heartbeat_interval": 1} if name == "lock_duration" else {}
            held = getattr(options(**{name: value}, **extra), name)
            assert (type(held), held) == (float, 2.0), name


def members(hint: Any) -> set[Any]:
    """Return the types in a union, or the one type."""
    return set(get_args(hint)) if get_origin(hint) in {Union, UnionType} else {hint}


OTHER_THAN_DEFAULT: dict[str, Any] = {
    "priority": 5,
    "lifo": True,
    "attempts": 7,
    "backoff": Backoff.fixed(7),
    "error_backoffs": {"X": Backoff.fixed(7)},
    "job_id": "a",
    "dedup": "a",
    "headers": {"a": "b"},
    "group": "a",
    "keep_completed": Keep(count=7),
    "keep_failed": Keep(count=7),
    "timeout": 7,
    "keep_logs": 7,
    "stack_trace_limit": 7,
    "size_limit": 7,
}


def test_each_option_of_a_job_is_stored() -> None:
    by_time = {"delay", "eta", "expires"}  # counted from the moment of adding
    of_flows = {"on_failure"}  # From the parent link of a child.
    of_groups = {"cost"}  # with a group
    assert OTHER_THAN_DEFAULT.keys() | by_time | of_flows | of_groups == set(
        JobOptions.__struct_fields__
    )
    stored = {encode_options(JobOptions(), delay_ms=0)}
    for name, value in OTHER_THAN_DEFAULT.items():
        stored.add(encode_options(JobOptions(**{name: value}), delay_ms=0))
    assert len(stored) == 1 + len(OTHER_THAN_DEFAULT)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("priorty", "queue.add has no option 'priorty' (did you mean priority?)"),
        ("nonsense", "queue.add has no option 'nonsense'; it has concurrency, limiter, "),
    ],
)
def test_an_unknown_option_is_what_the_message_says_first(name: str, message: str) -> None:
    known = JobKeywords if "did" in message else QueueKeywords
    with pytest.raises(ConfigurationError) as error:
        check_keywords("queue.add", [name], known)
    assert str(error.value).startswith(message)
