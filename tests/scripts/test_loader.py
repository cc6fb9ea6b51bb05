"""Scripts are put together from files, and their headers are contracts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import pytest
import redis

from taskbull.scripts import call
from taskbull.scripts.call import load, names

EXTEND = """\
-- extend: renew some locks.
--
-- KEYS
--   stalled   set   ids that the next sweep gives to another worker
--   meta      hash  what is known of the queue,
--                   told on two lines
-- ARGV
--   prefix          start of every key of this queue
--   held_jobs       msgpack array: job_id, token, job_id, token, ...
-- RETURNS
--   lost            the ids whose lock this worker holds no more
-- EFFECTS
--   each lock still held lives on

local stalled, meta = unpack(KEYS)
local prefix, held_jobs = unpack(ARGV)

--- @include "twice"
--- @include "outer"

-- KEYS
--   not_a_key   this is no header any more
return outer(3)
"""

TWICE = """\
-- twice(number) -> number
local function twice(number)
  return number * 2
end
"""

OUTER = """\
--- @include "twice"
--- @include "inner"
-- outer(number) -> number
local function outer(number)
  return inner(twice(number))
end
"""

INNER = """\
-- inner(number) -> number
local function inner(number)
  return number + 1
end
"""

BARE = """\
-- bare: need nothing.
--
-- RETURNS
--   what is said in RETURNS is no argument
return 7
"""


def write(folder: Path, files: dict[str, str]) -> None:
    (folder / "includes").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.lua").write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that replaces `lua/` during the test."""
    monkeypatch.setattr(call, "LUA", tmp_path)
    load.cache_clear()
    write(
        tmp_path,
        {
            "extend": EXTEND,
            "bare": BARE,
            "includes/twice": TWICE,
            "includes/outer": OUTER,
            "includes/inner": INNER,
        },
    )
    yield tmp_path
    load.cache_clear()


def header_differences(name: str) -> list[str]:
    """Say where the header of a script and what it unpacks disagree."""
    script = load(name)
    text = (call.LUA / f"{name}.lua").read_text(encoding="utf-8")
    wrong = [] if re.match(rf"-- {name}: .+\.\n", text) else [f"it does not begin with {name}:"]
    for table, told in (("KEYS", script.keys), ("ARGV", script.args)):
        found = re.findall(rf"^local ([\w,\s]+?)\s=\s+unpack\({table}\)$", text, re.MULTILINE)
        unpacked = tuple(re.split(r",\s+", found[0])) if len(found) == 1 else ()
        if unpacked != told or len(found) > 1:
            wrong.append(f"{table} are {told} in the header, and {found} are unpacked")
        if re.search(rf"\b{table}\[", text):
            wrong.append(f"{table} are counted")
    return wrong


def test_every_script_is_what_its_header_says() -> None:
    assert {name: header_differences(name) for name in names()} == {name: [] for name in names()}


def test_a_header_that_is_kept_passes_the_check(folder: Path) -> None:
    assert header_differences("extend") == []
    assert header_differences("bare") == []


@pytest.mark.parametrize(
    ("kept", "broken"),
    [
        ("-- extend: renew", "-- renew: renew"),
        ("-- extend: renew some locks.", "-- extend"),
        ("--   stalled   set", "--   waiting   set"),
        ("local stalled, meta = unpack(KEYS)", "local stalled = unpack(KEYS)"),
        ("local stalled, meta = unpack(KEYS)", "local meta, stalled = unpack(KEYS)"),
        ("local prefix, held_jobs = unpack(ARGV)", ""),
        ("local prefix, held_jobs = unpack(ARGV)", "local prefix, held = unpack(ARGV)"),
        ("--   prefix          start", "-- prefix          start"),
        ("return outer(3)", "return outer(ARGV[1])"),
        ("return outer(3)", "local stalled, meta = unpack(KEYS)"),
    ],
)
def test_a_header_that_is_not_kept_is_found(folder: Path, kept: str, broken: str) -> None:
    assert kept in EXTEND
    write(folder, {"extend": EXTEND.replace(kept, broken)})
    assert header_differences("extend") != []


