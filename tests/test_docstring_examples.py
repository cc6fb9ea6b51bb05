"""Examples in the docstrings of the public API must be valid Python."""

from __future__ import annotations

import ast
import doctest
import inspect
from collections.abc import Iterator

import pytest

import taskbull


def _documented() -> Iterator[tuple[str, str]]:
    for name in taskbull.__all__:
        value = getattr(taskbull, name)
        yield name, inspect.getdoc(value) or ""
        if inspect.isclass(value):
            for member, found in inspect.getmembers(value):
                if not member.startswith("_"):
                    yield f"{name}.{member}", inspect.getdoc(found) or ""


EXAMPLES = [
    pytest.param("".join(example.source for example in examples), id=name)
    for name, text in _documented()
    if (examples := doctest.DocTestParser().get_examples(text))
]


@pytest.mark.parametrize("source", EXAMPLES)
def test_an_example_is_valid_python(source: str) -> None:
    compile(source, "<docstring>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
