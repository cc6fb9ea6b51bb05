"""`taskbull stop`: end the embedded server of a project."""

from __future__ import annotations

from pathlib import Path

import click

from taskbull.cli.terminal import cell


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
def stop(folder: Path | None) -> None:
    """Stop the embedded server in FOLDER (.taskbull of the project); its jobs are kept."""
    from taskbull.app import embedded  # noqa: PLC0415 - see `worker`

    folder = embedded.project_folder() if folder is None else folder
    if embedded.stop(folder):
        click.echo(cell(f"the server in {folder} is stopped; its jobs are kept"))
    else:
        click.echo(cell(f"no server runs in {folder}"))
