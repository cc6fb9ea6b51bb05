"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import time
from datetime import datetime
from math import inf

from taskbull.dashboard.html import Element, Node, time_

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SHORT = 10.0


def number(value: float | None) -> str:
    """Return a count with separators: `12,840`; a dash if it is not known."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate: `0.4`, `41`."""
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < _SHORT else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a share: `97 %`."""
    return f"{100 * share:.0f} %"


def plural(count: int, noun: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: `3 h 12 min`, `0.2 s`, `14 ms`."""
    if seconds is None:
        return "–"
    if seconds == inf:
        return "forever"
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _SHORT:
        return f"{seconds:.1f} s"
    words: list[str] = []
    rest = round(seconds)
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if words and count:
            return f"{words[0]} {count} {unit}"
        if words:
            break
        if count:
            words.append(f"{count} {unit}")
    return words[0]


def size(count: int) -> str:
    """Return a number of bytes: `212 B`, `64 kB`."""
    if count < 1000:
        return f"{count} B"
    for unit, of in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < of * 1000:
            return f"{count / of:.1f} {unit}" if count < of * 10 else f"{count / of:.0f} {unit}"
    return f"{count / 1e9:,.0f} GB"


def ago(instant: datetime | None) -> Node:
    """Return an instant as its distance from now, which the page keeps up to date."""
    if instant is None:
        return "–"
    seconds = time.time() - instant.timestamp()
    words = f"{_rough(seconds)} ago" if seconds >= 0 else f"in {_rough(-seconds)}"
    return _instant(instant, words, "ago")


def since(instant: datetime | None) -> Node:
    """Return for how long something has lasted, which the page keeps up to date."""
    if instant is None:
        return "–"
    return _instant(instant, since_words(instant), "since")


def since_words(instant: datetime) -> str:
    """Return the words of `since`."""
    return _rough(time.time() - instant.timestamp())


def clock(instant: datetime | None) -> Node:
    """Return an instant as date and time, which the page shows in the reader's time zone."""
    if instant is None:
        return "–"
    return _instant(instant, f"{instant:%Y-%m-%d %H:%M:%S} UTC", "clock")


def _rough(seconds: float) -> str:
    return duration(round(seconds)) if seconds >= 1 else "0 s"


def _instant(instant: datetime, words: str, shown_as: str) -> Element:
    iso = instant.isoformat(timespec="milliseconds")
    return time_(words, datetime=iso, data_as=shown_as, title=f"{instant:%Y-%m-%d %H:%M:%S} UTC")
