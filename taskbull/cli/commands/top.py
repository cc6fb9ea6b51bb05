"""The command `top`: table cells, JSON output and screen state. `cli/top.py` draws it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import inf
from time import sleep
from typing import Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from taskbull.cli.app_loading import app_argument, find_server, server_options
from taskbull.cli.arguments import read_seconds
from taskbull.cli.errors import WrongUsage
from taskbull.cli.output import json_option, printable, show_json, show_table
from taskbull.cli.server import note_lost_servers
from taskbull.core.diagnosis import find_trouble, span
from taskbull.core.keys import STATES, JobState
from taskbull.core.queue_health import QueueFacts
from taskbull.monitor.overview import Overview, all_trouble

# Table cells and JSON of a queue.


COLUMNS: Final = (
    *("queue", "waiting", "oldest", "active", "delayed", "failed", "in/s", "out/s"),
    *("last hour", "workers", "drained in"),
)
SORTS: Final = ("name", "waiting", "failed", "out/s")

_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS_OF_AN_HOUR: Final = 12


def cells(queue: QueueFacts) -> list[str]:
    """Return the cells of a queue's row."""
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
        workers(queue),
        drained_in(queue),
    ]


def rate(per_second: float | None) -> str:
    """Return a rate as a short text."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.2g}"


def sparkline(queue: QueueFacts) -> str:
    """Return the jobs finished in the last hour as twelve bars, newest last.

    A dot means that there is no data.
    """
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


def workers(queue: QueueFacts) -> str:
    """Return the numbers of taskbull workers and of others, most of them in Node."""
    if queue.workers == 0:
        return "none" if queue.connected is not None else "?"
    parts = [(queue.python_workers, "Python"), (queue.other_workers, "Node")]
    return ", ".join(f"{count} {kind}" for count, kind in parts if count)


def drained_in(queue: QueueFacts) -> str:
    """Return the estimated time until no jobs are waiting."""
    if queue.waiting == 0:
        return "-"
    if queue.paused:
        return "paused"
    if queue.is_stuck or (queue.workers == 0 and queue.connected is not None):
        return "never"
    left = queue.seconds_left
    if left is None:
        return "?"
    return "growing" if left == inf else span(left)


def ordered(facts: Sequence[QueueFacts], by: str) -> list[QueueFacts]:
    """Return the queues sorted by name, or by a figure in descending order."""
    keys: dict[str, Callable[[QueueFacts], float]] = {
        "waiting": lambda queue: -queue.waiting,
        "failed": lambda queue: -queue.counts[JobState.FAILED],
        "out/s": lambda queue: -(queue.out or 0.0),
    }
    by_name = sorted(facts, key=lambda queue: queue.name)
    return sorted(by_name, key=keys[by]) if by in keys else by_name


def describe(queue: QueueFacts) -> dict[str, Any]:
    """Return a queue as it appears in JSON output."""
    left = queue.seconds_left
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
            "taskbull": queue.python_workers,
            "other": queue.other_workers,
            "complete": queue.connected is not None,
        },
        "trouble": [
            {"code": one.code, "text": one.text, "remedy": one.remedy}
            for one in find_trouble(queue)
        ],
    }


# `taskbull top`.


_SHORTEST = 0.2
"""Minimum interval, in seconds."""

_PAUSE = 1.0
"""Seconds between the two reads of `--once`."""


@click.command()
@app_argument
@click.option(
    "--interval",
    metavar="SECONDS",
    callback=read_seconds,
    default="2",
    show_default=True,
    help="Refresh interval.",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@server_options
@json_option
def top(named: str | None, interval: float, once: bool, as_json: bool, **where: str | None) -> None:
    """Show all queues live: backlog, failures, throughput, workers.

    Read-only. Prints a single table when not attached to a terminal.
    """
    if interval < _SHORTEST:
        raise WrongUsage(f"--interval must be at least {_SHORTEST} s")
    server = find_server(where["app"] or named, where["redis"], where["prefix"])
    note_lost_servers(server)
    if not (once or as_json) and sys.stdout.isatty() and sys.stdin.isatty():
        from taskbull.cli.top import run_top  # noqa: PLC0415 - rich is slow to import

        run_top(server, interval)
        return
    overview = Overview()
    server.watch(overview)
    sleep(_PAUSE)  # Rates, and jobs without a lock, need two reads.
    for watch in overview.watches.values():
        watch.details_read_at = -inf
    server.watch(overview)
    facts = ordered(overview.facts(), "name")
    if as_json:
        show_json({"queues": [describe(queue) for queue in facts]})
        return
    for trouble in all_trouble(facts):
        click.echo(printable(f"! {trouble.sentence}"))
    show_table(COLUMNS, [cells(queue) for queue in facts], empty="No queues yet.")


# The screen state, as a pure function of the keys pressed.


HELP = (
    "q quit   s sort by name, waiting, failed, rate   ↑ ↓ select   ↵ open a queue   "
    "p pause   ? help"
)


class TopState(Struct, frozen=True):
    """The state of the screen: sort order, selected queue and mode."""

    sort: str = SORTS[0]
    queue: str | None = None
    """The selected queue."""
    inside: bool = False
    """True if the selected queue fills the screen."""
    frozen: bool = False
    help: bool = False
    over: bool = False

    def after(self, key: str, names: Sequence[str]) -> TopState:
        """Return the state after a key press. `names` lists the queues in display order."""
        changes: dict[str, Any] = {}
        match key:
            case "q":
                changes = {"over": True}
            case "s":
                changes = {"sort": SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]}
            case "up" | "down" if names:
                changes = {"queue": self._beside(names, 1 if key == "down" else -1)}
            case "enter" if names:
                changes = {"queue": self.queue or names[0], "inside": not self.inside}
            case "escape":
                changes = {"inside": False, "help": False}
            case "p":
                changes = {"frozen": not self.frozen}
            case "?":
                changes = {"help": not self.help}
            case _:
                pass
        return replace(self, **changes)

    def _beside(self, names: Sequence[str], step: int) -> str:
        if self.queue not in names:
            return names[0] if step > 0 else names[-1]
        place = names.index(self.queue) + step
        return names[min(max(place, 0), len(names) - 1)]
