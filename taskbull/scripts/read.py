"""What became of the children of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Ending, Job
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.core.wire.flow import (
    DROPPED_FIELD,
    ORDER_FIELD,
    PARENT_FIELD,
    Child,
    decode_order,
    decode_policy,
)
from taskbull.core.wire.job import WIRE_NAMES, decode_job
from taskbull.core.wire.new_job import JobCopy, copy_job
from taskbull.core.wire.numbers import read_number
from taskbull.core.worker_record import JobHistory, PastEvent
from taskbull.errors import ConfigurationError, PermanentError, WaitForChildren
from taskbull.scripts.call import Call, Command, Steps, Word, accepted, number, text, texts
from taskbull.scripts.loader import load

# What became of the children of a job.


SCAN_RESULTS = load("scan_results")

PIECE: Final = 500
"""How many results one call reads."""


def get_results(
    queue: QueueKeys, job_id: str, name: str, *, piece: int = PIECE, so_far: bool = False
) -> Steps[list[bytes]]:
    """Return what the children of a name have returned, as JSON, in the order of the children.

    That order is known of flows of ours; of others it is that of the keys, and a child that is
    not stored any more has no name.

    Raises `WaitForChildren` if the job has not waited for some of them, because the worker that ran
    it died, unless it asks for the results `so_far`; and `PermanentError` if some were neither
    added, nor removed, nor have they failed.
    """
    job, processed = queue.job(job_id), queue.processed(job_id)
    order: list[Child] | None = yield Command(("HGET", job, ORDER_FIELD), job, decode_order)
    if order is None:
        return (yield from _unordered(processed, name, piece))
    keys = [base + child_id for child, base, child_id in order if child == name]
    results: list[bytes] = []
    lacking: list[str] = []
    for start in range(0, len(keys), piece):
        some = keys[start : start + piece]
        found: list[bytes | None] = yield Command(("HMGET", processed, *some), processed, list)
        results += [value for value in found if value is not None]
        lacking += [key for key, value in zip(some, found, strict=True) if value is None]
    if lacking and not so_far:
        yield from _explain(queue, job_id, name, lacking, piece)
    return results


def _explain(
    queue: QueueKeys, job_id: str, name: str, lacking: Sequence[str], piece: int
) -> Steps[None]:
    """Raise an error unless children without a result have failed, or were removed.

    A child that is stored, and for which the job does not wait, has failed by the policy "drop".
    One that is not stored counts as removed if the job knows of as many.
    """
    job, failed = queue.job(job_id), queue.failed_children(job_id)
    absent = 0
    for start in range(0, len(lacking), piece):
        some = lacking[start : start + piece]
        reasons: list[bytes | None] = yield Command(("HMGET", failed, *some), failed, list)
        left = [key for key, reason in zip(some, reasons, strict=True) if reason is None]
        if not left:
            continue
        absent += len(left) - (yield Command(("EXISTS", *left), left[0], int))
        waiting = queue.dependencies(job_id)
        pending: list[int] = yield Command(("SMISMEMBER", waiting, *left), waiting, list)
        if any(pending) and not (yield from _continues(failed)):
            raise WaitForChildren
    dropped = yield Command(("HGET", job, DROPPED_FIELD), job, read_number)
    if absent > (dropped or 0):
        raise PermanentError(
            f"{absent - (dropped or 0)} of the job's children {name} have no result: they were "
            "never added, or were removed by a program that does not say so"
        )


def _continues(failed: str) -> Steps[bool]:
    """Return whether the job runs early, by the policy "continue" of a child that has failed."""
    keys: list[bytes] = yield Command(("HKEYS", failed), failed, list)
    for raw in keys:
        child = text(raw)
        policy = yield Command(("HGET", child, PARENT_FIELD), child, decode_policy)
        if policy in ("continue", None):  # None if it is no longer stored
            return True
    return False


def _unordered(processed: str, name: str, piece: int) -> Steps[list[bytes]]:
    by_key: dict[str, bytes] = {}
    cursor = "0"
    while True:
        cursor, found = yield scan_results(processed, name, cursor, piece)
        by_key |= found
        if cursor == "0":
            return [by_key[key] for key in sorted(by_key)]


def scan_results(
    processed: str, name: str, cursor: str, count: int
) -> Call[tuple[str, dict[str, bytes]]]:
    """Read results of children by their keys; the call gives where to go on, "0" at the end."""
    return Call(SCAN_RESULTS, (processed,), (name, cursor, count), _scanned)


def _scanned(reply: Any) -> tuple[str, dict[str, bytes]]:
    cursor, found = reply
    return text(cursor), _pairs(found)


def get_failures(queue: QueueKeys, job_id: str) -> Command[dict[tuple[str, str], str]]:
    """Return why children failed whose failure the job survives, by queue and id."""
    failed = queue.failed_children(job_id)

    def read(reply: Sequence[bytes]) -> dict[tuple[str, str], str]:
        return {_queue_and_id(queue, key): text(reason) for key, reason in _pairs(reply).items()}

    return Command(("HGETALL", failed), failed, read)


def _queue_and_id(queue: QueueKeys, key: str) -> tuple[str, str]:
    """Return the name of a child's queue, and the child's id."""
    start = f"{queue.prefix}:"
    if not key.startswith(start):  # of another prefix, where ids have no colons
        base, _, job_id = key.rpartition(":")
        return base.rpartition(":")[2], job_id
    tagged, _, job_id = key.removeprefix(start).partition(":")
    if queue.tagged != queue.queue:  # ours have their hash tag by themselves
        tagged = tagged.removeprefix("{").removesuffix("}")
    return tagged, job_id


def _pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    return {text(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}


# Looking at a queue: how many jobs there are, which, and what stands in them.


COUNT_JOBS = load("count_jobs")
COUNT_PRIORITIES = load("count_priorities")
COUNT_CHILDREN = load("count_children")
GET_LISTED = load("get_listed")
GET_SORTED = load("get_sorted")
GET_STATE = load("get_state")
GET_ENDING = load("get_ending")
GET_LOGS = load("get_logs")
GET_METRICS = load("get_metrics")
NAMES_WAITING = load("names_waiting")

PAGE: Final = 500
"""How many jobs one call reads: 2 ms, if they are small."""


PAGE_BYTES: Final = 32_768
"""After how many bytes a call reads no more: some servers end a connection that is given more."""


class Page(Struct, frozen=True):
    """Jobs that were read in one call."""

    looked_at: int
    """How many places were looked at; 0: there are no more."""
    jobs: list[Job]


class Counts(dict[str, int]):
    """How many jobs are in each state: by `JobState`, or by its name. Shown with plain names."""

    def __repr__(self) -> str:
        return repr({str(state): count for state, count in self.items()})


class Logs(Struct, frozen=True):
    """Some lines of a job's log, and how many there are in all."""

    lines: list[str]
    count: int


