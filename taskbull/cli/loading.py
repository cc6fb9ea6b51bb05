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
from taskbull.cli.errors import WrongUsage, failure_of
from taskbull.cli.site import Site
from taskbull.errors import TaskbullError
from taskbull.store.address import default_url, parse

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "TASKBULL_APP"


def find_app(given: str | None) -> App:
    """Give the app that was named, or that the environment or pyproject.toml names.

    Its tasks are loaded. A `click.ClickException` says what was tried.
    """
    app = find_app_if_any(given)
    if app is None:
        raise WrongUsage(
            "No app is named. Tried: the command line (module:attribute); the environment "
            f"variable {VARIABLE}, which is not set; {_tried_file()}"
        )
    return app


def find_app_if_any(given: str | None) -> App | None:
    """Give the app that is named anywhere; None if none is. One that cannot be loaded: as above."""
    if given:
        return _load(given, "")
    if target := os.environ.get(VARIABLE):
        return _load(target, f" (from {VARIABLE})")
    file = _nearest_file()
    if file is None or (target := _named_in(file)) is None:
        return None
    if (folder := str(file.parent)) not in sys.path:
        sys.path.insert(0, folder)  # what a project names is found from its folders, too
    return _load(target, f" (from {file})")


def find_redis(app: App | None, redis: str | None = None, prefix: str | None = None) -> Site:
    """Give the place of the queues: what is given here, else the app's, else the default."""
    try:
        if redis is None and app is not None:
            address = app.producer.stores.address
        else:
            address = parse(redis or default_url())
        if app is None:
            site = Site(address, "bull" if prefix is None else prefix)
        else:
            producer = app.producer
            site = Site(
                address, producer.prefix if prefix is None else prefix, producer.hash_tag, app
            )
        site.keys("any")  # refuses a wrong prefix
    except TaskbullError as error:
        raise failure_of(error) from error
    return site


def find_site(app: str | None, redis: str | None, prefix: str | None) -> Site:
    """Give the place of the queues, as the options of a command name it.

    With `redis` alone no app is looked for: so a server can be seen whatever is configured.
    """
    return find_redis(find_app_of_site(app, redis), redis, prefix)


def find_app_of_site(app: str | None, redis: str | None) -> App | None:
    """Give the app to which the queues belong, if that is asked."""
    return None if redis and not app else find_app_if_any(app)


def app_option(function: F) -> F:
    """Add `--app`, for commands that need tasks."""
    where = f"The app. [default: {VARIABLE}, or pyproject.toml]"
    return click.option("-A", "--app", metavar="MODULE:ATTRIBUTE", help=where)(function)


def site_options(function: F) -> F:
    """Add the options that say where the queues are, as parameters `app`, `redis`, `prefix`."""
    start = "Start of all keys. [default: the app's, or bull]"
    where = "Where Redis is. [default: the app's, or the environment's]"
    function = click.option("--prefix", help=start)(function)
    function = click.option("--redis", metavar="URL", help=where)(function)
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
        return f"pyproject.toml, of which there is none in {Path.cwd()} or above"
    return f"{file}, which has no app under [tool.taskbull]"
