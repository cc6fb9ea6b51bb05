"""Tables in a terminal, drawn with rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = 2
_NARROWEST = 24
"""Minimum width of a wrapped column."""


def draw_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw a table without truncating any text.

    If the terminal is too narrow, each row is printed as a list of fields.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    widest = widths.index(max(widths))
    needed = sum(widths) + _GAP * (len(widths) - 1)
    left = console.width - needed + widths[widest]
    if needed <= console.width or left >= _NARROWEST:
        console.print(_table(columns, rows, widest))
        return
    title_width = max(map(cell_len, columns[1:]), default=0)
    for row in rows:
        console.print(Text(row[0], style="bold"), overflow="fold")
        for title, value in zip(columns[1:], row[1:], strict=True):
            console.print(Text(f"  {title.ljust(title_width)}  {value}"), overflow="fold")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], widest: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold",
    )
    for number, column in enumerate(columns):
        numeric = all(row[number].isdigit() or row[number] in {"-", "?"} for row in rows)
        table.add_column(
            column,
            justify="right" if numeric else "left",
            no_wrap=number != widest,
            overflow="fold",
            style="bold" if number == 0 else "",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table