class QueueMetrics(Struct, frozen=True):
    """How many jobs have ended: in all, and in each minute, the newest first."""

    count: int
    previous_ms: int
    previous_count: int
    points: list[int]
    point_count: int


class ChildCounts(Struct, frozen=True):
    """How many children of a job there are, by what became of them."""

    processed: int
    unprocessed: int
    ignored: int
    failed: int


_COUNTED: Final = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.DELAYED,
    JobState.PRIORITIZED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
)


def count_jobs(queue: QueueKeys) -> Call[Counts]:
    """Count the jobs in each state; those parked by a pause count as `paused`, not `waiting`."""
    keys = (
        queue.wait,
        queue.active,
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.paused,
    )
    return Call(COUNT_JOBS, keys, (), lambda reply: Counts(zip(_COUNTED, reply, strict=True)))


def count_priorities(queue: QueueKeys, priorities: Sequence[int]) -> Call[dict[int, int]]:
    """Count the jobs that wait for their turn with each of the priorities."""
    keys = (queue.wait, queue.paused, queue.prioritized)
    packed = msgspec.msgpack.encode(list(priorities))
    return Call(
        COUNT_PRIORITIES, keys, (packed,), lambda reply: dict(zip(priorities, reply, strict=True))
    )


def count_children(queue: QueueKeys, job_id: str) -> Call[ChildCounts]:
    """Count the children of a job by what became of them."""
    keys = (
        queue.processed(job_id),
        queue.dependencies(job_id),
        queue.failed_children(job_id),
        queue.unsuccessful(job_id),
    )
    return Call(COUNT_CHILDREN, keys, (), lambda reply: ChildCounts(*reply))


