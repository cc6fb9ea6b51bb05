"""The command line: `taskbull`."""

from taskbull.cli.main import main

__all__ = ["main"]
