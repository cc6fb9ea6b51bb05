"""`taskbull stop`: end the embedded server of a project."""

from __future__ import annotations

from pathlib import Path

import click

from taskbull.store.embedded import DEFAULT_FOLDER, stop


@click.command(name="stop")
@click.argument("folder", type=click.Path(path_type=Path), default=DEFAULT_FOLDER)
def stop_server(folder: Path) -> None:
    """Stop the embedded server in FOLDER (.taskbull); its jobs are kept."""
    if stop(folder):
        click.echo(f"the server in {folder} is stopped; its jobs are kept")
    else:
        click.echo(f"no server runs in {folder}")
