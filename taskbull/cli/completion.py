"""What the shell proposes after a Tab."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from taskbull.cli.app_loading import find_app, find_server
from taskbull.errors import TaskbullError


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the queues that exist; none if Redis is away."""
    given = ctx.params
    try:
        server = find_server(given.get("app"), given.get("redis"), given.get("prefix"))
        names = server.queues()
    except (click.ClickException, TaskbullError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_task(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the tasks of the app; none if it cannot be loaded."""
    try:
        names = find_app(ctx.params.get("app")).tasks
    except click.ClickException:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
