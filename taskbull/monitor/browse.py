"""Server methods with bounded cost for dashboards and terminals: queues, pages of jobs, searches.

Both the async and the sync server have these methods. Each docstring states the cost for Redis.
Whatever the queues contain, most calls look at no more than 100 jobs and read no more than about
256 kB; the exceptions say so. None of them writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS
from taskbull.core.search import Terms
from taskbull.core.states import STATES, JobState, delay_score_range, due_ms_of_score
from taskbull.core.validation import check_int, check_text, instant_from_ms, instant_to_ms, refusal
from taskbull.core.wire.events import confirmed, wanted
from taskbull.core.wire.job import WIRE_NAMES
from taskbull.core.worker_record import JobHistory, Seen
from taskbull.errors import JobNotFound, ServerRefused, TaskbullError
from taskbull.monitor.inspect import iso
from taskbull.monitor.search import plain_name, read_registered
from taskbull.queue.failures import Failures, group_by_fingerprint, group_failures, spread
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import LOST, ask, ask_on, ask_queues, ask_together, list_servers
from taskbull.scripts import browse, read, records, servers
from taskbull.scripts.browse import (
    FAILURES_PEEKED,
    PIECE,
    ROWS,
    START,
    After,
    EndsByMinute,
    FailedJob,
    Row,
    Surveyed,
    get_failed_ids,
    peek_failures,
)
from taskbull.scripts.call import AnySteps
from taskbull.scripts.read import LOG_PIECE, ChildCounts, FieldPiece, NewestLines
from taskbull.scripts.servers import ConnectedWorker
from taskbull.store.address import Namespace

# Parts of one job: large fields, its log, its earlier attempts.

__all__ = [
    "FIELDS",
    "START",
    "After",
    "ConnectedWorker",
    "Crew",
    "FieldPiece",
    "JobHistory",
    "JobLooks",
    "NewestLines",
    "QueueSample",
    "SearchStep",
    "Surveyed",
]

FIELDS = tuple(WIRE_NAMES)
"""Fields of a job that may have any length."""


class JobLooks:
    """Methods that read parts of one job."""

    namespace: Namespace

    @server_operation
    def peek_field(
        self, queue: str, job_id: str, field: str, *, most: int = 16_384, end: bool = False
    ) -> AnySteps[FieldPiece]:
        """Read the first or last bytes of a job's field, with one call of two commands.

        For fields above 4 MB, only the size is returned, because Redis would have to copy the whole
        field.
        """
        check_int("most", most, least=1, most=65_536)
        keys = self.namespace.keys(queue)
        return ask(read.peek_field(keys, check_text("job_id", job_id), _field(field), most,
                                         end=end))  # fmt: skip

    @server_operation
    def get_field(self, queue: str, job_id: str, field: str) -> AnySteps[bytes | None]:
        """Read the raw value of a job's field, of any size, or None if it does not exist."""
        keys = self.namespace.keys(queue)
        return ask(read.get_field(keys, check_text("job_id", job_id), _field(field)))

    @server_operation
    def peek_log(self, queue: str, job_id: str, most: int = 200) -> AnySteps[NewestLines]:
        """Read the newest lines of a job's log, up to 256 kB, with one command per line."""
        check_int("most", most, least=1, most=1000)
        return ask(read.peek_logs(self.namespace.keys(queue), job_id, most))

    @server_operation
    def get_log(self, queue: str, job_id: str, *, most_bytes: float = inf) -> AnySteps[list[bytes]]:
        """Read all lines of a job's log, with one command per 100 lines.

        Reading stops once the lines exceed `most_bytes`.
        """
        keys, lines, length = self.namespace.keys(queue), list[bytes](), 0
        while True:
            some = yield from ask(read.get_log_lines(keys, job_id, len(lines)))
            lines += some
            length += sum(map(len, some))
            if len(some) < LOG_PIECE or length > most_bytes:
                return lines

    @server_operation
    def history(self, queue: str, job_id: str) -> AnySteps[JobHistory]:
        """Read a job's history from the newest 1,000 events, with one call of ~100 commands."""
        keys = self.namespace.keys(queue)
        return ask(read.peek_events(keys, check_text("job_id", job_id)))


