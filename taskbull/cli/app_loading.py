"""Finding the app, and Redis: from the command line, the environment, or pyproject.toml."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from taskbull.app.app import App, load_app
from taskbull.cli.app_search import apps_in
from taskbull.cli.errors import WrongUsage, note
from taskbull.cli.server import open_server
from taskbull.errors import TaskbullError
from taskbull.queue.sync_server import SyncServer

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "TASKBULL_APP"

COMPLETING = "_TASKBULL_COMPLETE"
"""The environment variable by which a shell asks what to propose after a Tab."""


def find_app(given: str | None, *, quiet: bool = False) -> App:
    """Return the app that was named, or that is found elsewhere.

    Its tasks are loaded. A `click.ClickException` says what was tried.
    """
    app = find_app_if_any(given, quiet=quiet)
    if app is None:
        raise WrongUsage(
            "No app given: name one with -A module:attribute, such as -A tasks:app. Tried: the "
            f"command line; the environment variable {VARIABLE}, which is not set; {_tried_file()};"
            f" the Python files in {Path.cwd()}, none of which makes an App"
        )
    return app


def find_app_if_any(given: str | None, *, quiet: bool = False) -> App | None:
    """Return the app that is named anywhere, or the only one in the working directory, or None.

    One that cannot be loaded: as above. `quiet`: do not say that it was found by searching.
    """
    if given:
        return _load(given, "")
    if target := os.environ.get(VARIABLE):
        return _load(target, f" (from {VARIABLE})")
    file = _nearest_file()
    if file is not None and (target := _named_in(file)) is not None:
        if (folder := str(file.parent)) not in sys.path:
            sys.path.insert(0, folder)  # what a project names is found from its folders, too
        return _load(target, f" (from {file})")
    return _load_the_only_one(Path.cwd(), quiet=quiet)


def _load_the_only_one(folder: Path, *, quiet: bool) -> App | None:
    found = apps_in(folder)
    if len(found) > 1:
        raise WrongUsage(
            f"There are several apps in {folder}: choose one with -A, such as -A {found[0]}; "
            f"there is also {', '.join(found[1:])}"
        )
    if not found:
        return None
    if not quiet and COMPLETING not in os.environ:
        note(f"using {found[0]}, the only app in this folder (-A names another)")
    return _load(found[0], f" (found in {folder})")


def find_server(app: str | None, redis: str | None, prefix: str | None) -> SyncServer:
    """Return the server of the queues, as the options of a command name it.

    With `redis` alone no app is looked for: so a server can be seen whatever is configured.
    """
    return open_server(find_app_of_server(app, redis), redis, prefix)


def find_app_of_server(app: str | None, redis: str | None) -> App | None:
    """Return the app to which the queues belong, if that is asked."""
    return None if redis and not app else find_app_if_any(app)


def app_option(function: F) -> F:
    """Add `--app`, for commands that need tasks."""
    where = f"{VARIABLE}, pyproject.toml, or the only one in this folder"
    return click.option(
        "-A", "--app", metavar="MODULE:ATTRIBUTE", show_default=where, help="The app."
    )(function)


def app_argument(function: F) -> F:
    """Take the app as an argument as well, as `worker` does; it comes as the parameter `named`."""
    return click.argument("named", metavar="[APP]", required=False)(function)


def server_options(function: F) -> F:
    """Add the options that say where the queues are, as parameters `app`, `redis`, `prefix`."""
    function = click.option(
        "--prefix", show_default="the app's, or bull", help="The prefix of all keys."
    )(function)
    function = click.option(
        "--redis",
        metavar="URL",
        show_default="the app's, or the environment's",
        help="The URL of Redis.",
    )(function)
    return app_option(function)


def _load(target: str, source: str) -> App:
    try:
        app = load_app(target)
        app.load_tasks()
    except TaskbullError as error:
        raise WrongUsage(f"The app cannot be loaded{source}: {error}") from error
    if ctx := click.get_current_context(silent=True):
        ctx.call_on_close(app.producer.stores.close)
    return app


def _nearest_file() -> Path | None:
    here = Path.cwd()
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    return next((file for file in files if file.is_file()), None)


def _named_in(file: Path) -> str | None:
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WrongUsage(f"{file} cannot be read: {error}") from error
    match document:
        case {"tool": {"taskbull": {"app": str(target)}}}:
            return target or None
        case {"tool": {"taskbull": {"app": other}}}:
            raise WrongUsage(f"{file}: [tool.taskbull] app must be module:attribute, not {other!r}")
        case _:
            return None


def _tried_file() -> str:
    file = _nearest_file()
    if file is None:
        return f"pyproject.toml, which is not in {Path.cwd()} or above"
    return f"{file}, which has no app under [tool.taskbull]"
