"""`taskbull demo`: everything at work on the embedded server, with nothing to set up."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Start a private server, run jobs on each event loop, and stop the server again."""
    # Not above: `taskbull --help` would take twice as long.
    from taskbull.cli.demo import demonstrate  # noqa: PLC0415

    demonstrate()
