"""Server methods that inspect Redis servers and explain why a job does not run."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from secrets import token_hex
from statistics import median
from typing import Final, TypeAlias

from msgspec.structs import replace

from taskbull.core.diagnosis import (
    LEAST_FAILED,
    MINUTES,
    WAITING_TO_START,
    ChildFacts,
    Explanation,
    JobFacts,
    explain,
    explain_queue,
)
from taskbull.core.job import JobRow
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.outcome import is_cancelled
from taskbull.core.queue_health import (
    Kept,
    QueueFacts,
    RedisNode,
    RunningSince,
    clock_ahead,
    rate,
    read_node,
    throughput,
)
from taskbull.core.steps import JobStep
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.job import RUN_TIME_FIELDS, UNKNOWN_TASK_FIELDS
from taskbull.core.worker_record import (
    BUSY_RECORD_LIFE,
    RECORD_LIFE,
    Seen,
    WorkerDeath,
    find_deaths,
)
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.monitor.browse import JobDetails, QueueSample, ServerReads, Workers
from taskbull.monitor.search import SearchPlace, all_queues, find_queues
from taskbull.queue.failures import Failures
from taskbull.queue.job_tree import read_nodes
from taskbull.queue.questions import (
    LOST,
    ask,
    ask_on,
    list_servers,
    lost_servers,
    ping,
    server_of,
    server_operation,
)
from taskbull.scripts import browse, read, records
from taskbull.scripts.call import AnySteps, Call
from taskbull.scripts.change import preview_steps
from taskbull.scripts.groups import get_groups
from taskbull.scripts.read import Place, last_event_id, pick_pending
from taskbull.store.address import Endpoint

# Each operation of a server is a generator that yields requests and gets the answers. It does no
# I/O.


Node: TypeAlias = Endpoint
"""A Redis server that holds queues: the only one, or a master of a Cluster."""


# Observation of one queue over time. It derives facts and rates from samples, without I/O.


FAILURES: Final = 200
"""Number of newest failed jobs to read for the most frequent error."""

_MEMORY: Final = 60.0
"""Length of the window for the rates of added and finished jobs, in seconds."""


class QueueWatch:
    """The observations of one queue. Add each read to it; `facts` summarizes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sampled_at = self.details_read_at = self.failures_at = -inf
        """Times of the last reads by the monotonic clock, maintained by the caller."""
        self.changed_at = -inf
        """Time of the last change that the caller knows of."""
        self.sample: QueueSample | None = None
        self._arrived: deque[tuple[float, int]] = deque()
        self._finished: deque[tuple[float, int]] = deque()
        self._versions: set[str] = set()
        self.ends: browse.EndsByMinute | None = None
        """Finished jobs per minute."""
        self.workers: Workers | None = None
        self.seen: Sequence[Seen] = ()
        """Records of taskbull workers."""
        self.failures: Failures | None = None
        self._without_lock: frozenset[str] = frozenset()
        self._lockless: frozenset[str] = frozenset()
        self._running: Sequence[RunningSince] = ()
        self._unknown: Counter[str] = Counter()
        self.problem: str | None = None
        """Error from reading slowly changing information, or None if it was read."""
        self.nodes: Sequence[RedisNode] = ()
        """The Redis servers."""
        self.group_jobs: Mapping[tuple[str, str], int] = {}
        """Number of jobs by group and state, as `count_group_jobs` returns it."""

    @property
    def is_busy(self) -> bool:
        """True if a job was running at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.ACTIVE] > 0

    @property
    def has_delayed(self) -> bool:
        """True if there was a delayed job at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.DELAYED] > 0

    @property
    def has_prioritized(self) -> bool:
        """True if there was a prioritized job at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.PRIORITIZED] > 0

    @property
    def has_failed(self) -> bool:
        """True if there was a failed job at the time of the last sample."""
        return self.sample is not None and self.sample.counts[JobState.FAILED] > 0

    @property
    def has_many_failures(self) -> bool:
        """True if enough jobs failed in the last minutes to read their errors."""
        return self.has_failed and self.facts().failed.total(MINUTES) >= LEAST_FAILED

    def sampled(self, sample: QueueSample) -> None:
        """Add a sample."""
        self.sample = sample
        if sample.problem is not None:
            return
        if sample.version is not None:
            self._versions.add(sample.version)
        _remember(self._arrived, sample.at, sample.last_id)
        counts = [each.count for each in (sample.completed, sample.failed) if each is not None]
        if counts:
            _remember(self._finished, sample.at, sum(counts))

    def checked(self, active: Sequence[JobRow]) -> None:
        """Set the longest-running jobs. A job without a lock counts from the second time on."""
        now = frozenset(row.job.id for row in active if row.lock_seconds is None)
        self._lockless, self._without_lock = now & self._without_lock, now
        started = [(row.job.processed_on, row.job) for row in active]
        running = [(began, job) for began, job in started if began is not None]
        since = (
            RunningSince(f"{job.name}#{job.id}", began, job.id, job.processed_by or "")
            for began, job in running
        )
        self._running = sorted(since, key=lambda each: each.started)

    def delayed(self, rows: Sequence[JobRow]) -> None:
        """Set the delayed jobs that are due next, to find those whose task no worker has."""
        self._unknown = Counter(row.job.name for row in rows if row.unknown_task is not None)

    def facts(self, now: datetime | None = None) -> QueueFacts:
        """Return the facts about the queue. At least one sample is required."""
        assert self.sample is not None, "nothing was seen yet"  # noqa: S101 - callers check it
        now = datetime.now(UTC).astimezone() if now is None else now
        found, ends = self.sample, self.ends
        ahead = max((node.ahead for node in self.nodes), key=abs, default=0.0)
        now -= timedelta(seconds=ahead)
        now_ms = int(now.timestamp() * 1000)
        done = broken = None
        if ends is not None:
            done = Kept(ends.minute_ms, ends.completed, ends.completed_since_ms)
            broken = Kept(ends.minute_ms, ends.failed, ends.failed_since_ms)
        connected = self._connected()
        alive = [one.record for one in self.seen if _is_alive(one, connected, now_ms)]
        records = [record for record in alive if record is not None]
        known = {record.id for record in records}
        refusals = [node.refusal for node in self.nodes]
        silent: dict[str, int] = {}
        if not any(refusals):  # Otherwise no worker can write its record.
            silent = {one.id: one.at_ms for one in self.seen if _is_silent(one, connected, now_ms)}
        gone = {one.id: one.at_ms for one in self.seen if one.id not in {*known, *silent}}
        last_ms = max((one.at_ms for one in self.seen), default=None)
        error, share, cancelled = _worst(self.failures)
        return QueueFacts(
            name=self.name,
            now=now,
            counts=found.counts,
            group_jobs=self.group_jobs,
            problem=self.sample.problem or self.problem,
            paused=found.paused,
            note=found.note,
            version=found.version,
            versions=frozenset(self._versions),
            waiting_since=found.waiting_since,
            next_due=found.next_due,
            next_scheduled=found.next_scheduled,
            concurrency=found.concurrency,
            rate_max=found.rate_max,
            rate_window=found.rate_window,
            started=found.started,
            limited_for=found.limited_for,
            connected=connected,
            records=records,
            gone=_instants(gone),
            silent=_instants(silent),
            last_seen=None if last_ms is None else instant_from_ms(last_ms),
            completed=throughput(found.completed, done, now_ms),
            failed=throughput(found.failed, broken, now_ms),
            completed_total=None if found.completed is None else found.completed.count,
            failed_total=None if found.failed is None else found.failed.count,
            arrivals=_rate_of(self._arrived),
            finishes=_rate_of(self._finished),
            unknown_tasks={
                name: count
                for name, count in self._unknown.items()
                if records and not any(name in (record.tasks or ()) for record in records)
            },
            longest=next((each for each in self._running if each.worker not in gone), None),
            lockless=len(self._lockless),
            # In a Cluster, the queue's node is unknown.
            ahead=ahead,
            refusal=refusals[0] if refusals and all(refusals) else "",
            cancelled_share=cancelled,
            worst_error=error,
            worst_share=share,
            worst_of=_newest_of(self.failures),
        )

    def _connected(self) -> Sequence[str] | None:
        workers = self.workers
        if workers is None or workers.refusal is not None:
            return None
        return [worker.name for worker in workers.by_queue.get(self.name, ())]


def _remember(samples: deque[tuple[float, int]], at: float, count: int) -> None:
    if samples and count < samples[-1][1]:
        samples.clear()  # The queue was removed and created again.
    samples.append((at, count))
    while at - samples[0][0] > _MEMORY:
        samples.popleft()


def _rate_of(samples: Sequence[tuple[float, int]]) -> float | None:
    return rate(samples[0], samples[-1]) if samples else None


def _is_alive(worker: Seen, connected: Sequence[str] | None, now_ms: int) -> bool:
    age = (now_ms - worker.at_ms) / 1000
    if worker.record is None or age >= RECORD_LIFE:
        return False
    if connected is None or worker.id in connected:
        return True
    return age < BUSY_RECORD_LIFE


def _is_silent(worker: Seen, connected: Sequence[str] | None, now_ms: int) -> bool:
    """Return whether a worker is connected but has missed two records."""
    if connected is None or worker.id not in connected:
        return False
    if worker.record is None:
        return (now_ms - worker.at_ms) / 1000 >= RECORD_LIFE
    return worker.record.is_late(now_ms)


def _instants(found: Mapping[str, int]) -> dict[str, datetime]:
    known = ((name, instant_from_ms(at_ms)) for name, at_ms in found.items())
    return {name: at for name, at in known if at is not None}


def _newest_of(failures: Failures | None) -> int:
    """Return the number of failed jobs that were read, or 0 if all were."""
    if failures is None or failures.examined >= failures.total or failures.sampled:
        return 0
    return failures.examined


def _worst(failures: Failures | None) -> tuple[str, float, float]:
    """Return the most frequent error, its share, and the share of cancelled jobs."""
    groups = [] if failures is None else failures.groups
    others = [group for group in groups if not is_cancelled(group.reason)]
    total = sum(group.about for group in groups)
    failed = sum(group.about for group in others)
    cancelled = 1 - failed / total if total else 0.0
    if not others:
        return "", 0.0, cancelled
    return others[0].error, others[0].about / max(failed, 1), cancelled


# Server methods that explain why a job or a queue does not run. They gather the facts.


_AWAITED: Final = 20
"""Maximum number of pending children to read."""

_DELAYED: Final = 50
"""Number of delayed jobs to check for tasks that no worker has."""

_SNAPSHOTS: Final = ("save", "stop-writes-on-bgsave-error")
"""Settings that decide whether Redis refuses writes after a failed snapshot."""

_LONGEST_REASON: Final = 300
_LOG_LINES: Final = 100
"""Number of newest log lines to search for deaths of workers."""

_LOOKED_AT: Final = 20
"""Number of longest-running jobs to check for locks."""


class ServerOperations(ServerReads):
    """Methods that inspect the servers, and explain the state of a job or a queue to a user."""

    @server_operation
    def why(self, queue: str, job_id: str | None = None) -> AnySteps[Explanation]:
        """Explain why a job does not run, or how it finished. Without an id, explain the queue.

        A missing job is explained as well and raises no error. It sends five calls, and one CLIENT
        LIST per server. A job that is running or waits for children needs one or two more calls.
        """
        now = datetime.now(UTC).astimezone()
        watch = yield from self._watch(queue)
        if job_id is None:
            return (yield from self._why_queue(watch, now))
        found = yield from self._inspect(queue, job_id)
        return explain((yield from self._job_facts(watch.facts(now), job_id, found)))

    @server_operation
    def facts(self, queue: str) -> AnySteps[QueueFacts]:
        """Gather the current facts about a queue, as used by `why` and `find_trouble`."""
        watch = yield from self._watch(queue)
        if watch.has_many_failures:
            watch.failures = yield from self._failures(queue, FAILURES)
        return watch.facts()

    def _watch(self, queue: str) -> AnySteps[QueueWatch]:
        """Read all available information about a queue once."""
        watch, keys = QueueWatch(queue), self.namespace.keys(queue)
        [sample] = yield from self._sample([queue], 60)
        watch.sampled(sample)
        watch.ends = yield from ask(count_ends(keys))
        watch.seen = yield from ask(records.get_records(keys))
        watch.workers = yield from self._workers()
        watch.nodes = yield from read_servers()
        if watch.is_busy:
            watch.checked((yield from ask(oldest_running(keys))).rows)
        if watch.has_delayed:
            watch.delayed((yield from ask(next_delayed(keys))).rows)
        return watch

    def _why_queue(self, watch: QueueWatch, now: datetime) -> AnySteps[Explanation]:
        keys = self.namespace.keys(watch.name)
        if watch.is_busy:  # A job may finish between the reads of its position and its lock.
            watch.checked((yield from ask(oldest_running(keys))).rows)
        facts = watch.facts(now)
        state = "paused" if facts.paused else "running" if facts.workers else "unattended"
        return Explanation(watch.name, None, state, explain_queue(facts))

    def _job_facts(
        self, facts: QueueFacts, job_id: str, found: JobDetails | None
    ) -> AnySteps[JobFacts]:
        keys = self.namespace.keys(facts.name)
        if found is None:
            [sample] = yield from self._sample([facts.name])
            return JobFacts(queue=facts, id=job_id, stored=False, last_id=sample.last_id)
        job, state, children = found.row.job, found.row.state, found.children
        usual, awaited, waits = None, list[ChildFacts](), list[JobStep]()
        if state is JobState.ACTIVE:
            usual = yield from self._usual(keys, job.name)
        if state is JobState.WAITING_CHILDREN:
            awaited = yield from _awaited(keys, job_id)
            preview = yield from ask(preview_steps(keys, job_id))
            waits = [step for step in preview.steps if step.is_waiting]
        deaths = list[WorkerDeath]()
        if job.stalled_count or (state is JobState.ACTIVE and found.row.lock_seconds is None):
            logs = yield from ask(read.get_newest_logs(keys, job_id, _LOG_LINES))
            deaths = find_deaths(logs.lines)
        group = None
        if state in WAITING_TO_START and job.options.group_id is not None:
            now_ms = int(time.time() * 1000)
            [found_group] = yield from ask(get_groups(keys, [job.options.group_id], now_ms))
            group = found_group.info
        unranked = 0
        if state is JobState.PRIORITIZED:
            unranked = facts.counts[JobState.WAITING] + facts.counts[JobState.PAUSED]
        return JobFacts(
            queue=facts,
            id=job_id,
            stored=True,
            state=state,
            sure=found.sure,
            last_id=found.last_id,
            name=job.name,
            attempts_made=job.attempts_made,
            attempts=found.row.attempts,
            reason=(job.failed_reason or "").partition("\n")[0][:_LONGEST_REASON],
            started=job.processed_on,
            finished=job.finished_on,
            worker=job.processed_by or "",
            lock_seconds=found.row.lock_seconds,
            deaths=deaths,
            lock_renewed=_renewed(facts, job.processed_by, found.row.lock_seconds),
            usual=usual,
            deferred_failure=job.deferred_failure or "",
            due=found.row.due,
            schedule=job.scheduler_id or "",
            unknown_task=found.row.unknown_task,
            is_held=found.row.is_held,
            pending=children.unprocessed,
            children=sum((children.processed, children.unprocessed, children.ignored))
            + children.failed,
            awaited=awaited,
            waits=waits,
            expires=job.expires,
            group=group,
            before=None if found.before is None else found.before + unranked,
            before_unranked=unranked,
        )

    def _usual(self, keys: QueueKeys, name: str) -> AnySteps[float | None]:
        """Return the median run time of a task's latest completed jobs, in seconds."""
        call = browse.list_jobs(keys, JobState.COMPLETED, fields=RUN_TIME_FIELDS)
        page = yield from ask(call)
        took = [
            row.job.finished_ms - row.job.processed_ms
            for row in page.rows
            if row.job.name == name
            and row.job.finished_ms is not None
            and row.job.processed_ms is not None
        ]
        return max(median(took), 0) / 1000 if took else None

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
            yield from ping(server)
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
        return ask_on(server, browse.get_info())

    @server_operation
    def cluster_info(self, server: Node) -> AnySteps[dict[str, str]]:
        """Return the fields of a server's CLUSTER INFO."""
        return ask_on(server, browse.get_cluster_info())

    @server_operation
    def save_points(self, server: Node) -> AnySteps[str]:
        """Return a server's snapshot settings (`save`). Empty if it writes no snapshots."""
        return ask_on(server, browse.get_setting("save"))

    @server_operation
    def time(self, server: Node) -> AnySteps[float]:
        """Return the time by a server's clock, in seconds since 1970."""
        return ask_on(server, browse.get_time())

    @server_operation
    def server_of(self, queue: str) -> AnySteps[Node]:
        """Return the server that holds a queue."""
        return server_of(self.namespace.keys(queue))

    @server_operation
    def refused_commands(self, queue: str) -> AnySteps[dict[str, str]]:
        """Try all commands that taskbull needs for a queue. Return the refused ones with errors."""
        keys, token = self.namespace.keys(queue), token_hex(8)
        server = yield from server_of(keys)
        refused = yield from ask_on(server, browse.probe_commands(keys, token))
        for name, command in browse.try_plainly(keys, token).items():
            try:
                yield from ask_on(server, command)
            except ServerRefused as error:
                if error.code == "NOPERM" or "unknown command" in str(error):
                    refused[name] = str(error)
        return refused

    @server_operation
    def try_shared_keys(self) -> AnySteps[None]:
        """Raise an error if the user may not write the keys that all queues share."""
        return ask(browse.try_shared_keys(self.namespace.prefix, token_hex(8)))

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
    def last_event_id(self, queue: str) -> AnySteps[str]:
        """Return the id of a queue's last event, or `0-0` if there is none."""
        return ask(last_event_id(self.namespace.keys(queue)))


