"""What the page of one job asks beyond its place: large fields, its log, its earlier attempts.

These are methods of both servers; each says what it costs Redis.
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
from taskbull.queue.failures import Failures, group_failures, liken, spread
from taskbull.queue.methods import looks
from taskbull.queue.questions import (
    LOST,
    Look,
    ask,
    ask_on,
    ask_queues,
    ask_together,
    list_servers,
)
from taskbull.scripts import browse, read, records, servers
from taskbull.scripts import read as read_calls
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
from taskbull.scripts.read import LOG_PIECE, ChildCounts, FieldPiece, NewestLines
from taskbull.scripts.servers import ConnectedWorker
from taskbull.store.address import Namespace

# What the page of one job asks beyond its place: large fields, its log, its earlier attempts.
#
# These are methods of both servers; each says what it costs Redis.


__all__ = ["FIELDS", "FieldPiece", "JobHistory", "JobLooks", "NewestLines"]

FIELDS = tuple(WIRE_NAMES)
"""The fields of a job that may be of any length."""


class JobLooks:
    """The reads of parts of one job."""

    namespace: Namespace

    @looks
    def peek_field(
        self, queue: str, job_id: str, field: str, *, most: int = 16_384, end: bool = False
    ) -> Look[FieldPiece]:
        """Read the first bytes of a field of a job, or its last: one call of two commands.

        Above 4 MB nothing but the size is told: Redis would have to copy all of it.
        """
        check_int("most", most, least=1, most=65_536)
        keys = self.namespace.keys(queue)
        return ask(read.peek_field(keys, check_text("job_id", job_id), _field(field), most,
                                         end=end))  # fmt: skip

    @looks
    def get_field(self, queue: str, job_id: str, field: str) -> Look[bytes | None]:
        """Read a field of a job as it stands in Redis, however large; None if there is none."""
        keys = self.namespace.keys(queue)
        return ask(read.get_field(keys, check_text("job_id", job_id), _field(field)))

    @looks
    def peek_log(self, queue: str, job_id: str, most: int = 200) -> Look[NewestLines]:
        """Read the newest lines of a job's log, as many as have 256 kB: a command for each."""
        check_int("most", most, least=1, most=1000)
        return ask(read.peek_logs(self.namespace.keys(queue), job_id, most))

    @looks
    def get_log(self, queue: str, job_id: str, *, most_bytes: float = inf) -> Look[list[bytes]]:
        """Read all lines of a job's log, a hundred with each command, or more than `most_bytes`."""
        keys, lines, length = self.namespace.keys(queue), list[bytes](), 0
        while True:
            some = yield from ask(read.get_log_lines(keys, job_id, len(lines)))
            lines += some
            length += sum(map(len, some))
            if len(some) < LOG_PIECE or length > most_bytes:
                return lines

    @looks
    def history(self, queue: str, job_id: str) -> Look[JobHistory]:
        """See what the newest 1,000 events of a queue tell about a job: one call, ~100 commands."""
        keys = self.namespace.keys(queue)
        return ask(read.peek_events(keys, check_text("job_id", job_id)))


def _field(name: str) -> str:
    if name not in WIRE_NAMES:
        raise refusal("field", f"be one of {', '.join(WIRE_NAMES)}", name)
    return name


# A job as a line of a list: what fits there, and how much more there is.


EMPTY_DATA: Final = Job(id="").raw_data
"""What a job has as its data if none were read."""


