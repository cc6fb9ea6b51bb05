"""Which functions can be tasks, and where they stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Optional, get_type_hints

from taskbull.errors import ConfigurationError


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined, as `file:line`."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations, resolved; a parameter that defaults to None may be None."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is None and name in hints:
            hints[name] = Optional[hints[name]]  # noqa: UP045 - `|` does not take every annotation
    return hints


def check_function(function: object, name: str | None, *, process: object = False) -> None:
    """Refuse what a worker could not call by itself with the arguments of a job."""
    problem = _problem(function, name)
    if problem is None and process and inspect.iscoroutinefunction(function):
        problem = "an async def runs in the event loop; process=True is for a plain function"
    if problem is not None:
        raise ConfigurationError(f"{_shown(function)} cannot be a task: {problem}")


def _problem(function: object, name: str | None) -> str | None:
    problem = None
    if hasattr(function, "adelay"):
        problem = "it is a task already"
    elif isinstance(function, type):
        problem = "it is a class; decorate a function"
    elif isinstance(function, staticmethod | classmethod) or inspect.ismethod(function):
        problem = "it is a method; decorate a function outside of the class"
    elif not inspect.isfunction(function):
        problem = "it is not a function made by def or async def"
    elif inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        problem = "it is a generator, which has no one result; return a list instead of yielding"
    elif function.__name__ == "<lambda>" and name is None:
        problem = "a lambda has no name; name it with name=…, or use def"
    elif _is_bound_to_a_job(function):
        problem = (
            "its first parameter is self, and a worker has no object for it; in a task "
            "current_job() gives the job"
        )
    elif _is_method(function):
        problem = (
            "it is a method, and a worker has no object for it; decorate a function outside of the "
            "class"
        )
    return problem


def _is_bound_to_a_job(function: Callable[..., Any]) -> bool:
    owner, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters), "")
    return first == "self" and (not owner or owner.endswith("<locals>"))


def _is_method(function: Callable[..., Any]) -> bool:
    owner, dot, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters), "")
    return bool(dot) and not owner.endswith("<locals>") and first in {"self", "cls"}


def _shown(function: object) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    if inspect.isfunction(function):
        return f"{name} ({place_of(function)})"
    return str(name)
