"""Syntax and format of the Lua files, by the Lua that Redis has."""

from __future__ import annotations

import re

import pytest
from lupa.lua51 import LuaRuntime, LuaSyntaxError

from taskbull.scripts import call

FILES = sorted(call.LUA.rglob("*.lua"))


def faults(text: str) -> list[str]:
    """Name what breaks the rules of format."""
    found = [
        f"{number}: {rule}"
        for number, line in enumerate(text.splitlines(), 1)
        for rule, broken in {
            "longer than 100": len(line) > 100,
            "a tab": "\t" in line,
            "blanks at the end": line != line.rstrip(),
            "an odd indent": (len(line) - len(line.lstrip(" "))) % 2 == 1,
            "single quotes": "'" in re.sub(r'"[^"]*"|--.*', "", line),
            "KEYS or ARGV by number": bool(re.search(r"\b(KEYS|ARGV)\[", line)),
            "call by another name": bool(re.search(r"= redis\.p?call\b(?!\()", line)),
        }.items()
        if broken
    ]
    return found if text.endswith("\n") else [*found, "no line end at the end"]


def test_a_file_has_the_format_of_all() -> None:
    found = {path.relative_to(call.LUA): faults(path.read_text()) for path in FILES}
    assert {path: broken for path, broken in found.items() if broken} == {}


@pytest.mark.parametrize(
    "line", ["x = 1 ", "\tx = 1", " x = 1", "x = 'a'", "x = KEYS[1]", "x" * 101, "c = redis.call"]
)
def test_a_fault_is_found(line: str) -> None:
    assert len(faults(f"{line}\n")) >= 1


def test_an_include_ends_with_the_function_that_has_its_name() -> None:
    includes = [path for path in FILES if path.parent.name == "includes"]
    functions = {
        path.stem: re.findall(r"^local function (\w+)", path.read_text(), re.MULTILINE)
        for path in includes
    }
    assert {stem: found[-1] for stem, found in functions.items()} == {s: s for s in functions}


def test_a_script_is_lua_5_1() -> None:
    for name in call.names():
        try:
            LuaRuntime().compile(call.load(name).source)
        except LuaSyntaxError as error:
            pytest.fail(f"{name}: {error}")


def test_what_is_no_lua_is_found() -> None:
    with pytest.raises(LuaSyntaxError):
        LuaRuntime().compile("local x = = 1")
