"""`taskbull completion`: the script by which a shell asks what to propose."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from taskbull.cli.app_loading import COMPLETING


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
