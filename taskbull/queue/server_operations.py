"""Everything a server can be asked about its queues: what the async and the sync server share.

Each operation is a generator that yields what is to be asked, and is sent the answer; nothing is
sent here. Every read is bounded, whatever is in the queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from secrets import token_hex

from msgspec import Struct

from taskbull.core.checks import check_int, check_text, refusal
from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.states import STATES, JobState
from taskbull.errors import JobNotFound, ServerRefused
from taskbull.queue.failures import Failures, group_failures
from taskbull.queue.job_view import JobDetails, JobPage, JobView
from taskbull.queue.questions import (
    Look,
    ask,
    ask_on,
    ask_together,
    list_servers,
    server_of,
)
from taskbull.scripts import inspection, servers, survey
from taskbull.scripts.events import last_event_id
from taskbull.scripts.inspection import Counts
from taskbull.scripts.servers import Client, ConnectedWorker
from taskbull.scripts.survey import PEEKED, ActiveJob, FailedJob
from taskbull.scripts.trial import try_commands, try_plainly
from taskbull.store.address import Endpoint
from taskbull.store.namespace import Namespace

LISTED = tuple(state for state in STATES if state is not JobState.PAUSED)
"""All states in which jobs are listed; those parked by a pause are among the waiting ones."""


class SearchPlace(Struct, frozen=True):
    """How far a search for queues has come."""

    server: Endpoint
    cursor: bytes
    rest: tuple[Endpoint, ...]
    """The servers that come after this one."""


class QueueSummary(Struct, frozen=True):
    """A queue at a glance."""

    name: str
    paused: bool
    version: str | None
    """What its producer wrote about itself, such as `bullmq:5.62.0`."""
    workers: int | None
    """How many are connected; None where the server does not tell."""
    counts: Counts
    waiting_since: datetime | None
    """When the job that has waited longest was added, or became due if it was delayed."""


class ServerOperations:
    """The operations on all queues of one namespace."""

    def __init__(
        self,
        namespace: Namespace,
        known: frozenset[str],
        attempts_of: Callable[[Job], int],
    ) -> None:
        self._namespace = namespace
        self._known = known
        self._attempts_of = attempts_of

    # The servers

    def servers(self) -> Look[list[Endpoint]]:
        return list_servers()

    def ping(self, server: Endpoint | None) -> Look[None]:
        if server is None:
            [server, *_] = yield from list_servers()
        yield from ask_on(server, servers.ping())

    def info(self, server: Endpoint) -> Look[dict[str, str]]:
        return ask_on(server, servers.get_info())

    def cluster_info(self, server: Endpoint) -> Look[dict[str, str]]:
        return ask_on(server, servers.get_cluster_info())

    def save_points(self, server: Endpoint) -> Look[str]:
        return ask_on(server, servers.get_save_points())

    def time(self, server: Endpoint) -> Look[float]:
        return ask_on(server, servers.get_time())

    def server_of(self, queue: str) -> Look[Endpoint]:
        return server_of(self._namespace.keys(queue))

    def refused_commands(self, queue: str) -> Look[dict[str, str]]:
        """Try every command that we need on a queue's server; nothing of it stays."""
        keys, token = self._namespace.keys(queue), token_hex(8)
        server = yield from server_of(keys)
        refused = yield from ask_on(server, try_commands(keys, token))
        for name, command in try_plainly(keys, token).items():
            try:
                yield from ask_on(server, command)
            except ServerRefused as error:
                if error.code == "NOPERM" or "unknown command" in str(error):
                    refused[name] = str(error)
        return refused

    # The queues

    def exists(self, queue: str) -> Look[bool]:
        keys = self._namespace.keys(queue)
        if queue in self._known:
            return True
        return (yield from ask(survey.exists(keys)))

    def find_queues(self, place: SearchPlace | None) -> Look[tuple[list[str], SearchPlace | None]]:
        """Look at the next piece of the keys; the place is where to go on, None at the end."""
        if place is None:
            first, *rest = yield from list_servers()
            place = SearchPlace(first, b"0", tuple(rest))
        scan = servers.find_queues(self._namespace.prefix, place.cursor)
        found: servers.FoundQueues = yield from ask_on(place.server, scan)
        names = sorted({self._plain(name) for name in found.names})
        if found.cursor != b"0":
            return names, SearchPlace(place.server, found.cursor, place.rest)
        if place.rest:
            return names, SearchPlace(place.rest[0], b"0", place.rest[1:])
        return names, None

    def queues(self) -> Look[list[str]]:
        found = set(self._known)
        names, place = yield from self.find_queues(None)
        found.update(names)
        while place is not None:
            names, place = yield from self.find_queues(place)
            found.update(names)
        return sorted(found)

    def survey(self, queues: Iterable[str] | None) -> Look[list[QueueSummary]]:
        names = yield from self._names(queues)
        keys = [self._namespace.keys(name) for name in names]
        answers = yield from ask_together([survey.survey_queue(each) for each in keys])
        clients: dict[Endpoint, list[Client] | None] = {}
        summaries: list[QueueSummary] = []
        for each, found in zip(keys, answers, strict=True):
            server = yield from server_of(each)
            if server not in clients:
                clients[server] = yield from self._clients_if_told(server)
            there = clients[server]
            workers = None if there is None else len(servers.workers_of(each, there))
            summaries.append(
                QueueSummary(
                    each.queue,
                    found.paused,
                    found.version,
                    workers,
                    found.counts,
                    found.waiting_since,
                )
            )
        return summaries

    def workers(self, queues: Iterable[str] | None) -> Look[dict[str, list[ConnectedWorker]]]:
        names = yield from self._names(queues)
        clients: dict[Endpoint, list[Client]] = {}
        workers: dict[str, list[ConnectedWorker]] = {}
        for name in names:
            keys = self._namespace.keys(name)
            server = yield from server_of(keys)
            if server not in clients:
                clients[server] = yield from ask_on(server, servers.list_clients())
            workers[name] = servers.workers_of(keys, clients[server])
        return workers

    def active(self, queue: str, most: int) -> Look[list[ActiveJob]]:
        keys = self._namespace.keys(queue)
        found: list[ActiveJob] = []
        for start, stop in _pieces(most):
            some = yield from ask(survey.peek_active(keys, start, stop))
            found += some
            if len(some) <= stop - start:
                break
        return list({job.id: job for job in found}.values())

    def failures(self, queue: str, most: int) -> Look[Failures]:
        keys = self._namespace.keys(queue)
        counts = yield from ask(inspection.count_jobs(keys))
        found: dict[str, FailedJob] = {}
        for start, stop in _pieces(most):
            some = yield from ask(survey.peek_failures(keys, start, stop))
            found.update((job.id, job) for job in some)
            if len(some) <= stop - start:
                break
        return Failures(counts[JobState.FAILED], len(found), group_failures(found.values()))

    def last_event_id(self, queue: str) -> Look[str]:
        return ask(last_event_id(self._namespace.keys(queue)))

    # The jobs

    def jobs(
        self, queue: str, states: Sequence[JobState | str] | None, offset: int, limit: int
    ) -> Look[JobPage]:
        """Read a page of the jobs in some states, one state after the other."""
        check_int("offset", offset, least=0)
        check_int("limit", limit, least=1)
        keys = self._namespace.keys(queue)
        counts = yield from ask(inspection.count_jobs(keys))
        found: list[JobView] = []
        total = 0
        for state in LISTED if states is None else map(_listed, states):
            count = counts[state] + (counts[JobState.PAUSED] if state is JobState.WAITING else 0)
            start = max(0, offset - total)
            total += count
            wanted = min(limit - len(found), count - start)
            if wanted > 0:
                stop = start + wanted - 1
                up = state not in {JobState.COMPLETED, JobState.FAILED}
                jobs = yield from inspection.get_jobs(keys, state, start, stop, ascending=up)
                found += yield from self._views(keys, jobs, state)
        return JobPage(found, total)

    def inspect(self, queue: str, job_id: str, log_lines: int | None) -> Look[JobDetails]:
        keys = self._namespace.keys(queue)
        job: Job | None = None
        if check_text("job_id", job_id) not in RESERVED_IDS:
            job = yield from ask(inspection.get_job(keys, job_id))
        if job is None:
            raise JobNotFound(queue, job_id)
        state = yield from ask(inspection.get_state(keys, job_id))
        [view] = yield from self._views(keys, [job], state)
        if log_lines is not None:
            check_int("log_lines", log_lines, least=1)
        start = -(log_lines or 0)
        logs = yield from ask(inspection.get_logs(keys, job_id, start, -1))
        lock = None
        if state is JobState.ACTIVE:
            lock = yield from ask(survey.get_lock_seconds(keys, job_id))
        options = yield from ask(survey.get_options(keys, job_id))
        children = yield from ask(inspection.count_children(keys, job_id))
        return JobDetails(view, options, lock, children, logs.lines)

    def _views(self, keys: QueueKeys, jobs: Sequence[Job], state: JobState) -> Look[list[JobView]]:
        due: list[datetime | None] = [None] * len(jobs)
        if state is JobState.DELAYED:
            due = yield from ask_together([survey.get_due(keys, job.id) for job in jobs])
        return [
            JobView(keys.queue, job, state, self._attempts_of(job), when)
            for job, when in zip(jobs, due, strict=True)
        ]

    def _names(self, queues: Iterable[str] | None) -> Look[list[str]]:
        return list(queues) if queues is not None else (yield from self.queues())

    def _clients_if_told(self, server: Endpoint) -> Look[list[Client] | None]:
        try:
            return (yield from ask_on(server, servers.list_clients()))
        except ServerRefused:  # an ACL rule, or a provider that forbids it
            return None

    def _plain(self, name: str) -> str:
        """Return a queue's name as code has it: without the hash tag that we add."""
        inner = name[1:-1]
        if name == f"{{{inner}}}" and inner and self._namespace.keys(inner).tagged == name:
            return inner
        return name


def _pieces(most: int) -> Iterable[tuple[int, int]]:
    check_int("most", most, least=1)
    for start in range(0, most, PEEKED):
        yield start, min(start + PEEKED, most) - 1


def _listed(state: JobState | str) -> JobState:
    if state not in set(STATES):
        raise refusal("state", f"be one of {', '.join(STATES)}", state)
    return JobState(state)
