"""Reads `lua/`: the only module that knows where the files are and how they are put together.

A script's header is a contract, and is parsed as one:

    -- name: what it does, in one line.
    --
    -- KEYS
    --   name   type   what for
    -- ARGV
    --   name          what for
    -- RETURNS
    --   …

A line `--- @include "name"` is replaced by `lua/includes/name.lua`, once per script.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from pathlib import Path

from msgspec import Struct

_PACKAGED = Path(__file__).parent.parent / "lua"  # in the wheel
_CHECKOUT = Path(__file__).parent.parent.parent / "lua"  # beside the package, in a checkout
LUA = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT

_INCLUDE = re.compile(r'^ *--- @include "(\w+)"$')
_SECTION = re.compile(r"^-- ([A-Z]+)$")
_ENTRY = re.compile(r"^--   (\w+)\b")
_NAMING = re.compile(r'\b(?:prefix|base) \.\. |\.\. ":')


class Script(Struct, frozen=True):
    """One Lua script, ready to be sent: its text, its digest, and what it expects."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    whole: bool = False
    """Whether it touches more keys than one: it needs them all in one place."""


@cache
def load(name: str) -> Script:
    """Read the script `name` with everything it includes."""
    text = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    sections = _sections(text)
    source = _paste_includes(text, [set()])
    digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
    keys = sections.get("KEYS", ())
    whole = len(keys) > 1 or _NAMING.search(source) is not None
    return Script(name, source, digest, keys, sections.get("ARGV", ()), whole)


def names() -> list[str]:
    """Name every script there is."""
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
    """Paste what a text includes, each once in the scope where it is visible.

    An indented include is in a block: what is pasted there is unknown again when the block ends.
    `scopes` are the names that are visible, block by block.
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
    if "@include" in whole:  # it would load, and fail on the first run that needs the function
        raise ValueError(f'not of the form --- @include "name": {_misspelt(whole)}')
    return whole


def _misspelt(text: str) -> str:
    return next(line for line in text.splitlines() if "@include" in line)
