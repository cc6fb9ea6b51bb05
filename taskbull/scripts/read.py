"""Calls that read single jobs, counts, child results, logs, flows and the event stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Ending, Job
from taskbull.core.keys import RESERVED_IDS, JobState, QueueKeys, due_ms_of_score
from taskbull.core.validation import read_number
from taskbull.core.wire import flow
from taskbull.core.wire.job import (
    WIRE_NAMES,
    Entry,
    JobCopy,
    QueueEvent,
    copy_job,
    decode_end,
    decode_event,
    decode_job,
    reports_state,
)
from taskbull.core.worker_record import JobHistory, PastEvent
from taskbull.errors import ConfigurationError, PermanentError, WaitForChildren
from taskbull.scripts.call import Call, Command, Steps, Word, accepted, load, number, text, texts

# Calls that read child results, counts, single jobs, large fields, logs and flows.


# Results and failures of a job's children.

SCAN_RESULTS = load("scan_results")

PIECE: Final = 500
"""Number of results that one call reads."""


def get_results(
    queue: QueueKeys, job_id: str, name: str, *, chunk: int = PIECE, so_far: bool = False
) -> Steps[list[bytes]]:
    """Return the JSON results of a job's children with the given name, in order.

    The order is known only for flows that taskbull added. The results of other flows are sorted by
    key, and children that are no longer stored are left out.

    With `so_far`, children without a result are ignored. Otherwise this raises `WaitForChildren` if
    the job has not waited for some of them, because the worker that ran it died. It raises
    `PermanentError` if some were never added, and have neither failed nor been removed.
    """
    job, processed = queue.job(job_id), queue.processed(job_id)
    order: list[flow.Child] | None = yield Command(
        ("HGET", job, flow.ORDER_FIELD), job, flow.decode_order
    )
    if order is None:
        return (yield from _unordered(processed, name, chunk))
    keys = [base + child_id for child, base, child_id in order if child == name]
    results: list[bytes] = []
    lacking: list[str] = []
    for start in range(0, len(keys), chunk):
        some = keys[start : start + chunk]
        found: list[bytes | None] = yield Command(("HMGET", processed, *some), processed, list)
        results += [value for value in found if value is not None]
        lacking += [key for key, value in zip(some, found, strict=True) if value is None]
    if lacking and not so_far:
        yield from _explain(queue, job_id, name, lacking, chunk)
    return results


def _explain(
    queue: QueueKeys, job_id: str, name: str, lacking: Sequence[str], chunk: int
) -> Steps[None]:
    """Raise an error unless all children without a result have failed or were removed.

    A stored child that the job does not wait for has failed under the policy "drop". Children that
    are not stored count as removed, up to the number of removals that the job has recorded.
    """
    job, failed = queue.job(job_id), queue.failed_children(job_id)
    absent = 0
    for start in range(0, len(lacking), chunk):
        some = lacking[start : start + chunk]
        reasons: list[bytes | None] = yield Command(("HMGET", failed, *some), failed, list)
        left = [key for key, reason in zip(some, reasons, strict=True) if reason is None]
        if not left:
            continue
        absent += len(left) - (yield Command(("EXISTS", *left), left[0], int))
        waiting = queue.dependencies(job_id)
        pending: list[int] = yield Command(("SMISMEMBER", waiting, *left), waiting, list)
        if any(pending) and not (yield from _continues(failed)):
            raise WaitForChildren
    dropped = yield Command(("HGET", job, flow.DROPPED_FIELD), job, read_number)
    if absent > (dropped or 0):
        raise PermanentError(
            f"{absent - (dropped or 0)} of the job's children '{name}' have no result: they were "
            "never added, or another program removed them"
        )


def _continues(failed: str) -> Steps[bool]:
    """Return True if the job runs early because a child with the policy "continue" failed."""
    keys: list[bytes] = yield Command(("HKEYS", failed), failed, list)
    for raw in keys:
        child = text(raw)
        policy = yield Command(("HGET", child, flow.PARENT_FIELD), child, flow.decode_policy)
        if policy in ("continue", None):  # None if the child is no longer stored.
            return True
    return False


def _unordered(processed: str, name: str, chunk: int) -> Steps[list[bytes]]:
    by_key: dict[str, bytes] = {}
    cursor = "0"
    while True:
        cursor, found = yield scan_results(processed, name, cursor, chunk)
        by_key |= found
        if cursor == "0":
            return [by_key[key] for key in sorted(by_key)]


def scan_results(
    processed: str, name: str, cursor: str, count: int
) -> Call[tuple[str, dict[str, bytes]]]:
    """Read some child results by key. Return them with the next cursor, which is "0" at the end."""
    return Call(SCAN_RESULTS, (processed,), (name, cursor, count), _scanned)


def _scanned(reply: Any) -> tuple[str, dict[str, bytes]]:
    cursor, found = reply
    return text(cursor), _pairs(found)


def get_failures(queue: QueueKeys, job_id: str) -> Command[dict[tuple[str, str], str]]:
    """Return the reasons of child failures that do not fail the job, by queue and id."""
    failed = queue.failed_children(job_id)

    def read(reply: Sequence[bytes]) -> dict[tuple[str, str], str]:
        return {_queue_and_id(queue, key): text(reason) for key, reason in _pairs(reply).items()}

    return Command(("HGETALL", failed), failed, read)


def _queue_and_id(queue: QueueKeys, key: str) -> tuple[str, str]:
    start = f"{queue.prefix}:"
    if not key.startswith(start):  # Another prefix: assume that the id contains no colon.
        base, _, job_id = key.rpartition(":")
        return base.rpartition(":")[2], job_id
    tagged, _, job_id = key.removeprefix(start).partition(":")
    if queue.tagged != queue.queue:  # taskbull added the hash tag.
        tagged = tagged.removeprefix("{").removesuffix("}")
    return tagged, job_id


def _pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    return {text(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}


# Counts, pages of jobs, single jobs, logs and metrics.

COUNT_JOBS = load("count_jobs")
COUNT_PRIORITIES = load("count_priorities")
GET_STATE = load("get_state")
GET_ENDING = load("get_ending")
GET_LOGS = load("get_logs")
GET_METRICS = load("get_metrics")
NAMES_WAITING = load("names_waiting")


class Counts(dict[str, int]):
    """The number of jobs in each state, by `JobState` or its name. `repr` shows plain names."""

    def __repr__(self) -> str:
        return repr({str(state): count for state, count in self.items()})


class Logs(Struct, frozen=True):
    """Some lines of a job's log, in the order they were written."""

    lines: list[str]
    count: int
    """Total number of lines in the log."""
    cut: int = 0
    """Number of lines that were truncated."""


