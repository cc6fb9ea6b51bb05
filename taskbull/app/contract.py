"""The contract of an app: its tasks as JSON Schema and as a TypeScript module.

`contract_of` describes the tasks as a JSON Schema document, using the types that jobs store.
`typescript` only reads such a document.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum, Flag
from pathlib import Path, PurePath
from string import Formatter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UnsetType
from msgspec import inspect as kinds

from taskbull.app.app import App
from taskbull.app.batch import is_batch
from taskbull.app.signature import converter, hints_of, readable_hints
from taskbull.app.task import Received, Task, result_kind
from taskbull.core import payload
from taskbull.core.groups import CostRule, GroupRule
from taskbull.core.options import Dedup, DedupRule
from taskbull.core.validation import is_pydantic_model
from taskbull.core.wire.options import node_dedup, node_options
from taskbull.errors import ConfigurationError

Schema: TypeAlias = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Final = "#/$defs/"
"""Start of a reference to a definition."""

# Schemas of types.
#
# A type may have two schemas. Python reads what other programs write, so a field with a default may
# be missing there. Python writes all fields.


_DAY, _CLOCK = r"\d{4}-\d{2}-\d{2}", r"\d{2}:\d{2}:\d{2}(\.\d+)?"
_ZONE = r"([Zz]|[+-]\d{2}:?\d{2})"
_NUMBER = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_LENGTH = r"[+-]?P(?=.)(\d+(\.\d+)?[WD])*(T(\d+(\.\d+)?[HMS])+)?"
_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}
_NUMBER_KEY: Schema = {"pattern": "^-?[0-9]+$"}
_FLOAT_KEY: Schema = {"pattern": f"^{_NUMBER}$"}
_TIMES, _DATETIMES = (
    ({"format": name}, {"pattern": f"^{text}$"}, {"pattern": f"^{text}{_ZONE}?$"})
    for name, text in (("time", _CLOCK), ("date-time", f"{_DAY}[Tt ]{_CLOCK}"))
)
"""Limits of texts with a time zone, without one, and of both."""

NARROWER: Final[dict[str, list[Schema]]] = {
    _FLOAT_KEY["pattern"]: [_NUMBER_KEY],
    **{either["pattern"]: [zoned, naive] for zoned, naive, either in (_TIMES, _DATETIMES)},
}
"""Patterns, with the limits of texts that also match them."""

_PLAIN: Final[dict[type[kinds.Type], Schema]] = {
    kinds.AnyType: {},
    kinds.RawType: {},
    kinds.NoneType: {"type": "null"},
    kinds.BoolType: {"type": "boolean"},
    kinds.IntType: {"type": "integer"},
    kinds.FloatType: {"type": "number"},
    kinds.StrType: {"type": "string"},
    kinds.BytesType: _BASE64,
    kinds.ByteArrayType: _BASE64,
    kinds.MemoryViewType: _BASE64,
    kinds.UUIDType: {"type": "string", "format": "uuid"},
    kinds.DateType: {"type": "string", "format": "date"},
    kinds.DecimalType: {"type": "string", "pattern": f"^({_NUMBER}|[+-]?(s?NaN\\d*|Infinity))$"},
    kinds.TimeDeltaType: {"type": "string", "pattern": f"^{_LENGTH}$"},
}

_TEXT_KEYS: Final = (
    *(kinds.AnyType, kinds.StrType, kinds.BytesType, kinds.UUIDType, kinds.DecimalType),
    *(kinds.DateType, kinds.TimeType, kinds.DateTimeType, kinds.TimeDeltaType),
    *(kinds.EnumType, kinds.CustomType),
)
"""Types of keys that are stored like values."""

_LIMITS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_SIZES: Final = {"string": "Length", "array": "Items", "object": "Properties"}

_Fields: TypeAlias = (
    kinds.StructType | kinds.DataclassType | kinds.TypedDictType | kinds.NamedTupleType
)


class _Definition(NamedTuple):
    name: str
    body: Schema
    is_output: bool
    model: str = ""
    """Name of the pydantic model that contains the type, or empty."""

    @property
    def names(self) -> list[str]:
        """Names for the definition. The second and third are used if a name is taken."""
        names = [self.name, f"{self.name}Output"] if self.is_output else [self.name]
        return [*names, f"{self.model}{names[-1]}"] if self.model else names


class _Schemas:
    """Collects the schemas of types, each named type as a definition.

    A reference contains the number of a definition until `finish` chooses the names.
    """

    def __init__(self) -> None:
        self._definitions: list[_Definition] = []
        self._numbers: dict[object, int] = {}

    def of(self, hint: Any, *, output: bool) -> Schema:
        """Return the schema of an annotation.

        Raises:
            TypeError: If JSON cannot represent the type.
        """
        converter(hint)
        return self._of(kinds.type_info(hint), output)

    def define(self, name: str, body: Schema, *, output: bool, model: str = "") -> Schema:
        """Add a definition and return a reference to it."""
        self._definitions.append(_Definition(_free_name(name), body, output, model))
        return {"$ref": f"{REFERENCE}{len(self._definitions) - 1}"}

    def is_named(self, schema: Schema, name: str) -> bool:
        """Return True if a schema is a reference to a definition of this name."""
        number = schema.get("$ref", "").removeprefix(REFERENCE)
        return bool(number) and self._definitions[int(number)].name == name

    def finish(self, document: Schema) -> Schema:
        """Return a document with names in its references, and with all definitions.

        Raises:
            ConfigurationError: If two different types have the same name.
        """
        names = [each.name for each in self._definitions]
        # Definitions that can have other names come last.
        order = sorted(range(len(names)), key=lambda number: self._definitions[number][2:])
        while True:
            found: dict[str, Schema] = {}
            renamed = False
            for number in order:
                each = self._definitions[number]
                body = _renamed(each.body, names)
                if found.setdefault(names[number], body) == body:
                    continue
                left = each.names[each.names.index(names[number]) + 1 :]
                if not left:
                    raise ConfigurationError(
                        f"The contract has two different types named '{names[number]}': rename the "
                        "class of one of them, or the task that it belongs to"
                    )
                names[number] = left[0]
                renamed = True
            if not renamed:
                return {**_renamed(document, names), "$defs": dict(sorted(found.items()))}

    def _of(  # noqa: C901, PLR0911 - one case per kind of type
        self, info: kinds.Type, output: bool
    ) -> Schema:
        match info:
            case kinds.Metadata():
                extra = cast("Schema | None", info.extra_json_schema)  # pyright: ignore[reportUnknownMemberType]
                return {**self._of(info.type, output), **(extra or {})}
            case kinds.DateTimeType() | kinds.TimeType():
                return _moment(info)
            case kinds.LiteralType():
                return {"enum": list(info.values)}
            case kinds.EnumType():
                return self._named(info.cls, output, lambda: _members(info.cls))
            case kinds.UnionType():
                return {"anyOf": [self._of(each, output) for each in info.types]}
            case kinds.TupleType():
                return _array([self._of(each, output) for each in info.item_types])
            case kinds.ListType() | kinds.SetType() | kinds.FrozenSetType() | kinds.VarTupleType():
                items = self._of(info.item_type, output)
                return {"type": "array", "items": items, **_limits(info, "array")}
            case kinds.DictType():
                return self._dict(info, output)
            case (
                kinds.StructType()
                | kinds.DataclassType()
                | kinds.TypedDictType()
                | kinds.NamedTupleType()
            ):
                return self._named(info.cls, output, lambda: self._fields(info, output))
            case kinds.CustomType():
                return self._custom(info.cls, output)
            case _ if type(info) in _PLAIN:
                plain = _PLAIN[type(info)]
                return {**plain, **_limits(info, plain.get("type", ""))}
            case _:
                raise TypeError(f"JSON has no form for {info!r}")

    def _named(self, kind: Any, output: bool, make: Callable[[], Schema]) -> Schema:
        key = (kind, output)
        if key not in self._numbers:
            body: Schema = {}  # Filled in below, because the type may contain itself.
            reference = self.define(_class_name(kind), body, output=output)
            self._numbers[key] = int(reference["$ref"].removeprefix(REFERENCE))
            body.update(make())
        return {"$ref": f"{REFERENCE}{self._numbers[key]}"}

    def _dict(self, info: kinds.DictType, output: bool) -> Schema:
        schema: Schema = {"type": "object", **_limits(info, "object")}
        schema["additionalProperties"] = self._of(info.value_type, output)
        key = self._key(info.key_type, output)
        if key not in ({}, {"type": "string"}):
            schema["propertyNames"] = key
        return schema

    def _key(  # noqa: PLR0911 - one case per kind of type
        self, info: kinds.Type, output: bool
    ) -> Schema:
        """Return the schema of an object's keys, which are always strings."""
        match info:
            case kinds.Metadata():
                return self._key(info.type, output)
            case kinds.UnionType():
                parts = [one for one in info.types if not isinstance(one, kinds.NoneType)]
                return {"anyOf": [self._key(one, output) for one in parts]}
            case kinds.LiteralType():
                return {"enum": [str(each) for each in info.values if each is not None]}
            case kinds.EnumType() if issubclass(info.cls, Flag):
                return _NUMBER_KEY
            case kinds.EnumType() if any(isinstance(each.value, int) for each in info.cls):
                return {"enum": [str(each.value) for each in info.cls]}
            case kinds.IntType():
                return _NUMBER_KEY
            case kinds.FloatType():
                return _FLOAT_KEY
            case _ if isinstance(info, _TEXT_KEYS):
                return self._of(info, output)
            case _:
                raise TypeError("JSON has no form for the keys of this dict")

    def _fields(self, info: _Fields, output: bool) -> Schema:
        properties = {each.encode_name: self._of(each.type, output) for each in info.fields}
        required = [each.encode_name for each in info.fields if _is_present(info, each, output)]
        tag: Schema = {}
        is_array = is_closed = isinstance(info, kinds.NamedTupleType)
        if isinstance(info, kinds.StructType):
            is_array, is_closed = info.array_like, info.forbid_unknown_fields
            if info.tag_field is not None:
                tag = {info.tag_field: {"const": info.tag}}
        if is_array:
            least = len(tag) + len([each for each in info.fields if output or each.required])
            array = _array([*tag.values(), *properties.values()], least)
            return array if is_closed else {k: v for k, v in array.items() if k != "maxItems"}
        schema: Schema = {"type": "object", "properties": {**tag, **properties}}
        if tag or required:
            schema["required"] = [*tag, *required]
        if is_closed:
            schema["additionalProperties"] = False
        return schema

    def _custom(self, kind: Any, output: bool) -> Schema:
        cls = get_origin(kind) or kind
        if is_pydantic_model(cls):
            return self._model(kind, output)
        if (known := payload.registered_type(cls)) is not None:
            if known.schema is None:
                raise TypeError(
                    f"{cls.__qualname__} is registered without a schema. Pass schema=… to "
                    "app.register_type, with the type that its values are stored as"
                )
            is_schema = isinstance(known.schema, Mapping)
            return dict(known.schema) if is_schema else self.of(known.schema, output=output)
        return {"type": "string"} if issubclass(cls, PurePath) else {}

    def _model(self, model: Any, output: bool) -> Schema:
        mode = "serialization" if output else "validation"
        try:
            schema = _tidied(model.model_json_schema(by_alias=True, mode=mode), output)
        except Exception as error:
            raise TypeError(f"pydantic has no schema for {model.__name__}: {error}") from error
        parts: dict[str, Schema] = schema.pop("$defs", {})
        start = len(self._definitions)
        numbers = {name: start + number for number, name in enumerate(parts)}
        owner = _class_name(model)
        for name, part in parts.items():
            part_of = "" if _pascal(name) == owner else owner
            self.define(_pascal(name), _renamed(part, numbers), output=output, model=part_of)
        body: Schema = _renamed(schema, numbers)
        if list(body) == ["$ref"]:  # A recursive model.
            return body
        return self._named(model, output, lambda: body)