class JobRow(Struct, frozen=True):
    """A job of which parts were read: texts are cut after 300 bytes, as `sizes` shows."""

    queue: str
    job: Job
    """Its fields as far as they were read. Take data and the like from the texts below."""
    state: JobState
    attempts: int
    """How often a worker tries it."""
    due: datetime | None = None
    """When it may run, if it is delayed."""
    sizes: dict[str, int] = {}
    """The bytes of data, result, progress, reason, options and stacktrace."""
    gone: bool = False
    """Whether only its id is left."""

    @property
    def data(self) -> str:
        """The beginning of its data as they stand in Redis; empty if they are too large."""
        raw, size = self.job.raw_data, self.sizes.get("data", 0)
        was_read = len(raw) == size or raw != EMPTY_DATA
        return _text(raw) if size and was_read else ""

    @property
    def result(self) -> str:
        """The beginning of its result as it stands in Redis."""
        return _text(self.job.raw_returnvalue or b"")

    @property
    def progress(self) -> str:
        """The beginning of its progress as it stands in Redis."""
        return _text(self.job.raw_progress or b"")


class JobRows(Struct, frozen=True):
    """A page of jobs."""

    rows: list[JobRow]
    total: int
    """How many jobs are in this state."""
    after: After | None
    """Where the next page begins; None: this is the last one."""


class JobPlace(Struct, frozen=True):
    """One job, and where it is: what a page about it shows, at a bounded price."""

    row: JobRow
    """With all of data, result, options and stacks up to 64 kB; what is larger is only sized."""
    lock_seconds: float | None
    """How long its lock still lives; None: it has none."""
    children: ChildCounts
    before: int | None
    """How many jobs come before it in its list or set, where that is known."""
    sure: bool
    """Whether state and place are exact, and not guessed from the timestamps of others."""
    last_id: int
    """The last id that the queue has given out."""
    unclaimed: tuple[datetime, datetime] | None = None
    """When workers first and last met it without having its task."""
    expires: datetime | None = None
    """When it is too late to run it."""
    is_held: bool = False
    """Whether a worker has delayed it, because it had stalled before."""

    def describe(self) -> dict[str, Any]:
        """Return where it is, as JSON has it."""
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
    """Return when a delayed job is due, by its score."""
    if state is not JobState.DELAYED or score is None:
        return None
    return instant_from_ms(due_ms_of_score(score))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# What was seen when somebody looked at queues.


__all__ = ["START", "After", "ConnectedWorker", "Crew", "QueueSample", "SearchStep", "Surveyed"]


class QueueSample(Struct, frozen=True):
    """A queue at one moment."""

    name: str
    at: float
    """When it was looked at, by our clock, in seconds since 1970."""
    found: Surveyed
    problem: str | None = None
    """Why it could not be read; None: it could."""


class Crew(Struct, frozen=True):
    """Who is connected: the workers of each queue, Node's among them, whether asked for or not."""

    workers: dict[str, list[ConnectedWorker]]
    told: bool = True
    """Whether all servers list their connections; some providers do not let them."""
    clients: int = 0
    """How many connections there are in all."""


class SearchStep(Struct, frozen=True):
    """What a step of a search has found."""

    rows: list[JobRow]
    looked_at: int
    too_large: int
    """Jobs with a field of more than 256 kB, which was not looked at."""
    after: After | None
    """Where the next step begins; None: all has been looked at."""
    total: int = 0
    """How many jobs are in the state that is searched."""
    reached: datetime | None = None
    """How far it came in time: when the last job that was looked at ended; was due, if it is
    delayed; else was added."""


# What pages and terminals ask of a server over and over: the methods both servers have in common.
#
# Each method says what it costs Redis. Whatever is in the queues, one call looks at no more than
# 100 jobs and reads no more than about 256 kB, and none of them writes.


SAMPLE_LIFE = 600.0
"""Seconds for which a sample of old failures is kept."""

_MINUTE_MS = 60_000


