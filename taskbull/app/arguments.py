"""From the data of a job to the arguments of its task, by the annotations; prepared once."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from taskbull.app.binding import Binder
from taskbull.app.conversion import Misfit, converter
from taskbull.app.function import hints_of, place_of
from taskbull.core import payload
from taskbull.errors import ConfigurationError, InvalidArguments

Extra: TypeAlias = Literal["error", "ignore"]
"""What becomes of fields that no parameter takes."""

Read: TypeAlias = Callable[[bytes], dict[str, Any]]

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def arguments_reader(task: str, function: Callable[..., Any], binder: Binder, extra: Extra) -> Read:
    """Return the function that reads a job's data as arguments by name.

    It raises `InvalidArguments` for data that do not fit. Raises `ConfigurationError` if an
    annotation cannot be resolved, or names a type that JSON has no form for.
    """
    hints = _hints(task, function)
    for name in binder.parameters:
        _convertible(task, function, name, hints.get(name, Any))
    fields = [
        (name, hints.get(name, Any))
        if parameter.default is Parameter.empty
        else (name, hints.get(name, Any), UNSET)
        for name, parameter in binder.parameters.items()
    ]
    closed = extra == "error" and binder.catch_all is None
    shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=closed)
    decode = converter(shape)
    optional = [field[0] for field in fields if len(field) == 3]

    def read(raw: bytes) -> dict[str, Any]:
        try:
            values = asdict(decode(raw))
        except Misfit as misfit:
            raise InvalidArguments(_explained(task, binder, misfit)) from None
        for name in optional:
            if values[name] is UNSET:  # the function has its own default
                del values[name]
        return values

    if binder.catch_all is None:
        return read
    hint = hints.get(binder.catch_all.name, Any)
    return _open_reader(task, binder, read, _convertible(task, function, "**", hint))


def parameter_reader(
    task: str, function: Callable[..., Any], parameter: str
) -> Callable[[bytes], Any]:
    """Return the function that reads JSON as one parameter, or raises `InvalidArguments`."""
    hint = _hints(task, function).get(parameter, Any)
    convert = _convertible(task, function, parameter, hint)

    def read(raw: bytes) -> Any:
        try:
            return convert(raw)
        except Misfit as misfit:
            path = parameter + (f".{misfit.path}" if misfit.path else "")
            problem = f"Task {task}: argument {path.replace('.[', '[')}: {misfit.problem}"
            raise InvalidArguments(problem) from None

    return read


def _open_reader(task: str, binder: Binder, read: Read, convert: Callable[[bytes], Any]) -> Read:
    """Return a reader that also returns the fields that match no parameter."""

    def read_all(raw: bytes) -> dict[str, Any]:
        values = read(raw)
        try:
            parts = _split(raw)
        except (ValueError, msgspec.DecodeError):  # see `conversion`: Node's lone surrogates
            decoded = payload.decode(raw)
            parts = {k: msgspec.Raw(json.dumps(v).encode()) for k, v in decoded.items()}
        for name in parts.keys() - binder.parameters.keys():
            if name in binder.injected:
                raise InvalidArguments(_explained(task, binder, _unknown(name)))
            try:
                values[name] = convert(bytes(parts[name]))
            except Misfit as misfit:
                path = name + (f".{misfit.path}" if misfit.path else "")
                named = Misfit(path, misfit.problem)
                raise InvalidArguments(_explained(task, binder, named)) from None
        return values

    return read_all


def result_reader(function: Callable[..., Any]) -> Callable[[bytes], Any]:
    """Return the function that reads a result by the return annotation.

    Where there is none, or JSON cannot be converted to it, the result is the JSON value.
    """
    try:
        return converter(get_type_hints(function, include_extras=True)["return"])
    except Exception:  # noqa: BLE001 - foreign code: annotations may contain anything
        return payload.decode


def by_keyword(function: Callable[..., Any], binder: Binder) -> Callable[..., Any]:
    """Return the function in a form that takes all its arguments by name."""
    if not binder.positional_only:
        return function
    defaults = {name: binder.default_of(name) for name in binder.positional_only}

    def call(**arguments: Any) -> Any:
        first = [arguments.pop(name, default) for name, default in defaults.items()]
        return function(*first, **arguments)

    return call


def _hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return hints_of(function)
    except Exception as error:
        raise ConfigurationError(
            f"The annotations of task {task} ({place_of(function)}) cannot be resolved: "
            f"{type(error).__name__}: {error}. A worker needs them at run time: import their names "
            "outside of `if TYPE_CHECKING:`, and at the top of the module"
        ) from error


def _convertible(
    task: str, function: Callable[..., Any], parameter: str, hint: Any
) -> Callable[[bytes], Any]:
    try:
        return converter(hint)
    except TypeError as error:
        raise ConfigurationError(
            f"Parameter {parameter} of task {task} ({place_of(function)}) is annotated {hint!r}, "
            f"to which JSON cannot be converted: {error}"
        ) from error


def _unknown(name: str) -> Misfit:
    return Misfit("", f"Object contains unknown field {name}")


def _explained(task: str, binder: Binder, misfit: Misfit) -> str:
    names = ", ".join(binder.parameters) or "no arguments"
    problem = misfit.problem
    if misfit.path:
        return f"Task {task}: argument {misfit.path}: {problem}"
    if problem.startswith("Expected object, got "):
        found = problem.removeprefix("Expected object, got ")
        return (
            f"Task {task} takes a JSON object of its arguments ({names}), but the job's data is "
            f"of type {found}"
        )
    if problem.startswith("Object missing required field "):
        name = problem.removeprefix("Object missing required field ")
        return f"Task {task}: argument {name} is missing"
    if problem.startswith("Object contains unknown field "):
        name = problem.removeprefix("Object contains unknown field ")
        return f"Task {task}: it has no argument {name}; it takes {names}"
    return f"Task {task}: the job's data: {problem}"
