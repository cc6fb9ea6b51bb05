"""`taskbull top`: all queues at a glance, live."""

from __future__ import annotations

import sys

import click

from taskbull.cli.app_loading import app_argument, find_server, server_options
from taskbull.cli.durations import read_seconds
from taskbull.cli.errors import WrongUsage
from taskbull.cli.server import note_lost_servers
from taskbull.cli.terminal import json_option, show_json, show_table
from taskbull.cli.top.rows import COLUMNS, cells, describe, ordered
from taskbull.queue.overview import Overview, all_trouble

_SHORTEST = 0.2
"""Seconds between two looks at the least."""


@click.command()
@app_argument
@click.option(
    "--interval",
    callback=read_seconds,
    default="2",
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once and print a table, as without a terminal.")
@server_options
@json_option
def top(named: str | None, interval: float, once: bool, as_json: bool, **where: str | None) -> None:
    """Show all queues live: what waits, what fails, how fast, and who runs it.

    It looks and never acts. Without a terminal it prints one table.
    """
    if interval < _SHORTEST:
        raise WrongUsage(f"--interval must be at least {_SHORTEST} s")
    server = find_server(where["app"] or named, where["redis"], where["prefix"])
    note_lost_servers(server)
    if not (once or as_json) and sys.stdout.isatty() and sys.stdin.isatty():
        from taskbull.cli.top.run import run_top  # noqa: PLC0415 - rich is slow to import

        run_top(server, interval)
        return
    overview = Overview()
    server.watch(overview)
    facts = ordered(overview.facts(), "name")
    if as_json:
        show_json({"queues": [describe(queue) for queue in facts]})
        return
    for trouble in all_trouble(facts):
        click.echo(f"! {trouble.queue}: {trouble.text}", err=True)
    show_table(COLUMNS, [cells(queue) for queue in facts], empty="There are no queues yet.")