def test_the_names_in_the_header_are_read_in_order(folder: Path) -> None:
    script = load("extend")
    assert script.name == "extend"
    assert script.keys == ("stalled", "meta")
    assert script.args == ("prefix", "held_jobs")


def test_a_script_may_need_neither_keys_nor_arguments(folder: Path) -> None:
    script = load("bare")
    assert (script.keys, script.args, script.source) == ((), (), BARE)


def test_includes_are_pasted_once_and_before_those_that_need_them(folder: Path) -> None:
    source = load("extend").source
    assert "@include" not in source
    places = [source.index(f"local function {name}(") for name in ("twice", "inner", "outer")]
    assert places == sorted(places)
    for name in ("twice", "inner", "outer"):
        assert source.count(f"local function {name}(") == 1


def test_each_script_has_its_own_copy_of_an_include(folder: Path) -> None:
    write(folder, {"other": '-- other: include it too.\n\n--- @include "twice"\nreturn twice(1)\n'})
    assert "local function twice(" in load("extend").source
    assert "local function twice(" in load("other").source


def test_includes_that_need_each_other_are_pasted_once(folder: Path) -> None:
    write(folder, {"includes/inner": '--- @include "outer"\n' + INNER})
    assert load("extend").source.count("local function") == 3


def test_what_is_pasted_in_a_block_is_unknown_behind_it(folder: Path) -> None:
    block = 'if 1 then\n  --- @include "twice"\n  --- @include "twice"\nend\n'
    write(folder, {"blocks": f'-- blocks: scopes.\n\n{block}{block}--- @include "twice"\n{block}'})
    assert load("blocks").source.count("local function twice(") == 3


@pytest.mark.parametrize(
    "line",
    [
        '--- @include "twice" ',
        '--- @include "twice"\t-- it doubles',
        '\t--- @include "twice"',
        '-- @include "twice"',
        "--- @include 'twice'",
        '--- @include "includes/twice"',
        '--- @include "twice.lua"',
    ],
)
def test_an_include_that_is_misspelt_is_not_taken_for_a_remark(folder: Path, line: str) -> None:
    # The script would load, and fail on the first run that needs the function.
    write(folder, {"typo": f"-- typo: misspell.\n\n{line}\nreturn twice(1)\n"})
    with pytest.raises(ValueError, match="include"):
        load("typo")


def test_an_include_in_the_last_line_needs_no_line_end(folder: Path) -> None:
    write(folder, {"last": '-- last: end with it.\n\n--- @include "twice"'})
    assert "local function twice(" in load("last").source


def test_an_include_without_a_line_end_does_not_run_into_the_next_line(folder: Path) -> None:
    lines = '-- glued: paste it.\n\n--- @include "twice"\nreturn twice(1)\n'
    write(folder, {"includes/twice": TWICE.rstrip("\n"), "glued": lines})
    assert load("glued").source.endswith("end\nreturn twice(1)\n")


def test_an_include_that_is_not_there_is_named(folder: Path) -> None:
    write(folder, {"lost": '-- lost: miss something.\n\n--- @include "nowhere"\n'})
    with pytest.raises(FileNotFoundError, match=r"nowhere\.lua"):
        load("lost")


def test_a_script_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.lua"):
        load("nothing")


def test_scripts_are_named_without_their_includes(folder: Path) -> None:
    assert names() == ["bare", "extend"]


def test_a_script_is_read_once(folder: Path) -> None:
    assert load("extend") is load("extend")


def test_the_digest_is_that_of_the_pasted_text(folder: Path) -> None:
    script = load("extend")
    assert script.sha == sha1(script.source.encode()).hexdigest()


def test_the_server_knows_a_script_by_the_same_digest(folder: Path, admin: redis.Redis) -> None:
    write(folder, {"bare": BARE + "-- äöü €\n"})
    for name in names():
        script = load(name)
        assert admin.script_load(script.source) in (script.sha, script.sha.encode())
    assert admin.evalsha(load("extend").sha, 2, "a", "b", "c", "d") == 7
