"""Building blocks of pages: badges, buttons, tables, charts, numbers and times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Literal, TypeAlias

from taskbull.core.states import JobState
from taskbull.dashboard.html import (
    Element,
    Node,
    Rendered,
    Tag,
    a,
    button,
    div,
    form,
    input_,
    span,
    table,
    tbody,
    td,
    th,
    thead,
    time_,
    tr,
    url,
)
from taskbull.dashboard.request_context import RequestContext

_svg, _rect, _path, _title = Tag("svg"), Tag("rect"), Tag("path"), Tag("title")

STATE_SIGNS = {
    JobState.WAITING: ("…", "waiting"),
    JobState.ACTIVE: ("▶", "running"),
    JobState.PRIORITIZED: ("↑", "prioritized"),
    JobState.DELAYED: ("◷", "delayed"),
    JobState.WAITING_CHILDREN: ("⋔", "waiting for children"),
    JobState.PAUSED: ("‖", "paused"),
    JobState.FAILED: ("✗", "failed"),
    JobState.COMPLETED: ("✓", "done"),
    JobState.UNKNOWN: ("?", "unknown"),
}
"""Symbol and label of each state, because color alone is not accessible."""


def badge(state: JobState) -> Element:
    """Return the badge of a job state."""
    sign, word = STATE_SIGNS[state]
    return span(span(sign, class_="sign", aria_hidden="true"), word, class_=f"badge s-{state}")


ButtonLook: TypeAlias = Literal["plain", "light", "danger"]


def ask_button(
    ctx: RequestContext,
    action: str,
    words: str,
    fields: Mapping[str, str],
    back: str,
    look: ButtonLook = "plain",
) -> Element | None:
    """Return a button that asks to confirm an action, or `None` if the user may not take it.

    With the look `light` and JavaScript, a second press of the button confirms the action.
    """
    if not ctx.may(action):
        return None
    hidden = {"action": action, "back": back, **fields}
    return form(
        [input_(type="hidden", name=name, value=value) for name, value in hidden.items()],
        button(words, type="submit", class_="danger" if look == "danger" else None),
        method="post",
        action="confirm",
        class_="ask",
        data_light=look == "light",
    )


def link(text: Node, page: str, /, **parameters: str | int | None) -> Element:
    """Return a link to another page."""
    return a(text, href=url(page, **parameters))


def grid(
    name: str, columns: Sequence[Node], rows: Sequence[Element | Rendered], empty: Node
) -> Element:
    """Return a table, or `empty` in it if there are no rows.

    On a narrow screen, each row is shown as a card.
    """
    return table_of(name, columns, rows or nothing(len(columns), name, empty))


def table_of(name: str, columns: Sequence[Node], rows: Node) -> Element:
    """Return a table with any node as its body."""
    heads = [
        column if isinstance(column, Element) else th(column, scope="col") for column in columns
    ]
    return div(
        table(thead(tr(heads)), tbody(rows, id=name), class_=f"grid {name}"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=name.replace("-", " "),
    )


def nothing(columns: int, name: str, words: Node) -> Element:
    """Return the placeholder row of an empty table."""
    return tr(td(words, colspan=columns, class_="empty"), id=f"{name}-empty")


def cell(label: str, *content: Node, kind: str | None = None) -> Element:
    """Return a table cell. A narrow screen shows `label` beside it."""
    return td(content, data_label=label, class_=kind)


def meter(value: float, words: str) -> Element:
    """Return a progress bar from 0 to 100 with a text."""
    width = min(max(value, 0.0), 100.0)
    return span(
        _svg(
            _rect(class_="track", x="0", y="0", width="100", height="8", rx="4"),
            _rect(class_="fill", x="0", y="0", width=f"{width:.1f}", height="8", rx="4"),
            class_="meter",
            viewBox="0 0 100 8",
            preserveAspectRatio="none",
            aria_hidden="true",
        ),
        words,
        class_="metered",
    )


def sparkline(values: Sequence[float | None], words: str, kind: str = "done") -> Element:
    """Return a small bar chart with a text alternative. `None` values are left blank."""
    height, step = 20, 3
    most = max(filter(None, values), default=0.0)
    shapes: dict[float, str] = {}
    bars: list[str] = []  # A single path keeps the page small: it may have hundreds of charts.
    idle = 0  # length of the current run of zeros, which is drawn as one line
    for place, value in enumerate([*values, None]):
        if value == 0:
            idle += 1
            continue
        if idle:
            bars.append(f"M{(place - idle) * step} {height}v-.5h{idle * step - 1}v.5z")
            idle = 0
        if value is not None:
            shape = shapes.get(value)
            if shape is None:
                tall = f"{max(1.0, value / most * height):.1f}"
                shape = shapes[value] = f" {height}v-{tall}h{step - 1}v{tall}z"
            bars.append(f"M{place * step}{shape}")
    return _svg(
        _title(words),
        _path(d="".join(bars)),
        class_=f"spark {kind}",
        viewBox=f"0 0 {max(len(values), 1) * step} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )


# Numbers, times and sizes in readable form.


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SHORT = 10.0


def number(value: float | None) -> str:
    """Return a count with separators, such as `12,840`, or a dash for `None`."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate, such as `0.4` or `41`, or a dash for `None`."""
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < _SHORT else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a share as a percentage, such as `97 %`."""
    return f"{100 * share:.0f} %"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 job` or `2 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return a duration in at most two units, such as `3 h 12 min`, `0.2 s` or `14 ms`."""
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
    """Return a number of bytes, such as `212 B` or `64 kB`."""
    if count < 1000:
        return f"{count} B"
    for unit, of in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < of * 1000:
            return f"{count / of:.1f} {unit}" if count < of * 10 else f"{count / of:.0f} {unit}"
    return f"{count / 1e9:,.0f} GB"


def ago(instant: datetime | None) -> Node:
    """Return a relative time, such as `5 min ago`, which the browser keeps up to date."""
    if instant is None:
        return "–"
    seconds = time.time() - instant.timestamp()
    words = f"{_rough(seconds)} ago" if seconds >= 0 else f"in {_rough(-seconds)}"
    return _instant(instant, words, "ago")


def since(instant: datetime | None) -> Node:
    """Return the time elapsed since an instant, which the browser keeps up to date."""
    if instant is None:
        return "–"
    return _instant(instant, since_words(instant), "since")


def since_words(instant: datetime) -> str:
    """Return the text of `since`."""
    return _rough(time.time() - instant.timestamp())


def clock(instant: datetime | None) -> Node:
    """Return a date and time, which the browser shows in the user's time zone."""
    if instant is None:
        return "–"
    return _instant(instant, f"{instant:%Y-%m-%d %H:%M:%S} UTC", "clock")


def _rough(seconds: float) -> str:
    return duration(round(seconds)) if seconds >= 1 else "0 s"


def _instant(instant: datetime, words: str, shown_as: str) -> Element:
    iso = instant.isoformat(timespec="milliseconds")
    return time_(words, datetime=iso, data_as=shown_as, title=f"{instant:%Y-%m-%d %H:%M:%S} UTC")
