"""Reads of queues and their jobs: summaries, pages of jobs, single jobs, failures, searches.

Each call looks at a bounded number of jobs and reads a bounded number of bytes, whatever the queue
contains, unless it is asked for whole jobs. The calls never write, so a read-only Redis user is
enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from taskbull.core import payload
from taskbull.core.job import Job, JobRow
from taskbull.core.keys import STATES, JobState, QueueKeys, due_ms_of_score, read_connection_name
from taskbull.core.queue_health import EndCounts, PauseNote, read_note
from taskbull.core.steps import JobStep
from taskbull.core.validation import instant_from_ms, read_number
from taskbull.core.wire.job import LINE_FIELDS, WHOLE_FIELDS, decode_row, flat, read_ready_ms
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import (
    Call,
    Command,
    Steps,
    Word,
    info,
    load,
    nothing,
    number,
    text,
    texts,
)
from taskbull.scripts.read import PAGE_BYTES, ChildCounts, Counts, count_jobs
from taskbull.scripts.streams import NO_STREAM, StreamPreview

# Surveys of queues, their running jobs and single properties of jobs.

SURVEY_QUEUE = load("survey_queue")
COUNT_ENDS = load("count_ends")

LONGEST: Final = 300
"""Maximum length of a field, in bytes. Longer fields are truncated."""

_LONGEST_OPTIONS: Final = 4096


class QueueSample(Struct, frozen=True):
    """A queue at one moment."""

    name: str
    counts: Counts
    paused: bool
    version: str | None
    """Version string that the producer stored, such as `bullmq:5.62.0`."""
    waiting_since: datetime | None
    """Time when the longest-waiting job was added, or became due if it was delayed."""
    next_id: str | None = None
    """Id of that job."""
    concurrency: int | None = None
    """Maximum number of jobs that run concurrently, across all workers."""
    rate_max: int | None = None
    """Maximum number of jobs that start in each rate-limit window."""
    rate_window: float | None = None
    """Length of the rate-limit window, in seconds."""
    last_id: int = 0
    """Last id that the queue assigned: the number of jobs added without a custom id."""
    started: int = 0
    """Number of jobs started in the current window, or 0 if workers do not count them."""
    limited_for: float | None = None
    """Seconds until the current window ends, or None if there is no window."""
    note: PauseNote | None = None
    """User and reason of the pause, if the queue is paused and they were recorded."""
    next_due: datetime | None = None
    """Time when the first delayed job is due."""
    next_scheduled: datetime | None = None
    """Time of the next scheduled run."""
    completed: EndCounts | None = None
    """Counts from BullMQ's metrics, or None if no worker collects them."""
    failed: EndCounts | None = None
    """Same as `completed`, for failed jobs."""
    at: float = 0.0
    """Time of the sample by the local clock, in seconds since 1970."""
    workers: int | None = None
    """Number of connected workers, or None if it is unknown."""
    problem: str | None = None
    """Reason why the queue could not be read, or None if it could. Then the rest is empty."""


def unknown_queue(name: str, problem: str) -> QueueSample:
    """Return a placeholder for a queue that cannot be read."""
    counts = Counts(dict.fromkeys(STATES, 0))
    return QueueSample(
        name, counts, paused=False, version=None, waiting_since=None, problem=problem
    )


class EndsByMinute(Struct, frozen=True):
    """Number of stored jobs that finished in each minute, the newest minute first."""

    minute_ms: int
    """Start of the newest minute."""
    completed: list[int]
    failed: list[int]
    completed_since_ms: float | None
    """Time when the oldest stored completed job finished, or None if none is stored."""
    failed_since_ms: float | None
    """Same as `completed_since_ms`, for failed jobs."""


