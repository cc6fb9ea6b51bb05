"""What the doctor has to say: one line per thing that was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import click
from msgspec import Struct

from taskbull.cli.terminal import printable


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """Something that was looked at; `advice` says what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, advice: str = "") -> Finding:
    """It works, but somebody should know."""
    return Finding(check, Level.WARNING, message, advice)


def problem(check: str, message: str, advice: str = "") -> Finding:
    """It does not work, or jobs may be lost."""
    return Finding(check, Level.PROBLEM, message, advice)


_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def show(finding: Finding) -> None:
    """Print a finding: one line, and one more for the advice."""
    level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    click.echo(f"{level} {finding.check:<12} {printable(finding.message)}")
    if finding.advice:
        click.echo(f"{'':<22}→ {printable(finding.advice)}")


def summary(findings: Sequence[Finding]) -> str:
    """Count the findings that are not well."""
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if not problems and not warnings:
        return "All is well."
    return f"Problems: {problems}, warnings: {warnings}."


def describe(finding: Finding) -> dict[str, Any]:
    """Return a finding in the form of the JSON output."""
    return {
        "check": finding.check,
        "level": str(finding.level),
        "message": finding.message,
        "advice": finding.advice or None,
    }