class ServerLooks:
    """The bounded reads of all queues of one namespace."""

    namespace: Namespace
    _attempts_of: Callable[[Job], int]

    @looks
    def sample(self, queues: Iterable[str], *, minutes: int = 0) -> Look[list[QueueSample]]:
        """Look at queues as a whole: counts, limits, the next job, BullMQ's own metrics.

        One call of about 40 commands for each queue, all in one trip, however many jobs there are.
        A queue that cannot be read is returned with the reason as its `problem`.
        """
        check_int("minutes", minutes, least=0, most=1440)
        return self._sample([queues] if isinstance(queues, str) else list(queues), minutes)

    @looks
    def ends(self, queue: str, minutes: int = 60) -> Look[EndsByMinute]:
        """Count what ended in each of the last minutes, as far as it is kept; the newest first.

        One call of two commands for each minute.
        """
        check_int("minutes", minutes, least=1, most=60)
        return self._ends(queue, minutes)

    @looks
    def crew(self) -> Look[Crew]:
        """List the workers that are connected, of any queue: one CLIENT LIST for each server."""
        return self._crew()

    @looks
    def records(self, queues: Iterable[str]) -> Look[dict[str, list[Seen]]]:
        """Read what our workers wrote about themselves: one call of ≤ 101 commands per queue.

        Workers that have gone are among them for a day, without a record. A queue whose records
        cannot be read has none.
        """
        names = [queues] if isinstance(queues, str) else list(queues)
        found = yield from ask_queues(self.namespace, names, records.get_records)
        return {name: [] if isinstance(s, TaskbullError) else s for name, s in found.items()}

    @looks
    def registered_queues(self) -> Look[list[str]]:
        """Name the queues that our workers and producers wrote down: one command."""
        return read_registered(self.namespace)

    @looks
    def peek(
        self,
        queue: str,
        state: JobState | str,
        *,
        after: After = START,
        limit: int = ROWS,
        terms: Terms | None = None,
    ) -> Look[JobRows]:
        """See a page of jobs: the next to run first, of finished ones the latest.

        `after` is that of the page before. Sorted states are paged by score and id, so that pages
        do not slip. Of `terms` only the times count. A call for each 25 of ≤ 50 jobs, of 24
        commands for each job.
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
            # Between two calls others may move: a job that is seen twice is shown where it is now.
            rows.update((row.id, row) for row in found.rows)
            left -= some
            if found.after is None or not left:
                break
            start = found.after
        shown = self._rows(queue, wanted_state, list(rows.values()))
        return JobRows(shown, found.total, found.after)

    @looks
    def place(self, queue: str, job_id: str) -> Look[JobPlace]:
        """See one job and where it is; `JobNotFound` if there is none: one call, ~50 commands.

        The middle of a list of more than 40,000 jobs is not searched: `sure` tells.
        """
        placed = yield from self._placed(queue, job_id)
        if placed is None:
            raise JobNotFound(queue, job_id)
        return placed

    @looks
    def search(
        self,
        queue: str,
        state: JobState | str,
        terms: Terms,
        *,
        after: After = START,
        mask: Callable[[str], str] | None = None,
    ) -> Look[SearchStep]:
        """Look for jobs in the next 100 of a state, or as many as have 256 kB; the latest first.

        One call, of about 3 commands for each job, and one command for each job that is found if
        its data is searched. `mask` returns data as the person may see it: only what is left there
        is found. No hit does not mean that there is none.
        """
        wanted_state = _state(state)
        start, bound = _bounds(wanted_state, after, terms)
        keys = self.namespace.keys(queue)
        call = browse.search_jobs(keys, wanted_state, wanted(terms), start, bound=bound)
        found = yield from ask(call)
        rows = found.rows
        if rows and (terms.paths or (terms.texts and mask is not None)):
            calls = [read_calls.get_field(keys, row.id, "data") for row in rows]
            data = yield from ask_together(calls)
            rows = [row for row, raw in zip(rows, data, strict=True) if confirmed(terms, raw, mask)]
        shown = self._rows(queue, wanted_state, rows)
        return SearchStep(
            shown, found.looked_at, found.too_large, found.after, found.total, found.reached
        )

    @looks
    def failures(
        self, queue: str, most: int = 1000, *, before: Failures | None = None, sample: int = 0
    ) -> Look[Failures]:
        """Group the newest failed jobs by task and error, and a sample of the rest if asked for.

        Jobs that `before` has read are not read again. One command, and one call for each 50 jobs
        that are read: about 9 commands for each of them.
        """
        check_int("most", most, least=1, most=10_000)
        check_int("sample", sample, least=0, most=10_000)
        return self._failures(queue, most, before, sample)

    def _failures(
        self, queue: str, most: int, before: Failures | None = None, sample: int = 0
    ) -> Look[Failures]:
        keys = self.namespace.keys(queue)
        counts = yield from ask(read_calls.count_jobs(keys))
        total = counts[JobState.FAILED]
        ids = yield from ask(get_failed_ids(keys, most))
        read = {} if before is None else before.window
        unread = [job_id for job_id in ids if job_id not in read]
        fresh = {job.id: job for job in (yield from self._failed(queue, ids=unread))}
        window = {i: job for i in ids if (job := fresh.get(i) or read.get(i)) is not None}
        older = max(0, total - len(ids))
        drawn: list[FailedJob] = []
        drawn_at = time.time()
        if before is not None and drawn_at - before.sampled_at < SAMPLE_LIFE:
            drawn, drawn_at = before.sample, before.sampled_at
        if older and sample and not drawn:
            drawn_at = time.time()
            drawn = yield from self._failed(queue, ranks=spread(len(ids), total, sample))
        known = {} if before is None else before.likeness
        likeness = liken([*window.values(), *drawn], {**known, **liken(fresh.values())})
        groups = group_failures(window.values(), drawn if older else (), older, likeness)
        return Failures(total, len(window), groups, len(drawn), window, drawn, drawn_at, likeness)

    def _sample(self, queues: Sequence[str], minutes: int) -> Look[list[QueueSample]]:
        found = yield from ask_queues(
            self.namespace, queues, lambda keys: browse.survey_queue(keys, minutes)
        )
        at = time.time()
        return [_sampled(name, at, found[name]) for name in queues]

    def _ends(self, queue: str, minutes: int) -> Look[EndsByMinute]:
        minute_ms = int(time.time() * 1000) // _MINUTE_MS * _MINUTE_MS
        return ask(browse.count_ends(self.namespace.keys(queue), minute_ms, minutes))

    def _crew(self) -> Look[Crew]:
        found: dict[str, list[ConnectedWorker]] = {}
        told, count = True, 0
        lost: TaskbullError | None = None
        answered = False
        for server in (yield from list_servers()):
            try:
                clients = yield from ask_on(server, servers.list_clients())
            except ServerRefused:  # an ACL rule, or a provider that forbids it
                told, answered = False, True
                continue
            except LOST as error:  # the workers of its queues cannot be seen, those of others can
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
    ) -> Look[list[FailedJob]]:
        keys = self.namespace.keys(queue)
        found: list[FailedJob] = []
        place = 0
        while place < max(len(ranks), len(ids)):
            end = place + FAILURES_PEEKED
            some = yield from ask(peek_failures(keys, ranks[place:end], ids[place:end]))
            found += [job for job in some if job.name or job.reason]
            place += max(len(some), 1)
        return found

    def _placed(self, queue: str, job_id: str) -> Look[JobPlace | None]:
        if check_text("job_id", job_id) in RESERVED_IDS:
            return None
        found = yield from ask(browse.place_job(self.namespace.keys(queue), job_id))
        peeked = found.peeked
        if peeked is None:
            return None
        [row] = self._rows(queue, found.state, [Row(job_id, found.score, peeked)])
        lock = None if found.lock_ms == -2 else inf if found.lock_ms == -1 else found.lock_ms / 1000
        return JobPlace(
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
    """Return where to begin, and the score at which to end, if only some times are wanted."""
    if terms is None or state not in _TIMED:
        return after, None
    first, last = terms.before, terms.after  # the newest come first
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
