"""Find the app and Redis of a command.

The app comes from the command line, the environment, pyproject.toml or a search of the working
directory. The search reads files without importing them. Only if it finds exactly one app is that
module imported.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from taskbull.app.app import App, load_app
from taskbull.app.discovery import distrust, distrust_module
from taskbull.cli.errors import WrongUsage, note
from taskbull.cli.server import existing_queue, open_server
from taskbull.errors import TaskbullError
from taskbull.monitor.server import SyncServer
from taskbull.queue.queue import SyncQueue

# Search of the working directory.


_MOST_FILES = 500
_MOST_BYTES = 1 << 20
_SKIPPED_FOLDERS = {
    *("tests", "test", "testing", "benchmarks", "benchmark", "bench", "docs", "doc", "examples"),
    *("example", "samples", "node_modules", "site-packages", "venv", "env", "build", "dist"),
}


def apps_in(folder: Path) -> list[str]:
    """Return the apps, as `module:attribute`, that modules in a folder create."""
    found = (
        f"{_module(file, folder)}:{attribute}"
        for file in islice(_sources(folder), _MOST_FILES)
        for attribute in _apps_of(file)
    )
    return list(dict.fromkeys(found))  # A name may be assigned twice.


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files that can be imported from a folder, packages included."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.stem.isidentifier():
            continue
        if entry.is_file() and entry.suffix == ".py" and not _is_test(entry.stem):
            yield entry
        elif (
            entry.is_dir()
            and entry.name not in _SKIPPED_FOLDERS
            and (entry / "__init__.py").is_file()
        ):
            yield from _sources(entry)


def _is_test(name: str) -> bool:
    return name.startswith("test_") or name.endswith("_test") or name == "conftest"


def _module(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _apps_of(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file assigns a `taskbull.App(…)` to."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return
        source = file.read_bytes()
        if b"taskbull" not in source or b"App" not in source:
            return
        body = ast.parse(source).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    classes = {name for statement in body for name in _imported(statement)}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                found = ast.unparse(called) in classes
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=called)):
                found = ast.unparse(called) in classes
            case _:
                continue
        if found:
            yield name


def _imported(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds to `taskbull.App` by importing it."""
    match statement:
        case ast.ImportFrom(module="taskbull", names=names):
            yield from (alias.asname or alias.name for alias in names if alias.name == "App")
        case ast.Import(names=names):
            for alias in names:
                if alias.name == "taskbull":
                    yield f"{alias.asname or alias.name}.App"
        case _:
            return


# The app and Redis: command line, environment, pyproject.toml, then the search.


F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "TASKBULL_APP"

_IMPORT_LIMIT = 20.0
"""Time limit in seconds for importing a guessed app, if the command works without one."""

COMPLETING = "_TASKBULL_COMPLETE"
"""Environment variable that shells set to request completions."""


def find_app(given: str | None, *, quiet: bool = False, keep_stdout: bool = False) -> App:
    """Return the app, named or found by searching, with its tasks loaded.

    Args:
        given: The app given on the command line.
        quiet: Do not print a note about an app that was found by searching.
        keep_stdout: Do not redirect to stderr what the app prints during its import.

    Raises:
        click.ClickException: If there is no app, or it cannot be loaded.
    """
    if (named := _named(given)) is not None:
        return _load(*named, keep_stdout=keep_stdout)
    found = _guesses(Path.cwd())
    if len(found) > 1:
        raise WrongUsage(_several(found))
    if not found:
        raise WrongUsage(
            "No app found: pass one with -A module:attribute, such as -A tasks:app. Tried: the "
            f"command line; the environment variable {VARIABLE}, which is not set; {_tried_file()};"
            f" the Python files in {Path.cwd()}, none of which creates an App"
        )
    app = _load(found[0], f" (found in {Path.cwd()})", keep_stdout=keep_stdout)
    if not quiet:
        note(f"using {found[0]}, the only app in this folder (use -A to choose another)")
    return app


def find_app_if_any(given: str | None) -> App | None:
    """Return the app for a command that also works without one, or None.

    A named app must load. A guessed app that does not load is ignored with a note.
    """
    if (named := _named(given)) is not None:
        return _load(*named)
    found = _guesses(Path.cwd())
    if len(found) > 1:
        note(f"using no app: {_several(found)}")
    if len(found) != 1:
        return None
    path = sys.path.copy()
    try:
        with _bounded():
            app = _load(found[0], "")
    except (Exception, SystemExit, _ImportTimeout) as error:  # noqa: BLE001 - user code
        sys.path[:] = path
        reason = error.message if isinstance(error, click.ClickException) else repr(error)
        note(
            f"ignored {found[0]}, the only app in this folder (use -A to choose another). {reason}"
        )
        return None
    note(f"using {found[0]}, the only app in this folder (use -A to choose another)")
    return app


def find_named_app(given: str | None) -> App | None:
    """Return the app named on the command line or in the environment, without a search."""
    target = given or os.environ.get(VARIABLE)
    return _load(target, "") if target else None


def _named(given: str | None) -> tuple[str, str] | None:
    """Return the configured app and its source, as text for messages."""
    if given:
        return given, ""
    if target := os.environ.get(VARIABLE):
        return target, f" (from -A or {VARIABLE})"  # -A before the command sets the variable.
    file = _nearest_file()
    if file is None or (target := _named_in(file)) is None:
        return None
    here = Path.cwd()
    module = target.partition(":")[0]
    if (
        reason := distrust_module(module, here) or distrust_module(module, file.parent)
    ) is not None:
        _note_ignored(f"{target} of {file}", reason)
        return None
    if (folder := str(file.parent)) not in sys.path:
        sys.path.insert(0, folder)  # The project file may name a module in its own folder.
    return target, f" (from {file})"


