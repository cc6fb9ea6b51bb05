"""The fields of the forms by which actions ask."""

from __future__ import annotations

from collections.abc import Mapping

from taskbull.dashboard.html import (
    Element,
    Node,
    fieldset,
    input_,
    label,
    legend,
    small,
    span,
)


def field(name: str, words: Node, kind: str = "text", hint: str = "", **attributes: str) -> Element:
    """Return a field with its label."""
    return label(
        span(words, class_="name"),
        input_(name=name, type=kind, autocomplete="off", **attributes),
        small(hint) if hint else None,
        class_="field",
    )


def tick(name: str, words: Node, *, ticked: bool = False) -> Element:
    """Return a box to tick."""
    box = input_(name=name, type="checkbox", value="yes", checked=ticked)
    return label(box, span(words), class_="field tick")


def choice(name: str, words: str, options: Mapping[str, Node], chosen: str) -> Element:
    """Return some options of which one is chosen."""
    return fieldset(
        legend(words),
        [
            label(
                input_(name=name, type="radio", value=value, checked=value == chosen),
                span(text),
                class_="tick",
            )
            for value, text in options.items()
        ],
    )
