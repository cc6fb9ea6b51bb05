"""Encode and decode JSON that Python and Node read in the same way.

The output is compact UTF-8. It contains no NaN or Infinity, no integers that a double cannot hold,
and no lone surrogates. Object keys must not be numbers, because they would be read as strings.

All types that msgspec supports are accepted (datetime, UUID, Decimal, enums, dataclasses, Structs,
sets, bytes). So are paths, pydantic models, Django's lazy strings, registered types, and subclasses
of str, int and float. A `msgspec.Raw` is the caller's own JSON and is written unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, NoReturn, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec import inspect as msgspec_types
from msgspec.inspect import CustomType as MsgspecCustomType
from msgspec.inspect import type_info
from msgspec.structs import fields

from taskbull.core.validation import MAX_SAFE_INTEGER, check_function, is_pydantic_model, refusal
from taskbull.errors import ConfigurationError, SerializationError

_ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def _encode_subclass(value: object) -> object:
    # msgspec accepts exact types only, but Django has subclasses of str, and numpy of float.
    for kind, convert in _CONVERTED.items():
        if isinstance(value, kind):
            return convert(value)
    if is_pydantic_model(type(value)):
        return _dump_model(value)
    for kind in type(value).__mro__:
        if (known := _registered.get(kind)) is not None:
            return known.encode(value)
    if _is_lazy_text(value):
        return str(value)
    raise TypeError(f"a {type(value).__qualname__} cannot be serialized to JSON")


def _is_lazy_text(value: object) -> bool:
    # Django's gettext_lazy returns an object of such a class, which is text once it is needed.
    kind = type(value)
    return kind.__name__ == "__proxy__" and kind.__module__ == "django.utils.functional"


def model_advice(kind: type[Any]) -> str:
    """Return what to pass in place of a Django model or queryset, or an empty string."""
    if hasattr(kind, "_meta") and hasattr(kind, "pk"):
        return ": pass its primary key (pk), and load the object in the task"
    if any(each.__module__ == "django.db.models.query" for each in kind.__mro__):
        return ": pass a list of primary keys, and load the objects in the task"
    return ""


class CustomType(NamedTuple):
    """Functions that convert values of a registered class to and from JSON."""

    encode: Callable[[Any], object]
    decode: Callable[[Any], Any]
    schema: Any = None
    """Type of the JSON form, or its JSON Schema. None if it is unknown."""


_registered: dict[type, CustomType] = {}


def register_type(
    cls: type,
    encode: Callable[[Any], object],
    decode: Callable[[Any], Any],
    schema: Any = None,
) -> None:
    """Store values of a class and its subclasses as what `encode` returns.

    Raises:
        ConfigurationError: If the class is already stored in another way.
    """
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refusal("the type to register", "be a class", cls)
    for name, function in (("encode", encode), ("decode", decode)):
        check_function(name, function, "be a sync function that takes one value", 1)
    known = _registered.get(cls)
    if known is not None and known != (encode, decode, schema):
        raise ConfigurationError(f"Type {cls.__qualname__} is already registered")
    if is_pydantic_model(cls) or not isinstance(type_info(cls), MsgspecCustomType):
        raise ConfigurationError(f"Type {cls.__qualname__} already has a JSON form")
    _registered[cls] = CustomType(encode, decode, schema)


def registered_type(cls: type) -> CustomType | None:
    """Return how values of a class are stored, or None if it is not registered."""
    return _registered.get(cls)


def _dump_model(model: Any) -> object:
    # Dump by alias, because validation expects aliases.
    return model.model_dump(mode="json", by_alias=True)


def _decode_raw(value: msgspec.Raw) -> Any:
    try:
        return _decode(value)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise SerializationError(f"a msgspec.Raw holds no JSON: {error}") from error


_CONVERTED: Final[dict[type, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__index__,
    float: float.__float__,
    msgspec.Raw: _decode_raw,  # Only `to_builtins` passes one.
    PurePath: str,
}
"""Conversions for classes whose subclasses msgspec does not accept."""

_encoder = msgspec.json.Encoder(enc_hook=_encode_subclass)
_encode = _encoder.encode
_decode = msgspec.json.Decoder().decode

# msgspec lets three invalid values through, which a search of the text can find. After this
# translation, 16 zeros may be a number that is too large, and `,"0` may start a key that was a
# number. `null` may have been a NaN. Three searches take 0.4 µs, less than walking the value, so
# only values with a suspicious text are walked. A long text with few values is walked first: a
# string of 1 MB takes 0.3 ms in total, but 2.4 ms if it is searched.
_SKELETON: Final = bytes.maketrans(b"123456789-{", b"0000000000,")
_LONG_NUMBER: Final = b"0" * 16
_NUMBER_AS_KEY: Final = b',"0'
_LONG: Final = 4096
_FEW: Final = 100


def encode(value: object, field: str) -> bytes:
    """Encode a value as JSON.

    Raises:
        SerializationError: The value cannot be encoded. The message names the path in `field`.
    """
    try:
        text = _encode(value)
        if len(text) > _LONG and _is_plainly_sound(value):
            return text
        if _is_suspicious(text) and not _is_sound(value):
            _inspect(msgspec.to_builtins(value, enc_hook=_encode_subclass), field)
    except SerializationError:
        raise
    except _ENCODING_ERRORS as error:
        _explain(value, field, error)
    return text


def with_text_keys(value: object, field: str) -> Any:
    """Return a value as JSON types, with integer keys of objects as strings.

    Raises:
        SerializationError: The value cannot be encoded.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_encode_subclass, str_keys=True)
    except _ENCODING_ERRORS as error:
        _explain(value, field, error)