def _guesses(folder: Path) -> list[str]:
    """Return the apps in a folder, except those that other users could have written."""
    found = [(each, distrust_module(each.partition(":")[0], folder)) for each in apps_in(folder)]
    ignored = [(target, reason) for target, reason in found if reason is not None]
    if ignored:
        target, reason = ignored[0]
        others = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        _note_ignored(f"{target}{others}", reason)
    return [target for target, reason in found if reason is None]


def _several(found: list[str]) -> str:
    return (
        f"Found several apps in {Path.cwd()} ({', '.join(found)}): choose one with -A, such as "
        f"-A {found[0]}"
    )


def _note_ignored(what: str, reason: str) -> None:
    note(f"ignored {what}: {reason}. To use it, pass the app with -A or {VARIABLE}")


def find_server(app: str | None, redis: str | None, prefix: str | None) -> SyncServer:
    """Return the server for a command's options.

    With `redis` and without `app`, no app is searched for, so it works with any configuration.
    """
    return open_server(find_app_of_server(app, redis), redis, prefix)


def find_queue(
    queue: str, app: str | None, redis: str | None, prefix: str | None
) -> tuple[SyncServer, SyncQueue]:
    """Return the server for a command's options, and an existing queue."""
    server = find_server(app, redis, prefix)
    return server, existing_queue(server, queue)


def find_app_of_server(app: str | None, redis: str | None) -> App | None:
    """Return the app for a command's options, or None if there is none or only Redis is given."""
    return None if redis and not app else find_app_if_any(app)


def app_option(function: F) -> F:
    """Add the option `--app`."""
    return click.option(
        "-A",
        "--app",
        metavar="MODULE:ATTRIBUTE",
        show_default="found automatically",
        help="App to load.",
    )(function)


def app_argument(function: F) -> F:
    """Add an optional argument for the app, as `worker` has, passed as `named`."""
    return click.argument("named", metavar="[APP]", required=False)(function)


def server_options(function: F) -> F:
    """Add the options that select the queues, passed as `app`, `redis` and `prefix`."""
    function = click.option(
        "--prefix", show_default="from the app, or bull", help="Redis key prefix."
    )(function)
    function = click.option(
        "--redis",
        metavar="URL",
        show_default="from the app or the environment",
        help="Redis URL. For a password, use TASKBULL_REDIS_URL: other users can see arguments.",
    )(function)
    return app_option(function)


def _load(target: str, source: str, *, keep_stdout: bool = False) -> App:
    try:
        with nullcontext() if keep_stdout else _stdout_to_stderr():
            app = load_app(target)
            app.load_tasks()
    except TaskbullError as error:
        raise WrongUsage(f"Cannot load the app{source}: {error}") from error
    if ctx := click.get_current_context(silent=True):
        ctx.call_on_close(app.producer.stores.close)
    return app


@contextmanager
def _stdout_to_stderr() -> Generator[None, None, None]:
    """Redirect output of the app's import to stderr, because stdout may be JSON."""
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError):  # A descriptor may be closed.
            saved = os.dup(1)
            stack.callback(os.close, saved)
            os.dup2(2, 1)
            stack.callback(os.dup2, saved, 1)
            if sys.__stdout__ is not None:
                stack.callback(sys.__stdout__.flush)
        yield


class _ImportTimeout(BaseException):
    """Import timeout of a guessed app. Not an Exception, which the app might catch."""

    def __repr__(self) -> str:
        return f"Its import took more than {_IMPORT_LIMIT:g} s"


@contextmanager
def _bounded() -> Generator[None, None, None]:
    """Raise an error if an import takes too long, or calls `os._exit`."""
    leave, process, is_importing = os._exit, os.getpid(), True

    def refuse(status: int) -> NoReturn:
        if os.getpid() == process:
            raise SystemExit(f"os._exit({status})")
        leave(status)  # in a process that the app forked

    def end(*_: object) -> None:
        if is_importing:
            raise _ImportTimeout

    with ExitStack() as stack:
        with suppress(ValueError):  # Only the main thread can set signal handlers.
            stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, end))
            # Repeat the signal, because the app might catch the first exception.
            signal.setitimer(signal.ITIMER_REAL, _IMPORT_LIMIT, 0.1)
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        stack.callback(setattr, os, "_exit", leave)
        os._exit = refuse
        try:
            yield
        finally:
            is_importing = False


def _nearest_file() -> Path | None:
    for file, reason in _project_files():
        if reason is None:
            return file
        _note_ignored(str(file), reason)
    return None


def _project_files() -> Iterator[tuple[Path, str | None]]:
    """Yield each `pyproject.toml`, nearest first, with the reason if it is not trusted."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (file := folder / "pyproject.toml").is_file():
            # Modules in the working directory would shadow those of the project.
            yield file, distrust(folder, file, here)


def _named_in(file: Path) -> str | None:
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WrongUsage(f"Cannot read {file}: {error}") from error
    match document:
        case {"tool": {"taskbull": {"app": str(target)}}}:
            return target or None
        case {"tool": {"taskbull": {"app": other}}}:
            raise WrongUsage(f"{file}: [tool.taskbull] app must be module:attribute, got {other!r}")
        case _:
            return None


def _tried_file() -> str:
    found = list(_project_files())
    if not found:
        return f"pyproject.toml, which is not in {Path.cwd()} or above"
    file = next((file for file, reason in found if reason is None), None)
    if file is None:
        return f"{found[0][0]}, which is ignored"
    return f"{file}, which has no app under [tool.taskbull]"
