"""The messages that the page about troubleshooting quotes are those of the program."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.samples import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)


def _texts(path: Path) -> list[str]:
    """Return the string constants of a module. A placeholder of an f-string is a space."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else " " for each in node.values)
            found.append("".join(map(str, parts)))
    return found


TEXTS = [text for path in (ROOT / "taskbull").rglob("*.py") for text in _texts(path)]
TEXTS += [path.read_text() for path in (ROOT / "lua").rglob("*.lua")]


def test_the_page_quotes_messages() -> None:
    assert len(MESSAGES) > 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_exists(message: str) -> None:
    parts = [part.strip() for part in message.split("…")]
    assert any(all(part in text for part in parts) for text in TEXTS), message
