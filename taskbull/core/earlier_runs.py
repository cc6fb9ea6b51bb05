"""When a schedule was to run before: the other direction of its rule."""

from __future__ import annotations

from taskbull.core.cron import CronLine
from taskbull.core.durations import instant_to_ms
from taskbull.core.rules import Every, Rule

_FARTHEST_MS = 10 * 366 * 86_400_000
"""How far back is looked: ten years, in which even the 29th of February comes."""


def runs_before(rule: Rule, next_ms: int, most: int) -> list[int]:
    """Return when runs were due before the next one, in ms, the latest first; at most so many."""
    start_ms = 0 if rule.start is None else instant_to_ms(rule.start)
    found: list[int] = []
    due_ms = next_ms
    for _ in range(most):
        before = (
            due_ms - rule.interval_ms if isinstance(rule, Every) else _before(rule.line, due_ms)
        )
        if before is None or before < start_ms or before <= 0:
            break
        found.append(before)
        due_ms = before
    return found


def _before(line: CronLine, due_ms: int) -> int | None:
    """Return the run before one, found by halves: a line only knows what comes after an instant."""

    def comes_before(instant_ms: int) -> bool:
        following = line.next_after(instant_ms)
        return following is not None and following < due_ms

    span = 60_000
    while not comes_before(due_ms - span):
        span *= 4
        if span > min(_FARTHEST_MS, due_ms):
            return None
    first, last = due_ms - span, due_ms - 1
    while last - first > 1:
        middle = (first + last) // 2
        if comes_before(middle):
            first = middle
        else:
            last = middle
    return line.next_after(first)
