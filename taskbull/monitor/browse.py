"""Server methods with bounded cost for dashboards and terminals: queues, pages of jobs, searches.

Both the async and the sync server have these methods. Each docstring states the cost for Redis.
Whatever the queues contain, most calls look at no more than 100 jobs and read no more than about
256 kB; the exceptions say so. None of them writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.groups import GroupInfo
from taskbull.core.job import Job, JobRow
from taskbull.core.keys import RESERVED_IDS, STATES, JobState, QueueKeys, delay_score_range
from taskbull.core.schedule import Schedule, runs_before
from taskbull.core.search import Terms
from taskbull.core.steps import JobStep, StepPreview
from taskbull.core.validation import check_int, check_text, instant_to_ms, refusal
from taskbull.core.wire import job as wire
from taskbull.core.worker_record import JobHistory, WorkerRecord
from taskbull.errors import JobNotFound, ServerRefused, TaskbullError
from taskbull.monitor.search import all_queues, plain_name
from taskbull.queue.failures import Failures, group_by_fingerprint, group_failures, spread
from taskbull.queue.questions import (
    LOST,
    ask,
    ask_each,
    ask_on,
    ask_queues,
    ask_together,
    list_servers,
    server_of,
    server_operation,
)
from taskbull.scripts import browse, read, records
from taskbull.scripts.browse import (
    FAILURES_READ,
    PIECE,
    ROWS,
    START,
    WHOLE_PIECE,
    After,
    ConnectedWorker,
    FailedJob,
    FailuresStep,
    JobDetails,
    JobRows,
    QueueSample,
    SearchStep,
    get_failed_ids,
    list_failures,
    list_retried,
)
from taskbull.scripts.call import AnySteps
from taskbull.scripts.change import preview_steps, read_steps
from taskbull.scripts.groups import list_groups
from taskbull.scripts.read import LOG_PIECE, Counts, FieldPreview, Logs
from taskbull.scripts.records import CountedError, get_records
from taskbull.scripts.schedulers import ScheduledRun, find_run
from taskbull.scripts.streams import StreamPreview, preview_items
from taskbull.store.address import Endpoint, Namespace

__all__ = [
    "START",
    "After",
    "ConnectedWorker",
    "CountedError",
    "FieldPreview",
    "HiddenError",
    "HiddenErrors",
    "JobDetails",
    "JobHistory",
    "JobRow",
    "JobRows",
    "Logs",
    "QueueSample",
    "ScheduledRun",
    "SearchStep",
    "StreamPreview",
    "Workers",
]


# Parts of one job: large fields, its log, its earlier attempts.


_ITEMS = 20
"""Number of items of a stream that are shown by default."""


def _field(name: str) -> str:
    if name not in wire.WIRE_NAMES:
        raise refusal("field", f"be one of {', '.join(wire.WIRE_NAMES)}", name)
    return name


class Workers(Struct, frozen=True):
    """The connected workers of all queues, including Node.js workers."""

    by_queue: dict[str, list[ConnectedWorker]]
    refusal: ServerRefused | None = None
    """Error of a server that does not list its connections. Some providers forbid it."""
    clients: int = 0
    """Total number of connections."""

    def count(self, queue: str) -> int | None:
        """Return the number of workers of a queue, or None if it is unknown."""
        found = self.by_queue.get(queue, ())
        return None if self.refusal is not None and not found else len(found)


# Reads that pages and terminals repeat.

_QUEUES_READ = 25
"""Number of queues whose worker records are read in one round trip."""

SAMPLE_LIFE = 600.0
"""Lifetime of a sample of old failures, in seconds."""


class ServerReads:
    """Methods for bounded reads of all queues in a namespace."""

    namespace: Namespace
    _known: frozenset[str]
    _attempts_of: Callable[[Job], int]

    @server_operation
    def survey(self, queues: Iterable[str] | None = None) -> AnySteps[list[QueueSample]]:
        """Read the counts, limits, next job and number of workers of some or all queues.

        It sends one call of about 30 commands per queue, all in one round trip, and one CLIENT LIST
        per server. The cost does not depend on the number of jobs. A queue that cannot be read is
        returned with the reason as its `problem`.
        """
        if queues is None:
            names = yield from all_queues(self.namespace, self._known)
        else:
            names = [queues] if isinstance(queues, str) else list(queues)
        samples = yield from self._sample(names)
        workers = yield from self._workers()
        return [
            sample if sample.problem else replace(sample, workers=workers.count(sample.name))
            for sample in samples
        ]

    @server_operation
    def workers(
        self, queues: Iterable[str] | None = None
    ) -> AnySteps[dict[str, list[ConnectedWorker]]]:
        """List the connected workers of some or all queues, including Node.js workers.

        It sends one CLIENT LIST per server. If a Cluster node does not answer, its queues have no
        workers. Raises `ServerRefused` if a server does not list its clients.
        """
        nodes: list[Endpoint] | None = None
        names = [queues] if isinstance(queues, str) else queues and list(queues)
        if names is not None:
            nodes = []
            for name in names:
                nodes.append((yield from server_of(self.namespace.keys(name))))
        found = yield from self._workers(nodes)
        if found.refusal is not None:
            raise found.refusal
        shown = sorted(found.by_queue) if names is None else names
        return {name: found.by_queue.get(name, []) for name in shown}

    @server_operation
    def worker_records(
        self, queues: Iterable[str] | None = None
    ) -> AnySteps[dict[str, list[WorkerRecord]]]:
        """Read the records of the live taskbull workers of some or all queues.

        It sends one call of up to 101 commands per queue, for 25 queues in a round trip. A queue
        that cannot be read has no workers.
        """
        names = [queues] if isinstance(queues, str) else queues
        return self._worker_records(None if names is None else list(names))

    @server_operation
    def counts(self, queue: str) -> AnySteps[Counts]:
        """Count the jobs of a queue by state, with one call."""
        return ask(read.count_jobs(self.namespace.keys(queue)))

    @server_operation
    def jobs(
        self,
        queue: str,
        state: JobState | str,
        *,
        after: After = START,
        limit: int = ROWS,
        terms: Terms | None = None,
        whole: bool = False,
    ) -> AnySteps[JobRows]:
        """Read a page of jobs, the next to run first, or the latest first if they have finished.

        `after` is the cursor from the previous page, or `After(place=n)` to skip n jobs. Sorted
        states are paged by score and id, so that pages do not shift. Only the times in `terms` are
        used. It sends one call per 25 jobs, with 23 commands per job. Texts are truncated to 300
        bytes, unless `whole` is True: then it sends one call per 32 kB.
        """
        check_int("limit", limit, least=1)
        wanted_state = _state(state)
        start, bound = _bounds(wanted_state, after, terms)
        keys, fields = self.namespace.keys(queue), None if whole else wire.LINE_FIELDS
        return self._jobs(keys, wanted_state, start, limit, fields, bound)

    @server_operation
    def active(self, queue: str, most: int = 100) -> AnySteps[list[JobRow]]:
        """List the longest-running jobs: their task, worker, start time and lock.

        It sends one call per 25 jobs, with 7 commands per job.
        """
        check_int("most", most, least=1)
        keys = self.namespace.keys(queue)
        page = yield from self._jobs(keys, JobState.ACTIVE, START, most, wire.RUN_TIME_FIELDS)
        return page.rows

    @server_operation
    def inspect(self, queue: str, job_id: str, *, whole: bool = False) -> AnySteps[JobDetails]:
        """Read one job with its state and position, with one call of ~50 commands.

        The middle of a list with more than 40,000 jobs is not searched completely. `sure` is False
        if the position is a guess. Fields of more than 64 kB are left out, unless `whole` is True:
        then the log is read as well. Raises `JobNotFound` if the job does not exist.
        """
        found = yield from self._inspect(queue, job_id, None if whole else wire.WHOLE_FIELDS)
        if found is None:
            raise JobNotFound(queue, job_id)
        if not whole:
            return found
        keys = self.namespace.keys(queue)
        logs = yield from ask(read.get_logs(keys, job_id))
        steps = yield from _steps(keys, job_id)
        stream = yield from ask(preview_items(keys, job_id, _ITEMS))
        return replace(found, logs=logs.lines, steps=steps, stream=stream)

    @server_operation
    def steps(self, queue: str, job_id: str) -> AnySteps[StepPreview]:
        """Return the finished steps and the waits of a job, without results."""
        return ask(preview_steps(self.namespace.keys(queue), job_id))

    @server_operation
    def groups(self, queue: str, limit: int | None = None) -> AnySteps[list[GroupInfo]]:
        """Return the groups of a queue as `Queue.groups` does, for users who may only read."""
        if limit is not None:
            check_int("limit", limit, least=1)
        return list_groups(self.namespace.keys(queue), int(time.time() * 1000), limit)

    @server_operation
    def newest_items(self, queue: str, job_id: str, most: int = _ITEMS) -> AnySteps[StreamPreview]:
        """Read the last items that a job yielded, without items of more than 2 kB."""
        check_int("most", most, least=1, most=100)
        return ask(preview_items(self.namespace.keys(queue), job_id, most))

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

        The order is that of `jobs`. It sends one call with about 3 commands per job, and one
        command per match if the data is searched. `mask` returns the data as the user may see it.
        Only text that remains visible is found. No match in one step does not mean that there is
        none at all.
        """
        wanted_state = _state(state)
        start, bound = _bounds(wanted_state, after, terms)
        keys = self.namespace.keys(queue)
        call = browse.search_jobs(keys, wanted_state, wire.wanted(terms), start, bound=bound)
        found = yield from ask(call)
        rows = found.rows
        if rows and (terms.paths or (terms.texts and mask is not None)):
            calls = [read.get_field(keys, row.job.id, "data") for row in rows]
            data = yield from ask_together(calls)
            rows = [
                row for row, raw in zip(rows, data, strict=True) if wire.confirmed(terms, raw, mask)
            ]
        return replace(found, rows=self._with_attempts(rows))

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

    def _sample(self, queues: Sequence[str], minutes: int = 0) -> AnySteps[list[QueueSample]]:
        found = yield from ask_queues(
            self.namespace, queues, lambda keys: browse.survey_queue(keys, minutes)
        )
        at = time.time()
        return [
            browse.unknown_queue(name, str(each))
            if isinstance(each := found[name], TaskbullError)
            else replace(each, at=at)
            for name in queues
        ]

    def _worker_records(
        self, queues: Sequence[str] | None = None
    ) -> AnySteps[dict[str, list[WorkerRecord]]]:
        names = queues
        if names is None:
            names = yield from all_queues(self.namespace, self._known)
        records: dict[str, list[WorkerRecord]] = {}
        for start in range(0, len(names), _QUEUES_READ):
            some = names[start : start + _QUEUES_READ]
            seen = yield from ask_queues(self.namespace, some, get_records)
            for name, found in seen.items():
                those = () if isinstance(found, TaskbullError) else found
                records[name] = [one.record for one in those if one.record is not None]
        return records

    def _workers(self, nodes: Iterable[Endpoint] | None = None) -> AnySteps[Workers]:
        """List the connected workers, of all servers or of some."""
        found: dict[str, list[ConnectedWorker]] = {}
        refusal: ServerRefused | None = None
        lost: TaskbullError | None = None
        count, answered = 0, False
        for server in dict.fromkeys((yield from list_servers()) if nodes is None else nodes):
            try:
                clients = yield from ask_on(server, browse.list_clients())
            except ServerRefused as error:  # An ACL rule or the provider forbids CLIENT LIST.
                refusal, answered = error, True
                continue
            except LOST as error:  # Still list the workers of the other servers' queues.
                lost = error
                continue
            answered = True
            count += len(clients)
            for tagged, workers in browse.workers_by_queue(self.namespace.prefix, clients).items():
                found.setdefault(plain_name(self.namespace, tagged), []).extend(workers)
        if lost is not None and not answered:
            raise lost
        return Workers(found, refusal, count)

    def _jobs(
        self,
        keys: QueueKeys,
        state: JobState,
        after: After,
        limit: int,
        fields: Mapping[str, int] | None,
        bound: float | None = None,
    ) -> AnySteps[JobRows]:
        rows: dict[str, JobRow] = {}
        chunk = WHOLE_PIECE if fields is None else PIECE
        while True:
            some = min(limit - len(rows), chunk)
            page = yield from ask(
                browse.list_jobs(keys, state, after, some, fields=fields, bound=bound)
            )
            # Jobs may move between two calls. Keep the latest read of a job that appears twice.
            rows.update((row.job.id, row) for row in page.rows)
            if page.after is None or len(rows) >= limit:
                return replace(page, rows=self._with_attempts(rows.values()))
            after = page.after

    def _failed(
        self, queue: str, *, ranks: Sequence[int] = (), ids: Sequence[str] = ()
    ) -> AnySteps[list[FailedJob]]:
        keys = self.namespace.keys(queue)
        found: list[FailedJob] = []
        place = 0
        while place < max(len(ranks), len(ids)):
            end = place + FAILURES_READ
            step = yield from ask(list_failures(keys, ranks[place:end], ids[place:end]))
            found += step.jobs
            place += step.examined
        return found

    def _inspect(
        self, queue: str, job_id: str, fields: Mapping[str, int] | None = wire.WHOLE_FIELDS
    ) -> AnySteps[JobDetails | None]:
        if check_text("job_id", job_id) in RESERVED_IDS:
            return None
        found = yield from ask(browse.find_job(self.namespace.keys(queue), job_id, fields=fields))
        if found is None:
            return None
        [row] = self._with_attempts([found.row])
        return replace(found, row=row)

    def _with_attempts(self, rows: Iterable[JobRow]) -> list[JobRow]:
        return [replace(row, attempts=self._attempts_of(row.job)) for row in rows]

    # Parts of one job: large fields, its log, its earlier attempts

    @server_operation
    def preview_field(
        self, queue: str, job_id: str, field: str, *, most: int = 16_384, end: bool = False
    ) -> AnySteps[FieldPreview]:
        """Read the first or last bytes of a job's field, with one call of two commands.

        For fields above 4 MB, only the size is returned, because Redis would have to copy the whole
        field.
        """
        check_int("most", most, least=1, most=65_536)
        keys = self.namespace.keys(queue)
        return ask(read.preview_field(keys, check_text("job_id", job_id), _field(field), most,
                                         end=end))  # fmt: skip

    @server_operation
    def get_field(self, queue: str, job_id: str, field: str) -> AnySteps[bytes | None]:
        """Read the raw value of a job's field, of any size, or None if it does not exist."""
        keys = self.namespace.keys(queue)
        return ask(read.get_field(keys, check_text("job_id", job_id), _field(field)))

    @server_operation
    def newest_log(self, queue: str, job_id: str, most: int = 200) -> AnySteps[Logs]:
        """Read the newest lines of a job's log, up to 256 kB, with one command per line."""
        check_int("most", most, least=1, most=1000)
        return ask(read.get_newest_logs(self.namespace.keys(queue), job_id, most))

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
        return ask(read.find_events(keys, check_text("job_id", job_id)))

    # Errors of attempts that are retried

    @server_operation
    def retried(self, queue: str) -> AnySteps[HiddenErrors]:
        """Group jobs that failed and are retried by error, with the counts of taskbull workers.

        Jobs of Node.js workers are included. It checks at most 500 delayed jobs, and 100 each of
        the active, waiting, prioritized and paused jobs. It sends one call per 50 jobs, with about
        10 commands per failed job.
        """
        failed: list[FailedJob] = []
        examined = 0
        for state, most in _LOOKED_AT.items():
            some = yield from self._retried(queue, state, most)
            examined += some.examined
            failed += some.jobs
        counted = yield from self._counted(queue)
        found: dict[str, HiddenError] = {}
        for group in group_failures(failed):
            count = counted.pop(group.fingerprint, None)
            found[group.fingerprint] = HiddenError(
                group.fingerprint,
                group.task,
                group.error,
                group.count,
                0 if count is None else count.count,
                group.newest,
            )
        for each in counted.values():
            found[each.fingerprint] = HiddenError(
                each.fingerprint, each.task, each.error, 0, each.count, ""
            )
        frequent = sorted(found.values(), key=lambda one: (-one.jobs, -one.counted))
        return HiddenErrors(frequent, examined)

    def _retried(self, queue: str, state: JobState, most: int) -> AnySteps[FailuresStep]:
        keys, examined, jobs = self.namespace.keys(queue), 0, list[FailedJob]()
        while examined < most:
            step = yield from ask(list_retried(keys, state, examined))
            examined += step.examined
            jobs += step.jobs
            if step.examined == 0:
                break
        return FailuresStep(examined, jobs)

    def _counted(self, queue: str) -> AnySteps[dict[str, CountedError]]:
        """Return the counts of the current clock hour and the one before, by fingerprint."""
        keys, now_ms = self.namespace.keys(queue), int(time.time() * 1000)
        calls = [records.get_errors(keys, at_ms) for at_ms in (now_ms, now_ms - 3_600_000)]
        found: dict[str, CountedError] = {}
        for each in [one for some in (yield from ask_together(calls)) for one in some]:
            before = found[each.fingerprint].count if each.fingerprint in found else 0
            found[each.fingerprint] = replace(each, count=each.count + before)
        return found

    # Schedules

    @server_operation
    def last_runs(self, schedules: Sequence[Schedule]) -> AnySteps[list[ScheduledRun | None]]:
        """Find the last run of each schedule, or None if its job is not stored or not readable.

        It sends one call of at most 10 commands per schedule, all in one round trip.
        """
        calls = [
            find_run(self.namespace.keys(each.queue), each.id, _due_before(each))
            for each in schedules
        ]
        found = yield from ask_each(calls)
        return [None if isinstance(each, TaskbullError) else each for each in found]


