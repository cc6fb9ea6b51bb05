"""Options are checked when they are given: each error names the field, the rule and the value."""

from __future__ import annotations

import math
import warnings
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import pytest

from taskbull.core.backoff import DEFAULT_BACKOFF, Backoff
from taskbull.core.job import NewJob
from taskbull.core.options import Dedup, JobOptions, Keep
from taskbull.core.retry import CircuitBreaker, RetryPolicy
from taskbull.core.validation import shown
from taskbull.errors import ConfigurationError

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


# FR-7
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", -1, "priority must be an integer from 0 to 2097151, got -1"),
        ("priority", 2_097_152, "priority must be an integer from 0 to 2097151, got 2097152"),
        ("priority", "1", "priority must be an integer from 0 to 2097151, got '1'"),
        ("priority", 1.0, "got 1.0"),
        ("priority", True, "got True"),
        ("priority", None, "got None"),
        ("delay", -1, "delay must be 0 or more, got -1"),
        ("delay", "5", "delay must be seconds"),
        ("delay", math.nan, "delay must be 0 or more, got nan"),
        ("eta", datetime(2030, 1, 1), "naive"),  # noqa: DTZ001
        ("eta", 5, "timezone-aware datetime"),
        ("eta", datetime(2050, 1, 1, tzinfo=UTC), "September 2039"),
        ("attempts", 0, "attempts must be an integer of at least 1"),
        ("attempts", -3, "got -3"),
        ("attempts", "3", "got '3'"),
        ("attempts", True, "got True"),
        ("lifo", 1, "lifo must be True or False, got 1"),
        ("backoff", 5, "backoff must be a Backoff, got 5"),
        ("error_backoffs", [1], "error_backoffs must be a mapping"),
        ("error_backoffs", {5: Backoff.fixed(1)}, "exception class or its name, got 5"),
        ("error_backoffs", {int: Backoff.fixed(1)}, "exception class or its name"),
        ("error_backoffs", {"X": 5}, r"error_backoffs\['X'\] must be a Backoff, got 5"),
        ("dedup", 5, "dedup must be a Dedup or its key, got 5"),
        ("dedup", "", "dedup key must not be empty"),
        ("keep_completed", 5, "keep_completed must be a Keep"),
        ("keep_failed", True, "keep_failed must be a Keep"),
        ("timeout", 0, "timeout must be greater than 0, got 0"),
        ("keep_logs", -1, "keep_logs must be an integer of at least 0, got -1"),
        ("stack_trace_limit", "1", "stack_trace_limit"),
        ("size_limit", 0, "size_limit"),
    ],
)
def test_an_invalid_job_option_is_refused(field: str, value: object, message: str) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=message):
        JobOptions(**options)


# FR-7
def test_delay_and_eta_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"delay \(5 s\) and eta"):
        JobOptions(delay=5, eta=NOON)


# FR-7: the rules of BullMQ, and none that names another key of the queue.
@pytest.mark.parametrize(
    "job_id",
    [
        *("", "12", "-5", "0", "007", "0:x", "0:a:b", "a:b", "a:b:c:d", ":", "\ud800", 5),
        *("wait", "meta", "de", "priority", "stalled-check"),
        *("de:a:b", "tb:x:y", "metrics:completed:data"),
        *("repeat", "repeat:x:123", "repeat:a:b", "repeat:nightly:1794977948000"),  # S9
        "x" * 1_001,
    ],
)
def test_a_job_id_that_bullmq_or_the_keys_forbid_is_refused(job_id: str) -> None:
    with pytest.raises(ConfigurationError, match="job_id"):
        JobOptions(job_id=job_id)


# FR-7
@pytest.mark.parametrize(
    "job_id", ["a", "a:b:c", "welcome-42", "1e3", "١٢", "😀", "x" * 1_000, "0x1", "12.5", "\0"]
)
def test_a_job_id_that_bullmq_takes_is_taken(job_id: str) -> None:
    assert JobOptions(job_id=job_id).job_id == job_id


def test_an_empty_job_id_is_reported_to_be_empty() -> None:
    with pytest.raises(ConfigurationError, match="job_id must not be empty"):
        JobOptions(job_id="")