class QueueMetrics(Struct, frozen=True):
    """BullMQ's metrics: the number of finished jobs, in total and per minute."""

    count: int
    previous_ms: int
    previous_count: int
    points: list[int]
    """Number of finished jobs in each minute, the newest first."""
    point_count: int


class ChildCounts(Struct, frozen=True):
    """The number of a job's children by outcome."""

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
    """Count the jobs in each state. Jobs in the paused list count as `paused`, not `waiting`."""
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
    """Count the waiting jobs with each of the given priorities."""
    keys = (queue.wait, queue.paused, queue.prioritized)
    packed = msgspec.msgpack.encode(list(priorities))
    return Call(
        COUNT_PRIORITIES, keys, (packed,), lambda reply: dict(zip(priorities, reply, strict=True))
    )


def get_job(queue: QueueKeys, job_id: str) -> Command[Job | None]:
    """Read one job, or None if it does not exist."""
    key = queue.job(job_id)

    def read(fields: list[bytes]) -> Job | None:
        return replace(decode_job(job_id.encode(), fields), queue=queue.queue) if fields else None

    return Command(("HGETALL", key), key, read)


def get_state(queue: QueueKeys, job_id: str) -> Call[JobState]:
    """Return the state of a job."""
    return Call(GET_STATE, queue.states, (job_id,), lambda reply: JobState(text(reply)))


