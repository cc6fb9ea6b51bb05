"""Calls that remove single jobs, jobs in a state, or a whole queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.job import AGE_FIELDS
from taskbull.errors import ConfigurationError, JobsActive, ServerRefused
from taskbull.scripts.call import Call, Command, Steps, accepted, load, nothing, number, text, texts
from taskbull.scripts.change import pause
from taskbull.scripts.records import unregister_queue

REMOVE_JOB = load("remove_job")
REMOVE_UNPROCESSED_CHILDREN = load("remove_unprocessed_children")
REMOVE_CHILD_DEPENDENCY = load("remove_child_dependency")
CLEAN_LISTED = load("clean_listed")
CLEAN_SORTED = load("clean_sorted")
CLEAR_SCHEDULERS = load("clear_schedulers")

PIECE: Final = 50
"""Number of jobs that one call checks and possibly removes."""

_SCANNED = 1000


class _Choice(Struct, frozen=True):
    """A filter for jobs to remove. A job's age is the first of the fields `instants` it has."""

    instants: tuple[str, ...] = ()
    cutoff_ms: int = 0
    force: bool = False
    highest: int | str = "+inf"

    @property
    def args(self) -> tuple[bytes, int, int]:
        return msgspec.msgpack.encode(self.instants), self.cutoff_ms, int(self.force)


class _Tally(Struct):
    """A counter of removed jobs with a limit. It collects their ids if `ids` is a list."""

    limit: float = inf
    count: int = 0
    ids: list[str] | None = None

    @property
    def open(self) -> bool:
        return self.count < self.limit

    def most(self, chunk: int) -> int:
        return int(min(chunk, self.limit - self.count))

    def add(self, ids: list[str]) -> None:
        self.count += len(ids)
        if self.ids is not None:
            self.ids += ids


_Remove = Callable[[QueueKeys, str, _Choice, _Tally, int], Steps[None]]

_ANY = _Choice()
_ALL = _Choice(force=True)


def remove_job(
    queue: QueueKeys, job_id: str, *, children: bool = True, only_in: str = ""
) -> Call[bool]:
    """Remove a job and, by default, its children. Return False if a worker holds one of them.

    With `only_in`, the key of a sorted set, the job is removed only if it is in that set. Otherwise
    `WrongState` is raised. It is also raised if the job is the next run of a scheduler.
    """
    read = accepted(queue, job_id)
    args = (queue.base, job_id, int(children), only_in)
    return Call(REMOVE_JOB, (queue.job(job_id),), args, lambda reply: read(reply) == 1)


def remove_unprocessed_children(queue: QueueKeys, job_id: str) -> Call[int]:
    """Remove a job's pending children that no worker holds. Return their number."""
    return Call(REMOVE_UNPROCESSED_CHILDREN, (queue.job(job_id),), (), int)


