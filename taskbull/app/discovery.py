"""Find and import apps and task modules by name."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from taskbull.core.failure import is_ours
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
            f"{target!r} must be module:attribute, such as {_meant(module_name)!r}"
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


def _meant(name: str) -> str:
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
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    else:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return ConfigurationError(
        f"{why}: module {name!r} cannot be imported: {type(error).__name__}: {error}{where}"
    )
