"""Calls that read and change the groups of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct, UnsetType, json
from msgspec.structs import replace

from taskbull.core.groups import GroupChanges, GroupInfo, Groups, Limiter
from taskbull.core.keys import QueueKeys
from taskbull.core.validation import instant_from_ms, to_ms
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call, Steps, load, text

SET_GROUP = load("set_group")
GET_GROUPS = load("get_groups")
LIST_GROUPS = load("list_groups")
ADD_GROUP_COST = load("add_group_cost")
SWEEP_GROUPS = load("sweep_groups")

CHUNK: Final = 40
"""Number of groups that one call reads. It takes Redis up to 2 ms."""

LIST_CHUNK: Final = 500
_PARTS, _HELD = 4, 3

MOST_GROUPS: Final = 20
"""Number of groups per queue with separate metrics."""

SWEEP_CHUNK: Final = 200
_MORE: Final = -2
_MOST_CHUNKS: Final = 5

_MOST_PLACING: Final = 200
"""Number of calls per sweep that place waiting jobs in their groups, 100 jobs each."""

pack = msgspec.msgpack.encode


class GroupState(Struct, frozen=True):
    """State of a group, as `get_groups.lua` returns it."""

    info: GroupInfo
    reason: str
    """Why no job may start: "paused", "running" or "limited". Empty if one may."""
    running: int
    """Number of running jobs that take a place of the group's limit."""


def set_group(queue: QueueKeys, group: str, changes: GroupChanges, now_ms: int) -> Call[bool]:
    """Change the settings of a group. Return True if that changed any."""
    paused = changes.paused if isinstance(changes.paused, UnsetType) else int(changes.paused)
    words = (
        _word(changes.concurrency),
        *_limiter_words(changes.limiter),
        _word(changes.weight),
        _word(None if paused == 0 else paused),
    )
    return _set(queue, group, now_ms, words, b"")


def declare_groups(queue: QueueKeys, groups: Groups, now_ms: int) -> Call[bool]:
    """Write the rules of all groups that an app declares. Return True if they changed."""
    changes = (_word(groups.concurrency), *_limiter_words(groups.limiter), "-", "-")
    weights = {group: str(groups.weights[group]) for group in sorted(groups.weights)}
    return _set(queue, "", now_ms, changes, json.encode(weights) if weights else b"")


def _set(
    queue: QueueKeys, group: str, now_ms: int, changes: tuple[str, ...], weights: bytes
) -> Call[bool]:
    keys = (queue.private("groups"), queue.active, queue.meta, queue.marker)
    args = (queue.base, now_ms, group, pack(changes), weights)
    return Call(SET_GROUP, keys, args, bool)


def _word(value: int | UnsetType | None) -> str:
    if isinstance(value, UnsetType):
        return ""
    return "-" if value is None else str(value)


def _limiter_words(limiter: Limiter | UnsetType | None) -> tuple[str, str]:
    if isinstance(limiter, UnsetType):
        return "", ""
    return ("-", "-") if limiter is None else (str(limiter.max), str(to_ms(limiter.duration)))


def add_group_cost(queue: QueueKeys, group: str, cost: int, now_ms: int) -> Call[bool]:
    """Change the used part of a group's limit. Return False if it has no limiter."""
    keys = (queue.meta, queue.active, queue.marker)
    return Call(ADD_GROUP_COST, keys, (queue.base, now_ms, group, cost), bool)


def get_groups(queue: QueueKeys, ids: Sequence[str], now_ms: int) -> Call[list[GroupState]]:
    """Return the state of up to `CHUNK` groups."""
    args = (queue.base, now_ms, pack(ids))
    return Call(GET_GROUPS, (queue.prioritized,), args, partial(_states, ids))


def _states(ids: Sequence[str], reply: list[Any]) -> list[GroupState]:
    states: list[GroupState] = []
    rows = zip(*[iter(reply)] * 9, strict=True)
    for group, row in zip(ids, rows, strict=True):
        waiting, running, reason, paused, until_ms, concurrency, weight, most, window_ms = row
        reason_text = reason.decode()
        info = GroupInfo(
            id=group,
            waiting=0 if reason_text else waiting,
            active=running,
            held=waiting if reason_text else 0,
            paused=paused == 1,
            limited_until=instant_from_ms(until_ms) if until_ms else None,
            concurrency=concurrency or None,
            weight=weight,
            limiter=_limiter(most, window_ms),
        )
        states.append(GroupState(info, reason_text, running))
    return states


def _limiter(most: int, window_ms: int) -> Limiter | None:
    try:
        return Limiter(most, window_ms / 1000) if most else None
    except ConfigurationError:  # Not written by taskbull.
        return None


