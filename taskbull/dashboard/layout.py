"""Building blocks of pages, and the layout that all pages share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct

from taskbull.core.keys import JobState
from taskbull.dashboard import html as h
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.forms import Notice
from taskbull.dashboard.html import body, label, title
from taskbull.dashboard.html import link as link_tag

# Building blocks of pages: badges, buttons, tables, charts, numbers and times.


_svg, _rect, _path, _title = h.Tag("svg"), h.Tag("rect"), h.Tag("path"), h.Tag("title")

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


def badge(state: JobState) -> h.Element:
    """Return the badge of a job state."""
    sign, word = STATE_SIGNS[state]
    return h.span(h.span(sign, class_="sign", aria_hidden="true"), word, class_=f"badge s-{state}")


ButtonLook: TypeAlias = Literal["plain", "light", "danger"]


def ask_button(
    ctx: RequestContext,
    action: str,
    words: str,
    fields: Mapping[str, str],
    back: str,
    look: ButtonLook = "plain",
) -> h.Element | None:
    """Return a button that asks to confirm an action, or `None` if the user may not take it.

    With the look `light` and JavaScript, a second press of the button confirms the action.
    """
    if not ctx.may(action):
        return None
    hidden = {"action": action, "back": back, **fields}
    return h.form(
        [h.input_(type="hidden", name=name, value=value) for name, value in hidden.items()],
        h.button(words, type="submit", class_="danger" if look == "danger" else None),
        method="post",
        action="confirm",
        class_="ask",
        data_light=look == "light",
    )


def link(text: h.Node, page: str, /, **parameters: str | int | None) -> h.Element:
    """Return a link to another page."""
    return h.a(text, href=h.url(page, **parameters))


def grid(
    name: str, columns: Sequence[h.Node], rows: Sequence[h.Element | h.Rendered], empty: h.Node
) -> h.Element:
    """Return a table, or `empty` in it if there are no rows.

    On a narrow screen, each row is shown as a card.
    """
    return table_of(name, columns, rows or nothing(len(columns), name, empty))


def table_of(name: str, columns: Sequence[h.Node], rows: h.Node) -> h.Element:
    """Return a table with any node as its body."""
    heads = [
        column if isinstance(column, h.Element) else h.th(column, scope="col") for column in columns
    ]
    return h.div(
        h.table(h.thead(h.tr(heads)), h.tbody(rows, id=name), class_=f"grid {name}"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=name.replace("-", " "),
    )


def nothing(columns: int, name: str, words: h.Node) -> h.Element:
    """Return the placeholder row of an empty table."""
    return h.tr(h.td(words, colspan=columns, class_="empty"), id=f"{name}-empty")


def live_rows(
    name: str, columns: Sequence[h.Node], rows: Mapping[str, h.Element], empty: h.Node
) -> Mapping[str, Mapping[str, h.Element]]:
    """Return the rows of a live table by their ids, or its placeholder if there are none."""
    return {name: rows or {f"{name}-empty": nothing(len(columns), name, empty)}}


def cell(label: str, *content: h.Node, kind: str | None = None) -> h.Element:
    """Return a table cell. A narrow screen shows `label` beside it."""
    return h.td(content, data_label=label, class_=kind)


def meter(value: float, words: str) -> h.Element:
    """Return a progress bar from 0 to 100 with a text."""
    width = min(max(value, 0.0), 100.0)
    return h.span(
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


def time_bar(start: float, end: float, kind: str) -> h.Element:
    """Return a bar from `start` to `end` percent of a scale. Other cells show the times as text."""
    place = min(max(start, 0.0), 99.0)
    width = min(max(end - place, 1.0), 100.0 - place)
    return _svg(
        _rect(class_="track", x="0", y="0", width="100", height="8"),
        _rect(class_=f"fill {kind}", x=f"{place:.1f}", y="0", width=f"{width:.1f}", height="8"),
        class_="meter",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def sparkline(values: Sequence[float | None], words: str, kind: str = "done") -> h.Element:
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


def prose(text: str) -> list[h.Node]:
    """Return a text with the parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [text]
    return [h.code(part) if place % 2 else part for place, part in enumerate(parts) if part]


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


def ago(instant: datetime | None) -> h.Node:
    """Return a relative time, such as `5 min ago`, which the browser keeps up to date."""
    if instant is None:
        return "–"
    seconds = time.time() - instant.timestamp()
    words = f"{_rough(seconds)} ago" if seconds >= 0 else f"in {_rough(-seconds)}"
    return _instant(instant, words, "ago")


def since(instant: datetime | None) -> h.Node:
    """Return the time elapsed since an instant, which the browser keeps up to date."""
    if instant is None:
        return "–"
    return _instant(instant, _rough(time.time() - instant.timestamp()), "since")


def clock(instant: datetime | None) -> h.Node:
    """Return a date and time, which the browser shows in the user's time zone."""
    if instant is None:
        return "–"
    return _instant(instant, f"{instant:%Y-%m-%d %H:%M:%S} UTC", "clock")


def _rough(seconds: float) -> str:
    return duration(round(seconds)) if seconds >= 1 else "0 s"


