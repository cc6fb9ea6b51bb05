"""The parts that pages are made of: badges, buttons, tables, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from taskbull.core.states import JobState
from taskbull.dashboard.html import (
    Drawn,
    Element,
    Node,
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
    tr,
    url,
)
from taskbull.dashboard.visit import Visit

_svg, _rect, _path, _title = Tag("svg"), Tag("rect"), Tag("path"), Tag("title")

STATE_SIGNS = {
    JobState.WAITING: ("…", "waiting"),
    JobState.ACTIVE: ("▶", "running"),
    JobState.PRIORITIZED: ("↑", "prioritized"),
    JobState.DELAYED: ("◷", "delayed"),
    JobState.WAITING_CHILDREN: ("⋔", "waits for children"),
    JobState.PAUSED: ("‖", "paused"),
    JobState.FAILED: ("✗", "failed"),
    JobState.COMPLETED: ("✓", "done"),
    JobState.UNKNOWN: ("?", "unknown"),
}
"""A sign and a word for each state: never a colour alone."""


def badge(state: JobState) -> Element:
    """Show a state."""
    sign, word = STATE_SIGNS[state]
    return span(span(sign, class_="sign", aria_hidden="true"), word, class_=f"badge s-{state}")


ButtonLook: TypeAlias = Literal["plain", "light", "danger"]


def ask_button(
    visit: Visit,
    action: str,
    words: str,
    fields: Mapping[str, str],
    back: str,
    look: ButtonLook = "plain",
) -> Element | None:
    """Return the button of an action, if this person may take it; it leads to a question.

    `light`: with JavaScript, the question is the button itself, which is pressed twice.
    """
    if not visit.may(action):
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
    name: str, columns: Sequence[Node], rows: Sequence[Element | Drawn], empty: Node
) -> Element:
    """Return a table of rows made by `row`; on a narrow screen, each row is a card."""
    return table_of(name, columns, rows or nothing(len(columns), name, empty))


def table_of(name: str, columns: Sequence[Node], rows: Node) -> Element:
    """Return a table with these rows, whatever they are."""
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
    """Return the only row of a table without any."""
    return tr(td(words, colspan=columns, class_="empty"), id=f"{name}-empty")


def cell(label: str, *content: Node, kind: str | None = None) -> Element:
    """Return a cell; `label` is shown beside it on a narrow screen."""
    return td(content, data_label=label, class_=kind)


def meter(value: float, words: str) -> Element:
    """Return a bar from 0 to 100, and what it says in words."""
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
    """Return small bars, one for each value, and what they show in words; None is not known."""
    height, step = 20, 3
    most = max(filter(None, values), default=0.0)
    shapes: dict[float, str] = {}
    bars: list[str] = []  # one path, and a line where nothing was: a page may have hundreds of them
    idle = 0  # how many before this place had nothing
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
