"""The live screen of `taskbull top`: keyboard input, drawing with rich, and the main loop."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskbull.cli.commands.top import COLUMNS, HELP, TopState, cells, ordered
from taskbull.cli.output import printable
from taskbull.core.diagnosis import count_of, describe_hold, explain_queue, find_trouble, span
from taskbull.core.groups import GroupInfo
from taskbull.core.keys import STATES
from taskbull.core.queue_health import QueueFacts
from taskbull.errors import TaskbullError
from taskbull.monitor.overview import Overview, all_trouble
from taskbull.monitor.server import SyncServer
from taskbull.queue.failures import Failures

# Keyboard input without line buffering.


_ARROWS: Final = {"A": "up", "B": "down"}
_NAMES: Final = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "escape"}
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*([A-Za-z~])|(.)", re.DOTALL)


@contextmanager
def pressed_keys() -> Generator[None]:
    """Read keys unbuffered and without echo during the block."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def next_keys(seconds: float) -> list[str]:
    """Wait up to `seconds` for keys and return their names."""
    file = sys.stdin.fileno()
    if not select.select([file], [], [], max(seconds, 0.0))[0]:
        return []
    return names_of(os.read(file, 256).decode("utf-8", "replace"))


def names_of(read: str) -> list[str]:
    """Return the key names for input from the terminal. The end of input counts as `q`."""
    if not read:
        return ["q"]
    return [
        _ARROWS.get(found[1], "") if found[1] else _NAMES.get(found[2], found[2])
        for found in _KEY.finditer(read)
    ]


# Drawing.


_LEFT: Final = {"queue", "last hour", "workers"}
_MOST_TROUBLE: Final = 5
_MOST_ERRORS: Final = 10


def draw(
    facts: Sequence[QueueFacts],
    chosen: TopState,
    title: str,
    failures: Failures | None = None,
    groups: Sequence[GroupInfo] = (),
) -> RenderableType:
    """Return the complete screen."""
    parts: list[RenderableType] = [Text(_header(chosen, title), style="bold"), Text()]
    inside = [one for one in facts if one.name == chosen.queue] if chosen.inside else []
    parts += [_inside(inside[0], failures, groups)] if inside else _outside(facts, chosen)
    parts += [Text(), Text(HELP if chosen.help else "q quit  ? help", style="dim")]
    return Group(*parts)


def _header(chosen: TopState, title: str) -> str:
    frozen = "   paused (p resumes)" if chosen.frozen else ""
    return f"taskbull top   {title}   sorted by {chosen.sort}{frozen}"


def _outside(facts: Sequence[QueueFacts], chosen: TopState) -> list[RenderableType]:
    trouble = all_trouble(facts)
    lines: list[RenderableType] = [
        Text(f"! {printable(one.sentence)}", style="red", overflow="ellipsis")
        for one in trouble[:_MOST_TROUBLE]
    ]
    if len(trouble) > _MOST_TROUBLE:
        lines.append(Text(f"! and {len(trouble) - _MOST_TROUBLE} more problems", style="red"))
    if not trouble:
        lines.append(Text("All queues are healthy.", style="green"))
    return [*lines, Text(), table(ordered(facts, chosen.sort), chosen.queue)]


def table(facts: Sequence[QueueFacts], marked: str | None = None) -> Table:
    """Return the table of queues, with the selected one marked."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        drawn.add_column(
            column.upper(), justify="left" if column in _LEFT else "right", no_wrap=True
        )
    for queue in facts:
        row = [Text(printable(cell)) for cell in cells(queue)]
        drawn.add_row(*row, style="reverse" if queue.name == marked else "")
    if not facts:
        drawn.add_row(Text("No queues yet."))
    return drawn


def _inside(
    queue: QueueFacts, failures: Failures | None, groups: Sequence[GroupInfo]
) -> RenderableType:
    counts = "   ".join(f"{queue.counts[state]:,} {state}" for state in STATES)
    lines = [Text(printable(queue.name), style="bold"), Text(counts), Text()]
    lines += [Text(printable(reason.text)) for reason in explain_queue(queue)]
    lines += [Text(f"! {printable(one.text)}", style="red") for one in find_trouble(queue)]
    lines.append(Text())
    for record in queue.records:
        up = span(queue.now.timestamp() - record.started_ms / 1000)
        about = f"{record.running}/{record.concurrency} running   up {up}   lag {record.lag_ms} ms"
        about += f"   {record.memory // 2**20} MB{'   quiet' if record.quiet else ''}"
        about += "   not responding" if record.id in queue.silent else ""
        lines.append(Text(f"{printable(record.id)}   {about}"))
    if queue.foreign:
        lines.append(Text(f"{count_of(queue.foreign, 'other worker')} connected"))
    if groups:
        lines += [Text(), Text("largest groups", style="bold")]
        for one in groups:
            about = f"{one.waiting:>8,} waiting {one.active:>6,} running {one.held:>8,} held   "
            about += f"{printable(one.id)}   {describe_hold(one, queue.now)}"
            lines.append(Text(about, overflow="ellipsis", no_wrap=True))
    if failures is not None and failures.groups:
        title = f"errors of the newest {count_of(failures.examined, 'failed job')}"
        lines += [Text(), Text(title, style="bold")]
        for group in failures.groups[:_MOST_ERRORS]:
            what = printable(f"{group.error}   {group.task}   {group.frame}")
            lines.append(Text(f"{group.count:>6,}  {what}", overflow="ellipsis", no_wrap=True))
    return Group(*lines)


# The main loop.


_GROUPS = 5
_FAILED = 200
"""Number of failed jobs to group for the queue that is open."""


def run_top(server: SyncServer, interval: float) -> None:
    """Show all queues until the user presses q."""
    overview, chosen, failures = Overview(), TopState(), None
    facts: list[QueueFacts] = []
    groups: Sequence[GroupInfo] = ()
    title, due = server.address, 0.0
    console = Console(highlight=False, emoji=False, markup=False)
    with pressed_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not chosen.over:
            if monotonic() >= due and not chosen.frozen:
                due = monotonic() + interval
                try:
                    server.watch(overview)
                    failures = _failures(server, chosen, failures)
                    groups = _groups(server, chosen, overview)
                    title = server.address
                except TaskbullError as error:
                    title = f"{server.address} does not answer: {error}"
                else:
                    facts = overview.facts()
            live.update(draw(facts, chosen, title, failures, groups), refresh=True)
            for key in next_keys(interval if chosen.frozen else due - monotonic()):
                names = [queue.name for queue in ordered(facts, chosen.sort)]
                before, chosen = chosen, chosen.after(key, names)
                if chosen.inside and not before.inside:
                    failures, groups, due = None, (), 0.0


def _failures(server: SyncServer, chosen: TopState, before: Failures | None) -> Failures | None:
    if not chosen.inside or chosen.queue is None:
        return None
    return server.failures(chosen.queue, _FAILED, before=before)


def _groups(server: SyncServer, chosen: TopState, overview: Overview) -> Sequence[GroupInfo]:
    watch = overview.watches.get(chosen.queue or "")
    if not chosen.inside or watch is None or not watch.has_prioritized:
        return ()
    return server.groups(watch.name, _GROUPS)
