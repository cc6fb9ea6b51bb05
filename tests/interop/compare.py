"""Differences between two snapshots, and which of them are known and allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any, Final

from msgspec import Struct

from tests.interop.snapshot import Entry, Snapshot

TTL_TOLERANCE_MS: Final = 5_000  # the server's clock runs on between two runs of a case
_ABSENT: Final = "(absent)"


class Exempt(Struct, frozen=True, kw_only=True):
    """Something that may differ, and why: a field of a hash, all events of one name, or a key."""

    reason: str
    key: str  # regular expression for the end of the key
    field: str | None = None
    event: str | None = None


VERSION: Final = Exempt(
    reason="each library writes its own name and number; no script reads it (1.3)",
    key=r":meta",
    field="version",
)
NEXT_ITERATION: Final = Exempt(
    reason="BullMQ 5 notes the next iteration on the finished one, 6 does not (7.1, 12)",
    key=r":repeat:.*:(\d+|<ms>)",
    field="nrjid",
)
DEBOUNCED: Final = Exempt(
    reason="BullMQ 5 has a second, older event beside `deduplicated` (7.1, 4)",
    key=r":events",
    event="debounced",
)

OUR_MEMORY: Final = Exempt(
    reason="taskbull remembers the last call of each sequence for a while (it expires)",
    # A random id may contain digits that look like an instant.
    key=r":tb:(add:(?:\w|<ms>)+:\d+|cycle:.+)",
)

OUR_WAKE_UP: Final = Exempt(
    reason="a worker of ours that stops wakes another if jobs are left: it may have eaten a marker",
    key=r":marker",
)

ANY_VERSION: Final = (VERSION, NEXT_ITERATION, DEBOUNCED)


class Difference(Struct, frozen=True):
    """One value that is not the same: which key, where inside it, and both values."""

    key: str
    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        where = f"{self.key} {self.path}".rstrip()
        return f"{where}\n    left:  {self.left!r}\n    right: {self.right!r}"


def differences(
    left: Snapshot, right: Snapshot, *, exempt: Iterable[Exempt] = ()
) -> list[Difference]:
    """Compare key by key; the result is in the order of the keys."""
    exempt = tuple(exempt)
    whole = [re.compile(e.key + "$") for e in exempt if e.field is None and e.event is None]
    found: list[Difference] = []
    for key in sorted(left.keys() | right.keys()):
        if any(pattern.search(key) for pattern in whole):
            continue
        one, other = _pruned(key, left.get(key), exempt), _pruned(key, right.get(key), exempt)
        if one is None or other is None:
            found.append(Difference(key, "", _shown(one), _shown(other)))
        elif one.kind != other.kind:
            found.append(Difference(key, "type", one.kind, other.kind))
        else:
            within = _inside if one.kind in {"hash", "string"} else _aligned
            found += within(key, "", one.content, other.content)
            if not _same_ttl(one.ttl, other.ttl):
                found.append(Difference(key, "time to live", one.ttl, other.ttl))
    return found


def assert_same(
    left: Snapshot,
    right: Snapshot,
    *,
    exempt: Iterable[Exempt] = (),
    names: tuple[str, str] = ("left", "right"),
) -> None:
    """Fail with a list of all differences, unless there are none."""
    found = differences(left, right, exempt=exempt)
    if found:
        lines = "\n".join(str(difference) for difference in found)
        head = f"{len(found)} differences, left = {names[0]}, right = {names[1]}"
        raise AssertionError(f"{head}\n{lines}")


def compare_values(path: str, left: Any, right: Any) -> list[Difference]:
    """Compare two JSON values, such as the results of the same operations."""
    return list(_inside(path, "", left, right))


def _pruned(key: str, entry: Entry | None, exempt: tuple[Exempt, ...]) -> Entry | None:
    if entry is None:
        return None
    content = entry.content
    for allowed in exempt:
        if not re.search(f"(?:{allowed.key})$", key):
            continue
        if allowed.field is not None and entry.kind == "hash":
            content = {name: content[name] for name in content if name != allowed.field}
        if allowed.event is not None and entry.kind == "stream":
            content = [event for event in content if ["event", allowed.event] not in event]
    return Entry(entry.kind, content, entry.ttl)


def _inside(key: str, path: str, left: Any, right: Any) -> Iterator[Difference]:
    match left, right:
        case dict(), dict():
            for name in sorted(left.keys() | right.keys()):
                one, other = left.get(name, _ABSENT), right.get(name, _ABSENT)
                yield from _inside(key, f"{path}.{name}", one, other)
        case list(), list() if len(left) == len(right):
            for place, (one, other) in enumerate(zip(left, right, strict=True)):
                yield from _inside(key, f"{path}[{place}]", one, other)
        case list(), list():
            yield from _aligned(key, path, left, right)
        case _ if type(left) is not type(right) or left != right:
            yield Difference(key, path, left, right)


def _aligned(key: str, path: str, left: list[Any], right: list[Any]) -> Iterator[Difference]:
    """Compare two sequences so that one missing item is one difference, not a shift of all."""
    one, other = ([json.dumps(item, sort_keys=True) for item in side] for side in (left, right))
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    for change, start, end, other_start, other_end in changes:
        if change != "equal":
            where = f"{path}[{start}:{end}]"
            yield Difference(key, where, left[start:end], right[other_start:other_end])


def _same_ttl(left: int | None, right: int | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= TTL_TOLERANCE_MS


def _shown(entry: Entry | None) -> Any:
    return _ABSENT if entry is None else entry.content
