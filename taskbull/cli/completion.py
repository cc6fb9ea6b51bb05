"""Shell completion of queue and task names.

Only an app that is named is imported. Completion must not run code that a search has found, such
as code in a folder that was just unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from taskbull.cli.app_loading import find_named_app
from taskbull.cli.server import open_server
from taskbull.errors import TaskbullError

# Shells insert a completion unchanged. So it must be a word that bash, zsh and fish do not expand,
# split or read as an option. A comma or colon would end the word in click's scripts.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@%+/-]*")


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of an existing queue. If Redis is unavailable, complete nothing."""
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
    """Complete the name of a task of the named app, if it can be loaded."""
    try:
        app = find_named_app(_app(ctx))
    except click.ClickException:
        return []
    return _proposals([] if app is None else app.tasks, incomplete)


def _app(ctx: click.Context) -> str | None:
    """Return the app given after or before the command."""
    return ctx.params.get("app") or ctx.find_root().params.get("app")


def _proposals(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the matching names that need no quoting. Users can still type the others."""
    return [
        CompletionItem(name)
        for name in names
        if name.startswith(incomplete) and _PLAIN_WORD.fullmatch(name)
    ]
