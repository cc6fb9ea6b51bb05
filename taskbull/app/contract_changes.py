"""Changes of a contract that break the programs that use it.

Other programs write the data of a task, and read its result. For a remote task it is the other way
round. A change breaks them if a value that is written no longer fits what is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec

from taskbull.app.contract import NARROWER, REFERENCE, Schema
from taskbull.errors import ConfigurationError


def breaks_of(old: Schema, new: Schema) -> list[str]:
    """Return the changes between two contracts that break the programs that use the old one."""
    found = [
        f"{part} changed from {old.get(part)!r} to {new.get(part)!r}"
        for part in ("prefix", "hash_tag")
        if old.get(part) != new.get(part)
    ]
    for name, before in old["tasks"].items():
        after = new["tasks"].get(name)
        if after is None:
            if not before["remote"]:
                found.append(f"{name}: the task was removed")
            continue
        if before["remote"] != after["remote"]:
            found.append(f"{name}: the task is {'now' if after['remote'] else 'no longer'} remote")
            continue
        if before["queue"] != after["queue"]:
            found.append(f"{name}: the queue changed from {before['queue']} to {after['queue']}")
        for part in ("data", "result"):
            # Other programs write the data of local tasks and the results of remote ones.
            reads = (part == "data") != after["remote"]
            comparison = _Comparison(old, new) if reads else _Comparison(new, old)
            wording = _READ if reads else _WRITTEN
            for path, problem, detail in comparison.misfits(before[part], after[part], reads):
                place = f"{part}.{path}".replace(".[", "[").rstrip(".")
                found.append(f"{name}: {place} {wording[problem].format(detail)}")
    return found


_READ: Final = {
    "missing": "is now required",
    "unknown": "is no longer accepted",
    "type": "no longer accepts {}",
    "limit": "is more restricted: {}",
}
_WRITTEN: Final = {
    "missing": "may now be missing",
    "unknown": "is new, and was not allowed before",
    "type": "can now be {}",
    "limit": "is less restricted: {}",
}

_Misfit: TypeAlias = tuple[str, str, str]
"""A path in a value, the kind of problem, and its detail."""

_SAME: Final = ("format", "contentEncoding", "uniqueItems")


class _Comparison:
    """Finds the values that one contract writes and the other cannot read."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._writer = writer["$defs"]
        self._reader = reader["$defs"]
        self._compared: set[tuple[object, object]] = set()

    def misfits(self, before: Schema, after: Schema, reads: bool) -> list[_Misfit]:
        """Return the incompatibilities of two schemas. `reads` is True if the newer one is read."""
        written, read = (before, after) if reads else (after, before)
        return list(self._of(written, read, ""))

    def _of(self, written: Any, read: Any, path: str) -> Iterator[_Misfit]:
        pair = _target(written), _target(read)
        if pair[0] and pair[1]:
            if pair in self._compared:
                return
            self._compared.add(pair)
        reference = written
        written, read = _resolved(written, self._writer), _resolved(read, self._reader)
        if written is False or read in ({}, True) or not _is_restricted(read):
            return
        written = {} if written is True else written
        if read is False:
            yield path, "type", _about(written)
            return
        choices = _choices(written)
        if len(choices) > 1:
            for choice in choices:
                yield from self._of(choice, read, path)
            return
        options = _choices(read)
        if len(options) > 1:
            # Keep the reference: a type that contains itself is compared once.
            one = reference if pair[0] and choices[0] is written else choices[0]
            yield from self._one_of(one, options, path)
            return
        yield from self._plain(choices[0], options[0], path)

    def _one_of(self, written: Schema, options: list[Any], path: str) -> Iterator[_Misfit]:
        known = set(self._compared)
        all_found: list[list[_Misfit]] = []
        for option in options:
            self._compared = set(known)
            all_found.append(list(self._of(written, option, path)))
            if not all_found[-1]:
                return
        self._compared = known
        # The option that was most likely meant is one of the same type.
        closest = min(
            all_found, key=lambda found: (any(one[0] == path for one in found), len(found))
        )
        about = _about(_resolved(written, self._writer))
        if any(one == (path, "type", about) for one in closest):
            yield path, "type", about
        else:
            yield from closest

    def _plain(self, written: Schema, read: Schema, path: str) -> Iterator[_Misfit]:
        if "allOf" in written or "allOf" in read:
            if written != read:
                yield path, "type", _about(written)
            return
        if "const" in read:
            # As text, because True == 1.
            if "const" not in written or json.dumps(written["const"]) != json.dumps(read["const"]):
                yield path, "type", _about(written)
            return
        if "const" in written:
            one = _schema_of(written["const"])
            if any(self._plain(one, read, path)):
                yield path, "type", _about(written)
            return
        kinds_of = written.get("type"), read.get("type")
        if kinds_of[0] != kinds_of[1] and kinds_of != ("integer", "number"):
            yield path, "type", _about(written)
            return
        yield from _limit_misfits(written, read, path)
        if kinds_of[1] == "array":
            yield from self._items(written, read, path)
        elif kinds_of[1] == "object":
            yield from self._properties(written, read, path)

    def _items(self, written: Schema, read: Schema, path: str) -> Iterator[_Misfit]:
        ours, theirs = written.get("prefixItems", []), read.get("prefixItems", [])
        for place in range(max(len(ours), len(theirs))):
            pair = [
                first[place] if place < len(first) else whole.get("items", True)
                for first, whole in ((ours, written), (theirs, read))
            ]
            if written.get("maxItems", place + 1) > place:
                yield from self._of(pair[0], pair[1], f"{path}[{place}]")
        if written.get("maxItems") != len(ours):
            yield from self._of(written.get("items", True), read.get("items", True), f"{path}[]")

    def _properties(self, written: Schema, read: Schema, path: str) -> Iterator[_Misfit]:
        ours, theirs = written.get("properties", {}), read.get("properties", {})
        for name in read.get("required", ()):
            if name not in written.get("required", ()):
                yield _below(path, name), "missing", ""
        others = read.get("additionalProperties", True)
        for name, each in ours.items():
            if name in theirs:
                yield from self._of(each, theirs[name], _below(path, name))
            elif others is False:
                yield _below(path, name), "unknown", ""
            else:
                yield from self._of(each, others, _below(path, name))
        yield from self._other_names(written, theirs, path)
        more = written.get("additionalProperties", True)
        if more is not False and "additionalProperties" in read:
            if others is False:
                yield path, "limit", "other fields"
            else:
                yield from self._of(more, others, _below(path, "*"))
        if "propertyNames" in read:
            keys = {"type": "string", **written.get("propertyNames", {})}
            yield from self._of(
                keys, {"type": "string", **read["propertyNames"]}, _below(path, "*")
            )

    def _other_names(self, written: Schema, theirs: Schema, path: str) -> Iterator[_Misfit]:
        """Compare fields that may have any name, such as the items of a dict, with known fields."""
        more = written.get("additionalProperties")
        pair = id(cast("object", more)), id(theirs)
        if not isinstance(more, dict) or pair in self._compared:
            return
        self._compared.add(pair)
        for name in [each for each in theirs if each not in written.get("properties", {})]:
            yield from self._of(more, theirs[name], _below(path, name))


