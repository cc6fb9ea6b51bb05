"""`taskbull why`: what a job, or a queue, waits for."""

from __future__ import annotations

import click

from taskbull.cli.app_loading import find_server, server_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.server import existing_queue
from taskbull.cli.terminal import json_option, printable, show_json
from taskbull.core.why import Explanation


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="[ID]", required=False)
@server_options
@json_option
def why(queue: str, job_id: str | None, as_json: bool, **where: str | None) -> None:
    """Say why a job does not run, or what became of it; without an ID, what holds the queue.

    Exits with 1 if there is no such job.
    """
    server = find_server(**where)
    existing_queue(server, queue)
    found = server.why(queue, job_id)
    if as_json:
        show_json(found.describe())
    else:
        show_explanation(found)
    if not found.found:
        click.get_current_context().exit(1)


def show_explanation(found: Explanation) -> None:
    """Print the cause, and what holds as well, a line each."""
    first, *others = [printable(reason.text) for reason in found.reasons]
    click.echo(first)
    for text in others:
        click.echo(f"Also: {text}")