def _members(kind: type[Enum]) -> Schema:
    if issubclass(kind, Flag):  # Members can be combined.
        return {"type": "integer"}
    return {"enum": [member.value for member in kind]}


def _renamed(schema: Any, names: Mapping[Any, Any] | Sequence[Any]) -> Any:
    """Return a schema with other names in its references."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    copy = {name: _renamed(each, names) for name, each in cast("Schema", schema).items()}
    if isinstance(copy.get("$ref"), str):
        name = copy["$ref"].removeprefix(REFERENCE)
        copy["$ref"] = f"{REFERENCE}{names[name if isinstance(names, Mapping) else int(name)]}"
    return copy


def _tidied(schema: Any, output: bool) -> Any:
    """Return a schema of pydantic in the form of the others, and with the fields that it writes."""
    if isinstance(schema, list):
        return [_tidied(each, output) for each in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("Schema", schema)
    # Other schemas have no titles or defaults, and no type beside the values of an enum.
    left_out = {"title", "default", *(["type"] if isinstance(given.get("enum"), list) else [])}
    copy = {name: _tidied(each, output) for name, each in given.items() if name not in left_out}
    if isinstance(fields := given.get("properties"), dict):
        properties = cast("Schema", fields)
        copy["properties"] = {name: _tidied(each, output) for name, each in properties.items()}
        if output:
            # A field with a default is always written, although pydantic does not list it.
            known: list[str] = copy.get("required", [])
            defaults = [name for name, each in properties.items() if "default" in each]
            if required := [*known, *(name for name in defaults if name not in known)]:
                copy["required"] = required
    return copy


def _moment(info: kinds.DateTimeType | kinds.TimeType) -> Schema:
    with_zone, without, either = _TIMES if isinstance(info, kinds.TimeType) else _DATETIMES
    known = {True: with_zone, False: without}
    return {"type": "string", **known.get(cast("bool", info.tz), either)}


def _limits(info: kinds.Type, kind: str) -> Schema:
    found: Schema = {}
    assert isinstance(info, msgspec.Struct)  # noqa: S101 - for the type checker
    for field in info.__struct_fields__:
        limit = getattr(info, field)
        if limit is None:
            continue
        if field in _LIMITS:
            found[_LIMITS[field]] = limit
        elif field in {"min_length", "max_length"} and type(info) not in _ENCODED:
            found[field[:3] + _SIZES[kind]] = limit
    return found


_ENCODED: Final = frozenset({kinds.BytesType, kinds.ByteArrayType, kinds.MemoryViewType})
"""Types whose length is not that of their text."""


def _array(items: list[Schema], least: int | None = None) -> Schema:
    schema: Schema = {"type": "array"}
    if items:
        schema["prefixItems"] = items
    return {**schema, "minItems": len(items) if least is None else least, "maxItems": len(items)}


def _is_present(info: _Fields, field: kinds.Field, output: bool) -> bool:
    """Return True if a field must be present, or is always written."""
    if not output or isinstance(info, kinds.TypedDictType):
        return field.required
    if isinstance(info, kinds.NamedTupleType):
        return True
    cls: Any = get_origin(info.cls) or info.cls
    if _may_be_unset(get_type_hints(cls, include_extras=True).get(field.name)):
        return False
    if isinstance(info, kinds.StructType):
        return field.required or not cls.__struct_config__.omit_defaults
    return field.name not in _left_out_of_init(cls)


def _may_be_unset(hint: Any) -> bool:
    return hint is UnsetType or any(map(_may_be_unset, get_args(hint)))


def _left_out_of_init(cls: Any) -> set[str]:
    """Return the fields of a dataclass or attrs class that an object may lack."""
    fields = getattr(cls, "__attrs_attrs__", None) or dataclasses.fields(cls)
    return {each.name for each in fields if not each.init}


# Names.


_TAKEN: Final = frozenset(
    [
        "Arguments",
        "Array",
        "Date",
        "Definition",
        "Error",
        "Handler",
        "JobGroup",
        "Map",
        "NoInfer",
        "NonNullable",
        "Number",
        "Object",
        "Omit",
        "Partial",
        "Promise",
        "RangeError",
        "Record",
        "RemoteTask",
        "Returned",
        "Set",
        "Settings",
        "String",
        "Task",
        "TaskJob",
        "TaskOptions",
        "Types",
    ]
)
"""Names that the TypeScript module uses itself."""


def _free_name(name: str) -> str:
    return f"{name}Type" if name in _TAKEN else name


def _class_name(kind: Any) -> str:
    """Return a name for a type, with those of its arguments."""
    if kind in {None, NoneType}:
        return "None"
    if get_origin(kind) is Annotated:
        return f"Annotated{_class_name(get_args(kind)[0])}"
    if get_origin(kind) in {Union, UnionType}:
        return "Or".join(map(_class_name, get_args(kind)))
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    return _pascal("_".join([name, *map(_class_name, get_args(kind))]))


def _pascal(text: str) -> str:
    name = "".join(word[0].upper() + word[1:] for word in _words(text))
    return f"_{name}" if name[:1].isdecimal() else name


def _camel(text: str) -> str:
    first, *_ = [*_words(text), ""]
    start = re.match(r"[A-Z]+(?![a-z])|\D|", first)
    size = 0 if start is None else start.end()
    name = _pascal(text)
    return name[:size].lower() + name[size:]


def _words(text: str) -> list[str]:
    known = "".join(char if f"a{char}".isidentifier() else "_" for char in text)
    return re.findall(r"[^_]+", known)


# The contract.


def contract_of(app: App) -> Schema:
    """Return the contract of an app as a JSON Schema document.

    `tasks` has an entry for each task. Its `data` and `result` refer to definitions in `$defs`.

    Raises:
        ConfigurationError: If a type cannot be mapped, or two names collide.
    """
    schemas = _Schemas()
    tasks: dict[str, Schema] = {}
    keys: dict[str, str] = {}
    for name, task in sorted(app.tasks.items()):
        key = _camel(name)
        if not key:
            raise ConfigurationError(
                f"Task '{name}' ({task.location}) has no letters or digits in its name, so it has "
                "no name in TypeScript: rename it with name=…"
            )
        if key in keys:
            raise ConfigurationError(
                f"Tasks '{keys[key]}' and '{name}' would both be named '{key}' in TypeScript: "
                "rename one of them with name=…"
            )
        keys[key] = name
        tasks[name] = _task(schemas, task, key)
    document: Schema = {
        "$schema": _DIALECT,
        "title": app.name,
        "prefix": app.producer.namespace.prefix,
        "hash_tag": app.producer.namespace.hash_tag,
        "tasks": tasks,
    }
    return schemas.finish(document)


def _task(schemas: _Schemas, task: Task[..., Any], key: str) -> Schema:
    found: Schema = {"key": key, "queue": task.queue, "remote": task.is_remote}
    if about := inspect.getdoc(task.function):
        found["description"] = about
    options = task.settings.options
    if isinstance(options.expires, datetime):
        raise ConfigurationError(
            f"Task '{task.name}' ({task.location}) expires at a fixed time, which the contract "
            "cannot contain: use a number of seconds"
        )
    found["options"] = node_options(options)
    if options.dedup is not None:
        found["dedup"] = _dedup(task)
    if isinstance(cast("object", options.group), GroupRule):
        found["group"] = _group(task)
    data = _data(schemas, task)
    result = _result(schemas, task)
    for part, schema, output in (
        ("data", data, task.is_remote),
        ("result", result, not task.is_remote),
    ):
        name = f"{_pascal(key)}{part.capitalize()}"
        is_there = schemas.is_named(schema, name)
        found[part] = schema if is_there else schemas.define(name, schema, output=output)
    return found


def _data(schemas: _Schemas, task: Task[..., Any]) -> Schema:
    output = task.is_remote
    if is_batch(task) and task.calling.items.have_fields:
        return _mapped(schemas, task, "an item", task.calling.items.kind, output=output)
    binder = task.calling.binder
    hints = readable_hints(task.name, task.calling.function, binder)
    properties = {
        name: _mapped(schemas, task, f"parameter '{name}'", hints.get(name, Any), output=output)
        for name in binder.parameters
    }
    received = {n for n, each in binder.parameters.items() if isinstance(each.default, Received)}
    schema: Schema = {"type": "object", "properties": properties}
    # Only a job with children can do without the parameters that take their results.
    if required := [name for name in properties if name in binder.required | received]:
        schema["required"] = required
    if binder.catch_all is not None:
        hint = hints.get(binder.catch_all.name, Any)
        what = f"parameter '**{binder.catch_all.name}'"
        schema["additionalProperties"] = _mapped(schemas, task, what, hint, output=output)
    elif task.settings.extra == "error":
        schema["additionalProperties"] = False
    return schema


def _result(schemas: _Schemas, task: Task[..., Any]) -> Schema:
    if is_batch(task):
        hint = task.calling.items.result_kind()
    elif task.settings.stream is not None:
        hint = result_kind(task.function, task.settings.stream.reduce)
    else:
        try:
            hint = get_type_hints(task.function, include_extras=True).get("return", Any)
        except Exception as error:
            raise ConfigurationError(
                f"Cannot resolve the annotations of task '{task.name}' ({task.location}): {error}"
            ) from error
    return _mapped(schemas, task, "the result", hint, output=not task.is_remote)


def _mapped(
    schemas: _Schemas, task: Task[..., Any], what: str, hint: Any, *, output: bool
) -> Schema:
    try:
        return schemas.of(hint, output=output)
    except TypeError as error:
        shown = hint.__qualname__ if isinstance(hint, type) else repr(hint)
        raise ConfigurationError(
            f"The contract cannot contain {what} of task '{task.name}' ({task.location}), which is "
            f"annotated {shown}: {error}"
        ) from error


def _dedup(task: Task[..., Any]) -> Schema:
    """Return the deduplication of a task's jobs, with the parts of its key.

    The key is null if only Python can compute it.
    """
    rule = cast("object", task.settings.options.dedup)
    given = rule.key if isinstance(rule, DedupRule) else rule
    if not isinstance(given, str | Dedup):
        return {"key": None}
    dedup = given if isinstance(given, Dedup) else Dedup(given)
    key: list[Any] = []
    for text, name, spec, conversion in Formatter().parse(dedup.key):
        if text:
            key.append(text)
        if name is None:
            continue
        part = _part(task, name, str, int)
        if spec or conversion or part is None:
            return {"key": None}
        key.append(part)
    return {"key": key, "options": node_dedup(dedup)}


def _group(task: Task[..., Any]) -> Schema:
    """Return the parts of the group of a task's jobs. A part is null if only Python can compute it.

    A cost may also be a number.
    """
    options = task.settings.options
    rule, cost = cast("GroupRule", options.group), cast("object", options.cost)
    if isinstance(cost, CostRule):
        cost = _part(task, cost.cost, int) if isinstance(cost.cost, str) else None
    by = rule.group_by
    kinds_of_ids = (str, int, str | None, int | None)
    return {"id": _part(task, by, *kinds_of_ids) if isinstance(by, str) else None, "cost": cost}


def _part(task: Task[..., Any], name: str, *allowed: Any) -> Schema | None:
    """Return a parameter that TypeScript can read from a job's data, or None."""
    binder = task.calling.binder
    if hints_of(task.calling.function).get(name) not in allowed:
        return None
    if name in binder.required:
        return {"name": name}
    return {"name": name, "default": binder.defaults[name]}


