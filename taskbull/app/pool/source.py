"""The import location of an app and its tasks: found by the worker, imported by its processes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct

from taskbull.app.discovery import find_attribute, import_module
from taskbull.errors import ConfigurationError

MAIN: Final = "__main__"

SCRIPT: Final = "__mp_main__"
"""The module name that a process gives the worker's program, instead of `__main__`."""

_importing: ContextVar[bool] = ContextVar("taskbull_importing_for_the_pool", default=False)


class AppSource(Struct, frozen=True):
    """The import location of an app and of its tasks' modules."""

    app: str
    """`module:attribute`."""
    modules: list[str]
    script: str | None
    """The file of the program, if the app or a task is defined in it."""


def source_of(app: object, name: str, target: str | None, modules: Iterable[str]) -> AppSource:
    """Return the location from where a process can import an app and its tasks' modules.

    Raises:
        ConfigurationError: If a process cannot import the app, because it is not a module
            attribute or is defined in an interactive program.
    """
    found = target or _find(app)
    if found is None:
        raise ConfigurationError(
            f"App '{name}' has tasks with process=True, so pool processes must be able to import "
            "it: create it at the top level of a module, such as app = App(…)"
        )
    needed = [found.partition(":")[0], *modules]
    script = None
    if MAIN in needed:
        needed, script = _without_main(needed, name)
        if script is None:
            found = f"{needed[-1]}:{found.partition(':')[2]}" if found.startswith(MAIN) else found
        else:
            found = found.replace(MAIN, SCRIPT, 1)
    return AppSource(found, [one for one in dict.fromkeys(needed) if one != SCRIPT], script)


def _without_main(needed: Sequence[str], name: str) -> tuple[list[str], str | None]:
    """Replace `__main__` by the program's module name, or else return its file."""
    others = [one for one in needed if one != MAIN]
    program = sys.modules[MAIN]
    if program.__spec__ is not None:  # python -m shop.main
        return [*others, program.__spec__.name], None
    file = getattr(program, "__file__", None)
    if file is None:
        raise ConfigurationError(
            f"App '{name}' has tasks with process=True that are defined in an interactive program, "
            "so pool processes cannot import them. Move them to a module"
        )
    return others, str(file)


def load(source: AppSource) -> Any:
    """Import the app and its tasks' modules in a pool process; return the app."""
    with _for_the_pool():
        if source.script is not None:
            _import_script(source.script)
        found = find_attribute(source.app)
        for module in source.modules:
            import_module(module, f"the tasks of {source.app!r}")
    return found


def check_not_importing() -> None:
    """Raise `ConfigurationError` if a pool process is importing the app.

    This rejects programs that start a worker when they are imported.
    """
    if _importing.get():
        raise ConfigurationError(
            "A worker was started while a pool process imported the app: put the call under "
            'if __name__ == "__main__":'
        )


@contextmanager
def _for_the_pool() -> Generator[None]:
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def _find(app: object) -> str | None:
    """Return the `module:attribute` of the app, preferring other modules over `__main__`."""
    places = [
        f"{module}:{attribute}"
        for module, loaded in list(sys.modules.items())
        for attribute, value in list(getattr(loaded, "__dict__", {}).items())
        if value is app
    ]
    return min(places, key=lambda place: place.startswith(f"{MAIN}:"), default=None)


def _import_script(file: str) -> None:
    spec = importlib.util.spec_from_file_location(SCRIPT, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} cannot be imported by a pool process")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)