def get_jobs(
    queue: QueueKeys,
    state: JobState,
    start: int = 0,
    stop: int = -1,
    *,
    ascending: bool = True,
    page: int = PAGE,
) -> Steps[list[Job]]:
    """Read as many jobs as there are places from `start` to `stop`, in pieces of bounded size.

    Ascending: the oldest first, in `delayed` the first to be due, in `prioritized` the most urgent.
    A negative `stop` counts from the end. Ids without a job are left out, and others come instead.
    """
    jobs: dict[str, Job] = {}
    if stop < 0:
        stop += yield _count(queue, state)
    place, wanted = start, stop - start + 1
    while len(jobs) < wanted:
        last = place + min(page, wanted - len(jobs)) - 1
        found: Page = yield get_page(queue, state, place, last, ascending=ascending)
        if found.looked_at == 0:
            break
        jobs.update((job.id, job) for job in found.jobs)
        place += found.looked_at
    return list(jobs.values())


def get_page(
    queue: QueueKeys, state: JobState, start: int, stop: int, *, ascending: bool = True
) -> Call[Page]:
    """Read the jobs from place `start` to `stop`, or the first of them, as one reply holds."""
    args = (queue.base, start, stop, int(ascending), PAGE_BYTES)
    match state:
        case JobState.WAITING:  # whoever paused the queue, and however
            return Call(GET_LISTED, (queue.wait, queue.paused), args, _page)
        case JobState.PAUSED | JobState.ACTIVE:
            key = queue.paused if state is JobState.PAUSED else queue.active
            return Call(GET_LISTED, (key, queue.private("none")), args, _page)
        case _:
            return Call(GET_SORTED, (_sorted(queue, state),), args, _page)


def get_job(queue: QueueKeys, job_id: str) -> Command[Job | None]:
    """Read one job."""
    key = queue.job(job_id)

    def read(fields: list[bytes]) -> Job | None:
        return decode_job(job_id.encode(), fields) if fields else None

    return Command(("HGETALL", key), key, read)


def get_state(queue: QueueKeys, job_id: str) -> Call[JobState]:
    """Find out in which state a job is."""
    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
    )
    return Call(GET_STATE, keys, (job_id,), lambda reply: JobState(text(reply)))


def get_ending(queue: QueueKeys, job_id: str) -> Call[Ending | None]:
    """Find out how a job has ended; None: not yet."""
    check = accepted(queue, job_id)

    def read(reply: Any) -> Ending | None:
        code, outcome = reply
        match check(code):
            case 1:
                return Ending(JobState.COMPLETED, raw_value=outcome or b"null")
            case 2:
                return Ending(JobState.FAILED, failed_reason=text(outcome))
            case _:
                return None

    keys = (queue.job(job_id), queue.completed, queue.failed)
    return Call(GET_ENDING, keys, (job_id,), read)


def get_logs(
    queue: QueueKeys, job_id: str, start: int = 0, stop: int = -1, *, ascending: bool = True
) -> Call[Logs]:
    """Read lines of a job's log, from place `start` to `stop`, both included."""
    args = (start, stop, int(ascending))
    return Call(GET_LOGS, (queue.logs(job_id),), args, lambda r: Logs(texts(r[0]), r[1]))


