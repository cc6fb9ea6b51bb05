"""The command line interface, `taskbull`."""

from taskbull.cli.main import main

__all__ = ["main"]
