"""The runs before a run, by the rule alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from taskbull.core.schedule import Cron, Every, Rule, runs_before
from taskbull.core.validation import instant_to_ms


def at(text: str) -> int:
    return instant_to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("rule", "next_run", "wanted"),
    [
        (Every(60), "2026-05-01T10:00", ["2026-05-01T09:59", "2026-05-01T09:58"]),
        (Cron("0 3 * * *"), "2026-05-02T03:00", ["2026-05-01T03:00", "2026-04-30T03:00"]),
        (Cron("* 9-17 * * *"), "2026-05-02T09:00", ["2026-05-01T17:59", "2026-05-01T17:58"]),
        (Cron("*/15 * * * 1-5"), "2026-05-04T00:00", ["2026-05-01T23:45", "2026-05-01T23:30"]),
        (Cron("0 0 29 2 *"), "2028-02-29T00:00", ["2024-02-29T00:00", "2020-02-29T00:00"]),
        (Cron("* * * * * *"), "2026-05-01T10:00", ["2026-05-01T09:59:59", "2026-05-01T09:59:58"]),
        (
            Cron("0 3 * * *", start=datetime(2026, 5, 1, tzinfo=UTC)),
            "2026-05-02T03:00",
            ["2026-05-01T03:00"],
        ),
        (Every(3600, start=datetime(2026, 5, 1, 9, tzinfo=UTC)), "2026-05-01T09:00", []),
    ],
)  # fmt: skip
def test_runs_before_a_run_are_found(rule: Rule, next_run: str, wanted: list[str]) -> None:
    assert runs_before(rule, at(next_run), 2) == [at(each) for each in wanted]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_each_run_is_before_the_one_that_follows_it(zone: str) -> None:
    """Forward and backward searches return the same runs, even around clock changes."""
    rule = Cron("30 2 * * *", tz=zone)
    forwards = rule.upcoming(400, datetime(2026, 1, 1, tzinfo=UTC))
    backwards = runs_before(rule, instant_to_ms(forwards[-1]), 399)
    assert backwards[::-1] == [instant_to_ms(each) for each in forwards[:-1]]
