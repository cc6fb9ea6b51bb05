"""What the shell proposes after a Tab, and the script that lets it ask."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from taskbull.cli.loading import COMPLETING, find_app, find_site
from taskbull.errors import TaskbullError


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose the queues that exist; none if Redis is away."""
    given = ctx.params
    try:
        site = find_site(given.get("app"), given.get("redis"), given.get("prefix"))
        names = site.names()
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


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, queues and tasks.

    \b
    bash:  echo 'eval "$(taskbull completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(taskbull completion zsh)"' >> ~/.zshrc
    fish:  taskbull completion fish > ~/.config/fish/completions/taskbull.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all three
    script = kind(ctx.find_root().command, {}, "taskbull", COMPLETING)
    # Not `source()`: for bash, that starts one to ask for its version.
    click.echo(script.source_template % script.source_vars())
