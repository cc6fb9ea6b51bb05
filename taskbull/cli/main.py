"""The group of all commands, and how their errors reach a person."""

from __future__ import annotations

import sys

import click

from taskbull import __version__
from taskbull.cli.demo import demo
from taskbull.errors import ConfigurationError, TaskbullError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="taskbull")
def commands() -> None:
    """BullMQ for Python, with Celery's ease."""


commands.add_command(demo)


def main() -> None:
    """Run a command; an expected error is one sentence, and 1 (2: wrong usage) as exit code."""
    try:
        commands()
    except TaskbullError as error:
        click.secho(f"taskbull: {error}", fg="red", err=True)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