# TypeScript.


def typescript(contract: Schema) -> str:
    """Return the TypeScript module for a contract."""
    client = Path(__file__).with_name("contract.ts").read_text(encoding="utf-8")
    types = "\n".join(_declaration(name, each) for name, each in contract["$defs"].items())
    tasks = "".join(_entry(name, task) for name, task in contract["tasks"].items())
    # Two JSON values: the prefix and the hash tag.
    place = f"{json.dumps(contract['prefix'])}, hashTag: {json.dumps(contract['hash_tag'])}"
    filled = {
        "APP": json.dumps(contract["title"], ensure_ascii=False),
        "PLACE": f"{{ prefix: {place} }}",
        "TYPES": types,
        "TASKS": f"{{\n{tasks}}}",
    }
    return re.sub(r'"__(\w+)__"|// __(\w+)__', lambda found: filled[found[1] or found[2]], client)


def _declaration(name: str, schema: Schema) -> str:
    about = _comment(schema, "")
    text = _type(schema, "")
    is_interface = text.startswith("{\n") and "anyOf" not in schema
    if is_interface:
        return f"{about}export interface {name} {text}\n"
    return f"{about}export type {name} = {text};\n"


def _entry(name: str, task: Schema) -> str:
    data, result = (task[part]["$ref"].removeprefix(REFERENCE) for part in ("data", "result"))
    dedup = task.get("dedup")
    by_hand = dedup is not None and dedup["key"] is None
    settings = [f"queue: {json.dumps(task['queue'])}", f"options: {json.dumps(task['options'])}"]
    if dedup is not None and not by_hand:
        settings.append(f"dedup: (data) => ({_dedup_object(dedup)})")
    extra = ["deduplication: bullmq.DeduplicationOptions"] if by_hand else []
    if (group := task.get("group")) is not None:
        if None in group.values():
            extra.append("group: JobGroup | null")
        else:
            settings.append(f"group: (data) => group({', '.join(map(_read, group.values()))})")
    lines = ",\n".join(f"    {each}" for each in settings)
    maker = "remote" if task["remote"] else "local"
    kinds_of = f"{data}, {result}" + (f", {{ {'; '.join(extra)} }}" if extra else "")
    called = f"{maker}<{kinds_of}>({json.dumps(name)}, {{\n{lines},\n  }})"
    return f"{_comment(task, '  ')}  {_property(task['key'])}: {called},\n"