def _field(name: str) -> str:
    if name not in WIRE_NAMES:
        raise refusal("field", f"be one of {', '.join(WIRE_NAMES)}", name)
    return name


# Jobs as rows of a list, with truncated texts and the sizes of the full texts.

EMPTY_DATA: Final = Job(id="").raw_data
"""Raw data of a job whose data was not read."""


class JobRow(Struct, frozen=True):
    """A job that was read in part. Texts are truncated to 300 bytes; `sizes` has the full sizes."""

    queue: str
    job: Job
    """Fields that were read. Use the properties below for data, result and progress."""
    state: JobState
    attempts: int
    """Maximum number of attempts."""
    due: datetime | None = None
    """Due time, if it is delayed."""
    sizes: dict[str, int] = {}
    """Sizes of data, result, progress, reason, options and stacktrace, in bytes."""
    gone: bool = False
    """True if only its id is left."""

    @property
    def data(self) -> str:
        """The start of its stored data, or empty if the data is too large."""
        raw, size = self.job.raw_data, self.sizes.get("data", 0)
        was_read = len(raw) == size or raw != EMPTY_DATA
        return _text(raw) if size and was_read else ""

    @property
    def result(self) -> str:
        """The start of its stored result."""
        return _text(self.job.raw_returnvalue or b"")

    @property
    def progress(self) -> str:
        """The start of its stored progress."""
        return _text(self.job.raw_progress or b"")


class JobRows(Struct, frozen=True):
    """A page of jobs."""

    rows: list[JobRow]
    total: int
    """Number of jobs in this state."""
    after: After | None
    """Cursor for the next page, or None if this is the last page."""


class JobLocation(Struct, frozen=True):
    """One job with its state and position, read at a bounded cost."""

    row: JobRow
    """Job with its full data, result, options and stack traces, each only if up to 64 kB."""
    lock_seconds: float | None
    """Seconds until its lock expires, or None if it has no lock."""
    children: ChildCounts
    before: int | None
    """Number of jobs before it in its list or set, if known."""
    sure: bool
    """True if state and position are exact, False if guessed from other jobs' timestamps."""
    last_id: int
    """Last id that the queue assigned."""
    unclaimed: tuple[datetime, datetime] | None = None
    """First and last time that a worker without its task fetched it."""
    expires: datetime | None = None
    """Time when it expires."""
    is_held: bool = False
    """True if a worker has delayed it because it stalled before."""

    def describe(self) -> dict[str, Any]:
        """Return the state and position as JSON-compatible values."""
        return {
            "queue": self.row.queue,
            "id": self.row.job.id,
            "state": str(self.row.state),
            "before": self.before,
            "sure": self.sure,
            "lock_seconds": self.lock_seconds,
            "due_at": iso(self.row.due),
            "expires_at": iso(self.expires),
        }


def due_of(state: JobState, score: float | None) -> datetime | None:
    """Return the due time of a delayed job from its score, or None for other states."""
    if state is not JobState.DELAYED or score is None:
        return None
    return instant_from_ms(due_ms_of_score(score))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# Results of reads of queues.


class QueueSample(Struct, frozen=True):
    """A queue at one moment."""

    name: str
    at: float
    """Time of the sample by the local clock, in seconds since 1970."""
    found: Surveyed
    problem: str | None = None
    """Reason why the queue could not be read, or None if it could."""


class Crew(Struct, frozen=True):
    """The connected workers of all queues, including Node.js workers."""

    workers: dict[str, list[ConnectedWorker]]
    """Connected workers by queue."""
    told: bool = True
    """True if all servers list their connections. Some providers forbid it."""
    clients: int = 0
    """Total number of connections."""