def survey_queue(queue: QueueKeys, minutes: int = 0) -> Call[QueueSample]:
    """Read a queue's job counts, limits and other properties.

    It runs about 35 commands. Their cost does not depend on the number of jobs. `minutes` is the
    number of per-minute metrics to read.
    """
    counted = count_jobs(queue)

    def read(reply: Any) -> QueueSample:
        counts, meta, first, values, life, scores, completed, done, failed, broken = reply
        paused, version, concurrency, rate_max, window_ms = meta
        ready = [
            (ready_ms, text(job_id))
            for job_id, *fields in zip(*(first[place::3] for place in range(3)), strict=True)
            if (ready_ms := read_ready_ms(*fields)) is not None
        ]
        since_ms, next_id = min(ready, default=(None, None))
        counter, limiter, note = values
        due, scheduled = (float(score) if score else None for score in scores)
        window = read_number(window_ms)
        return QueueSample(
            queue.queue,
            counted.parse(counts),
            bool(paused),
            text(version) if version else None,
            None if since_ms is None else instant_from_ms(since_ms),
            next_id,
            read_number(concurrency),
            read_number(rate_max),
            None if window is None else window / 1000,
            number(counter),
            number(limiter),
            max(life, 0) / 1000 if life >= 0 else None,
            read_note(note) if paused else None,
            None if due is None else instant_from_ms(due_ms_of_score(due)),
            None if scheduled is None else instant_from_ms(scheduled),
            _end_counts(completed, done),
            _end_counts(failed, broken),
        )

    keys = (
        *counted.keys,
        queue.meta,
        queue.id,
        queue.repeat,
        queue.limiter,
        queue.private("note"),
        queue.metrics_completed,
        queue.metrics_completed_data,
        queue.metrics_failed,
        queue.metrics_failed_data,
    )
    return Call(SURVEY_QUEUE, keys, (queue.base, _LONGEST_OPTIONS, minutes), read)


def count_ends(
    queue: QueueKeys, minute_ms: int, minutes: int, step_ms: int = 60_000
) -> Call[EndsByMinute]:
    """Count the stored jobs that finished in each of up to 60 minutes, the newest first.

    It runs two commands per minute, regardless of the number of jobs. `step_ms` counts longer
    periods instead of minutes.
    """

    def read(reply: Any) -> EndsByMinute:
        completed, failed, (done, broken) = reply
        return EndsByMinute(
            minute_ms,
            completed,
            failed,
            float(done) if done else None,
            float(broken) if broken else None,
        )

    args = (minute_ms, minutes, step_ms)
    return Call(COUNT_ENDS, (queue.completed, queue.failed), args, read)


def exists(queue: QueueKeys) -> Command[bool]:
    """Return True if the queue has been used."""
    return Command(("EXISTS", queue.meta), queue.meta, bool)


