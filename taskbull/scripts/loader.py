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

_INCLUDE = re.compile(r'^--- @include "(\w+)"(?:\n|\Z)', re.MULTILINE)
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
    source = _paste_includes(text, pasted=set())
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


def _paste_includes(text: str, pasted: set[str]) -> str:
    def paste(include: re.Match[str]) -> str:
        name = include[1]
        if name in pasted:
            return ""
        pasted.add(name)
        body = (LUA / "includes" / f"{name}.lua").read_text(encoding="utf-8")
        return _paste_includes(body, pasted).rstrip("\n") + "\n"

    whole = _INCLUDE.sub(paste, text)
    if "@include" in whole:  # it would load, and fail on the first run that needs the function
        raise ValueError(f'not of the form --- @include "name": {_misspelt(whole)}')
    return whole


def _misspelt(text: str) -> str:
    return next(line for line in text.splitlines() if "@include" in line)