def get_ending(queue: QueueKeys, job_id: str) -> Call[Ending | None]:
    """Return the ending of a job, or None if it has not finished.

    Raises `JobNotFound` if the job does not exist.
    """
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


def get_logs(queue: QueueKeys, job_id: str, start: int = 0, stop: int = -1) -> Call[Logs]:
    """Read the lines of a job's log from position `start` to `stop`, both included."""
    return Call(GET_LOGS, (queue.logs(job_id),), (start, stop, "", ""), _logs)


def get_newest_logs(queue: QueueKeys, job_id: str, most: int) -> Call[Logs]:
    """Read the newest lines of a log, up to 256 kB, with one command per line.

    Long lines are truncated.
    """
    args = (-most, -1, _LONGEST_LINE, _ROOM)
    return Call(GET_LOGS, (queue.logs(job_id),), args, _logs)


def _logs(reply: Any) -> Logs:
    count, cut, lines = reply
    return Logs(texts(lines), count, cut)


def get_metrics(
    queue: QueueKeys, state: JobState, start: int = 0, stop: int = -1
) -> Call[QueueMetrics]:
    """Read the metrics of completed or failed jobs. `start` and `stop` select the minutes."""
    keys = (queue.metrics_failed, queue.metrics_failed_data)
    if state is JobState.COMPLETED:
        keys = (queue.metrics_completed, queue.metrics_completed_data)
    return Call(GET_METRICS, keys, (start, stop), _metrics)


def names_waiting(queue: QueueKeys, most: int) -> Call[list[str]]:
    """Return the names of the next jobs to run, looking at up to `most` in each state."""
    keys = (queue.wait, queue.paused, queue.prioritized, queue.delayed)
    return Call(NAMES_WAITING, keys, (queue.base, most), texts)


def _metrics(reply: Any) -> QueueMetrics:
    (count, previous_ms, previous_count), points, point_count = reply
    return QueueMetrics(
        number(count),
        number(previous_ms),
        number(previous_count),
        [number(point) for point in points],
        point_count,
    )


# Complete copies of jobs, for export.


def get_copy(queue: QueueKeys, job_id: str) -> Steps[JobCopy | None]:
    """Read a copy of a job that can be added again, or None if the job does not exist."""
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


# Large parts of one job: one end at a bounded cost, or all of it.

PREVIEW_FIELD = load("preview_field")
FIND_EVENTS = load("find_events")

LOG_PIECE: Final = 100
"""Number of log lines per command when a whole log is read."""

_LARGEST: Final = 4 * 1_048_576
"""Maximum size of a field that is cut, in bytes. Cutting it takes Redis 2 ms."""

_ROOM: Final = 262_144
_LONGEST_LINE: Final = 4096
_EVENTS: Final = 1000


class FieldPreview(Struct, frozen=True):
    """One end of a field."""

    size: int
    """Size of the whole field, in bytes."""
    text: str
    """The requested end, or empty if the field is too large to cut."""


def preview_field(
    queue: QueueKeys, job_id: str, field: str, most: int, *, end: bool
) -> Call[FieldPreview]:
    """Read the first or last bytes of a field, with 2 commands."""

    def read(reply: Any) -> FieldPreview:
        size, chunk = reply
        # The text may have been cut in the middle of a character.
        words = chunk.decode("utf-8", "ignore") if len(chunk) == most else text(chunk)
        return FieldPreview(size, words)

    args = (WIRE_NAMES[field], most, int(end), _LARGEST)
    return Call(PREVIEW_FIELD, (queue.job(job_id),), args, read)


def get_field(queue: QueueKeys, job_id: str, field: str) -> Command[bytes | None]:
    """Read the raw value of a whole field, or None if it does not exist."""
    key = queue.job(job_id)
    return Command(("HGET", key, WIRE_NAMES[field]), key, lambda reply: reply)


