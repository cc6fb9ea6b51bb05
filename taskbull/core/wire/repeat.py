"""The object `repeat` in the options of a scheduler's job, as far as the next run depends on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from taskbull.core.checks import shown
from taskbull.core.durations import instant_to_ms
from taskbull.core.wire.numbers import Foreign, Number
from taskbull.errors import ConfigurationError


class Repeat(
    Foreign,
    frozen=True,
    rename={"zone": "tz", "every_ms": "every", "end": "endDate"},
):
    """The rule of a scheduler, and the number of this run."""

    pattern: str | None = None
    every_ms: Number | None = None
    zone: str | None = None
    limit: Number | None = None
    count: int | None = None
    end: Number | str | None = None

    @property
    def end_ms(self) -> float | None:
        """When the scheduler ends, if it does."""
        if not isinstance(self.end, str):
            return self.end
        try:
            end = datetime.fromisoformat(self.end)
        except ValueError as error:
            raise ConfigurationError(f"endDate {shown(self.end)} is not a date") from error
        return instant_to_ms(end if end.tzinfo is not None else end.replace(tzinfo=UTC))


def decode_repeat(repeat: dict[str, Any]) -> Repeat:
    """Read the object; raise `ConfigurationError` if it makes no sense."""
    try:
        return msgspec.convert(repeat, Repeat, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the rule {shown(repeat)} cannot be read: {error}") from error