def _dedup_object(dedup: Schema) -> str:
    parts = [part if isinstance(part, str) else _placeholder(part) for part in dedup["key"]]
    texts = [_literal_text(part) if isinstance(part, str) else part[0] for part in parts]
    return f"{{ ...{json.dumps(dedup['options'])}, id: `{''.join(texts)}` }}"


def _placeholder(part: Schema) -> tuple[str]:
    return (f"${{{_read(part)}}}",)


def _read(part: Schema | int) -> str:
    """Return the code of a number, or of a parameter's value."""
    if isinstance(part, int):
        return str(part)
    value = f"data.{part['name']}"
    if "default" not in part:
        return value
    return f"{value} === undefined ? {json.dumps(part['default'])} : {value}"


def _literal_text(text: str) -> str:
    return re.sub(r"([`\\]|\$\{)", r"\\\1", text)


def _type(schema: Any, indent: str) -> str:  # noqa: C901, PLR0911 - one case per keyword
    """Return the TypeScript type for a schema."""
    if schema is False:
        return "never"
    if schema is True:
        return "unknown"
    if "$ref" in schema:
        return str(schema["$ref"].removeprefix(REFERENCE))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return _union([json.dumps(each, ensure_ascii=False) for each in schema["enum"]])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _union([_type(each, indent) for each in schema[word]])
    if "allOf" in schema:
        return " & ".join(f"({_type(each, indent)})" for each in schema["allOf"])
    kind = schema.get("type")
    if isinstance(kind, list):
        each_kind = cast("list[str]", kind)
        return _union([_type({**schema, "type": each}, indent) for each in each_kind])
    match kind:
        case "array":
            return _array_type(schema, indent)
        case "object":
            return _object_type(schema, indent)
        case _:
            return _SCALARS.get(cast("str", kind), "unknown")