def get_log_lines(queue: QueueKeys, job_id: str, start: int) -> Command[list[bytes]]:
    """Read the next `LOG_PIECE` lines of a log in full, from position `start`."""
    key = queue.logs(job_id)
    words: tuple[Word, ...] = ("LRANGE", key, start, start + LOG_PIECE - 1)
    return Command(words, key, lambda reply: reply)


def find_events(queue: QueueKeys, job_id: str) -> Call[JobHistory]:
    """Read a job's history from the newest 1,000 events, or fewer if they exceed 256 kB."""

    def read(reply: Any) -> JobHistory:
        examined, done, flat = reply
        events = [
            PastEvent(number(entry.partition(b"-")[0]), text(name), text(previous))
            for entry, name, previous in zip(*(flat[place::3] for place in range(3)), strict=True)
        ]
        return JobHistory(events[::-1], examined, bool(done))

    return Call(FIND_EVENTS, (queue.events,), (job_id, _EVENTS, _ROOM), read)


# Flows: jobs as nodes of a tree, and the places of their children.

GET_NODES = load("get_nodes")
SCAN_CHILDREN = load("scan_children")

PAGE_BYTES: Final = 32_768
"""Bytes of job data that end a page. Some servers close a connection on larger replies."""

_LONGEST: Final = 1000
"""Maximum length of a list that is searched for a job. The search takes linear time."""


class Place(Struct, frozen=True):
    """The location of a job in a flow: its queue and its id."""

    queue: QueueKeys
    job_id: str
    parent_key: str = ""
    name: str = ""
    """Its name, if its parent has recorded it."""

    @property
    def key(self) -> str:
        """Key of the job's hash."""
        return self.queue.job(self.job_id)


class TreeNode(Struct, frozen=True):
    """A job in a flow, as read by one call."""

    state: JobState
    job: Job
    child_count: int
    removed: bool
    """True if the job no longer exists or has another parent."""
    children: list[Place]
    """Children whose order the job has recorded."""


class ChildKeys(Struct, frozen=True):
    """Some keys of a job's children, with the position of the next ones."""

    place: int
    """Number of the key to scan next, or 0 if there are no more children."""
    cursor: str
    """Cursor in that key."""
    keys: list[str]


def get_nodes(places: Sequence[Place]) -> Call[list[TreeNode]]:
    """Read jobs of one queue, or as many of the first ones as fit in one reply."""
    queue = places[0].queue
    flat = [word for place in places for word in (place.job_id, place.parent_key)]
    args = (queue.base, PAGE_BYTES, _LONGEST, msgspec.msgpack.encode(flat))

    def read(reply: list[Any]) -> list[TreeNode]:
        return [_node(*pair) for pair in zip(places, reply, strict=False)]

    return Call(GET_NODES, queue.states, args, read)


def _node(place: Place, reply: list[Any]) -> TreeNode:
    state, flat, count, gone = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    job = decode_job(place.job_id.encode(), fields)
    if gone and place.name:
        job = replace(job, name=place.name)
    ordered = flow.decode_order(fields.get(flow.ORDER_FIELD.encode())) or []
    places = (_place(place, base[:-1], job_id, name) for name, base, job_id in ordered)
    children = [child for child in places if child is not None]
    return TreeNode(JobState(text(state)), job, count, bool(gone), children)


def unknown_node(place: Place) -> TreeNode:
    """Return a placeholder for a job that the Redis user may not read."""
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
"""Pattern of job ids. BullMQ allows no colon or two; the ids of scheduled runs have more."""


def child_place(parent: Place, key: str) -> Place | None:
    """Return the place of the child with this key, or None if it is not a job key."""
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
    """Return the queue with this name in its keys. A hash tag that taskbull added is removed."""
    inner = tagged[1:-1]
    if tagged == f"{{{inner}}}" and inner:
        plain = QueueKeys(inner, prefix, beside.cluster, beside.hash_tag)
        if plain.tagged == tagged:
            return plain
    return QueueKeys(tagged, prefix, beside.cluster, hash_tag=False)


