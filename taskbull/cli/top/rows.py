"""What `top` shows of a queue: facts in, cells and JSON out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from taskbull.core.queue_facts import QueueFacts
from taskbull.core.rates import empty_in
from taskbull.core.spans import span
from taskbull.core.states import STATES, JobState
from taskbull.core.trouble import find_trouble

COLUMNS: Final = (
    *("queue", "wait", "since", "active", "delayed", "failed", "in/s", "out/s"),
    *("last hour", "run by", "empty in"),
)
SORTS: Final = ("name", "wait", "failed", "out/s")

_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS_OF_AN_HOUR: Final = 12


def cells(queue: QueueFacts) -> list[str]:
    """Return the row of a queue."""
    since = queue.waiting_since
    return [
        f"{queue.name} ‖" if queue.paused else f"{queue.name} ?" if queue.problem else queue.name,
        f"{queue.waiting:,}",
        "-" if since is None else span((queue.now - since).total_seconds()),
        *(
            f"{queue.counts[state]:,}"
            for state in (JobState.ACTIVE, JobState.DELAYED, JobState.FAILED)
        ),
        rate(queue.arrivals),
        rate(queue.out),
        sparkline(queue),
        run_by(queue),
        emptied(queue),
    ]


def rate(per_second: float | None) -> str:
    """Return a rate in few characters."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"


def sparkline(queue: QueueFacts) -> str:
    """Return what ended in the last hour as twelve bars, the newest last; dots are unknown."""
    minutes = [
        None if done is None and broken is None else (done or 0) + (broken or 0)
        for done, broken in zip(queue.completed.minutes, queue.failed.minutes, strict=False)
    ]
    size = 60 // _COLUMNS_OF_AN_HOUR
    parts = [minutes[start : start + size] for start in range(0, 60, size)]
    known = [[one for one in part if one is not None] for part in parts]
    sums = [sum(part) if part else None for part in known]
    most = max((one for one in sums if one), default=0)
    return "".join(_bar(one, most) for one in reversed(sums))


def _bar(count: int | None, most: int) -> str:
    if count is None:
        return "·"
    if not count:
        return "_"
    return _BARS[max(1, round(count / most * (len(_BARS) - 1)))]


def run_by(queue: QueueFacts) -> str:
    """Return who runs the jobs: ours, and others."""
    if queue.workers == 0:
        return "nobody" if queue.connected is not None else "?"
    parts = [(len(queue.records), "py"), (queue.foreign, "js")]
    return " ".join(f"{count}{what}" for count, what in parts if count)


def emptied(queue: QueueFacts) -> str:
    """Return when nothing waits any more."""
    if queue.waiting == 0:
        return "-"
    if queue.paused:
        return "paused"
    if queue.workers == 0 and queue.connected is not None:
        return "never"
    left = empty_in(queue.waiting, queue.out, queue.arrivals)
    if left is None:
        return "?"
    return "growing" if left == inf else span(left)


def ordered(facts: Sequence[QueueFacts], by: str) -> list[QueueFacts]:
    """Return queues in an order: by name, or the largest first."""
    keys: dict[str, Callable[[QueueFacts], float]] = {
        "wait": lambda queue: -queue.waiting,
        "failed": lambda queue: -queue.counts[JobState.FAILED],
        "out/s": lambda queue: -(queue.out or 0.0),
    }
    by_name = sorted(facts, key=lambda queue: queue.name)
    return sorted(by_name, key=keys[by]) if by in keys else by_name


def describe(queue: QueueFacts) -> dict[str, Any]:
    """Return a queue as JSON has it."""
    left = empty_in(queue.waiting, queue.out, queue.arrivals)
    return {
        "name": queue.name,
        "problem": queue.problem,
        "counts": {str(state): queue.counts[state] for state in STATES},
        "rates": {
            "in": queue.arrivals,
            "out": queue.out,
            "source": queue.completed.source or queue.failed.source,
            "completed": queue.completed.minutes,
            "failed": queue.failed.minutes,
            "empty_in": None if left is None or left == inf else left,
        },
        "workers": {
            "ours": len(queue.records),
            "others": queue.foreign,
            "told": queue.connected is not None,
        },
        "trouble": [
            {"code": one.code, "text": one.text, "remedy": one.remedy}
            for one in find_trouble(queue)
        ],
    }