def count_ends(keys: QueueKeys) -> Call[browse.EndsByMinute]:
    """Count the stored jobs that finished in each of the last 60 minutes."""
    minute_ms = int(time.time()) // 60 * 60_000
    return browse.count_ends(keys, minute_ms, 60)


def oldest_running(keys: QueueKeys) -> Call[browse.JobRows]:
    """Read the longest-running jobs of a queue, to check their locks."""
    return browse.list_jobs(keys, JobState.ACTIVE, limit=_LOOKED_AT, fields=RUN_TIME_FIELDS)


def next_delayed(keys: QueueKeys) -> Call[browse.JobRows]:
    """Read the delayed jobs that are due next, to find those whose task no worker has."""
    return browse.list_jobs(keys, JobState.DELAYED, limit=_DELAYED, fields=UNKNOWN_TASK_FIELDS)


def _awaited(keys: QueueKeys, job_id: str) -> AnySteps[list[ChildFacts]]:
    places = yield from ask(pick_pending(Place(keys, job_id), _AWAITED))
    nodes = yield from read_nodes(places)
    found = [
        ChildFacts(f"{node.job.name or place.queue.queue}#{node.job.id}", node.state, node.job.id)
        for place, node in zip(places, nodes, strict=True)
    ]
    return sorted(found, key=lambda child: child.label)


def _renewed(facts: QueueFacts, worker: str | None, lock: float | None) -> float | None:
    """Return the seconds since a lock was renewed, if its worker's lock duration is known."""
    for record in facts.records:
        if record.id == worker and lock is not None and 0 <= lock <= record.lock_duration:
            return record.lock_duration - lock
    return None


def read_servers() -> AnySteps[list[RedisNode]]:
    """Return the state of each Redis server."""
    nodes: list[RedisNode] = []
    for server in (yield from list_servers()):
        name, settings, asked = str(server), dict[str, str](), time.time()
        try:
            info = yield from ask_on(server, browse.get_info())
            ahead = clock_ahead(info, asked, time.time())
            if info.get("rdb_last_bgsave_status") == "err":
                for setting in _SNAPSHOTS:
                    with suppress(ServerRefused):
                        settings[setting] = yield from ask_on(server, browse.get_setting(setting))
        except ServerRefused:  # An ACL rule or the provider forbids INFO.
            nodes.append(RedisNode(name))
        except LOST as error:
            nodes.append(RedisNode(name, problem=str(error)))
        else:
            nodes.append(replace(read_node(name, info, settings), ahead=ahead))
    return nodes