class SearchStep(Struct, frozen=True):
    """The result of one search step."""

    rows: list[JobRow]
    looked_at: int
    too_large: int
    """Number of jobs with a field of more than 256 kB, which was not searched."""
    after: After | None
    """Cursor for the next step, or None if the search is complete."""
    total: int = 0
    """Number of jobs in the searched state."""
    reached: datetime | None = None
    """Time that the last searched job finished, was due if delayed, or was added otherwise."""


# Reads that pages and terminals repeat.

SAMPLE_LIFE = 600.0
"""Lifetime of a sample of old failures, in seconds."""

_MINUTE_MS = 60_000


class ServerLooks:
    """Methods for bounded reads of all queues in a namespace."""

    namespace: Namespace
    _attempts_of: Callable[[Job], int]

    @server_operation
    def sample(self, queues: Iterable[str], *, minutes: int = 0) -> AnySteps[list[QueueSample]]:
        """Read the counts, limits, next job and BullMQ metrics of some queues.

        It sends one call of about 40 commands per queue, all in one round trip. The cost does not
        depend on the number of jobs. A queue that cannot be read is returned with the reason as its
        `problem`.
        """
        check_int("minutes", minutes, least=0, most=1440)
        return self._sample([queues] if isinstance(queues, str) else list(queues), minutes)

    @server_operation
    def ends(self, queue: str, minutes: int = 60) -> AnySteps[EndsByMinute]:
        """Count the stored jobs that finished in each of the last minutes, the newest first.

        It sends one call, with two commands per minute.
        """
        check_int("minutes", minutes, least=1, most=60)
        return self._ends(queue, minutes)

    @server_operation
    def crew(self) -> AnySteps[Crew]:
        """List the connected workers of all queues, with one CLIENT LIST per server."""
        return self._crew()

    @server_operation
    def records(self, queues: Iterable[str]) -> AnySteps[dict[str, list[Seen]]]:
        """Read the status records of taskbull workers, by queue.

        It sends one call of at most 101 commands per queue. Stopped workers are listed for a day,
        without a record. If the records of a queue cannot be read, its list is empty.
        """
        names = [queues] if isinstance(queues, str) else list(queues)
        found = yield from ask_queues(self.namespace, names, records.get_records)
        return {name: [] if isinstance(s, TaskbullError) else s for name, s in found.items()}

    @server_operation
    def registered_queues(self) -> AnySteps[list[str]]:
        """Return the names of the queues in taskbull's registry, with one command."""
        return read_registered(self.namespace)

    @server_operation
    def peek(
        self,
        queue: str,
        state: JobState | str,
        *,
        after: After = START,
        limit: int = ROWS,
        terms: Terms | None = None,
    ) -> AnySteps[JobRows]:
        """Read a page of jobs, the next to run first, or the latest first if they have finished.

        `after` is the cursor from the previous page. Sorted states are paged by score and id, so
        that pages do not shift. Only the times in `terms` are used. A page has at most 50 jobs. It
        sends one call per 25 jobs, with 24 commands per job.
        """
        check_int("limit", limit, least=1, most=ROWS)
        wanted_state = _state(state)
        start, bound = _bounds(wanted_state, after, terms)
        keys = self.namespace.keys(queue)
        rows: dict[str, Row] = {}
        left = limit
        while True:
            some = min(left, PIECE)
            found = yield from ask(browse.peek_jobs(keys, wanted_state, start, some, bound=bound))
            # Jobs may move between two calls. Keep the latest read of a job that appears twice.
            rows.update((row.id, row) for row in found.rows)
            left -= some
            if found.after is None or not left:
                break
            start = found.after
        shown = self._rows(queue, wanted_state, list(rows.values()))
        return JobRows(shown, found.total, found.after)

    @server_operation
    def place(self, queue: str, job_id: str) -> AnySteps[JobLocation]:
        """Read one job with its state and position, with one call of ~50 commands.

        The middle of a list with more than 40,000 jobs is not searched completely. `sure` is False
        if the position is a guess. Raises `JobNotFound` if the job does not exist.
        """
        placed = yield from self._placed(queue, job_id)
        if placed is None:
            raise JobNotFound(queue, job_id)
        return placed

    @server_operation
    def search(
        self,
        queue: str,
        state: JobState | str,
        terms: Terms,
        *,
        after: After = START,
        mask: Callable[[str], str] | None = None,
    ) -> AnySteps[SearchStep]:
        """Search the next 100 jobs in a state, or fewer if they exceed 256 kB.

        The order is that of `peek`. It sends one call with about 3 commands per job, and one
        command per match if the data is searched. `mask` returns the data as the user may see it.
        Only text that remains visible is found. No match in one step does not mean that there is
        none at all.
        """
        wanted_state = _state(state)
        start, bound = _bounds(wanted_state, after, terms)
        keys = self.namespace.keys(queue)
        call = browse.search_jobs(keys, wanted_state, wanted(terms), start, bound=bound)
        found = yield from ask(call)
        rows = found.rows
        if rows and (terms.paths or (terms.texts and mask is not None)):
            calls = [read.get_field(keys, row.id, "data") for row in rows]
            data = yield from ask_together(calls)
            rows = [row for row, raw in zip(rows, data, strict=True) if confirmed(terms, raw, mask)]
        shown = self._rows(queue, wanted_state, rows)
        return SearchStep(
            shown, found.looked_at, found.too_large, found.after, found.total, found.reached
        )

    @server_operation
    def failures(
        self, queue: str, most: int = 1000, *, before: Failures | None = None, sample: int = 0
    ) -> AnySteps[Failures]:
        """Group the newest failed jobs by task and error, optionally with a sample of the rest.

        Jobs that are in the result `before` are not read again. It sends one call to count, one
        command to list ids, and one call per 50 jobs that are read, with about 9 commands per job.
        """
        check_int("most", most, least=1, most=10_000)
        check_int("sample", sample, least=0, most=10_000)
        return self._failures(queue, most, before, sample)

    def _failures(
        self, queue: str, most: int, before: Failures | None = None, sample: int = 0
    ) -> AnySteps[Failures]:
        keys = self.namespace.keys(queue)
        counts = yield from ask(read.count_jobs(keys))
        total = counts[JobState.FAILED]
        ids = yield from ask(get_failed_ids(keys, most))
        window_before = {} if before is None else before.window
        unread = [job_id for job_id in ids if job_id not in window_before]
        fresh = {job.id: job for job in (yield from self._failed(queue, ids=unread))}
        window = {i: job for i in ids if (job := fresh.get(i) or window_before.get(i)) is not None}
        older = max(0, total - len(ids))
        drawn: list[FailedJob] = []
        drawn_at = time.time()
        if before is not None and drawn_at - before.sampled_at < SAMPLE_LIFE:
            drawn, drawn_at = before.sample, before.sampled_at
        if older and sample and not drawn:
            drawn_at = time.time()
            drawn = yield from self._failed(queue, ranks=spread(len(ids), total, sample))
        known = {} if before is None else before.likeness
        likeness = group_by_fingerprint(
            [*window.values(), *drawn], {**known, **group_by_fingerprint(fresh.values())}
        )
        groups = group_failures(window.values(), drawn if older else (), older, likeness)
        return Failures(total, len(window), groups, len(drawn), window, drawn, drawn_at, likeness)

    def _sample(self, queues: Sequence[str], minutes: int) -> AnySteps[list[QueueSample]]:
        found = yield from ask_queues(
            self.namespace, queues, lambda keys: browse.survey_queue(keys, minutes)
        )
        at = time.time()
        return [_sampled(name, at, found[name]) for name in queues]

    def _ends(self, queue: str, minutes: int) -> AnySteps[EndsByMinute]:
        minute_ms = int(time.time() * 1000) // _MINUTE_MS * _MINUTE_MS
        return ask(browse.count_ends(self.namespace.keys(queue), minute_ms, minutes))

    def _crew(self) -> AnySteps[Crew]:
        found: dict[str, list[ConnectedWorker]] = {}
        told, count = True, 0
        lost: TaskbullError | None = None
        answered = False
        for server in (yield from list_servers()):
            try:
                clients = yield from ask_on(server, servers.list_clients())
            except ServerRefused:  # An ACL rule or the provider forbids CLIENT LIST.
                told, answered = False, True
                continue
            except LOST as error:  # Still list the workers of the other servers' queues.
                lost = error
                continue
            answered = True
            count += len(clients)
            for tagged, workers in servers.workers_by_queue(self.namespace.prefix, clients).items():
                found.setdefault(plain_name(self.namespace, tagged), []).extend(workers)
        if lost is not None and not answered:
            raise lost
        return Crew(found, told, count)

    def _failed(
        self, queue: str, *, ranks: Sequence[int] = (), ids: Sequence[str] = ()
    ) -> AnySteps[list[FailedJob]]:
        keys = self.namespace.keys(queue)
        found: list[FailedJob] = []
        place = 0
        while place < max(len(ranks), len(ids)):
            end = place + FAILURES_PEEKED
            some = yield from ask(peek_failures(keys, ranks[place:end], ids[place:end]))
            found += [job for job in some if job.name or job.reason]
            place += max(len(some), 1)
        return found

    def _placed(self, queue: str, job_id: str) -> AnySteps[JobLocation | None]:
        if check_text("job_id", job_id) in RESERVED_IDS:
            return None
        found = yield from ask(browse.place_job(self.namespace.keys(queue), job_id))
        peeked = found.peeked
        if peeked is None:
            return None
        [row] = self._rows(queue, found.state, [Row(job_id, found.score, peeked)])
        lock = None if found.lock_ms == -2 else inf if found.lock_ms == -1 else found.lock_ms / 1000
        return JobLocation(
            row,
            lock,
            found.children,
            found.before,
            found.sure,
            found.last_id,
            _span(peeked.unclaimed_ms),
            None if peeked.expires_ms is None else instant_from_ms(peeked.expires_ms),
            found.state is JobState.DELAYED
            and found.score is not None
            and peeked.held_until_ms == due_ms_of_score(found.score),
        )

    def _rows(self, queue: str, state: JobState, rows: Sequence[Row]) -> list[JobRow]:
        return [
            JobRow(
                queue,
                Job(id=row.id) if row.peeked is None else row.peeked.job,
                state,
                1 if row.peeked is None else self._attempts_of(row.peeked.job),
                due_of(state, row.score),
                {} if row.peeked is None else row.peeked.sizes,
                row.peeked is None,
            )
            for row in rows
        ]


