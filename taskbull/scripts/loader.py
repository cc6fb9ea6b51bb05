"""Loader for the Lua scripts. Only this module knows where they are and how includes work.

Each script has a header that is parsed:

    -- name: summary in one line.
    --
    -- KEYS
    --   name   type   purpose
    -- ARGV
    --   name          purpose
    -- RETURNS
    --   …

A line `--- @include "name"` is replaced by `lua/includes/name.lua`, once per scope.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from pathlib import Path

from msgspec import Struct

_PACKAGED = Path(__file__).parent.parent / "lua"  # in the wheel
_CHECKOUT = Path(__file__).parent.parent.parent / "lua"  # next to the package, in a checkout
LUA = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT

_INCLUDE = re.compile(r'^ *--- @include "(\w+)"$')
_SECTION = re.compile(r"^-- ([A-Z]+)$")
_ENTRY = re.compile(r"^--   (\w+)\b")
_NAMING = re.compile(r'\b(?:prefix|base) \.\. |\.\. ":')


class Script(Struct, frozen=True):
    """A Lua script that is ready to send: its source, its digest and its parameters."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    whole: bool = False
    """True if it accesses several keys, which must all be on one node."""


@cache
def load(name: str) -> Script:
    """Load the script `name` with all its includes."""
    text = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    sections = _sections(text)
    source = _paste_includes(text, [set()])
    digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
    keys = sections.get("KEYS", ())
    whole = len(keys) > 1 or _NAMING.search(source) is not None
    return Script(name, source, digest, keys, sections.get("ARGV", ()), whole)


def names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def _sections(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if heading := _SECTION.match(line):
            section = heading[1]
            found[section] = ()
        elif section and (entry := _ENTRY.match(line)):
            found[section] = (*found[section], entry[1])
    return found


def _paste_includes(text: str, scopes: list[set[str]]) -> str:
    """Replace the include lines in a text, each file once per scope.

    An indented include belongs to a block. Its definitions are not visible after the block ends.
    `scopes` contains the visible names, one set per block.
    """
    lines: list[str] = []
    indents = [0]
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip(" "))
        while line.strip() and indent < indents[-1]:
            indents.pop()
            scopes.pop()
        if not (include := _INCLUDE.match(line)):
            lines.append(line)
            continue
        if indent > indents[-1]:
            indents.append(indent)
            scopes.append(set())
        name = include[1]
        if not any(name in scope for scope in scopes):
            scopes[-1].add(name)
            body = (LUA / "includes" / f"{name}.lua").read_text(encoding="utf-8")
            lines.append(_paste_includes(body, scopes).rstrip("\n") + "\n")
    del scopes[len(scopes) - len(indents) + 1 :]
    whole = "".join(lines)
    # A misspelled include would load, and fail on the first run that needs the function.
    if "@include" in whole:
        raise ValueError(f'not of the form --- @include "name": {_misspelt(whole)}')
    return whole


def _misspelt(text: str) -> str:
    return next(line for line in text.splitlines() if "@include" in line)
