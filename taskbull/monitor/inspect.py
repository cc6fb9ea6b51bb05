"""Jobs as they are shown: with their state, and what stands beside them in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from secrets import token_hex
from typing import Any, TypeAlias

from msgspec import Struct, structs

from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.queue_health import PauseNote, read_note
from taskbull.core.states import STATES, JobState
from taskbull.core.validation import check_int, check_text, refusal
from taskbull.errors import (
    ConfigurationError,
    CorruptJob,
    JobNotFound,
    ServerRefused,
    TaskbullError,
)
from taskbull.monitor.search import SearchPlace, all_queues, find_queues
from taskbull.queue.methods import looks
from taskbull.queue.questions import (
    LOST,
    Look,
    ask,
    ask_on,
    ask_queues,
    ask_together,
    list_servers,
    lost_servers,
    server_of,
)
from taskbull.scripts import browse, read, servers
from taskbull.scripts.browse import PEEKED, ActiveJob
from taskbull.scripts.events import last_event_id
from taskbull.scripts.read import ChildCounts, Counts
from taskbull.scripts.servers import Client, ConnectedWorker, try_commands, try_plainly
from taskbull.store.address import Endpoint, Namespace

# Jobs as they are shown: with their state, and what stands beside them in Redis.


class JobView(Struct, frozen=True):
    """A job, and what was found out about it when it was read."""

    queue: str
    job: Job
    state: JobState
    attempts: int
    """How often a worker tries it."""
    due: datetime | None = None
    """When it may run, if it is delayed."""

    @property
    def data(self) -> Any:
        """Its data; as text if that is not JSON."""
        try:
            return self.job.data
        except CorruptJob:
            return self.job.raw_data.decode("utf-8", "backslashreplace")

    @property
    def progress(self) -> Any:
        """Its progress; None also if that is not JSON."""
        try:
            return self.job.progress
        except CorruptJob:
            return None

    @property
    def corrupt(self) -> str | None:
        """What makes it unreadable for workers."""
        found = self.job.corrupt
        try:
            _ = self.job.data
        except CorruptJob as error:
            found = error
        return None if found is None else str(found)

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it: instants are ISO 8601, durations seconds."""
        job = self.job
        return {
            "id": job.id,
            "queue": self.queue,
            "name": job.name,
            "state": str(self.state),
            "data": self.data,
            "result": job.returnvalue,
            "reason": job.failed_reason,
            "progress": self.progress,
            "attempts": self.attempts,
            "attempts_made": job.attempts_made,
            "attempts_started": job.attempts_started,
            "stalled_count": job.stalled_count,
            "priority": job.priority,
            "delay": job.delay_ms / 1000,
            "added_at": iso(job.timestamp),
            "due_at": iso(self.due),
            "started_at": iso(job.processed_on),
            "finished_at": iso(job.finished_on),
            "worker": job.processed_by,
            "dedup": job.dedup_key,
            "scheduler": job.scheduler_id,
            "parent": job.parent_key,
            "stacktrace": job.stacktrace,
            "corrupt": self.corrupt,
        }


