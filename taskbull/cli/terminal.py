"""What commands print: tables and fields for people, JSON for machines.

What others wrote is made harmless for a terminal: a job may hold anything, escape codes too.
"""

from __future__ import annotations

import json
import shlex
import sys
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from taskbull.observability.formats import escape_json

F = TypeVar("F", bound=Callable[..., Any])

Row = Sequence[object]

NOTHING = "-"
"""A cell without a value, so that the columns of piped text can be counted."""


def json_option(function: F) -> F:
    """Add `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def show_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(to_json(value))


def show_table(columns: Sequence[str], rows: Sequence[Row], *, empty: str) -> None:
    """Print a table: drawn in a terminal, else aligned text with a line per row."""
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        if cells:
            # Only here: it takes a tenth of a second to import.
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
    """Print names and values, one pair a line; those without a value are left out."""
    known = [(name, cell(value)) for name, value in fields if value is not None and value != ""]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {value}")


def show_section(title: str, lines: Sequence[str]) -> None:
    """Print lines, already escaped, under a title; nothing if there are none."""
    if lines:
        click.echo()
        click.secho(title, bold=True)
        for line in lines:
            click.echo(f"  {line}".rstrip())


def cell(value: object) -> str:
    """Return a value as a person reads it, on one line."""
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
    """Return the first line of a text, cut if it is long."""
    line, _, rest = text.partition("\n")
    return f"{line[:most]}…" if rest or len(line) > most else line


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Return a text on one line; what a terminal would obey or hide is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text, each made printable; tabs become spaces."""
    return [printable(line.expandtabs(4)) for line in text.split("\n")]


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON that is safe to print, and still means the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return escape_json(text)


def command(name: str, *arguments: str, options: str = "") -> str:
    """Return a taskbull command to copy, with its arguments quoted for a shell."""
    quoted = " ".join(map(shlex.quote, arguments))
    words = [quoted, options]
    if any(argument.startswith("-") for argument in arguments):
        words = [options, "--", quoted]
    return " ".join(filter(None, [f"taskbull {name}", *words]))


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()