def _instant(instant: datetime, words: str, shown_as: str) -> h.Element:
    iso = instant.isoformat(timespec="milliseconds")
    return h.time_(words, datetime=iso, data_as=shown_as, title=f"{instant:%Y-%m-%d %H:%M:%S} UTC")


# The layout of every page: head, header, navigation, search box, notice and help.


_PAGES = {
    "": "Overview",
    "schedules": "Schedules",
    "workers": "Workers",
    "operations": "Operations",
    "redis": "Redis",
}

_SHORTCUTS = {
    "/": "search",
    "p": "pause or resume live updates",
    "g o": "go to the overview",
    "g s": "go to the schedules",
    "g w": "go to the workers",
    "g p": "go to the operations",
    "g r": "go to the Redis servers",
    "?": "show this help",
}


class Content(Struct, frozen=True):
    """The content of a page."""

    title: str
    body: h.Node
    page: str = ""
    """The navigation entry to highlight."""
    queue: str | None = None
    """The queue that the search box searches, or `None` for all queues."""
    state: str | None = None
    live: str | None = None
    """Address of the stream that updates the page, if any."""
    status: int = 200
    read_at: datetime | None = None
    """Time of the data if it is stale, otherwise `None`."""
    side: h.Element | None = None
    """Navigation beside the content on a wide screen, if any."""


def framed(ctx: RequestContext, content: Content, notice: Notice | None = None) -> h.Element:
    """Return a complete page with this content."""
    return h.html_(
        h.head(
            h.meta(charset="utf-8"),
            h.meta(name="viewport", content="width=device-width, initial-scale=1"),
            h.meta(name="color-scheme", content="light dark"),
            title(f"{content.title} – taskbull"),
            link_tag(rel="stylesheet", href="static/style.css"),
            link_tag(rel="icon", href="static/icon.svg", type="image/svg+xml"),
            h.script(src="static/main.js", type="module"),
        ),
        body(
            h.a("Skip to content", href="#content", class_="skip"),
            _header(ctx, content),
            h.div(
                content.side,
                h.main(
                    None if notice is None else _notice(ctx, notice),
                    content.body,
                    id="content",
                    tabindex="-1",
                ),
                class_="page" if content.side is None else "page sided",
            ),
            h.div(id="announcer", class_="unseen", aria_live="polite"),
            _help(),
            h.dialog(id="question", aria_label="Confirmation"),
            data_live=content.live,
        ),
        lang="en",
    )


def _notice(ctx: RequestContext, notice: Notice) -> h.Element:
    offer = notice.offer
    left = 0.0 if offer is None else offer.until - time.time()
    if offer is None or left <= 0:
        return h.p(notice.message, class_="notice", role="status")
    back = ask_button(ctx, offer.action, offer.words, offer.fields, notice.back, "light")
    return h.div(
        notice.message,
        h.div(back, class_="offer", data_seconds=f"{left:.0f}" if left < inf else None),
        class_="notice",
        role="status",
    )


def _header(ctx: RequestContext, content: Content) -> h.Element:
    settings, user = ctx.settings, ctx.access.user
    return h.header(
        h.a(h.strong("task"), "bull", href=h.url(""), class_="brand"),
        h.nav(
            [
                h.a(name, href=h.url(page), aria_current="page" if page == content.page else None)
                for page, name in _PAGES.items()
            ],
            aria_label="Pages",
        ),
        _search(content),
        h.div(
            h.span("as of ", clock(content.read_at), class_="age stale")
            if content.read_at
            else h.span("", id="age", class_="age", hidden=content.live is None),
            h.button(
                "Freeze",
                id="freeze",
                type="button",
                aria_pressed="false",
                title="Pause live updates (p)",
                hidden=True,
            ),
            h.button(
                "?",
                id="keys-help",
                type="button",
                aria_label="Keyboard shortcuts",
                title="Keyboard shortcuts (?)",
                hidden=True,
            ),
            h.span("read-only", class_="tag") if settings.read_only else None,
            h.span(settings.label, class_="tag label") if settings.label else None,
            h.span(user, class_="user", title=f"Signed in as {user}"),
            class_="about",
        ),
        class_="top",
    )


def _search(content: Content) -> h.Element:
    where = f"in {content.queue}" if content.queue else "in all queues"
    return h.form(
        label(h.span(f"Search {where}", class_="unseen"), for_="search"),
        h.input_(
            id="search",
            name="text",
            type="search",
            placeholder=f"id or text {where}",
            autocomplete="off",
            maxlength="500",
            required=True,
        ),
        h.input_(type="hidden", name="q", value=content.queue) if content.queue else None,
        h.input_(type="hidden", name="state", value=content.state) if content.state else None,
        method="post",
        action="search",
        role="search",
    )


def _help() -> h.Element:
    rows = [(h.dt(h.kbd(key)), h.dd(what)) for key, what in _SHORTCUTS.items()]
    return h.dialog(
        h.h2("Keyboard shortcuts", id="help-title"),
        h.dl(rows, class_="keys"),
        label(h.input_(type="checkbox", id="keys-on", checked=True), " Enable keyboard shortcuts"),
        h.form(h.button("Close", type="submit"), method="dialog"),
        id="help",
        aria_labelledby="help-title",
    )
