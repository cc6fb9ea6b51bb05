"""What is looked for in the fields of jobs, as bytes that stand there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from taskbull.core import payload
from taskbull.core.search import Terms

Wanted: TypeAlias = list[tuple[list[str], list[str]]]
"""Fields and texts: one of the texts has to be in one of the fields, for each of the pairs."""


def wanted(terms: Terms) -> Wanted:
    """Return what a script has to look for; whether paths fit is to be confirmed."""
    found: Wanted = [(["name"], [name]) for name in terms.names]
    found += [(["failedReason"], [error]) for error in terms.errors]
    found += [(["data"], _forms(text)) for text in terms.texts]
    for path in terms.paths:
        found += [(["data"], _forms(path.value))]
    return found


def confirmed(terms: Terms, raw: bytes | None, mask: Callable[[str], str] | None = None) -> bool:
    """Return whether the data of a job has what is looked for, in the part that a person may see.

    Values at a place in the data have to stand there.
    """
    text = (raw or b"").decode("utf-8", "surrogateescape")
    if mask is not None:
        text = mask(text)
        if not all(any(form in text for form in _forms(each)) for each in terms.texts):
            return False
    if not terms.paths:
        return True
    try:
        data = payload.decode(text.encode("utf-8", "surrogateescape"))
    except ValueError:
        return False
    return terms.confirmed(data)


def _forms(text: str) -> list[str]:
    """Return a text as typed, and in the forms in which JSON may have it."""
    escaped = json.dumps(text)[1:-1]
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return list(dict.fromkeys([text, plain, escaped]))
