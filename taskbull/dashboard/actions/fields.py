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
from taskbull.dashboard.messages import Form


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


def attempts_choice() -> Element:
    """Return the choice how often a job that is retried is tried."""
    options = {"more": "once more", "anew": "with all its attempts anew"}
    return choice("attempts", "How often a job is tried", options, "more")


def wants_anew(form: Form) -> bool:
    """Return whether jobs are to get all their attempts anew."""
    return form.get("attempts") == "anew"