def remove_child_dependency(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Detach a job from its parent. Return False if the parent does not wait for it."""
    read = accepted(queue, job_id)
    keys = (queue.job(job_id),)
    return Call(REMOVE_CHILD_DEPENDENCY, keys, (queue.base,), lambda reply: read(reply) == 1)


def remove_deduplication_key(queue: QueueKeys, dedup_key: str) -> Command[bool]:
    """Release a deduplication key, so that the next job is added. Return False if it was free."""
    key = queue.deduplication(dedup_key)
    return Command(("DEL", key), key, bool)


def drain(queue: QueueKeys, *, delayed: bool = False, chunk: int = PIECE) -> Steps[int]:
    """Remove all waiting and prioritized jobs. Return the number of jobs removed.

    With `delayed`, delayed jobs are removed as well. Running jobs and the next runs of schedulers
    are kept. A parent in the same queue is removed with its last pending child.
    """
    tally = _Tally()
    for key in (queue.wait, queue.paused):
        yield from _clean_list(queue, key, _ANY, tally, chunk)
    for key in (queue.prioritized, queue.delayed) if delayed else (queue.prioritized,):
        yield from _clean_set(queue, key, _ANY, tally, chunk)
    return tally.count


def clean(
    queue: QueueKeys, state: JobState, until_ms: int, *, limit: int = 0, chunk: int = PIECE
) -> Steps[list[str]]:
    """Remove jobs that have been in `state` since `until_ms` or earlier. Return their ids.

    The oldest jobs are removed first, at most `limit` unless it is 0. Active jobs are removed only
    if no worker holds them. A parent in the same queue is removed with its last pending child.
    If Redis is out of memory, jobs are removed without the event `cleaned`.

    Raises `ConfigurationError` for states that cannot be cleaned, such as `waiting-children`.
    """
    if state in (JobState.COMPLETED, JobState.FAILED):
        choice = _Choice(force=True, highest=until_ms)
    elif state in AGE_FIELDS:
        choice = _Choice(AGE_FIELDS[state], until_ms)
    else:
        raise ConfigurationError(f"clean() does not support the state '{state}'")
    removed: list[str] = []
    tally = _Tally(limit or inf, ids=removed)
    for key, remove in _places(queue, state):
        yield from remove(queue, key, choice, tally, chunk)
    words = ("XADD", queue.events, "*", "event", "cleaned", "count", len(removed))
    try:
        yield Command(words, queue.events, nothing)
    except ServerRefused as error:
        if error.code != "OOM":  # The jobs are removed, and a full Redis only lacks the event.
            raise
    return removed


def obliterate(queue: QueueKeys, *, force: bool = False, chunk: int = PIECE) -> Steps[None]:
    """Pause a queue and remove it with all its jobs and keys.

    Raises `JobsActive` if jobs are running, unless `force` is set.
    """
    if not force:
        yield from _refuse_active(queue)
    yield from pause(queue)
    if not force:
        yield from _refuse_active(queue)
    tally = _Tally()
    for key in (queue.active, queue.wait, queue.paused):
        yield from _clean_list(queue, key, _ALL, tally, chunk)
    while (yield _clear_schedulers(queue, chunk)):
        pass
    for key in (queue.delayed, queue.prioritized, queue.completed, queue.failed):
        yield from _clean_set(queue, key, _ALL, tally, chunk)
    yield from _clean_set(queue, queue.waiting_children, _ALL, tally, chunk)
    yield from _remove_scattered(queue)
    yield Command(("UNLINK", *_leftovers(queue)), queue.meta, nothing)
    yield unregister_queue(queue.prefix, queue.queue)


def _refuse_active(queue: QueueKeys) -> Steps[None]:
    active = yield Command(("LLEN", queue.active), queue.active, int)
    if active:
        raise JobsActive(queue.queue, active)


def _clean_list(
    queue: QueueKeys, key: str, choice: _Choice, tally: _Tally, chunk: int
) -> Steps[None]:
    position = 0
    while position >= 0 and tally.open:
        args = (queue.base, *choice.args, position, chunk, tally.most(chunk))
        position, ids = yield Call(CLEAN_LISTED, (key,), args, _cleaned)
        tally.add(ids)


def _clean_set(
    queue: QueueKeys, key: str, choice: _Choice, tally: _Tally, chunk: int
) -> Steps[None]:
    lowest, skip = "-inf", 0
    while lowest and tally.open:
        most = tally.most(chunk)
        args = (queue.base, *choice.args, lowest, skip, choice.highest, chunk, most)
        lowest, skip, ids = yield Call(CLEAN_SORTED, (key,), args, _cleaned_set)
        tally.add(ids)


def _clear_schedulers(queue: QueueKeys, chunk: int) -> Call[int]:
    return Call(CLEAR_SCHEDULERS, (queue.repeat,), (queue.base, chunk), int)


def _remove_scattered(queue: QueueKeys) -> Steps[None]:
    """Remove the keys that only a search finds: deduplication keys and taskbull's own keys."""
    pattern = re.sub(r"([\[\]*?\\^])", r"\\\1", queue.base) + "*"
    ours = tuple((queue.base + start).encode() for start in ("de:", "dn:", "tb:"))
    cursor = 0
    while True:
        words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
        cursor, names = yield Command(words, queue.meta, _scanned)
        if found := [name for name in names if name.startswith(ours)]:
            yield Command(("UNLINK", *found), queue.meta, nothing)
        if cursor == 0:
            return


def _places(queue: QueueKeys, state: JobState) -> list[tuple[str, _Remove]]:
    """Return the keys that hold the jobs in a state, oldest first, with their clean functions."""
    places: dict[JobState, list[tuple[str, _Remove]]] = {
        JobState.WAITING: [(queue.paused, _clean_list), (queue.wait, _clean_list)],
        JobState.PAUSED: [(queue.paused, _clean_list)],
        JobState.ACTIVE: [(queue.active, _clean_list)],
        JobState.DELAYED: [(queue.delayed, _clean_set)],
        JobState.PRIORITIZED: [(queue.prioritized, _clean_set)],
        JobState.COMPLETED: [(queue.completed, _clean_set)],
        JobState.FAILED: [(queue.failed, _clean_set)],
    }
    return places[state]


def _leftovers(queue: QueueKeys) -> Sequence[str]:
    return (
        queue.events,
        queue.stalled_check,
        queue.stalled,
        queue.id,
        queue.priority_counter,
        queue.marker,
        queue.limiter,
        queue.metrics_completed,
        queue.metrics_completed_data,
        queue.metrics_failed,
        queue.metrics_failed_data,
        queue.meta,
    )


def _cleaned(reply: Any) -> tuple[int, list[str]]:
    position, removed = reply
    return position, texts(removed)


def _cleaned_set(reply: Any) -> tuple[str, int, list[str]]:
    lowest, skip, removed = reply
    return text(lowest), skip, texts(removed)


def _scanned(reply: Any) -> tuple[int, list[bytes]]:
    cursor, names = reply
    return number(cursor), names