def pick_pending(parent: Place, most: int) -> Command[list[Place]]:
    """Return a random selection of the children that a job waits for."""
    key = parent.queue.dependencies(parent.job_id)

    def read(reply: list[bytes]) -> list[Place]:
        held = f"{parent.key}:tb:flow"  # Placeholder for children that are not added yet.
        found = (child_place(parent, text(child)) for child in reply if text(child) != held)
        return [place for place in found if place is not None]

    return Command(("SRANDMEMBER", key, most), key, read)


# Calls that read a queue's event stream. BullMQ's counterpart is `QueueEvents`.


BLOCK: Final = 5.0
"""Maximum time that the server blocks a read, in seconds. Cancelling a reader is immediate."""

AT_ONCE: Final = 1000
"""Maximum number of events per read."""

_PAGES: Final = 12
"""Number of pages searched for a removed job. They cover all of BullMQ's 10,000 events."""


class Ends(Struct, frozen=True):
    """The jobs that finished or were removed, according to some events."""

    place: str
    """Id of the last of these events."""
    endings: Sequence[tuple[str, Ending | None]] = ()
    """Job ids and their endings. The ending is None if the job was removed."""


def last_event_id(queue: QueueKeys) -> Command[str]:
    """Return the id of the newest event, or `0-0` if there is none."""
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, "+", "-", "COUNT", 1)
    return Command(words, queue.events, lambda reply: text(reply[0][0]) if reply else "0-0")


def read_events(queue: QueueKeys, after: str) -> Command[list[QueueEvent]]:
    """Wait up to `BLOCK` seconds for events after the id `after`."""

    def read(reply: Any) -> list[QueueEvent]:
        return [decode_event(entry) for entry in _entries(reply)]

    return Command(_read(queue, after, BLOCK), queue.events, read, held=BLOCK)


def read_ends(queue: QueueKeys, after: str, block: float = BLOCK) -> Command[Ends]:
    """Wait up to `block` seconds for events after the id `after`. Return the finished jobs."""

    def read(reply: Any) -> Ends:
        return ends_in(_entries(reply), after)

    return Command(_read(queue, after, block), queue.events, read, held=block)


def ends_in(entries: Sequence[Entry], after: str) -> Ends:
    """Return the finished jobs in events that follow the id `after`."""
    if not entries:
        return Ends(after)
    ends = (decode_end(entry) for entry in entries)
    return Ends(text(entries[-1][0]), [end for end in ends if end is not None])


def find_ending(queue: QueueKeys, job_id: str) -> Steps[Ending | None]:
    """Search the stream for the ending of a job that is no longer stored.

    Returns None if the stream does not contain it, or if the job was removed or added since.
    """
    newest = "+"
    for _ in range(_PAGES):
        entries: Sequence[Entry] = yield _page(queue, newest)
        for entry in entries:
            if reports_state(entry, job_id):
                end = decode_end(entry)
                # Without an end, this is the job's `added` event: it has not finished since.
                return None if end is None else end[1]
        if len(entries) < AT_ONCE:
            break
        newest = f"({text(entries[-1][0])}"
    return None


def _page(queue: QueueKeys, newest: str) -> Command[Sequence[Entry]]:
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, newest, "-", "COUNT", AT_ONCE)
    return Command(words, queue.events, lambda reply: reply)


def _read(queue: QueueKeys, after: str, block: float) -> tuple[Word, ...]:
    block_ms = max(1, int(block * 1000))  # 0 would block without a limit.
    return ("XREAD", "COUNT", AT_ONCE, "BLOCK", block_ms, "STREAMS", queue.events, after)


def _entries(reply: Any) -> Sequence[Entry]:
    if not reply:
        return ()
    [[_, entries]] = reply
    found: Sequence[Entry] = entries
    return found
