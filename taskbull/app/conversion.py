"""From JSON to values of a type: msgspec's own types, and pydantic's models where they are used.

Strict, as JSON goes: "5" is no int, and 1 is no bool. What JSON has no form for comes as text: an
ISO datetime, a UUID, a Decimal (also a number), base64 for bytes. Errors tell the types of what was
found, never a value: that may be a secret, and errors are stored and logged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast, get_origin

import msgspec
from msgspec import Struct
from msgspec import inspect as msgspec_types

from taskbull.core import payload
from taskbull.core.foreign import is_pydantic_model

_JSON = (dict, list, str, int, float, bool, type(None))

_SHOWN_ERRORS = 3


class Misfit(ValueError):
    """A JSON value does not fit; `path` is the place in it, empty for the whole."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


def converter(kind: Any) -> Callable[[bytes], Any]:
    """Return the function that reads JSON as a `kind`, or raises `Misfit`.

    Raises `TypeError` if the type cannot be represented in JSON.
    """
    decode = msgspec.json.Decoder(kind, dec_hook=_construct).decode
    for custom in _custom_types(msgspec_types.type_info(kind), set()):
        if not is_pydantic_model(custom) and not any(_is_a(each, custom) for each in _JSON):
            raise TypeError(f"JSON has no form for {custom.__module__}.{custom.__qualname__}")

    def read(raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            raise _misfit(error) from None
        except TypeError as error:  # a set of what has no hash
            raise Misfit("", str(error)) from None
        except (ValueError, msgspec.DecodeError, RecursionError):
            return _read_tolerantly(kind, raw)

    return read


def _read_tolerantly(kind: Any, raw: bytes) -> Any:
    # What Node writes and msgspec does not read, such as an escaped lone surrogate.
    try:
        value = payload.decode(raw)
    except ValueError as error:
        raise Misfit("", f"it is not JSON ({error})") from None
    try:
        return msgspec.convert(value, kind, dec_hook=_construct, str_keys=True)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


def _construct(kind: type, value: Any) -> Any:
    """Return a value of a type that msgspec does not know: a model, or an abstract class."""
    kind = get_origin(kind) or kind
    if is_pydantic_model(kind):
        return _validate(kind, value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _validate(model: Any, value: Any) -> Any:
    # From JSON again, because there a strict model takes text for a datetime.
    try:
        return model.model_validate_json(json.dumps(value))
    except ValueError as error:
        found: list[dict[str, Any]] = getattr(error, "errors", list)()
        shown = "; ".join(_model_error(each) for each in found[:_SHOWN_ERRORS])
        more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
        raise ValueError(f"no {model.__name__}: {shown}{more}") from None


def _model_error(error: dict[str, Any]) -> str:
    place = ".".join(map(str, error["loc"]))
    found = "" if error["type"] == "missing" else f" (got {type(error['input']).__name__})"
    return f"{place}: {error['msg']}{found}" if place else f"{error['msg']}{found}"


_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_WITH_VALUE = re.compile(r"^Invalid (enum )?value .*", re.DOTALL)


def _misfit(error: msgspec.ValidationError) -> Misfit:
    message = str(error)
    place = _PLACE.search(message)
    problem = message[: place.start()] if place else message
    problem = _WITH_VALUE.sub("Expected one of the values that its type allows", problem)
    return Misfit(place["path"] if place else "", problem.replace("`", ""))


def _custom_types(info: object, seen: set[int]) -> Iterator[type]:
    """Return the classes in a type that msgspec does not know; the type may contain itself."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec_types.CustomType):
        yield info.cls
    elif isinstance(info, msgspec_types.Type | msgspec_types.Field):
        assert isinstance(info, Struct)  # noqa: S101 - for the type checker
        for field in info.__struct_fields__:
            yield from _custom_types(getattr(info, field), seen)
    elif isinstance(info, tuple):
        for part in cast("tuple[object, ...]", info):
            yield from _custom_types(part, seen)


def _is_a(kind: type, of: type) -> bool:
    try:
        return issubclass(kind, of)
    except TypeError:  # a protocol that cannot be asked
        return False