def get_metrics(
    queue: QueueKeys, state: JobState, start: int = 0, stop: int = -1
) -> Call[QueueMetrics]:
    """Read how many jobs have completed, or failed; `start` and `stop` choose the minutes."""
    keys = (queue.metrics_failed, queue.metrics_failed_data)
    if state is JobState.COMPLETED:
        keys = (queue.metrics_completed, queue.metrics_completed_data)
    return Call(GET_METRICS, keys, (start, stop), _metrics)


def names_waiting(queue: QueueKeys, most: int) -> Call[list[str]]:
    """Return the names of the jobs that come next, up to `most` in each state."""
    keys = (queue.wait, queue.paused, queue.prioritized, queue.delayed)
    return Call(NAMES_WAITING, keys, (queue.base, most), texts)


def _count(queue: QueueKeys, state: JobState) -> Call[int]:
    counts = count_jobs(queue)

    def read(reply: Any) -> int:
        count = counts.parse(reply)
        parked = count[JobState.PAUSED] if state is JobState.WAITING else 0
        return count[state] + parked

    return Call(counts.script, counts.keys, counts.args, read)


def _sorted(queue: QueueKeys, state: JobState) -> str:
    sets = {
        JobState.COMPLETED: queue.completed,
        JobState.FAILED: queue.failed,
        JobState.DELAYED: queue.delayed,
        JobState.PRIORITIZED: queue.prioritized,
        JobState.WAITING_CHILDREN: queue.waiting_children,
    }
    if state not in sets:
        raise ConfigurationError(f"there is no list of jobs in state {state}")
    return sets[state]


