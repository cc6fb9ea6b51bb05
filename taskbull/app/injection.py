"""Parameters of a task that take what its app's lifespan yields."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

from taskbull.app.function import hints_of, place_of
from taskbull.errors import ConfigurationError


class FromLifespan:
    """The default of a parameter that the worker fills in: see `from_lifespan`.

    It is not JSON, and never stored.
    """

    def __repr__(self) -> str:
        return "from_lifespan()"


def from_lifespan() -> Any:
    """Return a default for a parameter: what the app's lifespan yields, the same for all jobs.

    The worker fills it in. Whoever adds a job cannot give it; whoever calls the function by hand
    has to. If it is annotated with a class, the worker checks that the value is one when it starts.
    """
    return FromLifespan()


def check_resources(
    task: str, function: Callable[..., Any], parameters: tuple[str, ...], value: object
) -> None:
    """Refuse a value of a lifespan that does not fit the parameters of a task that take it."""
    hints = hints_of(function)
    for name in parameters:
        hint = hints.get(name, Any)
        if value is None and not _takes_none(hint):
            raise ConfigurationError(
                f"Parameter {name} of task {task} ({place_of(function)}) takes what the lifespan "
                "yields, but that yields nothing: `yield resources` there"
            )
        if not _fits(value, hint):
            raise ConfigurationError(
                f"Parameter {name} of task {task} ({place_of(function)}) is annotated {hint!r}, "
                f"but the lifespan yields a value of type {type(value).__qualname__}"
            )


def _takes_none(hint: Any) -> bool:
    return hint in {None, type(None)} or type(None) in _parts(hint)


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; of anything else, nothing."""
    return get_args(hint) if get_origin(hint) in {Union, types.UnionType} else ()


def _fits(value: object, hint: Any) -> bool:
    """Return False if the annotation is a class, and the value is not one of it."""
    if parts := _parts(hint):
        return any(_fits(value, part) for part in parts)
    if get_origin(hint) is Annotated:
        return _fits(value, get_args(hint)[0])
    kind = get_origin(hint) or getattr(hint, "__supertype__", hint)
    if kind is None:
        return value is None
    if not isinstance(kind, type):
        return True  # Any, a variable, a Literal: the type checker knows more of those
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol or a TypedDict cannot be asked
        return True
