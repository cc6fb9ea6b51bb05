"""Find and import apps and task modules by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from taskbull.core.outcome import is_ours
from taskbull.errors import ConfigurationError
from taskbull.store.address import distrust

__all__ = [
    "distrust",
    "distrust_module",
    "find_attribute",
    "import_module",
    "import_modules",
    "import_package",
    "make_working_directory_importable",
]


_DJANGO_ERRORS = {"AppRegistryNotReady", "ImproperlyConfigured"}
_DJANGO_ADVICE = (
    ". Django is not set up: add 'taskbull.django' to INSTALLED_APPS and use manage.py taskbull, "
    "or call django.setup() before you import models"
)


def import_module(name: str, why: str) -> ModuleType:
    """Import a module.

    Args:
        name: Full name of the module.
        why: Start of the error message.

    Raises:
        ConfigurationError: If the module is missing or its import fails. The message names the
            failing line.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"{why}: no module named {error.name!r} in {_searched()}"
            ) from error
        raise _broken(name, why, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, why, error) from error


def import_modules(names: Iterable[str], why: str) -> None:
    """Import modules, in order."""
    for name in names:
        import_module(name, f"{why} {name!r}")


def import_package(package: str, name: str | None) -> list[str]:
    """Import a package's modules with this last name, at any depth, and return their full names.

    None imports all modules.
    """
    why = f"autodiscover({package!r})"
    root = import_module(package, why)
    found: list[str] = []
    for module in _modules(root, why):
        if name is None or module.rpartition(".")[2] == name:
            import_module(module, why)
            found.append(module)
    return found


def _modules(package: ModuleType, why: str) -> Iterable[str]:
    for part in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if part.name.endswith(".__main__"):
            continue  # Importing it would run it.
        yield part.name
        if part.ispkg:
            yield from _modules(import_module(part.name, why), why)


def find_attribute(target: str) -> Any:
    """Return the object at `module:attribute`.

    Modules in the working directory can be imported.

    Raises:
        ConfigurationError: If the target is malformed or cannot be found.
    """
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        raise ConfigurationError(
            f"{target!r} must be module:attribute, such as {_suggestion(module_name)!r}"
        )
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{target!r} is a file: did you mean {meant}:{path}?")
    make_working_directory_importable()
    value: Any = import_module(module_name, f"{target!r}")
    where = module_name
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise ConfigurationError(
                f"{target!r}: {where} ({_file(module_name)}) has no attribute {part!r}"
            ) from None
        where = f"{where}.{part}"
    return value


def _suggestion(name: str) -> str:
    """Guess the target for a name without a colon: a module, or a dotted attribute."""
    make_working_directory_importable()
    module, dot, attribute = name.rpartition(".")
    if not dot:
        return f"{name or 'tasks'}:app"
    try:
        is_module = find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        is_module = False
    return f"{name}:app" if is_module else f"{module}:{attribute}"


def distrust_module(name: str, folder: Path) -> str | None:
    """Return the reason not to import a module found in a folder, or None if it is safe.

    All files in the folder that the import would run are checked.
    """
    checked, place = [folder], folder
    for part in name.split("."):
        found = (place / f"{part}.py", place / part, place / part / "__init__.py")
        checked += [path for path in found if os.path.lexists(path)]
        place /= part
    return distrust(*checked)


def make_working_directory_importable() -> None:
    """Make modules in the working directory importable, as `python -m` does."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _searched() -> str:
    return f"{os.getcwd()} or the rest of sys.path"


def _file(module: str) -> str:
    return str(getattr(sys.modules[module], "__file__", None) or "no file")


def _broken(name: str, why: str, error: BaseException) -> ConfigurationError:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not is_ours(frame.filename)
    ]
    if type(error).__name__ in _DJANGO_ERRORS:  # Name the user's line instead of Django's.
        frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    else:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    advice = ""
    if type(error).__name__ in _DJANGO_ERRORS:
        # A line inside Django does not help. Name the line that needs Django to be set up.
        own = [frame for frame in frames if f"{os.sep}django{os.sep}" not in frame.filename]
        where = f" at {own[-1].filename}:{own[-1].lineno}" if own else where
        advice = _DJANGO_ADVICE
    return ConfigurationError(
        f"{why}: module {name!r} cannot be imported: {type(error).__name__}: {error}{where}{advice}"
    )


# The import location of an app and its tasks: found by the worker, imported by its processes.


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
    redis: str | None = None
    """URL of the Redis server to use, or None for the app's own."""


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
