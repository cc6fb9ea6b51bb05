"""The group of all commands: its help, in parts, and the way its failures end the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from taskbull.cli.errors import INTERRUPTED, SERVER, colour, failure_of
from taskbull.errors import TaskbullError

_UNCUT = 1000
"""More characters than a summary has: it goes on in the next line."""


class Commands(click.Group):
    """Runs a command; an expected error is one sentence, and 1 (2: wrong usage) as exit code."""

    def __init__(self, *, parts: Mapping[str, Sequence[click.Command]], **settings: Any) -> None:
        super().__init__(**settings)
        self._parts = parts
        for command in (command for part in parts.values() for command in part):
            self.add_command(command)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        ctx.color = colour()
        try:
            return super().invoke(ctx)
        except TaskbullError as error:
            raise failure_of(error, ctx.meta.get(SERVER)) from error
        except click.Abort:  # interrupted at a question
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, part by part."""
        width = max(map(len, self.commands), default=0)
        for title, part in self._parts.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (str(command.name).ljust(width), command.get_short_help_str(_UNCUT))
                        for command in part
                    ]
                )