def _steps(keys: QueueKeys, job_id: str) -> AnySteps[list[JobStep]]:
    """Return the steps of a job with their results, or nothing if their key has another type."""
    try:
        return (yield from ask(read_steps(keys, job_id)))
    except ServerRefused as error:
        if error.code != "WRONGTYPE":
            raise
        return []


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


# Errors hidden by retries. The job may still succeed in a later attempt.


_LOOKED_AT: Final[Mapping[JobState, int]] = {
    JobState.DELAYED: 500,  # Most jobs wait here for their next attempt.
    JobState.ACTIVE: 100,
    JobState.WAITING: 100,
    JobState.PRIORITIZED: 100,
    JobState.PAUSED: 100,
}
"""Number of jobs to check in each state, starting with the next to run."""


class HiddenError(Struct, frozen=True):
    """Failed attempts with the same error, of jobs that have not failed permanently."""

    fingerprint: str
    task: str
    error: str
    jobs: int
    """Number of checked jobs whose last failure was this error."""
    counted: int
    """Number of attempts with this error that taskbull workers counted in the last hour or two."""
    newest: str
    """Id of one such job, or empty if the error is known only from the counts."""


class HiddenErrors(Struct, frozen=True):
    """The errors of attempts that failed and are retried."""

    errors: list[HiddenError]
    """Errors, the most frequent first."""
    examined: int
    """Number of unfinished jobs that were checked."""


# The last runs of schedules.


_EARLIER: Final = 2
"""Number of earlier runs to look for. A run may have been skipped while no worker was running."""


def _due_before(schedule: Schedule) -> list[int]:
    if schedule.rule is None or schedule.last_due is None:
        return []
    due_ms = instant_to_ms(schedule.last_due)
    # If no run is pending, the schedule has ended or its worker died: `last_due` is the last run.
    last = [] if schedule.is_pending else [due_ms]
    return last + runs_before(schedule.rule, due_ms, _EARLIER)