class GroupSurvey(Struct, frozen=True):
    """The largest groups of a queue, and the number of jobs of the others by state."""

    groups: list[GroupInfo]
    others: dict[str, int]


def list_groups(queue: QueueKeys, now_ms: int, limit: int | None = None) -> Steps[list[GroupInfo]]:
    """Return groups as `survey_groups` does."""
    survey = yield from survey_groups(queue, now_ms, limit)
    return survey.groups


def survey_groups(queue: QueueKeys, now_ms: int, limit: int | None = None) -> Steps[GroupSurvey]:
    """Return all groups that have jobs or overrides, those with most jobs first.

    With `limit`, return only the largest groups among the first 500 that may start a job, the first
    500 that are held, those of the newest 500 running jobs, and about 500 with overrides. Then it
    takes at most four calls and one per `CHUNK` groups.
    """
    active, ready, held = Counter[str](), Counter[str](), Counter[str]()
    overridden = set[str]()
    part, position = 1, 0
    while part > 0:
        before = part
        listed: _Listed = yield _list(queue, part, position)
        part, position, waiting, running = listed
        active.update(running)
        (ready if before < _HELD else held).update(waiting)
        if before == _PARTS:
            overridden.update(waiting)
        if limit is not None and part == before:  # Skip the rest of this part.
            part, position = part + 1, 0
            if part > _PARTS:
                break
    for counts in (active, ready, held):
        counts.pop("", None)  # the jobs without a group
    sizes = Counter[str]()
    for counts in (active, ready, held):
        sizes.update(counts)
    names = sorted(sizes, key=lambda group: (-sizes[group], group))[:limit]
    found: list[GroupInfo] = []
    for first in range(0, len(names), CHUNK):
        chunk = names[first : first + CHUNK]
        states: list[GroupState] = yield get_groups(queue, chunk, now_ms)
        for state in states:
            info = replace(state.info, active=max(active[state.info.id], state.running))
            # Until the next fetch, a group is stored whose jobs another client has removed.
            if info.waiting or info.held or info.active or info.id in overridden:
                found.append(info)
    shown = set(names)
    others = {
        state: sum(count for group, count in counts.items() if group not in shown)
        for state, counts in (("active", active), ("waiting", ready), ("held", held))
    }
    return GroupSurvey(sorted(found, key=_most_jobs_first), others)


def count_group_jobs(queue: QueueKeys, limit: int) -> Steps[dict[tuple[str, str], int]]:
    """Return the number of jobs by group and state. The group "" has those of smaller groups."""
    survey = yield from survey_groups(queue, 0, limit)
    counts = {
        (group.id, state): count
        for group in survey.groups
        for state, count in (
            ("waiting", group.waiting),
            ("held", group.held),
            ("active", group.active),
        )
    }
    return counts | {("", state): count for state, count in survey.others.items() if count}


def _most_jobs_first(group: GroupInfo) -> tuple[int, str]:
    return -(group.waiting + group.held + group.active), group.id


_Listed: TypeAlias = tuple[int, int, dict[str, int], dict[str, int]]


def _list(queue: QueueKeys, part: int, position: int) -> Call[_Listed]:
    keys = (queue.active, queue.private("turns"), queue.private("held"), queue.private("groups"))
    return Call(LIST_GROUPS, keys, (queue.base, part, position, LIST_CHUNK), _listed)


def _listed(reply: list[Any]) -> _Listed:
    part, position, waiting, running = reply
    return part, int(position), _counts(waiting), _counts(running)


def _counts(pairs: list[Any]) -> dict[str, int]:
    return {text(group): count for group, count in zip(pairs[::2], pairs[1::2], strict=True)}


def sweep_groups(queue: QueueKeys, now_ms: int, position: int = 0) -> Steps[int]:
    """Repair the groups of a queue, checking a limited number of its waiting jobs.

    Returns the position where the next sweep continues.
    """
    for _ in range(_MOST_PLACING):  # These also free the places of dead workers.
        if (yield sweep_groups_chunk(queue, now_ms, 0)) != _MORE:
            break
    for _ in range(_MOST_CHUNKS):
        position = yield sweep_groups_chunk(queue, now_ms, position)
        if position < 0:
            return 0
    return position


def sweep_groups_chunk(queue: QueueKeys, now_ms: int, position: int = 0) -> Call[int]:
    """Repair the groups, checking one chunk of the waiting jobs."""
    keys = (
        queue.wait,
        queue.prioritized,
        queue.private("turns"),
        queue.private("held"),
        queue.private("running"),
        queue.marker,
        queue.meta,
    )
    return Call(SWEEP_GROUPS, keys, (queue.base, now_ms, position, SWEEP_CHUNK), int)