_SCALARS: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}


def _union(parts: list[str]) -> str:
    return "unknown" if "unknown" in parts else " | ".join(dict.fromkeys(parts)) or "never"


def _array_type(schema: Schema, indent: str) -> str:
    first: list[Schema] = schema.get("prefixItems", [])
    if not first:
        if schema.get("maxItems") == 0:
            return "[]"
        return f"Array<{_type(schema.get('items', True), indent)}>"
    least = schema.get("minItems", 0)
    parts = [
        _type(each, indent) if place < least else f"({_type(each, indent)})?"
        for place, each in enumerate(first)
    ]
    if schema.get("items") is not False and schema.get("maxItems") != len(first):
        parts.append(f"...Array<{_type(schema.get('items', True), indent)}>")
    return f"[{', '.join(parts)}]"


def _object_type(schema: Schema, indent: str) -> str:
    more = schema.get("additionalProperties", True)
    if not schema.get("properties") and more is not False:
        value = _type(more, indent)
        keys = schema.get("propertyNames")
        if keys is None:
            return f"Record<string, {value}>"
        if "enum" in keys or "$ref" in keys:
            return f"Partial<Record<{_type(keys, indent)}, {value}>>"
        # A float is not written as in JavaScript, so its key is not the number's.
        return f"Record<{'number' if keys == _NUMBER_KEY else 'string'}, {value}>"
    if not schema.get("properties"):
        return "Record<string, never>"
    inner = f"{indent}  "
    required = schema.get("required", ())
    lines = [
        f"{_comment(each, inner)}{inner}{_property(name)}{'' if name in required else '?'}: "
        f"{_type(each, inner)};\n"
        for name, each in schema["properties"].items()
    ]
    if more is not False and "additionalProperties" in schema:
        # An index signature has to match all properties, so it cannot have the type of the others.
        lines.append(f"{inner}[name: string]: unknown;\n")
    return f"{{\n{''.join(lines)}{indent}}}"


def _property(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_$][\w$]*", name, re.ASCII) else json.dumps(name)


def _comment(schema: Any, indent: str) -> str:
    about = cast("Schema", schema).get("description") if isinstance(schema, dict) else None
    if not about:
        return ""
    lines = str(about).replace("*/", "*\\/").splitlines()
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return "".join([f"{indent}/**\n", *(f"{indent} * {one}".rstrip() + "\n" for one in lines)]) + (
        f"{indent} */\n"
    )
