"""The parts that pages are made of: badges, buttons, tables, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from taskbull.core.states import JobState
from taskbull.dashboard.html import (
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

_svg, _rect, _title = Tag("svg"), Tag("rect"), Tag("title")

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


def grid(name: str, columns: Sequence[Node], rows: Sequence[Element], empty: Node) -> Element:
    """Return a table of rows made by `row`; on a narrow screen, each row is a card."""
    heads = [
        column if isinstance(column, Element) else th(column, scope="col") for column in columns
    ]
    body: Node = rows or tr(td(empty, colspan=len(heads), class_="empty"), id=f"{name}-empty")
    return div(
        table(thead(tr(heads)), tbody(body, id=name), class_=f"grid {name}"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=name.replace("-", " "),
    )


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
    most = max((value for value in values if value), default=0.0)
    bars: list[Element] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        tall = max(1.0, value / most * height) if value and most else 0.5
        bars.append(
            _rect(x=place * step, y=f"{height - tall:.1f}", width=step - 1, height=f"{tall:.1f}")
        )
    return _svg(
        _title(words),
        bars,
        class_=f"spark {kind}",
        viewBox=f"0 0 {max(len(values), 1) * step} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
