"""The group of all commands: its help, in parts, and the way its failures end the process."""

from __future__ import annotations

from typing import Any

import click

from taskbull.cli.errors import INTERRUPTED, colour, failure_of
from taskbull.cli.site import ADDRESS
from taskbull.errors import TaskbullError

PARTS: dict[str, tuple[str, ...]] = {
    "Run": ("worker", "demo", "stop"),
    "Look": ("tasks", "queues", "workers", "jobs", "job", "events", "doctor"),
    "Act on jobs": ("call", "retry", "retry-all", "promote", "remove"),
    "Act on queues": ("pause", "resume", "drain", "clean", "obliterate"),
}
"""The commands as the help shows them; those that are not named here come last."""


_UNCUT = 1000
"""More characters than a summary has: it goes on in the next line."""


class Commands(click.Group):
    """Runs a command; an expected error is one sentence, and 1 (2: wrong usage) as exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        ctx.color = colour()
        try:
            return super().invoke(ctx)
        except TaskbullError as error:
            raise failure_of(error, ctx.meta.get(ADDRESS)) from error
        except click.Abort:  # interrupted at a question
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, part by part."""
        known = self.commands
        named = {name for names in PARTS.values() for name in names}
        rest = tuple(name for name in sorted(known) if name not in named)
        width = max(map(len, known), default=0)
        for title, names in {**PARTS, "Other": rest}.items():
            shown = [
                (name.ljust(width), known[name].get_short_help_str(_UNCUT))
                for name in names
                if name in known
            ]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)
