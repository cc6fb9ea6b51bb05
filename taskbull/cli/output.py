"""Output of commands: tables, fields, flows and JSON.

Text from jobs is escaped before it is printed, because it may contain terminal escape codes.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from taskbull.core import payload
from taskbull.core.keys import JobState
from taskbull.core.schedule import Cron, Every, Rule, Schedule
from taskbull.core.validation import iso
from taskbull.observability.logs import escape_json
from taskbull.queue.job_tree import JobTree

# Schedules.


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def until(instant: datetime | None, now: datetime) -> str | None:
    """Return the time until an instant in at most two units, such as `3 h 12 min`."""
    if instant is None:
        return None
    left = round((instant - now).total_seconds())
    words: list[str] = []
    rest = abs(left)
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
    shown = " ".join(word for word in words[:2] if word) or "0 s"
    return shown if left >= 0 else f"{shown} overdue"


def describe_schedule(schedule: Schedule, now: datetime) -> dict[str, Any]:
    """Return a schedule as it appears in JSON output."""
    next_run = schedule.next_run
    return {
        "queue": schedule.queue,
        "id": schedule.id,
        "task": schedule.task,
        "description": schedule.describe(),
        "rule": None if schedule.rule is None else _describe_rule(schedule.rule),
        "next_run": iso(next_run),
        "in": None if next_run is None else round((next_run - now).total_seconds(), 3),
        "count": schedule.count,
        "ended": schedule.ended,
        "pending": schedule.is_pending,
        "declared_by": schedule.declared_by,
        "data": _json(schedule.raw_data),
        "options": _json(schedule.raw_options),
    }


def _describe_rule(rule: Rule) -> dict[str, Any]:
    bounds = {"start": iso(rule.start), "end": iso(rule.end), "limit": rule.limit}
    match rule:
        case Cron():
            return {"pattern": rule.pattern, "tz": rule.tz, **bounds}
        case Every():
            return {"every": rule.interval, "offset": rule.offset, **bounds}


def _json(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except ValueError:
        return raw.decode("utf-8", "backslashreplace")


# Tables, fields and JSON.


F = TypeVar("F", bound=Callable[..., Any])

Row = Sequence[object]

NOTHING = "-"
"""Placeholder for an empty cell, so that piped text keeps its columns."""


def json_option(function: F) -> F:
    """Add the option `--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def show_json(value: Any) -> None:
    """Print a value as a JSON document."""
    click.echo(to_json(value))


def show_table(columns: Sequence[str], rows: Sequence[Row], *, empty: str) -> None:
    """Print a table, drawn in a terminal, otherwise as aligned text with one line per row.

    Without rows, a terminal shows `empty` instead; piped text has only the column names.
    """
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        if cells:
            # Imported here because it takes a tenth of a second.
            from taskbull.cli.tables import draw_table  # noqa: PLC0415

            draw_table(columns, cells)
        else:
            click.echo(empty)
        return
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def show_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line. Pairs without a value are omitted."""
    known = [(name, cell(value)) for name, value in fields if value is not None and value != ""]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {value}")


def show_section(title: str, lines: Sequence[str]) -> None:
    """Print lines under a title, or nothing without lines. The lines must be escaped."""
    if lines:
        click.echo()
        click.secho(title, bold=True)
        for line in lines:
            click.echo(f"  {line}".rstrip())


def cell(value: object) -> str:
    """Return a value as readable text on one line."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case int():
            return str(value)
        case float():
            return f"{value:g}"
        case _:
            return printable(str(value))


def shortened(text: str, most: int = 80) -> str:
    """Return the first line of a text, truncated if it is long."""
    line, _, rest = text.partition("\n")
    return f"{line[:most]}…" if rest or len(line) > most else line


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Return a text on one line, with control and invisible characters escaped."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text, each escaped, with tabs expanded to spaces."""
    return [printable(line.expandtabs(4)) for line in text.split("\n")]


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON that is safe to print and parses to the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return escape_json(text)


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


# Flows: one line per job, children below their parent.


def show_tree(tree: JobTree) -> None:
    """Print a flow as a table with an indented first column."""
    columns = ["job", "task", "queue", "state", "attempts", "about"]
    show_table(columns, list(_rows(tree, "")), empty="")


def _rows(tree: JobTree, indent: str) -> Iterator[Row]:
    job = tree.job
    state = f"{tree.state} (removed)" if tree.removed else tree.state
    made = None if tree.removed else job.attempts_made
    yield indent + job.id, job.name, tree.queue, state, made, _about(tree)
    below = f"{indent}  "
    for child in tree.children:
        yield from _rows(child, below)
    if tree.more:
        noun = "child" if tree.more == 1 else "children"
        which = f"more {noun}" if tree.children else noun
        yield f"{below}…", None, None, None, None, f"{tree.more:,} {which} not shown"


def _about(tree: JobTree) -> str | None:
    match tree.state:
        case JobState.FAILED:
            policy = f" (on_failure={tree.on_failure})" if tree.on_failure else ""
            return shortened(tree.job.failed_reason or "") + policy
        case JobState.COMPLETED:
            return shortened(f"result {to_json(tree.job.returnvalue, indent=None)}")
        case JobState.UNKNOWN if tree.removed:
            return "no data"
        case _ if tree.job.deferred_failure:
            return shortened(f"will fail: {tree.job.deferred_failure}")
        case _:
            return None