def encode_all(values: Sequence[object]) -> list[bytes] | None:
    """Encode values like `encode`, or return `None` if they must be encoded one by one.

    All values are encoded and searched as one text. With 50 values, each takes 0.4 µs instead of
    1.1.
    """
    try:
        text = _encoder.encode_lines(values)
    except (SerializationError, *_ENCODING_ERRORS):
        return None
    if len(text) > _LONG * len(values):
        return None
    if _is_suspicious(text) and not all(map(_is_sound, values)):
        return None
    texts = text.split(b"\n")
    texts.pop()
    return texts if len(texts) == len(values) else None  # A msgspec.Raw may contain line breaks.


def _is_suspicious(text: bytes) -> bool:
    skeleton = text.translate(_SKELETON)
    return (
        text.find(b"null") >= 0
        or skeleton.find(_LONG_NUMBER) >= 0
        or skeleton.find(_NUMBER_AS_KEY) >= 0
    )


def decode(text: bytes) -> Any:
    """Decode JSON as Node does.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return _decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (ValueError, msgspec.DecodeError) as error:
        return _decode_tolerantly(text, str(error))


def _decode_tolerantly(text: bytes, problem: str) -> Any:
    # JSON.stringify writes a lone surrogate as an escape. Node accepts it, but msgspec does not.
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError(problem) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def check_size(size: int, limit: int, what: str = "Job payload", data: object = None) -> None:
    """Raise `SerializationError` if `size` exceeds `limit`. Both are in bytes.

    `what` is the subject of the message: the job's data and options, or its result. If `data` is a
    dict, the message names its largest value.
    """
    if size <= limit:
        return
    roundings = (round(size / 1e6, digits) for digits in range(1, 7))
    # Use enough decimals to avoid "10.0 MB exceeds limit of 10 MB".
    shown = next((megabytes for megabytes in roundings if megabytes > limit / 1e6), size / 1e6)
    largest = ""
    if isinstance(data, dict) and data:
        sizes = {
            name: len(encode(value, name)) for name, value in cast("dict[str, Any]", data).items()
        }
        name = max(sizes, key=sizes.__getitem__)
        largest = f"; the largest part is {name!r} with {sizes[name] / 1e6:.1f} MB"
    raise SerializationError(f"{what} {shown} MB exceeds limit of {limit / 1e6:g} MB{largest}")


_ONLY_STR: Final = frozenset({str})
_HARMLESS: Final = frozenset({str, bool, type(None)})


def _is_sound(value: Any) -> bool:
    """Return True if a value needs no inspection. False does not mean that it is invalid."""
    kind = value.__class__
    if kind is dict:
        if not _ONLY_STR.issuperset(map(type, value)):
            return False
        children = value.values()
    elif kind is list:
        children = value
    elif kind is float:
        return math.isfinite(value)
    elif kind is int:
        return abs(int(value)) <= MAX_SAFE_INTEGER
    else:
        return kind in _HARMLESS
    for child in children:  # noqa: SIM110 - half the time of all() with a generator
        if type(child) not in _HARMLESS and not _is_sound(child):
            return False
    return True


def _is_plainly_sound(value: Any) -> bool:
    """Return True if a value has few parts and needs no inspection."""
    left = [value]
    parts = 0
    while left:
        children: Any = left.pop()
        if children.__class__ is not dict and children.__class__ is not list:
            return False
        parts += len(children)
        if parts > _FEW:
            return False
        if children.__class__ is dict:
            if not _ONLY_STR.issuperset(map(type, children)):
                return False
            children = children.values()
        for child in children:
            kind = child.__class__
            if kind is dict or kind is list:
                left.append(child)
            elif kind not in _HARMLESS and not _is_sound(child):
                return False
    return True


def _inspect(value: object, path: str) -> None:
    """Raise an error if JSON or Node would silently change part of a value made of builtins."""
    if value is None or isinstance(value, str):
        return
    if isinstance(value, dict):
        for key, child in _items(value):
            if not isinstance(key, str):
                raise SerializationError(
                    f"{path} has the key {key!r} of type {type(key).__name__}: JSON keys must be "
                    "strings"
                )
            _inspect(child, _key_path(path, key))
    elif isinstance(value, list):
        for index, child in _elements(value):
            _inspect(child, f"{path}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise SerializationError(f"{path} is {value}, which cannot be serialized to JSON")
    elif isinstance(value, int) and not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        raise SerializationError(
            f"{path} is an integer beyond ±(2^53 - 1), which Node would round: send it as a string"
        )


def _items(value: Any) -> Iterator[tuple[object, object]]:
    yield from value.items()


def _elements(value: Any) -> Iterator[tuple[int, object]]:
    yield from enumerate(value)


def _key_path(path: str, key: str) -> str:
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"


def _explain(value: object, path: str, error: Exception) -> NoReturn:
    """Raise an error that names the innermost part that cannot be encoded."""
    if isinstance(error, RecursionError):
        raise SerializationError(f"{path} is nested too deeply, or contains itself") from error
    for child_path, child in _children(value, path):
        try:
            _encode(child)
        except _ENCODING_ERRORS as child_error:
            _explain(child, child_path, child_error)
    if isinstance(error, UnicodeEncodeError):
        reason = "has a lone surrogate, which cannot be encoded as UTF-8"
    elif isinstance(value, Mapping):
        reason = f"has a key that is not a string: {error}"
    else:
        kind = type(value)
        reason = f"is of type {kind.__qualname__}, which cannot be serialized to JSON"
        if hasattr(kind, "__next__") or hasattr(kind, "__anext__"):
            reason += ": make a list of it, or let the function of the task yield"
        reason += model_advice(kind)
    raise SerializationError(f"{path} {reason}") from error


def _children(value: Any, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, child in _items(value):
            yield _key_path(path, str(key)), child
    elif isinstance(value, list | tuple | set | frozenset):
        for index, child in _elements(value):
            yield f"{path}[{index}]", child
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f"{path}.{name}", getattr(value, name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name)


# Convert JSON to typed values: msgspec's types, and pydantic models if they are used.
#
# Conversion is strict: "5" is not an int, and 1 is not a bool. Errors name the types that were
# found, never a value. A value may be a secret, and errors are stored and logged.


_JSON = (dict, list, str, int, float, bool, type(None))

_SHOWN_ERRORS = 3


class ConversionError(ValueError):
    """A JSON value does not match its type.

    Attributes:
        path: Location of the problem inside the value. Empty for the whole value.
        problem: Rest of a sentence about the value at the path, such as "must be int, got str".
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"'{path}' {problem}" if path else f"it {problem}")
        self.path = path
        self.problem = problem