def _page(reply: Any) -> Page:
    looked_at, flat = reply
    jobs = [decode_job(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
    return Page(looked_at, jobs)


def _metrics(reply: Any) -> QueueMetrics:
    (count, previous_ms, previous_count), points, point_count = reply
    return QueueMetrics(
        number(count),
        number(previous_ms),
        number(previous_count),
        [number(point) for point in points],
        point_count,
    )


# Reading jobs whole, to write them down elsewhere.


def get_copy(queue: QueueKeys, job_id: str) -> Steps[JobCopy | None]:
    """Read a job as it can be added again; None if there is no such job."""
    if job_id in RESERVED_IDS:
        return None
    fields: dict[bytes, bytes] = yield _fields(queue, job_id)
    if not fields:
        return None
    state: JobState = yield get_state(queue, job_id)
    due_ms: int | None = None
    if state is JobState.DELAYED:
        due_ms = yield _due_ms(queue, job_id)
    return copy_job(queue.queue, job_id, fields, state, due_ms)


def _fields(queue: QueueKeys, job_id: str) -> Command[dict[bytes, bytes]]:
    key = queue.job(job_id)

    def read(reply: list[bytes]) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Command(("HGETALL", key), key, read)


def _due_ms(queue: QueueKeys, job_id: str) -> Command[int | None]:
    def read(reply: bytes | None) -> int | None:
        return None if reply is None else int(due_ms_of_score(float(reply)))

    return Command(("ZSCORE", queue.delayed, job_id), queue.delayed, read)


# Parts of one job that may be large: their ends, at a bounded price, or all of them.


PEEK_FIELD = load("peek_field")
PEEK_LOGS = load("peek_logs")
PEEK_EVENTS = load("peek_events")

LOG_PIECE: Final = 100
"""How many lines of a log are read at once, where all of them are."""

_LARGEST: Final = 4 * 1_048_576
"""Bytes of a field of which an end is read: that takes Redis 2 ms."""

_ROOM: Final = 262_144
_LONGEST_LINE: Final = 4096
_EVENTS: Final = 1000


class FieldPiece(Struct, frozen=True):
    """One end of a field."""

    size: int
    """The bytes of the whole field."""
    text: str
    """Empty if the field is too large for an end of it to be cut off."""


class NewestLines(Struct, frozen=True):
    """The newest lines of a log, the oldest of them first; long ones are cut."""

    count: int
    """Of all lines."""
    lines: list[str]
    cut: int
    """How many of them are not whole."""


def peek_field(
    queue: QueueKeys, job_id: str, field: str, most: int, *, end: bool
) -> Call[FieldPiece]:
    """Read the first bytes of a field, or its last: 2 commands."""

    def read(reply: Any) -> FieldPiece:
        size, piece = reply
        # It may be cut in the middle of a character.
        words = piece.decode("utf-8", "ignore") if len(piece) == most else text(piece)
        return FieldPiece(size, words)

    args = (WIRE_NAMES[field], most, int(end), _LARGEST)
    return Call(PEEK_FIELD, (queue.job(job_id),), args, read)


def get_field(queue: QueueKeys, job_id: str, field: str) -> Command[bytes | None]:
    """Read a field as it stands in Redis, all of it; None if there is none."""
    key = queue.job(job_id)
    return Command(("HGET", key, WIRE_NAMES[field]), key, lambda reply: reply)


def peek_logs(queue: QueueKeys, job_id: str, most: int) -> Call[NewestLines]:
    """Read the newest lines of a log, as many as have 256 kB: a command for each."""

    def read(reply: Any) -> NewestLines:
        count, flat = reply
        lines, sizes = flat[::2], flat[1::2]
        cut = sum(len(line) < size for line, size in zip(lines, sizes, strict=True))
        return NewestLines(count, [text(line) for line in reversed(lines)], cut)

    args = (most, _LONGEST_LINE, _ROOM)
    return Call(PEEK_LOGS, (queue.logs(job_id),), args, read)


def get_log_lines(queue: QueueKeys, job_id: str, start: int) -> Command[list[bytes]]:
    """Read the next `LOG_PIECE` lines of a log, all of each."""
    key = queue.logs(job_id)
    words: tuple[Word, ...] = ("LRANGE", key, start, start + LOG_PIECE - 1)
    return Command(words, key, lambda reply: reply)


def peek_events(queue: QueueKeys, job_id: str) -> Call[JobHistory]:
    """See what the newest 1,000 events tell about a job, or as many as have 256 kB."""

    def read(reply: Any) -> JobHistory:
        looked_at, done, flat = reply
        events = [
            PastEvent(number(entry.partition(b"-")[0]), text(name), text(previous))
            for entry, name, previous in zip(*(flat[place::3] for place in range(3)), strict=True)
        ]
        return JobHistory(events[::-1], looked_at, bool(done))

    return Call(PEEK_EVENTS, (queue.events,), (job_id, _EVENTS, _ROOM), read)


# Looking at a flow: jobs as nodes of a tree, and where their children are.


GET_NODES = load("get_nodes")
SCAN_CHILDREN = load("scan_children")

_LONGEST: Final = 1000
"""Of longer lists no job's place is looked for: that takes as long as the list is."""


class Place(Struct, frozen=True):
    """Where a job of a flow is."""

    queue: QueueKeys
    job_id: str
    parent_key: str = ""
    name: str = ""
    """Its name, if its parent has noted that."""

    @property
    def key(self) -> str:
        """The key of its hash."""
        return self.queue.job(self.job_id)


class TreeNode(Struct, frozen=True):
    """What one call has read of a job."""

    state: JobState
    job: Job
    child_count: int
    removed: bool
    children: list[Place]
    """Those of which it has noted the order."""


class ChildKeys(Struct, frozen=True):
    """Some keys of a job's children, and where to go on."""

    place: int
    """0: there are no more."""
    cursor: str
    keys: list[str]


def get_nodes(places: Sequence[Place]) -> Call[list[TreeNode]]:
    """Read jobs of one queue, or the first of them, as many as one reply holds."""
    queue = places[0].queue
    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
    )
    flat = [word for place in places for word in (place.job_id, place.parent_key)]
    args = (queue.base, PAGE_BYTES, _LONGEST, msgspec.msgpack.encode(flat))

    def read(reply: list[Any]) -> list[TreeNode]:
        return [_node(*pair) for pair in zip(places, reply, strict=False)]

    return Call(GET_NODES, keys, args, read)


def _node(place: Place, reply: list[Any]) -> TreeNode:
    state, flat, count, gone = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    job = decode_job(place.job_id.encode(), fields)
    if gone and place.name:
        job = replace(job, name=place.name)
    ordered = decode_order(fields.get(ORDER_FIELD.encode())) or []
    places = (_place(place, base[:-1], job_id, name) for name, base, job_id in ordered)
    children = [child for child in places if child is not None]
    return TreeNode(JobState(text(state)), job, count, bool(gone), children)


def unknown_node(place: Place) -> TreeNode:
    """Return what is known of a job that this user may not read."""
    job = Job(id=place.job_id, name=place.name)
    return TreeNode(JobState.UNKNOWN, job, 0, removed=True, children=[])


def scan_children(parent: Place, after: ChildKeys, count: int) -> Call[ChildKeys]:
    """List some keys of a job's children."""
    queue, job_id = parent.queue, parent.job_id
    keys = (
        queue.processed(job_id),
        queue.failed_children(job_id),
        queue.unsuccessful(job_id),
        queue.dependencies(job_id),
    )
    args = (after.place, after.cursor, count)
    return Call(
        SCAN_CHILDREN,
        keys,
        args,
        lambda reply: ChildKeys(reply[0], text(reply[1]), texts(reply[2])),
    )


_JOB_ID: Final = re.compile(r"[^:]+|[^:]*:[^:]*:[^:]*|repeat:.+", re.DOTALL)
"""What an id looks like: BullMQ allows no colons in it, or two; a scheduler's runs have more."""


def child_place(parent: Place, key: str) -> Place | None:
    """Return where the child of that key is; None if it is not the key of a job."""
    prefix = parent.queue.prefix
    tagged, _, job_id = key.removeprefix(f"{prefix}:").partition(":")
    if key.startswith(f"{prefix}:") and _JOB_ID.fullmatch(job_id):
        return _place(parent, f"{prefix}:{tagged}", job_id)
    start, _, job_id = key.rpartition(":")
    return _place(parent, start, job_id)


def _place(parent: Place, qualified_name: str, job_id: str, name: str = "") -> Place | None:
    own = parent.queue
    queue, (prefix, _, tagged) = own, qualified_name.rpartition(":")
    if not (prefix and tagged and job_id):
        return None
    if qualified_name != own.qualified_name:
        try:
            queue = _queue(prefix, tagged, own)
        except ConfigurationError:
            return None
    return Place(queue, job_id, parent.key, name)


def _queue(prefix: str, tagged: str, beside: QueueKeys) -> QueueKeys:
    """Return the queue of that name in keys; without the hash tag that we have added to it."""
    inner = tagged[1:-1]
    if tagged == f"{{{inner}}}" and inner:
        plain = QueueKeys(inner, prefix, beside.cluster, beside.hash_tag)
        if plain.tagged == tagged:
            return plain
    return QueueKeys(tagged, prefix, beside.cluster, hash_tag=False)


def pick_pending(parent: Place, most: int) -> Command[list[Place]]:
    """Choose some children that a job waits for."""
    key = parent.queue.dependencies(parent.job_id)

    def read(reply: list[bytes]) -> list[Place]:
        held = f"{parent.key}:tb:flow"  # it stands for those to come
        found = (child_place(parent, text(child)) for child in reply if text(child) != held)
        return [place for place in found if place is not None]

    return Command(("SRANDMEMBER", key, most), key, read)
