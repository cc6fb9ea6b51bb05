"""Values on the command line: durations with units, and instants."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from taskbull.core.search import read_time
from taskbull.errors import ConfigurationError

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FORM = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)", re.ASCII)
_EXAMPLE = "such as 2030-01-31T09:00:00+01:00"


def read_seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Read an option that is a duration: seconds, or a number with a unit from ms to w."""
    if value is None:
        return None
    form = _FORM.fullmatch(value.strip().lower())
    if form is None or form["unit"] not in _UNITS:
        raise click.BadParameter(
            f"{value!r} is not a duration: write seconds, or 500ms, 5m, 2h, 1d"
        )
    return float(form["number"]) * _UNITS[form["unit"]]


def read_instant(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> datetime | None:
    """Read an option that is a date and time with an offset, as ISO 8601 has them."""
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a date and time {_EXAMPLE}") from None
    if instant.utcoffset() is None:
        raise click.BadParameter(f"{value!r} has no time zone: add its offset, {_EXAMPLE}")
    return instant


def read_past(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """Read an option that is a time gone by, as people type it; without a zone a local one."""
    if value is None:
        return None
    try:
        return read_time("TIME", value, datetime.now(UTC).astimezone())
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None