def get_next_due_ms(queue: QueueKeys) -> Command[int | None]:
    """Return the time when the next delayed job is due, in ms since 1970, or None."""

    def read(reply: list[Any]) -> int | None:
        return due_ms_of_score(float(reply[1])) if reply else None

    words: tuple[Word, ...] = ("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
    return Command(words, queue.delayed, read)


def check_types(queue: QueueKeys) -> list[Command[str | None]]:
    """Check the types of a queue's keys. Each command returns a problem with one key, or None."""
    kinds = {
        "hash": (queue.meta,),
        "list": (queue.wait, queue.paused, queue.active),
        "zset": (queue.prioritized, queue.delayed, queue.completed, queue.failed, queue.marker),
        "stream": (queue.events,),
    }
    return [_check_type(key, kind) for kind, keys in kinds.items() for key in keys]


def _check_type(key: str, wanted: str) -> Command[str | None]:
    def read(reply: bytes) -> str | None:
        kind = text(reply)
        return None if kind in {wanted, "none"} else f"{key} is a {kind}, and not a {wanted}"

    return Command(("TYPE", key), key, read)


def _lock_seconds(ttl_ms: int) -> float | None:
    if ttl_ms < 0:  # PTTL returns -1 for a key without expiry and -2 for a missing key.
        return inf if ttl_ms == -1 else None
    return ttl_ms / 1000


def _end_counts(totals: list[bytes | None], points: list[bytes]) -> EndCounts | None:
    if totals[0] is None:
        return None
    count, previous_ms, previous_count = map(number, totals)
    return EndCounts(count, previous_ms, previous_count, [number(point) for point in points])


def cut_text(raw: bytes) -> str:
    """Decode text that may have been truncated in the middle of a character."""
    return raw.decode("utf-8", "ignore") if len(raw) == LONGEST else text(raw)


def instant_of(raw: bytes) -> datetime | None:
    """Decode a stored time in ms, or return None if the value is not a valid number."""
    ms = read_number(raw)
    return None if ms is None else instant_from_ms(ms)


# Failed jobs: only the fields needed to group jobs by error.

LIST_FAILURES = load("list_failures")

FAILURES_READ: Final = 50
"""Number of jobs that one call looks at. It takes about a millisecond."""

_ROOM: Final = 262_144
"""Limit on stack-trace bytes. A call stops reading once it exceeds this."""

pack = msgspec.msgpack.encode


class FailedJob(Struct, frozen=True):
    """The fields of a failed job that are needed to group it with similar failures."""

    id: str
    name: str
    reason: str
    """First bytes of the failure reason."""
    finished_at: datetime | None
    """Time when it finished. For an unfinished job, the start of the last attempt."""
    stack_head: str = ""
    """Start of its newest stack trace, as JSON. Empty if the stored stack traces are too large."""
    stack_tail: str = ""
    """End of its newest stack trace, as JSON."""


class FailuresStep(Struct, frozen=True):
    """Jobs that failed, finally or in an earlier attempt."""

    examined: int
    """Number of jobs that were checked."""
    jobs: list[FailedJob]


def list_failures(
    queue: QueueKeys, ranks: Sequence[int] = (), ids: Sequence[str] = ()
) -> Call[FailuresStep]:
    """Read failed jobs, either by rank (counted from the newest) or by id.

    Ask for at least one and at most 50 jobs. If they are large, only the first ones are read, but
    at least one.
    """
    args = (queue.base, pack(list(ids)), pack(list(ranks)), 0, 0, LONGEST, _ROOM)
    return Call(LIST_FAILURES, (queue.failed,), args, _failures)


def list_retried(queue: QueueKeys, state: JobState, start: int) -> Call[FailuresStep]:
    """Read unfinished jobs that failed before: up to 50 in a state, the next to run first."""
    place = _places(queue, state)[0]
    args = (queue.base, pack([]), pack([]), start, FAILURES_READ, LONGEST, _ROOM)
    return Call(LIST_FAILURES, (place,), args, _failures)


def get_failed_ids(queue: QueueKeys, most: int) -> Command[list[str]]:
    """List the ids of the newest failed jobs."""
    words: tuple[Word, ...] = ("ZREVRANGE", queue.failed, 0, most - 1)
    return Command(words, queue.failed, texts)


def _failures(reply: Any) -> FailuresStep:
    examined, flat_jobs = reply
    jobs = [
        FailedJob(text(i), cut_text(name), cut_text(why), instant_of(at), text(head), text(tail))
        for i, name, why, at, head, tail in zip(
            *(flat_jobs[place::6] for place in range(6)), strict=True
        )
    ]
    return FailuresStep(examined, jobs)


# Pages of jobs, one job, searches. Unless it reads whole jobs, each call reads at most `ROOM` bytes
# of fields that may be large.

LIST_JOBS = load("list_jobs")
FIND_JOB = load("find_job")
SEARCH_JOBS = load("search_jobs")

ROWS: Final = 50
"""Maximum number of jobs on a page."""

PIECE: Final = 25
"""Number of jobs that one call should request. It takes a millisecond."""

WHOLE_PIECE: Final = 500
"""Number of whole jobs that one call should request. It takes 2 ms if they are small."""

SEARCHED: Final = 100
"""Number of jobs that one search step looks at."""

ROOM: Final = 262_144
"""Maximum number of bytes of large fields that one call reads."""

_DEEPEST: Final = 20_000
"""Number of list entries searched from each end. It takes a fraction of a millisecond."""

NEWEST_FIRST: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States that list the latest job first. Other states list the next job to run first."""


class After(Struct, frozen=True):
    """A cursor: the position after the last job of a page."""

    place: int = 0
    """Number of jobs before the cursor, in a list, or in a sorted set if `score` is empty."""
    score: str = ""
    """Score of the last job as formatted by Redis, in a sorted set."""
    id: str = ""
    """Id of the last job, in a sorted set."""


START: Final = After()


class JobRows(Struct, frozen=True):
    """A page of jobs."""

    rows: list[JobRow]
    total: int
    """Number of jobs in this state."""
    after: After | None
    """Cursor for the next page, or None if this is the last page."""


class JobDetails(Struct, frozen=True):
    """One job with its lock, its children and its position."""

    row: JobRow
    """The job. Its state is `paused` if it is in the paused list.

    Unless it was read whole, its data, result, options and stack traces are each read only if they
    have up to 64 kB.
    """
    children: ChildCounts
    before: int | None
    """Number of jobs before it in its list or set, if known."""
    sure: bool
    """True if state and position are exact, False if guessed from other jobs' timestamps."""
    last_id: int
    """Last id that the queue assigned."""
    logs: list[str] = []
    """Its log lines, in the order they were written, if it was read whole."""
    steps: list[JobStep] = []
    """Its finished steps and its waits, if it was read whole."""
    stream: StreamPreview = NO_STREAM
    """The last items that it yielded, if it was read whole."""

    def describe(self) -> dict[str, Any]:
        """Return a whole job as JSON-compatible values, as printed by `taskbull job --json`.

        `lock_seconds` is None if the job is not running or its lock never expires, and 0 if it runs
        without a lock.
        """
        try:
            options = payload.decode(self.row.raw_options or b"null")
        except ValueError:
            options = None
        lock = None if self.row.state is not JobState.ACTIVE else self.row.lock_seconds or 0
        return {
            **self.row.describe(),
            "options": options,
            "lock_seconds": None if lock == inf else lock,
            "children": structs.asdict(self.children),
            "logs": self.logs,
            "steps": [step.describe() for step in self.steps],
            **({"stream": self.stream.describe()} if self.stream.count else {}),
        }


class SearchStep(Struct, frozen=True):
    """The result of one search step."""

    rows: list[JobRow]
    examined: int
    too_large: int
    """Number of jobs with a field of more than 256 kB, which was not searched."""
    after: After | None
    """Cursor for the next step, or None if the search is complete."""
    total: int = 0
    """Number of jobs in the searched state."""
    reached: datetime | None = None
    """Time that the last searched job finished, was due if delayed, or was added otherwise."""


def list_jobs(  # noqa: PLR0913 - passed by keyword
    queue: QueueKeys,
    state: JobState,
    after: After = START,
    limit: int = ROWS,
    *,
    fields: Mapping[str, int] | None = LINE_FIELDS,
    bound: float | None = None,
    descending: bool | None = None,
) -> Call[JobRows]:
    """Read a page of the jobs in a state.

    With `LINE_FIELDS`, it runs about 23 commands per job, and one more for the lock of a running
    job. If `fields` is None, whole jobs are read, with one command each, and the page ends at 32
    kB. A page of a sorted set ends at the score `bound`. The order is that of `NEWEST_FIRST`,
    unless `descending` is given.
    """
    down = state in NEWEST_FIRST if descending is None else descending
    is_list = state in LISTS
    edge = f"{bound:.0f}" if bound is not None else "-inf" if down else "+inf"
    args: tuple[Word, ...] = (
        queue.base,
        "" if fields is None else pack(flat(fields)),
        PAGE_BYTES if fields is None else ROOM,
        int(down),
        after.place,
        after.score,
        after.id,
        "" if is_list else edge,
        limit,
        int(state is JobState.ACTIVE),
    )

    def read(reply: Any) -> JobRows:
        total, is_last, found = reply
        rows = _rows(queue, state, found, fields)
        following = None
        if not is_last:
            following = After(after.place + len(rows))
            if not is_list:
                following = After(score=text(found[-2]), id=text(found[-3]))
        return JobRows(rows, total, following)

    return Call(LIST_JOBS, _places(queue, state), args, read)


def get_jobs(
    queue: QueueKeys,
    state: JobState,
    start: int = 0,
    stop: int = -1,
    *,
    ascending: bool = True,
    chunk: int = WHOLE_PIECE,
) -> Steps[list[Job]]:
    """Read whole jobs from position `start` to `stop`, both included, in chunks of bounded size.

    Ascending order starts with the oldest job, in `delayed` with the first one due, and in
    `prioritized` with the most urgent. Negative positions count from the end. Ids without a job are
    skipped, and later jobs take their place.
    """
    jobs: dict[str, Job] = {}
    if start < 0 or stop < 0:
        counts: Counts = yield count_jobs(queue)
        size = counts[state] + (counts[JobState.PAUSED] if state is JobState.WAITING else 0)
        start, stop = (place + size if place < 0 else place for place in (start, stop))
        start = max(0, start)
    after: After | None = After(place=start)
    wanted = stop - start + 1
    while after is not None and len(jobs) < wanted:
        limit = min(chunk, wanted - len(jobs))
        page: JobRows = yield list_jobs(
            queue, state, after, limit, fields=None, descending=not ascending
        )
        jobs.update((row.job.id, row.job) for row in page.rows if not row.gone)
        after = page.after
    return list(jobs.values())


def find_job(
    queue: QueueKeys, job_id: str, *, fields: Mapping[str, int] | None = WHOLE_FIELDS
) -> Call[JobDetails | None]:
    """Read a job, its state, its lock and the number of jobs before it, or None if it is missing.

    It runs about 45 commands. In a list of more than 40,000 jobs, the script searches near the
    position that the job's timestamp suggests, then the first and last 20,000 jobs. If the job is
    not found there, its position is a guess. If `fields` is None, the whole job is read.
    """

    def read(reply: Any) -> JobDetails | None:
        state, score, found, lock_ms, children, before, sure, counter = reply
        if not found:
            return None
        where = JobState(text(state))
        row = decode_row(queue.queue, where, job_id.encode(), found, fields, _score(score))
        return JobDetails(
            structs.replace(row, lock_seconds=_lock_seconds(lock_ms)),
            ChildCounts(*children),
            None if before < 0 else before,
            bool(sure),
            number(counter),
        )

    keys = (*queue.states, queue.id)
    packed = b"" if fields is None else pack(flat(fields))
    return Call(FIND_JOB, keys, (queue.base, job_id, packed, ROOM, _DEEPEST), read)


def search_jobs(
    queue: QueueKeys,
    state: JobState,
    wanted: Sequence[tuple[Sequence[str], Sequence[str]]],
    after: After = START,
    *,
    bound: float | None = None,
) -> Call[SearchStep]:
    """Search the next 100 jobs in a state for texts, or fewer if they exceed 256 kB.

    Each item of `wanted` is a pair of fields and texts. A job matches an item if one of the fields
    contains one of the texts. A job must match all items.
    """
    newest = state in NEWEST_FIRST

    def read(reply: Any) -> SearchStep:
        examined, too_large, last, score, done, hits, total, added = reply
        more = After(after.place + examined, text(score), text(last))
        return SearchStep(
            _rows(queue, state, hits, LINE_FIELDS),
            examined,
            too_large,
            None if done or not examined else more,
            total,
            _reached(state, score, added),
        )

    edge = f"{bound:.0f}" if bound is not None else "-inf" if newest else "+inf"
    args = (
        queue.base,
        pack([[list(fields), list(texts)] for fields, texts in wanted]),
        pack(flat(LINE_FIELDS)),
        0 if after.score else after.place,
        int(newest),
        after.score,
        after.id,
        edge,
        SEARCHED,
        ROOM,
    )
    return Call(SEARCH_JOBS, _places(queue, state)[:1], args, read)


LISTS: Final = frozenset({JobState.WAITING, JobState.ACTIVE, JobState.PAUSED})


def _places(queue: QueueKeys, state: JobState) -> tuple[str, str]:
    """Return the key with the jobs in a state, and the list with older ones, or an unused key."""
    places = {
        JobState.WAITING: queue.wait,
        JobState.PAUSED: queue.paused,
        JobState.ACTIVE: queue.active,
        JobState.COMPLETED: queue.completed,
        JobState.FAILED: queue.failed,
        JobState.DELAYED: queue.delayed,
        JobState.PRIORITIZED: queue.prioritized,
        JobState.WAITING_CHILDREN: queue.waiting_children,
    }
    if state not in places:
        raise ConfigurationError(f"jobs in state '{state}' cannot be listed")
    # BullMQ 5 moves waiting jobs to the paused list; BullMQ 6 leaves them in the wait list.
    older = queue.paused if state is JobState.WAITING else queue.private("none")
    return places[state], older


def _reached(state: JobState, score: bytes, added: bytes) -> datetime | None:
    if state in NEWEST_FIRST:
        return instant_from_ms(float(score)) if score else None
    if state is JobState.DELAYED:
        return instant_from_ms(due_ms_of_score(float(score))) if score else None
    return instant_of(added)


def _rows(
    queue: QueueKeys, state: JobState, reply: list[Any], fields: Mapping[str, int] | None
) -> list[JobRow]:
    rows: list[JobRow] = []
    for job_id, at, found in zip(*(reply[place::3] for place in range(3)), strict=True):
        score = None if state in LISTS else float(at)
        row = decode_row(queue.queue, state, job_id, found, fields, score)
        if state is JobState.ACTIVE and at != b"":
            row = structs.replace(row, lock_seconds=_lock_seconds(at))
        rows.append(row)
    return rows


def _score(raw: bytes) -> float | None:
    return float(raw) if raw else None


# Calls that concern a Redis server rather than one queue: info, clients, searches, permissions.


_SCANNED = 1000
"""Number of keys that one search step scans. It takes a fraction of a millisecond."""

_ANY = ""
"""Key of a command that concerns the server rather than a key."""


class Client(Struct, frozen=True):
    """A client connection to a server."""

    name: str
    address: str
    age: int
    """Seconds since it connected."""
    idle: int
    """Seconds since it last sent a command."""


class ConnectedWorker(Client, frozen=True):
    """A BullMQ or taskbull worker that is connected to a queue.

    Its `name` is that of the worker, or empty if it has none.
    """


class FoundQueues(Struct, frozen=True):
    """The result of one step of a search for queues."""

    names: list[str]
    """Queue names as they appear in keys, including any hash tag."""
    cursor: bytes
    """Cursor for the next step, or `b"0"` after the last step."""


class SlowCall(Struct, frozen=True):
    """An entry of a server's slow log."""

    at: int
    """Time of the call, in seconds since 1970."""
    seconds: float
    command: str
    """The command and its first key."""
    client: str
    """Name of the connection."""


def ping() -> Command[None]:
    """Check that the server answers."""
    return Command(("PING",), _ANY, nothing)


def get_info() -> Command[dict[str, str]]:
    """Read the fields of a server's INFO."""
    return Command(("INFO",), _ANY, info)


def get_cluster_info() -> Command[dict[str, str]]:
    """Read the fields of a node's CLUSTER INFO."""
    return Command(("CLUSTER", "INFO"), _ANY, info)


def get_setting(name: str) -> Command[str]:
    """Read a server's setting, such as `save`. Empty if it is unknown."""

    def read(reply: list[bytes]) -> str:
        return text(reply[1]) if len(reply) > 1 else ""

    return Command(("CONFIG", "GET", name), _ANY, read)


def get_slow_calls(most: int) -> Command[list[SlowCall]]:
    """Read the newest entries of a server's slow log, without the values of their arguments."""

    def read(reply: list[Any]) -> list[SlowCall]:
        return [_slow_call(entry) for entry in reply]

    return Command(("SLOWLOG", "GET", most), _ANY, read)


def _slow_call(entry: list[Any]) -> SlowCall:
    _, at, micros, words, *rest = entry
    name = text(words[0]).upper()
    key = 3 if name.removesuffix("_RO") in {"EVAL", "EVALSHA", "FCALL"} else 1
    shown = name if len(words) <= key else f"{name} {text(words[key])[:100]}"
    return SlowCall(at, micros / 1e6, shown, text(rest[1]) if len(rest) > 1 else "")


def get_time() -> Command[float]:
    """Read a server's clock, in seconds since 1970."""
    return Command(("TIME",), _ANY, lambda reply: int(reply[0]) + int(reply[1]) / 1e6)


def list_clients() -> Command[list[Client]]:
    """List the client connections of a server."""
    return Command(("CLIENT", "LIST"), _ANY, _clients)


def list_workers(queue: QueueKeys) -> Command[list[ConnectedWorker]]:
    """List the workers connected to a queue."""
    return Command(("CLIENT", "LIST"), queue.base, lambda reply: workers_of(queue, _clients(reply)))


def workers_of(queue: QueueKeys, clients: Sequence[Client]) -> list[ConnectedWorker]:
    """Select a queue's workers from all connections, by BullMQ's connection names."""
    name = queue.connection_name()
    return [
        ConnectedWorker(each.name[len(name) + 3 :], each.address, each.age, each.idle)
        for each in clients
        if each.name == name or each.name.startswith(f"{name}:w:")
    ]


def workers_by_queue(prefix: str, clients: Sequence[Client]) -> dict[str, list[ConnectedWorker]]:
    """Return the connected workers of all queues under a prefix, by queue.

    Queue names are returned as they appear in keys, including any hash tag.
    """
    found: dict[str, list[ConnectedWorker]] = {}
    for each in clients:
        if (named := read_connection_name(prefix, each.name)) is not None:
            queue, worker = named
            about = ConnectedWorker(worker, each.address, each.age, each.idle)
            found.setdefault(queue, []).append(about)
    return found


def find_queues(prefix: str, cursor: bytes = b"0") -> Command[FoundQueues]:
    """Search the next chunk of a server's keys for queues."""
    start, end = f"{prefix}:", ":meta"

    def read(reply: Any) -> FoundQueues:
        after, keys = reply
        names = [text(key)[len(start) : -len(end)] for key in keys]
        # Queue names contain no ":". Other keys belong to another prefix or to a job scheduler.
        return FoundQueues([name for name in names if name and ":" not in name], after)

    pattern = f"{escape_pattern(start)}*{end}"
    words: tuple[Word, ...] = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "hash")
    return Command(words, _ANY, read)


