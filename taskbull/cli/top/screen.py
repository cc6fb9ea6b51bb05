"""The screen of `top`, drawn by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from taskbull.cli.terminal import printable
from taskbull.cli.top.rows import COLUMNS, cells, ordered
from taskbull.cli.top.state import HELP, Chosen
from taskbull.core.queue_facts import QueueFacts
from taskbull.core.spans import span
from taskbull.core.states import STATES
from taskbull.core.trouble import find_trouble
from taskbull.core.why_queue import explain_queue
from taskbull.queue.failures import Failures
from taskbull.queue.overview import all_trouble

_LEFT: Final = {"queue", "last hour", "run by"}
_MOST_TROUBLE: Final = 5
_MOST_ERRORS: Final = 10


def draw(
    facts: Sequence[QueueFacts], chosen: Chosen, title: str, failures: Failures | None = None
) -> RenderableType:
    """Return the whole screen."""
    parts: list[RenderableType] = [Text(_header(chosen, title), style="bold"), Text()]
    inside = [one for one in facts if one.name == chosen.queue] if chosen.inside else []
    parts += [_inside(inside[0], failures)] if inside else _outside(facts, chosen)
    parts += [Text(), Text(HELP if chosen.help else "q quit  ? help", style="dim")]
    return Group(*parts)


def _header(chosen: Chosen, title: str) -> str:
    frozen = "   frozen: p goes on" if chosen.frozen else ""
    return f"taskbull top   {title}   sorted by {chosen.sort}{frozen}"


def _outside(facts: Sequence[QueueFacts], chosen: Chosen) -> list[RenderableType]:
    trouble = all_trouble(facts)
    lines: list[RenderableType] = [
        Text(f"! {printable(one.queue)}  {printable(one.text)}", style="red", overflow="ellipsis")
        for one in trouble[:_MOST_TROUBLE]
    ]
    if len(trouble) > _MOST_TROUBLE:
        lines.append(Text(f"! and {len(trouble) - _MOST_TROUBLE} more", style="red"))
    if not trouble:
        lines.append(Text("Nothing is wrong.", style="green"))
    return [*lines, Text(), table(ordered(facts, chosen.sort), chosen.queue)]


def table(facts: Sequence[QueueFacts], marked: str | None = None) -> Table:
    """Return all queues as a table."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        drawn.add_column(
            column.upper(), justify="left" if column in _LEFT else "right", no_wrap=True
        )
    for queue in facts:
        row = [Text(printable(cell)) for cell in cells(queue)]
        drawn.add_row(*row, style="reverse" if queue.name == marked else "")
    if not facts:
        drawn.add_row(Text("There are no queues yet."))
    return drawn


def _inside(queue: QueueFacts, failures: Failures | None) -> RenderableType:
    counts = "   ".join(f"{queue.counts[state]:,} {state}" for state in STATES)
    lines = [Text(printable(queue.name), style="bold"), Text(counts), Text()]
    lines += [Text(printable(reason.text)) for reason in explain_queue(queue)]
    lines += [Text(f"! {printable(one.text)}", style="red") for one in find_trouble(queue)]
    lines.append(Text())
    for record in queue.records:
        up = span(queue.now.timestamp() - record.started_ms / 1000)
        about = f"{record.running}/{record.concurrency} running   up {up}   lag {record.lag_ms} ms"
        lines.append(Text(f"{printable(record.id)}   {about}   {record.memory // 2**20} MB"))
    if queue.foreign:
        lines.append(Text(f"{queue.foreign} connected that say nothing of themselves"))
    if failures is not None and failures.groups:
        lines += [Text(), Text(f"errors of the newest {failures.looked_at:,} failed", style="bold")]
        for group in failures.groups[:_MOST_ERRORS]:
            what = printable(f"{group.error}   {group.task}   {group.frame}")
            lines.append(Text(f"{group.count:>6,}  {what}", overflow="ellipsis", no_wrap=True))
    return Group(*lines)