class JobDetails(Struct, frozen=True):
    """All that is stored about a job."""

    view: JobView
    options: Any
    """Its options as they stand in Redis; None if they are not JSON."""
    lock_seconds: float | None
    """For how long the lock of a running job lives; 0: it has none; None: it does not run."""
    children: ChildCounts
    logs: list[str]
    """Its newest log lines, the oldest of them first."""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it: what `taskbull job --json` prints."""
        return {
            **self.view.describe(),
            "options": self.options,
            "lock_seconds": self.lock_seconds,
            "children": structs.asdict(self.children),
            "logs": self.logs,
        }


class JobPage(Struct, frozen=True):
    """Some of the jobs in one or several states."""

    jobs: list[JobView]
    total: int
    """How many jobs there are in these states."""


def iso(instant: datetime | None) -> str | None:
    """Return an instant as JSON has it: ISO 8601, with its offset."""
    return None if instant is None else instant.isoformat(timespec="milliseconds")


# Everything a server can be asked about its queues: the methods that both servers have in common.
#
# Each operation is a generator that yields what is to be asked, and is sent the answer; nothing is
# sent here. Every read is bounded, whatever is in the queues.


Node: TypeAlias = Endpoint
"""One of the Redis servers that hold the queues: the only one, or a master of a Cluster."""

LISTED = tuple(state for state in STATES if state is not JobState.PAUSED)
"""All states in which jobs are listed; those parked by a pause are among the waiting ones."""


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
    note: PauseNote | None = None
    """Who has paused it, and why, if they said so."""
    problem: str | None = None
    """Why it cannot be read; None: it can. Nothing else is known of it then."""


class ServerOperations:
    """The operations on all queues of one namespace."""

    namespace: Namespace
    _known: frozenset[str]
    _attempts_of: Callable[[Job], int]

    # The servers

    @looks
    def servers(self) -> Look[list[Node]]:
        """List the servers that hold the queues: one, or the masters of a Cluster."""
        return list_servers()

    @looks
    def ping(self, server: Node | None = None) -> Look[None]:
        """Raise at once if Redis, or one of its servers, does not answer.

        A Cluster answers if one of its nodes does.
        """
        if server is not None:
            yield from ask_on(server, servers.ping())
        else:
            yield from self._lost_servers()

    @looks
    def lost_servers(self) -> Look[dict[Node, str]]:
        """Return the nodes of a Cluster that do not answer, and why; raise if none does."""
        lost = yield from self._lost_servers()
        return {node: str(error) for node, error in lost.items()}

    def _lost_servers(self) -> Look[dict[Node, TaskbullError]]:
        nodes = yield from list_servers()
        lost = yield from lost_servers(nodes)
        if len(lost) == len(nodes):
            raise lost[nodes[0]]
        return lost

    @looks
    def info(self, server: Node) -> Look[dict[str, str]]:
        """Return what a server tells about itself: the fields of INFO."""
        return ask_on(server, servers.get_info())

    @looks
    def cluster_info(self, server: Node) -> Look[dict[str, str]]:
        """Return what a server tells about its Cluster: the fields of CLUSTER INFO."""
        return ask_on(server, servers.get_cluster_info())

    @looks
    def save_points(self, server: Node) -> Look[str]:
        """Return when a server writes snapshots, as its configuration has it; empty: never."""
        return ask_on(server, servers.get_save_points())

    @looks
    def time(self, server: Node) -> Look[float]:
        """Return the time by a server's clock, in seconds since 1970."""
        return ask_on(server, servers.get_time())

    @looks
    def server_of(self, queue: str) -> Look[Node]:
        """Return the server that holds a queue."""
        return server_of(self.namespace.keys(queue))

    @looks
    def refused_commands(self, queue: str) -> Look[dict[str, str]]:
        """Try all commands that taskbull needs for a queue; return those refused, and why."""
        keys, token = self.namespace.keys(queue), token_hex(8)
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

    @looks
    def exists(self, queue: str) -> Look[bool]:
        """Return whether a queue is in Redis, or belongs to a task of the app."""
        keys = self.namespace.keys(queue)
        if queue in self._known:
            return True
        return (yield from ask(browse.exists(keys)))

    @looks
    def find_queues(
        self, place: SearchPlace | None = None
    ) -> Look[tuple[list[str], SearchPlace | None]]:
        """Name the queues in the next 1000 keys or so, and where to go on; None: it was all."""
        return find_queues(self.namespace, place)

    @looks
    def queues(self) -> Look[list[str]]:
        """Name all queues, sorted: those found in Redis, and those of the app.

        All keys of the server are looked at, in short calls; `find_queues` makes one such call.
        """
        return all_queues(self.namespace, self._known)

    @looks
    def survey(self, queues: Iterable[str] | None = None) -> Look[list[QueueSummary]]:
        """Look at some queues, or at all: counts, workers, and how long the next job has waited.

        One short call for each queue, all in one trip, and one for each server. A queue that
        cannot be read is returned with the reason as its `problem`.
        """
        names = yield from self._names(queues)
        answers = yield from ask_queues(self.namespace, names, browse.survey_queue)
        clients: dict[Endpoint, list[Client] | None] = {}
        summaries: list[QueueSummary] = []
        for name in names:
            found = answers[name]
            if isinstance(found, TaskbullError):
                unknown = browse.UNKNOWN.counts
                summaries.append(
                    QueueSummary(name, False, None, None, unknown, None, problem=str(found))
                )
                continue
            each = self.namespace.keys(name)
            server = yield from server_of(each)
            if server not in clients:
                clients[server] = yield from self._clients_if_told(server)
            there = clients[server]
            workers = None if there is None else len(servers.workers_of(each, there))
            summary = QueueSummary(
                each.queue,
                found.paused,
                found.version,
                workers,
                found.counts,
                found.waiting_since,
                read_note(found.note) if found.paused else None,
            )
            summaries.append(summary)
        return summaries

    @looks
    def workers(
        self, queues: Iterable[str] | None = None
    ) -> Look[dict[str, list[ConnectedWorker]]]:
        """List the workers that are connected to some queues, or to all, Node's among them.

        Each server is asked once; `ServerRefused` if it does not tell. If a node of a Cluster does
        not answer, its queues are not among them.
        """
        names = yield from self._names(queues)
        lost: TaskbullError | None = None
        clients: dict[Endpoint, list[Client]] = {}
        workers: dict[str, list[ConnectedWorker]] = {}
        for name in names:
            try:
                keys = self.namespace.keys(name)
            except ConfigurationError:
                if queues is not None:
                    raise
                continue  # no worker of ours serves it
            try:
                server = yield from server_of(keys)
                if server not in clients:
                    clients[server] = yield from ask_on(server, servers.list_clients())
            except LOST as error:
                lost = error
                continue
            workers[name] = servers.workers_of(keys, clients[server])
        if lost is not None and not workers:
            raise lost
        return workers

    @looks
    def active(self, queue: str, most: int = 100) -> Look[list[ActiveJob]]:
        """List the jobs that have run longest: who runs them, and how long their locks live."""
        keys = self.namespace.keys(queue)
        found: list[ActiveJob] = []
        for start, stop in _pieces(most):
            some = yield from ask(browse.peek_active(keys, start, stop))
            found += some
            if len(some) <= stop - start:
                break
        return list({job.id: job for job in found}.values())

    @looks
    def last_event_id(self, queue: str) -> Look[str]:
        """Return the id of the last event of a queue; `0-0` if there is none."""
        return ask(last_event_id(self.namespace.keys(queue)))

    # The jobs

    @looks
    def jobs(
        self,
        queue: str,
        states: Sequence[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 20,
    ) -> Look[JobPage]:
        """List jobs by state: the next to run first, of finished ones the latest."""
        check_int("offset", offset, least=0)
        check_int("limit", limit, least=1)
        keys = self.namespace.keys(queue)
        counts = yield from ask(read.count_jobs(keys))
        found: list[JobView] = []
        total = 0
        for state in _listed(states):
            count = counts[state] + (counts[JobState.PAUSED] if state is JobState.WAITING else 0)
            start = max(0, offset - total)
            total += count
            wanted = min(limit - len(found), count - start)
            if wanted > 0:
                stop = start + wanted - 1
                up = state not in {JobState.COMPLETED, JobState.FAILED}
                jobs = yield from read.get_jobs(keys, state, start, stop, ascending=up)
                found += yield from self._views(keys, jobs, state)
        return JobPage(found, total)

    @looks
    def inspect(self, queue: str, job_id: str, *, log_lines: int | None = 200) -> Look[JobDetails]:
        """Return all that is stored about a job, with its newest log lines; None: all of them."""
        keys = self.namespace.keys(queue)
        job: Job | None = None
        if check_text("job_id", job_id) not in RESERVED_IDS:
            job = yield from ask(read.get_job(keys, job_id))
        if job is None:
            raise JobNotFound(queue, job_id)
        state = yield from ask(read.get_state(keys, job_id))
        [view] = yield from self._views(keys, [job], state)
        if log_lines is not None:
            check_int("log_lines", log_lines, least=1)
        start = -(log_lines or 0)
        logs = yield from ask(read.get_logs(keys, job_id, start, -1))
        lock = None
        if state is JobState.ACTIVE:
            lock = yield from ask(browse.get_lock_seconds(keys, job_id))
        options = yield from ask(browse.get_options(keys, job_id))
        children = yield from ask(read.count_children(keys, job_id))
        return JobDetails(view, options, lock, children, logs.lines)

    def _views(self, keys: QueueKeys, jobs: Sequence[Job], state: JobState) -> Look[list[JobView]]:
        due: list[datetime | None] = [None] * len(jobs)
        if state is JobState.DELAYED:
            due = yield from ask_together([browse.get_due(keys, job.id) for job in jobs])
        return [
            JobView(keys.queue, job, state, self._attempts_of(job), when)
            for job, when in zip(jobs, due, strict=True)
        ]

    def _names(self, queues: Iterable[str] | None) -> Look[list[str]]:
        if queues is None:
            return (yield from all_queues(self.namespace, self._known))
        return [queues] if isinstance(queues, str) else list(queues)

    def _clients_if_told(self, server: Endpoint) -> Look[list[Client] | None]:
        try:
            return (yield from ask_on(server, servers.list_clients()))
        except ServerRefused:  # an ACL rule, or a provider that forbids it
            return None


def _pieces(most: int) -> Iterable[tuple[int, int]]:
    check_int("most", most, least=1)
    for start in range(0, most, PEEKED):
        yield start, min(start + PEEKED, most) - 1


def _listed(states: Sequence[JobState | str] | None) -> Sequence[JobState]:
    if states is None:
        return LISTED
    chosen = [states] if isinstance(states, str) else states
    for state in chosen:
        if state not in set(STATES):
            raise refusal("state", f"be one of {', '.join(STATES)}", state)
    return [JobState(state) for state in chosen]