# FR-4, FR-5, FR-7
def test_the_defaults_of_a_job_are_those_of_the_requirements() -> None:
    options = JobOptions()
    assert options.attempts == 3
    assert options.backoff == DEFAULT_BACKOFF == Backoff.exponential(1, max_delay=3600, jitter=0.2)
    assert options.keep_logs == 1000
    assert options.size_limit == 10_000_000
    assert options.keep_completed == Keep(age=86_400, count=10_000)


def test_an_int_enum_is_an_integer() -> None:
    urgency = IntEnum("urgency", {"HIGH": 1})
    assert JobOptions(priority=urgency.HIGH).priority == 1


def test_an_unknown_option_is_refused() -> None:
    options: dict[str, Any] = {"prioriy": 1}
    with pytest.raises(TypeError, match="prioriy"):
        JobOptions(**options)


def test_a_dedup_key_alone_is_a_dedup() -> None:
    assert JobOptions(dedup="k").dedup == Dedup("k")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": 5}, "dedup key must be a string, got 5"),
        ({"key": "k", "ttl": 0}, "dedup ttl must be greater than 0"),
        ({"key": "k", "extend": True}, "needs a ttl"),
        ({"key": "k", "replace": 1}, "dedup replace must be True or False"),
        ({"key": "k", "keep_last": "yes"}, "dedup keep_last"),
    ],
)
def test_an_invalid_dedup_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Dedup(**arguments)


# FR-6, FR-7
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1}, "keep count must be an integer of at least 0, got -1"),
        ({"count": "5"}, "keep count"),
        ({"count": True}, "keep count"),
        ({"age": -1}, "keep age must be 0 or more"),
        ({"limit": 0}, "keep limit"),
    ],
)
def test_an_invalid_keep_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Keep(**arguments)


# FR-7
def test_keeping_more_than_ten_thousand_jobs_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="keep_completed keeps 10001 jobs") as caught:
        JobOptions(keep_completed=Keep(count=10_001))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JobOptions(keep_completed=Keep(count=10_000), keep_failed=Keep.all())


def test_a_keep_is_the_same_in_seconds_and_as_timedelta() -> None:
    assert Keep(age=timedelta(days=1)) == Keep(age=86_400)
    assert Keep.none() == Keep(count=0)
    assert Keep.all() == Keep()


# FR-7
@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800", 5, None])
def test_a_job_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="job name"):
        NewJob(name)


def test_a_job_wants_job_options() -> None:
    with pytest.raises(ConfigurationError, match="options must be JobOptions"):
        NewJob("x", {}, {"attempts": 3})  # type: ignore[arg-type]


# CB-1
@pytest.mark.parametrize(
    ("threshold", "duration", "attempts", "field"),
    [
        (0, 1, 1, "threshold"),
        (-1, 1, 1, "threshold"),
        (True, 1, 1, "threshold"),
        (2.5, 1, 1, "threshold"),
        (1, 0, 1, "duration"),
        (1, "30", 1, "duration"),
        (1, 1, 0, "half_open_max_attempts"),
    ],
)
def test_an_invalid_breaker_is_refused(
    threshold: int, duration: float, attempts: int, field: str
) -> None:
    with pytest.raises(ConfigurationError, match=field):
        CircuitBreaker(threshold, duration, attempts)


async def _ask(_: object) -> str:
    return "transient"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("backoff", 5),
        ("error_backoffs", 5),
        ("classify", "x"),
        ("classify", _ask),
        ("classify", lambda: "transient"),
        ("unknown_errors", "explode"),
    ],
)
def test_an_invalid_retry_policy_is_refused(field: str, value: object) -> None:
    policy: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=field):
        RetryPolicy(**policy)


def test_a_refusal_shows_a_huge_or_hostile_value_in_one_line() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(shown("x" * 10**6)) < 100
    assert shown(Hostile()) == "an unprintable Hostile"
    with pytest.raises(ConfigurationError, match="unprintable Hostile"):
        JobOptions(priority=Hostile())  # type: ignore[arg-type]