def converter(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that reads JSON as a `kind`, or raises `ConversionError`.

    Raises:
        TypeError: If JSON cannot represent the type.
    """
    try:
        decode = msgspec.json.Decoder(kind, dec_hook=_construct).decode
    except KeyError as error:  # A class of attrs.
        raise TypeError(f"its field {error} has no annotation") from error
    except NameError as error:
        raise TypeError(
            f"an annotation of one of its fields cannot be resolved: {error}"
        ) from error
    for info in _parts_of(msgspec_types.type_info(kind), set()):
        if isinstance(info, msgspec_types.CustomType) and not _is_constructible(info.cls):
            name = f"{info.cls.__module__}.{info.cls.__qualname__}"
            raise TypeError(f"JSON has no form for {name}{model_advice(info.cls)}")
        if isinstance(info, msgspec_types.Field) and not info.encode_name.isascii():
            # msgspec decodes such fields of dataclasses and TypedDicts only from builtin types.
            decode = partial(_convert, kind)

    def read(raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            raise _conversion_error(error, kind) from None
        except TypeError as error:  # For example, a set of unhashable values.
            raise ConversionError("", f"is invalid: {error}") from None
        except (ValueError, msgspec.DecodeError, RecursionError):
            return _read_tolerantly(kind, raw)

    return read


def _is_constructible(kind: type[Any]) -> bool:
    return (
        is_pydantic_model(kind)
        or issubclass(kind, PurePath)
        or registered_type(kind) is not None
        or any(_is_a(each, kind) for each in _JSON)
    )


def _read_tolerantly(kind: Any, raw: bytes) -> Any:
    # Node writes some JSON that msgspec rejects, such as an escaped lone surrogate.
    try:
        value = decode(raw)
    except ValueError as error:
        raise ConversionError("", f"is not JSON ({error})") from None
    try:
        return msgspec.convert(value, kind, dec_hook=_construct, str_keys=True)
    except msgspec.ValidationError as error:
        raise _conversion_error(error, kind) from None


def _convert(kind: Any, raw: bytes) -> Any:
    return msgspec.convert(_decode(raw), kind, dec_hook=_construct, str_keys=True)


def _construct(kind: type, value: Any) -> Any:
    """Return a value of a type unknown to msgspec: a model, a path or an abstract class."""
    kind = get_origin(kind) or kind
    if is_pydantic_model(kind):
        return _validate(kind, value)
    if (known := registered_type(kind)) is not None:
        return known.decode(value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _validate(model: Any, value: Any) -> Any:
    # Validate from JSON again: in JSON mode, a strict model accepts text for a datetime.
    try:
        return model.model_validate_json(json.dumps(value))
    except ValueError as error:
        found: list[dict[str, Any]] = getattr(error, "errors", list)()
        shown = "; ".join(_model_error(each) for each in found[:_SHOWN_ERRORS])
        more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
        raise ValueError(f"Invalid {model.__name__}: {shown}{more}") from None


def _model_error(error: dict[str, Any]) -> str:
    place = ".".join(map(str, error["loc"]))
    found = "" if error["type"] == "missing" else f" (got {type(error['input']).__name__})"
    return f"{place}: {error['msg']}{found}" if place else f"{error['msg']}{found}"


_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_WITH_VALUE = re.compile(r"^Invalid (enum )?value .*", re.DOTALL)
_SHOWN_VALUES = 20
_MISSING = "Object missing required field "
_UNKNOWN = "Object contains unknown field "


def _conversion_error(error: msgspec.ValidationError, kind: Any) -> ConversionError:
    message = str(error)
    place = _PLACE.search(message)
    problem = message[: place.start()] if place else message
    path = place["path"] if place else ""
    return ConversionError(path, _predicate(problem.replace("`", ""), _type_at(kind, path)))


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of a value, or of a field of a struct, or None for a deeper path."""
    if not path:
        return kind
    own = fields(kind) if isinstance(kind, type) and issubclass(kind, Struct) else ()
    return next((each.type for each in own if each.encode_name == path), None)


def _predicate(problem: str, kind: Any) -> str:
    """Return the rest of a sentence about a value, from a message of msgspec.

    `kind` is the type that the value must have, or None if it is not known.
    """
    if _WITH_VALUE.match(problem):
        allowed = list(_allowed(kind))
        if not allowed or len(allowed) > _SHOWN_VALUES:
            return "must be one of the values that its type allows"
        return f"must be {'one of ' if len(allowed) > 1 else ''}{', '.join(map(repr, allowed))}"
    if problem == "Invalid RFC3339 encoded datetime":
        return "is not a valid RFC3339 datetime, such as 2026-11-18T02:30:00Z"
    for start, instead in (("Expected ", "must be "), ("Invalid ", "is not a valid ")):
        if problem.startswith(start):
            return f"{instead}{problem.removeprefix(start)}"
    for start, instead in ((_MISSING, "has no field"), (_UNKNOWN, "has the unknown field")):
        if problem.startswith(start):
            return f"{instead} '{problem.removeprefix(start)}'"
    return f"is invalid: {problem}"


def _allowed(kind: Any) -> Iterator[Any]:
    """Yield the JSON values of an enum or a `Literal`, also within a union."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield from (member.value for member in kind)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) in {Union, types.UnionType}:
        for part in get_args(kind):
            yield from _allowed(part)


def _parts_of(info: object, seen: set[int]) -> Iterator[msgspec_types.Type | msgspec_types.Field]:
    """Return a type and the types and fields in it. It may be recursive."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec_types.Type | msgspec_types.Field):
        yield info
        assert isinstance(info, Struct)  # noqa: S101 - for the type checker
        for field in info.__struct_fields__:
            yield from _parts_of(getattr(info, field), seen)
    elif isinstance(info, tuple):
        for part in cast("tuple[object, ...]", info):
            yield from _parts_of(part, seen)


def _is_a(kind: type, of: type) -> bool:
    try:
        return issubclass(kind, of)
    except TypeError:  # Some protocols do not support issubclass().
        return False
