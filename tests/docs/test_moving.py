"""The names of taskbull in the tables of the pages about moving exist.

`tests/app/test_moving.py` and `tests/app/test_migrants.py` run the rows.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Command, Group

import taskbull
from taskbull import JobFailed, events
from taskbull.app.settings import CallOptions, GroupOptions, TaskOptions
from taskbull.cli.main import commands
from taskbull.core.job import Job
from taskbull.core.options import JobKeywords, QueueKeywords, WorkerKeywords
from taskbull.testing import Box
from tests.docs.samples import ROOT

PAGES = sorted((ROOT / "docs").glob("from-*.md"))
_ROW = re.compile(r"^\| (.*) \| (.*) \|$", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")

OPTIONS = {
    "task": TaskOptions,
    "options": CallOptions,
    "queue_options": QueueKeywords,
    "add": JobKeywords,
    "WorkerOptions": WorkerKeywords,
}
"""Options of functions that take them as `**options`."""

CLASSES = (
    *(each for name in taskbull.__all__ if isinstance(each := getattr(taskbull, name), type)),
    Job,
    Box,
)
FAILED = JobFailed("q", "1", "reason")
EVENTS = {name: each for name, each in vars(events).items() if isinstance(each, type)}
ATTRIBUTES = {name for each in (*CLASSES, *EVENTS.values()) for name in dir(each)}
ATTRIBUTES |= {*EVENTS, *vars(FAILED)}
KEYWORDS = {
    name for options in (*OPTIONS.values(), GroupOptions) for name in options.__annotations__
} | set(inspect.signature(taskbull.App).parameters)
WORDS = {*taskbull.__all__, *ATTRIBUTES, *KEYWORDS, *map(str, taskbull.JobState)}
PLACEHOLDERS = {"a", "b", "f", "TASKS", "OPTIONS"}
OTHERS = {"enqueue_timeout", "extend", "keep_last", "replace", "ttl"}


def _spans(page: Path) -> list[str]:
    """Return the code of the right column of each table."""
    rows = _ROW.findall(page.read_text())
    return [span for _, ours in rows for span in _SPAN.findall(ours)]


SPANS = sorted({(page.name, span) for page in PAGES for span in _spans(page)})
COMMANDS = [each for each in SPANS if each[1].startswith(("taskbull ", "-"))]
NO_CODE = {"TASKBULL_INLINE=1", "async def", "await", "def", "taskbull.django"}
CODE = [each for each in SPANS if each not in COMMANDS and each[1] not in NO_CODE]


def _parsed(span: str) -> ast.AST:
    """Parse an expression, a statement, keyword arguments, a parameter or the head of a block."""
    code = re.sub(r"^\.", "job.", span.removeprefix("@").replace("…", "..."))
    code = re.sub(r'"redis://\.\.\."', '"redis://"', re.sub(r"=(?=[,)]|$)", "=...", code))
    for form in ("{}", "f({})", "{}\n        pass", "def f({}): pass", "{}: pass"):
        text = form.format(code).replace("\n", "\n    ")
        try:
            return ast.parse(f"async def outer():\n    {text}")
        except SyntaxError:
            continue
    raise AssertionError(f"cannot parse {span}")


def _name(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _accepted(call: ast.Call) -> set[str] | None:
    """Return the keyword arguments that a function accepts, or None if this is not known."""
    name = _name(call.func)
    if name in ("f", "timedelta"):
        return KEYWORDS | OTHERS | {"progress", "seconds"}
    if name in OPTIONS:
        return set(OPTIONS[name].__annotations__)
    if name in ("App", "TaskGroup"):
        return {*_parameters(getattr(taskbull, name)), *GroupOptions.__annotations__}
    owners = [getattr(each, name) for each in CLASSES if name in dir(each)]
    if name in taskbull.__all__ and name != "events":
        return _parameters(getattr(taskbull, name))
    return {one for each in owners if callable(each) for one in _parameters(each)}


def _parameters(of: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(of).parameters)
    except ValueError:  # An exception class without a constructor.
        return set()


def _unknown(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                accepted = _accepted(node) or set()
                for keyword in node.keywords:
                    if keyword.arg not in accepted:
                        yield f"{_name(node.func)}({keyword.arg}=)"
            case ast.Attribute(attr=attr) if attr not in ATTRIBUTES:
                yield f".{attr}"
            case _:
                pass


@pytest.mark.parametrize(("page", "span"), CODE)
def test_every_name_in_a_table_exists(page: str, span: str) -> None:
    tree = _parsed(span)
    unknown = [*_unknown(tree)]
    if span.isidentifier() and span not in WORDS | PLACEHOLDERS | OTHERS:
        unknown.append(span)
    assert not unknown, span


def _command(words: list[str]) -> tuple[Command, list[str]]:
    command: Command = commands
    while words and isinstance(command, Group) and words[0] in command.commands:
        command, *words = command.commands[words[0]], *words[1:]
    return command, words


@pytest.mark.parametrize(("page", "span"), COMMANDS)
def test_every_command_and_option_in_a_table_exists(page: str, span: str) -> None:
    words = span.split()
    if words[0] == "taskbull":
        command, words = _command(words[1:])
        assert not isinstance(command, Group) or command is not commands, span
    else:
        command = commands.commands["jobs" if words[0] == "--state" else "worker"]
    known = {each for option in command.params for each in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known
