"""Whether the arguments of a call fit the annotations, found out when the job is added.

The rule: refuse what a worker would fail for good, and nothing else. So whatever is not plainly
right is written as JSON and read again, as a worker reads it. Plain types are compared (0.1 µs for
an argument); what is large, or of a type that this process cannot name, is left to the worker.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias, TypeGuard, Union, get_args, get_origin
from uuid import UUID

from msgspec import Struct

from taskbull.app.binding import Binder
from taskbull.app.conversion import Misfit, converter
from taskbull.app.function import hints_of
from taskbull.core import payload
from taskbull.core.foreign import is_pydantic_model
from taskbull.errors import InvalidArguments, SerializationError

Check: TypeAlias = Callable[[dict[str, Any]], None]
"""Raises `InvalidArguments` for arguments by name that do not fit."""

_LARGE: Final = 1000
"""Entries of a list or dict above which it is left to the worker."""

_CONTAINERS: Final = (list, tuple, dict, set, frozenset)

_NONE: Final = frozenset({type(None)})
_PLAIN: Final[dict[Any, frozenset[type]]] = {
    **{kind: frozenset({kind}) for kind in (str, int, bool, bytes, list, dict)},
    **{kind: frozenset({kind}) for kind in (datetime, date, time, timedelta, UUID, Decimal)},
    float: frozenset({float, int}),
    None: _NONE,
    type(None): _NONE,
}
"""For an annotation, the classes whose values fit, whatever they are."""


class _Rule(Struct, frozen=True):
    """What one parameter takes."""

    annotation: Any
    plainly: frozenset[type]
    """Values of just these classes fit."""
    read: Callable[[bytes], Any]


def argument_check(task: str, function: Callable[..., Any], binder: Binder) -> Check:
    """Return the check of a task's arguments."""
    rules = {name: rule for name in binder.parameters if (rule := _rule(function, name))}
    plain = {name: rule.plainly for name, rule in rules.items()}
    others = None if binder.catch_all is None else _rule(function, binder.catch_all.name)

    def check(arguments: dict[str, Any]) -> None:
        for name, value in arguments.items():
            kinds = plain.get(name)
            if kinds is not None:
                if value.__class__ not in kinds:
                    _check(task, name, value, rules[name])
            elif others is not None and name not in binder.parameters:
                _check(task, name, value, others)

    return check


def _rule(function: Callable[..., Any], parameter: str) -> _Rule | None:
    """Return the rule of a parameter; None if it takes anything, or cannot be checked here."""
    try:
        hint = hints_of(function)[parameter]
        read = converter(hint)
    except Exception:  # noqa: BLE001 - foreign code: annotations may contain anything
        return None
    return None if hint in {Any, object} else _Rule(hint, _plainly(hint), read)


def _plainly(hint: Any) -> frozenset[type]:
    while (supertype := getattr(hint, "__supertype__", None)) is not None:  # a NewType
        hint = supertype
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return frozenset[type]().union(*map(_plainly, args))
    if origin in {list, dict}:
        return frozenset({origin} if args in {(Any,), (str, Any)} else ())
    if _is_class(hint) and (issubclass(hint, Enum) or is_pydantic_model(hint)):
        return frozenset({hint})
    try:
        return _PLAIN.get(hint, frozenset())
    except TypeError:  # some annotations have no hash
        return frozenset()


def _check(task: str, name: str, value: Any, rule: _Rule) -> None:
    if issubclass(type(value), _CONTAINERS) and len(value) > _LARGE:
        return
    try:
        raw = payload.encode(value, "data")
    except SerializationError:
        return  # it is told when the whole is encoded
    try:
        rule.read(raw)
    except Misfit as misfit:
        path = f"{name}.{misfit.path}".replace(".[", "[").rstrip(".")
        raise InvalidArguments(
            f"{task}: argument {path}: {misfit.problem}; {name} is annotated "
            f"{_shown(rule.annotation)}, and a value of type {type(value).__qualname__} was given"
        ) from None


def _is_class(hint: Any) -> TypeGuard[type[Any]]:
    return isinstance(hint, type)


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if _is_class(annotation) else str(annotation)
