"""The options of a worker are checked when they are given, as those of a job are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskbull.core.groups import Limiter
from taskbull.core.options import WorkerOptions
from taskbull.errors import ConfigurationError


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("concurrency", 0, "concurrency must be an integer from 1 to 100000, got 0"),
        ("concurrency", 10**11, "concurrency"),  # it would fill the memory, slot by slot
        ("concurrency", "10", "concurrency"),
        ("concurrency", True, "concurrency"),
        ("lock_duration", 0, "lock_duration must be greater than 0"),
        ("lock_duration", 15, "heartbeat_interval must be shorter than lock_duration"),
        ("heartbeat_interval", 30, "shorter than lock_duration"),
        ("stalled_interval", -1, "stalled_interval"),
        ("max_stalled_count", -1, "max_stalled_count"),
        ("limiter", 5, "limiter must be a Limiter"),
        ("threads", 0, "threads"),
        ("shutdown_timeout", -1, "shutdown_timeout"),
        ("max_reconnect_attempts", -1, "max_reconnect_attempts"),
        ("worker_id", "a b", "worker_id must be printable ASCII"),
        ("worker_id", "", "worker_id must not be empty"),
        ("on_lost_lock", "stop", "on_lost_lock must be one of 'continue', 'cancel', got 'stop'"),
        ("on_lost_lock", ["cancel"], "on_lost_lock must be one of"),
        ("loop_block_limit", None, "loop_block_limit"),
        ("drain_delay", 0, "drain_delay"),
    ],
)
def test_an_invalid_worker_option_is_refused(field: str, value: object, message: str) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=message):
        WorkerOptions(**options)


# FR-1, FR-2, FR-3, NFR-2
def test_the_defaults_of_a_worker_are_those_of_the_requirements() -> None:
    options = WorkerOptions()
    assert options.concurrency == 10
    assert (options.lock_duration, options.heartbeat_interval) == (30, 15)
    assert (options.stalled_interval, options.max_stalled_count) == (30, 1)
    assert options.shutdown_timeout == 30


def test_valid_worker_options_are_taken() -> None:
    options = WorkerOptions(
        lock_duration=timedelta(minutes=1),
        limiter=Limiter(10, timedelta(seconds=1)),
        threads=4,
        worker_id="host-1-abcdef",
        shutdown_timeout=0,
    )
    assert options.lock_duration == 60.0
    assert options.limiter == Limiter(10, 1)


@pytest.mark.parametrize(("maximum", "duration"), [(0, 1), (1, 0), ("1", 1), (1, "1")])
def test_an_invalid_limiter_is_refused(maximum: int, duration: float) -> None:
    with pytest.raises(ConfigurationError, match="limiter"):
        Limiter(maximum, duration)
