"""Server methods that inspect servers, queues and jobs, and the views that they return.

Each operation is a generator that yields questions and receives the answers. It does no I/O.
"""

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
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import (
    LOST,
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
from taskbull.scripts.call import AnySteps
from taskbull.scripts.events import last_event_id
from taskbull.scripts.read import ChildCounts, Counts
from taskbull.scripts.servers import Client, ConnectedWorker, try_commands, try_plainly
from taskbull.store.address import Endpoint, Namespace

# Views of jobs.


class JobView(Struct, frozen=True):
    """A job with its state and due time."""

    queue: str
    job: Job
    state: JobState
    attempts: int
    """Maximum number of attempts."""
    due: datetime | None = None
    """Due time, if it is delayed."""

    @property
    def data(self) -> Any:
        """Its data, or the raw text if the data is not JSON."""
        try:
            return self.job.data
        except CorruptJob:
            return self.job.raw_data.decode("utf-8", "backslashreplace")

    @property
    def progress(self) -> Any:
        """Its progress, or None if there is none or it is not JSON."""
        try:
            return self.job.progress
        except CorruptJob:
            return None

    @property
    def corrupt(self) -> str | None:
        """The reason why workers cannot read the job, or None if they can."""
        found = self.job.corrupt
        try:
            _ = self.job.data
        except CorruptJob as error:
            found = error
        return None if found is None else str(found)

    def describe(self) -> dict[str, Any]:
        """Return the job as JSON-compatible values. Times are ISO 8601, durations in seconds."""
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
    """All stored information about a job."""

    view: JobView
    options: Any
    """Its stored options, or None if they are not JSON."""
    lock_seconds: float | None
    """Seconds until the lock expires, 0 if it has no lock, or None if it is not running."""
    children: ChildCounts
    logs: list[str]
    """Its newest log lines, in the order they were written."""

    def describe(self) -> dict[str, Any]:
        """Return the details as JSON-compatible values, as printed by `taskbull job --json`."""
        return {
            **self.view.describe(),
            "options": self.options,
            "lock_seconds": self.lock_seconds,
            "children": structs.asdict(self.children),
            "logs": self.logs,
        }


class JobPage(Struct, frozen=True):
    """A page of the jobs in one or several states."""

    jobs: list[JobView]
    total: int
    """Number of jobs in these states."""


def iso(instant: datetime | None) -> str | None:
    """Format a time for JSON as ISO 8601 with its UTC offset."""
    return None if instant is None else instant.isoformat(timespec="milliseconds")


# Methods that the async and the sync server share. Lists are read in chunks of bounded size.

Node: TypeAlias = Endpoint
"""A Redis server that holds queues: the only one, or a master of a Cluster."""

LISTED = tuple(state for state in STATES if state is not JobState.PAUSED)
"""States that are listed by default. Jobs in the paused list are listed as waiting."""


class QueueSummary(Struct, frozen=True):
    """A summary of a queue."""

    name: str
    paused: bool
    version: str | None
    """Version string that the producer stored, such as `bullmq:5.62.0`."""
    workers: int | None
    """Number of connected workers, or None if the server does not list its clients."""
    counts: Counts
    waiting_since: datetime | None
    """Time when the longest-waiting job was added, or became due if it was delayed."""
    note: PauseNote | None = None
    """User and reason of the pause, if they were recorded."""
    problem: str | None = None
    """Reason why the queue cannot be read, or None. If set, the other fields are empty."""


class ServerOperations:
    """Methods that inspect all queues in a namespace."""

    namespace: Namespace
    _known: frozenset[str]
    _attempts_of: Callable[[Job], int]

    # The servers

    @server_operation
    def servers(self) -> AnySteps[list[Node]]:
        """List the servers that hold the queues: a single one, or the masters of a Cluster."""
        return list_servers()

    @server_operation
    def ping(self, server: Node | None = None) -> AnySteps[None]:
        """Raise an error if Redis, or the given server, does not answer.

        A Cluster counts as available if one of its nodes answers.
        """
        if server is not None:
            yield from ask_on(server, servers.ping())
        else:
            yield from self._lost_servers()

    @server_operation
    def lost_servers(self) -> AnySteps[dict[Node, str]]:
        """Return the servers that do not answer, with the errors. Raise if none answers."""
        lost = yield from self._lost_servers()
        return {node: str(error) for node, error in lost.items()}

    def _lost_servers(self) -> AnySteps[dict[Node, TaskbullError]]:
        nodes = yield from list_servers()
        lost = yield from lost_servers(nodes)
        if len(lost) == len(nodes):
            raise lost[nodes[0]]
        return lost

    @server_operation
    def info(self, server: Node) -> AnySteps[dict[str, str]]:
        """Return the fields of a server's INFO."""
        return ask_on(server, servers.get_info())

    @server_operation
    def cluster_info(self, server: Node) -> AnySteps[dict[str, str]]:
        """Return the fields of a server's CLUSTER INFO."""
        return ask_on(server, servers.get_cluster_info())

    @server_operation
    def save_points(self, server: Node) -> AnySteps[str]:
        """Return a server's snapshot settings (`save`). Empty if it writes no snapshots."""
        return ask_on(server, servers.get_save_points())

    @server_operation
    def time(self, server: Node) -> AnySteps[float]:
        """Return the time by a server's clock, in seconds since 1970."""
        return ask_on(server, servers.get_time())

    @server_operation
    def server_of(self, queue: str) -> AnySteps[Node]:
        """Return the server that holds a queue."""
        return server_of(self.namespace.keys(queue))

    @server_operation
    def refused_commands(self, queue: str) -> AnySteps[dict[str, str]]:
        """Try all commands that taskbull needs for a queue. Return the refused ones with errors."""
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

    @server_operation
    def exists(self, queue: str) -> AnySteps[bool]:
        """Return True if a queue is in Redis or belongs to a task of the app."""
        keys = self.namespace.keys(queue)
        if queue in self._known:
            return True
        return (yield from ask(browse.exists(keys)))

    @server_operation
    def find_queues(
        self, place: SearchPlace | None = None
    ) -> AnySteps[tuple[list[str], SearchPlace | None]]:
        """Return the queues in the next 1000 keys or so, and the place of the next step.

        The place is None after the last step.
        """
        return find_queues(self.namespace, place)

    @server_operation
    def queues(self) -> AnySteps[list[str]]:
        """Return the sorted names of all queues, in Redis and in the app.

        This scans all keys of the server in short calls. `find_queues` makes one such call.
        """
        return all_queues(self.namespace, self._known)

    @server_operation
    def survey(self, queues: Iterable[str] | None = None) -> AnySteps[list[QueueSummary]]:
        """Summarize some or all queues: counts, workers and the waiting time of the next job.

        It sends one short call per queue, all in one round trip, and one per server. A queue that
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

    @server_operation
    def workers(
        self, queues: Iterable[str] | None = None
    ) -> AnySteps[dict[str, list[ConnectedWorker]]]:
        """List the connected workers of some or all queues, including Node.js workers.

        It sends one command per server. If a Cluster node does not answer, its queues are left out.
        Raises `ServerRefused` if a server does not list its clients.
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
                continue  # No taskbull worker can serve a queue with this name.
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

    @server_operation
    def active(self, queue: str, most: int = 100) -> AnySteps[list[ActiveJob]]:
        """List the longest-running jobs, with their workers and locks."""
        keys = self.namespace.keys(queue)
        found: list[ActiveJob] = []
        for start, stop in _pieces(most):
            some = yield from ask(browse.peek_active(keys, start, stop))
            found += some
            if len(some) <= stop - start:
                break
        return list({job.id: job for job in found}.values())

    @server_operation
    def last_event_id(self, queue: str) -> AnySteps[str]:
        """Return the id of a queue's last event, or `0-0` if there is none."""
        return ask(last_event_id(self.namespace.keys(queue)))

    # The jobs

    @server_operation
    def jobs(
        self,
        queue: str,
        states: Sequence[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 20,
    ) -> AnySteps[JobPage]:
        """List jobs by state, the next to run first, or the latest first if they have finished."""
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

    @server_operation
    def inspect(
        self, queue: str, job_id: str, *, log_lines: int | None = 200
    ) -> AnySteps[JobDetails]:
        """Return all stored information about a job, with its newest log lines.

        If `log_lines` is None, all log lines are returned. Raises `JobNotFound` if the job does not
        exist.
        """
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

    def _views(
        self, keys: QueueKeys, jobs: Sequence[Job], state: JobState
    ) -> AnySteps[list[JobView]]:
        due: list[datetime | None] = [None] * len(jobs)
        if state is JobState.DELAYED:
            due = yield from ask_together([browse.get_due(keys, job.id) for job in jobs])
        return [
            JobView(keys.queue, job, state, self._attempts_of(job), when)
            for job, when in zip(jobs, due, strict=True)
        ]

    def _names(self, queues: Iterable[str] | None) -> AnySteps[list[str]]:
        if queues is None:
            return (yield from all_queues(self.namespace, self._known))
        return [queues] if isinstance(queues, str) else list(queues)

    def _clients_if_told(self, server: Endpoint) -> AnySteps[list[Client] | None]:
        try:
            return (yield from ask_on(server, servers.list_clients()))
        except ServerRefused:  # An ACL rule or the provider forbids CLIENT LIST.
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
