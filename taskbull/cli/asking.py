"""Asking before something is destroyed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from taskbull.cli.errors import CommandFailed, WrongUsage
from taskbull.cli.terminal import cell

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Add `--yes`, for commands that ask."""
    return click.option(
        "-y", "--yes", is_flag=True, help="Do not ask for confirmation, for use in scripts."
    )(function)


def ask(question: str, yes: bool) -> None:
    """Go on only if a person, or `--yes`, says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsage(f"{question} There is no terminal to ask on: pass --yes")
    if not click.confirm(cell(question), err=True):
        raise CommandFailed("nothing was changed")
