"""Parse task arguments, durations and times from the command line.

The value in `key=value` is a string if the parameter accepts one. Otherwise it is parsed as JSON,
and words such as `yes` and `off` as booleans. The value in `key:=value` is always JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, get_type_hints

import click
import msgspec
from click.shell_completion import CompletionItem

from taskbull.app.signature import ConversionError, converter
from taskbull.app.task import Task
from taskbull.cli.app_loading import find_named_app
from taskbull.cli.errors import WrongUsage
from taskbull.cli.server import open_server
from taskbull.core import payload
from taskbull.core.search import read_time
from taskbull.core.validation import did_you_mean
from taskbull.errors import ConfigurationError, TaskbullError

# Task arguments.


_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), b"true"),
    **dict.fromkeys(("false", "no", "off", "0"), b"false"),
}


class Arguments:
    """Positional and keyword arguments of a task call, parsed by its annotations."""

    def __init__(self, task: Task[..., Any], words: Sequence[str]) -> None:
        self._task = task
        self._binder = task.calling.binder
        self._hints = _hints(task)
        values: dict[str, Any] = {}
        for word in words:
            name, value = self._read(word)
            if name in values:
                raise WrongUsage(f"argument '{name}' is given twice")
            values[name] = value
        by_position = [name for name in self._binder.positional_only if name in values]
        self.args = tuple(values.pop(name) for name in by_position)
        self.kwargs = values

    def _read(self, word: str) -> tuple[str, Any]:
        name, equals, text = word.partition("=")
        as_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise WrongUsage(f"{word!r} must be key=value, or key:=json")
        hint = self._hint(name)
        if as_json:
            return name, _json(name, text)
        return name, _value(name, text, hint)

    def _hint(self, name: str) -> Any:
        known, others = self._binder.parameters, self._binder.catch_all
        if name in known:
            return self._hints.get(name, Any)
        if others is not None and name not in self._binder.injected:
            return self._hints.get(others.name, Any)
        takes = ", ".join(known) or "no arguments"
        hint = did_you_mean(name, known)
        raise WrongUsage(
            f"Task '{self._task.name}' has no argument '{name}'{hint}; it takes {takes}"
        )


def _hints(task: Task[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(task.calling.function, include_extras=True)
    except Exception as error:
        raise WrongUsage(
            f"The annotations of task {task.name} ({task.location}) cannot be resolved: {error}"
        ) from error


def _json(name: str, text: str) -> Any:
    try:
        return payload.decode(text.encode())
    except ValueError as error:
        raise WrongUsage(f"argument '{name}': {text!r} is not JSON: {error}") from error


def _value(name: str, text: str, hint: Any) -> Any:
    """Return the first interpretation of a text that the parameter accepts."""
    try:
        read = converter(hint)
    except TypeError as error:
        raise WrongUsage(
            f"argument '{name}': its type {hint!r} cannot be represented in JSON: {error}"
        ) from error
    as_text = _quoted(name, text)
    readings = [as_text, text.encode()]
    if (word := _WORDS.get(text.strip().lower())) is not None:
        readings.append(word)
    for reading in readings:
        if _problem(read, reading) is None:
            return payload.decode(reading)
    problem = _problem(read, text.encode() if _is_json(text) else as_text)
    raise WrongUsage(f"argument '{name}': {text!r} is invalid: {problem}")


def _quoted(name: str, text: str) -> bytes:
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        raise WrongUsage(f"argument '{name}': {text!r} is not UTF-8") from None


def _problem(read: Callable[[bytes], Any], raw: bytes) -> ConversionError | None:
    try:
        read(raw)
    except ConversionError as misfit:
        return misfit
    return None


def _is_json(text: str) -> bool:
    try:
        payload.decode(text.encode())
    except ValueError:
        return False
    return True


# Option callbacks for durations and times.


_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FORM = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)", re.ASCII)
_EXAMPLE = "such as 2030-01-31T09:00:00+01:00"


def read_seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Parse a duration: seconds, or a number with a unit from ms to w."""
    if value is None:
        return None
    form = _FORM.fullmatch(value.strip().lower())
    if form is None or form["unit"] not in _UNITS:
        raise click.BadParameter(
            f"{value!r} is not a duration: use seconds, or a unit as in 500ms, 5m, 2h or 1d"
        )
    return float(form["number"]) * _UNITS[form["unit"]]


def read_instant(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> datetime | None:
    """Parse an ISO 8601 date and time with an offset."""
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a date and time {_EXAMPLE}") from None
    if instant.utcoffset() is None:
        raise click.BadParameter(f"{value!r} has no time zone: add its offset, {_EXAMPLE}")
    return instant


def read_past(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """Parse a past time, such as 03:10 or -15min. The default time zone is the local one."""
    if value is None:
        return None
    try:
        return read_time("TIME", value, datetime.now(UTC).astimezone())
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


# Shell completion of queue and task names.
#
# Only an app that is named is imported. Completion must not run code that a search has found, such
# as code in a folder that was just unpacked.


# Shells insert a completion unchanged. So it must be a word that bash, zsh and fish do not expand,
# split or read as an option. A comma or colon would end the word in click's scripts.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@%+/-]*")


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of an existing queue. If Redis is unavailable, complete nothing."""
    given = ctx.params
    try:
        redis = given.get("redis")
        app = None if redis and not _app(ctx) else find_named_app(_app(ctx))
        names = open_server(app, redis, given.get("prefix")).queues()
    except (click.ClickException, TaskbullError):
        return []
    return _proposals(names, incomplete)


def complete_task(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a task of the named app, if it can be loaded."""
    try:
        app = find_named_app(_app(ctx))
    except click.ClickException:
        return []
    return _proposals([] if app is None else app.tasks, incomplete)


def _app(ctx: click.Context) -> str | None:
    """Return the app given after or before the command."""
    return ctx.params.get("app") or ctx.find_root().params.get("app")


def _proposals(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the matching names that need no quoting. Users can still type the others."""
    return [
        CompletionItem(name)
        for name in names
        if name.startswith(incomplete) and _PLAIN_WORD.fullmatch(name)
    ]