def escape_pattern(text: str) -> str:
    """Escape a text for use in a Redis glob pattern."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _clients(reply: bytes) -> list[Client]:
    clients: list[Client] = []
    for line in text(reply).splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        age, idle = int(fields.get("age", 0)), int(fields.get("idle", 0))
        address = _unix_path(fields.get("addr", ""))
        clients.append(Client(fields.get("name", ""), address, age, idle))
    return clients


def _unix_path(address: str) -> str:
    """Return the path of a Unix socket. Redis formats it as path:0 and Valkey as [path:0]:0."""
    if address.startswith(("/", "[/")):
        return address.removesuffix("]:0").removeprefix("[").removesuffix(":0")
    return address


# Checks of the Redis user's permissions. Test keys are removed, or expire if Redis refuses that.

PROBE_COMMANDS = load("probe_commands")


def probe_commands(queue: QueueKeys, token: str) -> Call[dict[str, str]]:
    """Try each command that the scripts use. Return the refused commands with their errors."""
    kinds = ("text", "another", "hash", "list", "set", "zset", "stream")
    keys = tuple(queue.private("doctor", token, kind) for kind in kinds)
    return Call(PROBE_COMMANDS, keys, (), _refused)


def try_plainly(queue: QueueKeys, token: str) -> dict[str, Command[None]]:
    """Return harmless variants of the commands that are sent without a script, by name."""
    key = queue.private("doctor", token, "none")
    tried: dict[str, tuple[Word, ...]] = {
        "BZPOPMIN": ("BZPOPMIN", key, 0.01),
        "LPOP": ("LPOP", key, 1),
        "XREAD": ("XREAD", "COUNT", 1, "STREAMS", key, "0"),
        "CLIENT ID": ("CLIENT", "ID"),
        "CLIENT SETNAME": ("CLIENT", "SETNAME", "taskbull-doctor"),
        "CLIENT KILL": ("CLIENT", "KILL", "ID", 1 << 62),
        "CLIENT LIST": ("CLIENT", "LIST"),
        "SCAN": ("SCAN", 0, "COUNT", 1),
    }
    return {name: Command(words, queue.base, nothing) for name, words in tried.items()}


def try_shared_keys(prefix: str, token: str) -> Command[None]:
    """Return a harmless write to a key that all queues share."""
    key = f"{prefix}::tb:doctor:{token}"
    return Command(("DEL", key), key, nothing)


def _refused(reply: list[Any]) -> dict[str, str]:
    words = [text(each) for each in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