def _target(schema: Any) -> str | None:
    return cast("Schema", schema).get("$ref") if isinstance(schema, dict) else None


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    while (target := _target(schema)) is not None:
        schema = definitions[target.removeprefix(REFERENCE)]
    return schema


def _is_restricted(schema: Any) -> bool:
    words = {"type", "enum", "const", "anyOf", "oneOf", "allOf"}
    return schema is False or not words.isdisjoint(schema)


def _choices(schema: Schema) -> list[Any]:
    """Return the alternatives of a schema, or the schema itself."""
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return list(schema[word])
    if "enum" in schema:
        return [{"const": each} for each in schema["enum"]]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": each} for each in schema["type"]]
    return [schema]


def _limit_misfits(written: Schema, read: Schema, path: str) -> Iterator[_Misfit]:
    for word, limit in read.items():
        ours = written.get(word)
        if word in _BOUNDS:
            fits = _is_within(written, read, word)
        elif word.startswith("min"):
            fits = (ours or 0) >= limit
        elif word.startswith("max"):
            fits = ours is not None and ours <= limit
        elif word == "multipleOf":
            fits = ours is not None and ours % limit == 0
        elif word == "pattern":
            narrower = [{"pattern": limit}, *NARROWER.get(limit, ())]
            fits = limit == "" or any(each.items() <= written.items() for each in narrower)
            fits = fits or _matches(limit, written.get("text"))
        else:
            fits = word not in _SAME or ours == limit or not limit
        if not fits:
            yield path, "limit", f"{word} {limit}"


def _matches(pattern: str, text: str | None) -> bool:
    try:
        return text is not None and re.search(pattern, text) is not None
    except re.error:  # Other programs have more kinds of patterns.
        return False


def _is_within(written: Schema, read: Schema, word: str) -> bool:
    """Return True if all numbers that are written keep to a bound."""
    sides = [each for each, sign in _BOUNDS.items() if sign == _BOUNDS[word] and each in written]
    ours = max((_bound(written, each) for each in sides), default=(-math.inf, False))
    return ours >= _bound(read, word)


def _bound(schema: Schema, word: str) -> tuple[float, bool]:
    """Return a bound so that a stricter one is greater, and whether it excludes its own value."""
    value, is_exclusive = _BOUNDS[word] * schema[word], word.startswith("exclusive")
    if is_exclusive and schema.get("type") == "integer" and value == int(value):
        return value + 1, False
    return value, is_exclusive


_BOUNDS: Final = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
"""The limits of numbers, with 1 for lower and -1 for upper bounds."""


def _schema_of(value: object) -> Schema:
    """Return the schema that only one value matches."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case str():
            size = len(value)
            return {"type": "string", "minLength": size, "maxLength": size, "text": value}
        case int() | float():
            kind = "integer" if isinstance(value, int) else "number"
            return {"type": kind, "minimum": value, "maximum": value, "multipleOf": value}
        case _:
            return {"type": "any value"}


def _about(schema: Schema) -> str:
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    return str(schema.get("type", "any value"))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def read_contract(text: bytes, place: str) -> Schema:
    """Return a contract from a file.

    Raises:
        ConfigurationError: If the file does not contain one.
    """
    try:
        found = msgspec.json.decode(text)
        if not all(isinstance(each, dict) for each in found["$defs"].values()):
            raise TypeError
        for task in found["tasks"].values():
            _ = task["data"]["$ref"], task["result"]["$ref"], task["queue"], task["remote"]
        for name in re.findall(rb'"#/\$defs/([^"]*)"', text):
            _ = found["$defs"][name.decode()]
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigurationError(
            f"{place} is not a contract: it must be a file made by taskbull contract --json-schema"
        ) from None
    return cast("Schema", found)
