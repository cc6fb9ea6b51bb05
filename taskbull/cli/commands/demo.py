"""The commands `demo`, `completion` and `stop`."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from taskbull.cli.app_loading import COMPLETING
from taskbull.cli.output import cell

# `taskbull demo`: a demonstration on the embedded server that needs no setup.


@click.command()
def demo() -> None:
    """Run a short demo on a temporary server."""
    # Imported here because `taskbull --help` would otherwise take twice as long.
    from taskbull.cli.demo import demonstrate  # noqa: PLC0415

    demonstrate()


# `taskbull completion`: the completion script of a shell.


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash:  echo 'eval "$(taskbull completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(taskbull completion zsh)"' >> ~/.zshrc
    fish:  taskbull completion fish > ~/.config/fish/completions/taskbull.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all three
    script = kind(ctx.find_root().command, {}, "taskbull", COMPLETING)
    # Not `source()`: for bash, it would start a bash process to check its version.
    click.echo(script.source_template % script.source_vars())


# `taskbull stop`: stop the embedded server of a project.


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
def stop(folder: Path | None) -> None:
    """Stop the project's embedded server; its jobs are kept.

    FOLDER is the server's folder (default: .taskbull in the project).
    """
    from taskbull.app import embedded  # noqa: PLC0415 - see `worker`

    folder = embedded.project_folder() if folder is None else folder
    if embedded.stop(folder):
        click.echo(cell(f"stopped the server in {folder}; its jobs are kept"))
    else:
        click.echo(cell(f"no server is running in {folder}"))