def _sampled(name: str, at: float, found: Surveyed | TaskbullError) -> QueueSample:
    if isinstance(found, TaskbullError):
        return QueueSample(name, at, browse.UNKNOWN, str(found))
    return QueueSample(name, at, found)


def _state(state: JobState | str) -> JobState:
    if state not in set(STATES):
        raise refusal("state", f"be one of {', '.join(STATES)}", state)
    return JobState(state)


def _bounds(state: JobState, after: After, terms: Terms | None) -> tuple[After, float | None]:
    """Return the start cursor and the final score for the time range in `terms`."""
    if terms is None or state not in _TIMED:
        return after, None
    first, last = terms.before, terms.after  # The newest jobs come first.
    if state is JobState.DELAYED:
        low = None if last is None else delay_score_range(instant_to_ms(last))[0] - 1
        high = None if first is None else delay_score_range(instant_to_ms(first))[1]
        begin = after if after != START or low is None else After(score=str(low), id="\uffff")
        return begin, high
    begin = after
    if after == START and first is not None:
        begin = After(score=str(instant_to_ms(first)), id="\uffff")
    return begin, None if last is None else instant_to_ms(last)


_TIMED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.DELAYED})


def _span(times: tuple[int, int] | None) -> tuple[datetime, datetime] | None:
    if times is None:
        return None
    first, last = map(instant_from_ms, times)
    return None if first is None or last is None else (first, last)
