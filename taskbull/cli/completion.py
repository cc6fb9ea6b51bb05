"""What the shell proposes after a Tab.

Nothing is imported that was only found by searching: a Tab must not run code of a folder that was
just unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from taskbull.cli.app_loading import find_named_app
from taskbull.cli.server import open_server
from taskbull.errors import TaskbullError

# Shells insert a proposal as it is. So it must be a word that bash, zsh and fish do not expand,
# split or read as an option. A comma or colon would end the word in click's scripts.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@%+/-]*")


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the queues that exist; none if Redis is away."""
    given = ctx.params
    try:
        redis = given.get("redis")
        app = None if redis and not _app(ctx) else find_named_app(_app(ctx))
        names = open_server(app, redis, given.get("prefix")).queues()
    except (click.ClickException, TaskbullError):
        return []
    return _proposals(names, incomplete)


def complete_task(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the tasks of the app that is named; none if it cannot be loaded."""
    try:
        app = find_named_app(_app(ctx))
    except click.ClickException:
        return []
    return _proposals([] if app is None else app.tasks, incomplete)


def _app(ctx: click.Context) -> str | None:
    """Return the app as it is named before or after the command."""
    return ctx.params.get("app") or ctx.find_root().params.get("app")


def _proposals(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names that a shell reads as one plain word; others can still be typed, quoted."""
    return [
        CompletionItem(name)
        for name in names
        if name.startswith(incomplete) and _PLAIN_WORD.fullmatch(name)
    ]
