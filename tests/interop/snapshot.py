"""Every key under a prefix, normalised so that equal behaviour gives equal values.

What is normalised: the prefix itself, wherever it stands; JSON (parsed); hashes and sets (no
order); scores (taken apart into what they mean); stack traces (only their number counts); random
tokens.
What is not: the order of lists and streams, the fields of events and their order, counters, the
sequence part of scores, and — with a controlled clock on both sides — every millisecond.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from redis import Redis

Times = Literal["exact", "ignored"]
Json = Any

PLACEHOLDER: Final = "<prefix>"
STACK: Final = "<stack>"

_MS = re.compile(r"(?<!\d)1[5-9]\d{11}(?!\d)")  # 2017 to 2033
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(:\d+)?")
_JSON_FIELDS = {"data", "opts", "parent", "progress", "returnvalue", "stacktrace"}
_JSON_EVENT_FIELDS = {"completed": "returnvalue", "progress": "data"}
_PRIORITY_STEP = 2**32
_DELAY_STEP = 4096


class Entry(Struct, frozen=True):
    """One key: its type, its normalised content, and its time to live in ms, if it has one."""

    kind: str
    content: Json
    ttl: int | None = None


Snapshot = Mapping[str, Entry]


def take(redis: Redis, prefix: str, *, times: Times = "exact") -> Snapshot:
    """Read all keys that begin with `prefix`.

    `times="ignored"` is for runs by the real clock: instants become `<ms>`, and sets that are
    ordered by an instant are compared without their order (two jobs may end in the same ms).
    """
    names = sorted(redis.scan_iter(match=_escape(prefix) + "*", count=1000))
    pipe = redis.pipeline(transaction=False)
    for name in names:
        pipe.type(name)
        pipe.pttl(name)
    answers = pipe.execute()
    kinds = [_text(kind) for kind in answers[::2]]
    ttls = [ttl if ttl >= 0 else None for ttl in answers[1::2]]
    for name, kind in zip(names, kinds, strict=True):
        _READ[kind](pipe, name)
    normaliser = _Normaliser(prefix, times)
    found: dict[str, Entry] = {}
    for name, kind, ttl, raw in zip(names, kinds, ttls, pipe.execute(), strict=True):
        shown = _distinct(found, normaliser.text(name))
        found[shown] = Entry(kind, normaliser.content(shown, kind, raw), ttl)
    return found


def normalise(value: Json, prefix: str, *, times: Times = "exact") -> Json:
    """Do to the results of operations what `take` does to values."""
    return _Normaliser(prefix, times).json(value)


_READ: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda pipe, name: pipe.get(name),
    "list": lambda pipe, name: pipe.lrange(name, 0, -1),
    "set": lambda pipe, name: pipe.smembers(name),
    "zset": lambda pipe, name: pipe.zrange(name, 0, -1, withscores=True),
    "hash": lambda pipe, name: pipe.hgetall(name),
    # Not xrange of redis-py, which would make a dict of the fields and lose their order.
    "stream": lambda pipe, name: pipe.execute_command("EVAL", _READ_STREAM, 1, name),
}
_READ_STREAM = "return redis.call('XRANGE', KEYS[1], '-', '+')"


class _Normaliser:
    def __init__(self, prefix: str, times: Times) -> None:
        self._prefix = prefix
        self._times = times

    def text(self, raw: bytes | str) -> str:
        """Return the text with the prefix, and optionally the instants, replaced."""
        plain = _text(raw).replace(self._prefix, PLACEHOLDER)
        return _MS.sub("<ms>", plain) if self._times == "ignored" else plain

    def json(self, value: Json) -> Json:
        """Do the same inside a JSON value. A huge integer also counts as an instant."""
        match value:
            case str():
                return self.text(value)
            case bool():
                return value
            case int() if self._times == "ignored" and _MS.fullmatch(str(value)):
                return "<ms>"
            case dict():
                return {self.text(key): self.json(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.json(inner) for inner in value]
            case _:
                return value

    def content(self, shown: str, kind: str, raw: Any) -> Json:
        suffix = shown.split(":", 2)[-1]
        match kind:
            case "string":
                return _UUID.sub("<uuid>", self.text(raw))
            case "list":
                return [self.text(item) for item in raw]
            case "set":
                return sorted(self.text(item) for item in raw)
            case "zset":
                return self._sorted_set(suffix, raw)
            case "stream":
                return [self._event([_text(part) for part in fields]) for _, fields in raw]
            case _:
                return {self.text(key): self._field(suffix, _text(key), raw[key]) for key in raw}

    def _field(self, suffix: str, name: str, raw: bytes) -> Json:
        if name in _JSON_FIELDS or suffix.endswith(":processed"):
            value = self._parsed(_text(raw))
            if name == "stacktrace" and isinstance(value, list):
                return [STACK] * len(value)
            return value
        if self._times == "ignored" and name == "offset":  # For schedulers: instant mod every.
            return "<ms>"
        return self.text(raw)

    def _parsed(self, text: str) -> Json:
        try:
            return self.json(json.loads(text))
        except ValueError:
            return {"not JSON": self.text(text)}

    def _event(self, fields: list[str]) -> Json:
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        in_json = _JSON_EVENT_FIELDS.get(dict(pairs).get("event", ""))
        return [
            [name, self._parsed(value) if name == in_json else self.text(value)]
            for name, value in pairs
        ]

    def _sorted_set(self, suffix: str, raw: list[tuple[bytes, float]]) -> Json:
        pairs = [[self.text(member), self._score(suffix, score)] for member, score in raw]
        by_instant = suffix not in {"delayed", "prioritized", "marker"}
        return sorted(pairs) if by_instant and self._times == "ignored" else pairs

    def _score(self, suffix: str, score: float) -> Json:
        match suffix:
            case "prioritized":
                priority, counter = divmod(int(score), _PRIORITY_STEP)
                return {"priority": priority, "counter": counter}
            case "delayed":
                due, sequence = divmod(int(score), _DELAY_STEP)
                return {"due": self.json(due), "sequence": sequence}
            case "marker":
                due, sequence = int(score), round(score % 1 * _DELAY_STEP)
                return {"due": self.json(due), "sequence": sequence}
            case _:
                return self.json(int(score) if score.is_integer() else score)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")


def _escape(prefix: str) -> str:
    return re.sub(r"([\[\]*?\\^])", r"\\\1", prefix)


def _distinct(found: Mapping[str, object], name: str) -> str:
    candidates = (name if n == 1 else f"{name}#{n}" for n in range(1, len(found) + 2))
    return next(candidate for candidate in candidates if candidate not in found)
