"""Server methods that explain why a job or a queue does not run. They gather the facts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from statistics import median
from typing import Final

from taskbull.core.diagnosis import ChildFacts, Explanation, JobFacts, explain, explain_queue
from taskbull.core.keys import QueueKeys
from taskbull.core.queue_health import QueueFacts
from taskbull.core.states import JobState
from taskbull.core.wire.job import RUN_TIME_FIELDS, UNKNOWN_TASK_FIELDS
from taskbull.monitor.browse import JobDetails, ServerLooks
from taskbull.monitor.queue_watch import QueueWatch
from taskbull.queue.job_tree import read_nodes
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import ask
from taskbull.scripts import browse, records
from taskbull.scripts.browse import EndsByMinute, JobRows
from taskbull.scripts.call import AnySteps, Call
from taskbull.scripts.read import Place, pick_pending

_AWAITED: Final = 20
"""Maximum number of pending children to read."""

_DELAYED: Final = 50
"""Number of delayed jobs to check for tasks that no worker has."""

_LONGEST_REASON: Final = 300
_LOOKED_AT: Final = 20
"""Number of longest-running jobs to check for locks."""


class ServerExplanations(ServerLooks):
    """Methods that explain the state of a job or a queue to a user."""

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
        return watch.facts()

    def _watch(self, queue: str) -> AnySteps[QueueWatch]:
        """Read all available information about a queue once."""
        watch, keys = QueueWatch(queue), self.namespace.keys(queue)
        [sample] = yield from self._sample([queue], 60)
        watch.sampled(sample)
        watch.counted((yield from ask(count_ends(keys))))
        seen = yield from ask(records.get_records(keys))
        watch.met((yield from self._workers()), seen)
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
        usual, awaited = None, list[ChildFacts]()
        if state is JobState.ACTIVE:
            usual = yield from self._usual(keys, job.name)
        if state is JobState.WAITING_CHILDREN:
            awaited = yield from _awaited(keys, job_id)
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
            expires=job.expires,
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


def count_ends(keys: QueueKeys) -> Call[EndsByMinute]:
    """Count the stored jobs that finished in each of the last 60 minutes."""
    minute_ms = int(time.time()) // 60 * 60_000
    return browse.count_ends(keys, minute_ms, 60)


def oldest_running(keys: QueueKeys) -> Call[JobRows]:
    """Read the longest-running jobs of a queue, to check their locks."""
    return browse.list_jobs(keys, JobState.ACTIVE, limit=_LOOKED_AT, fields=RUN_TIME_FIELDS)


def next_delayed(keys: QueueKeys) -> Call[JobRows]:
    """Read the delayed jobs that are due next, to find those whose task no worker has."""
    return browse.list_jobs(keys, JobState.DELAYED, limit=_DELAYED, fields=UNKNOWN_TASK_FIELDS)


def _awaited(keys: QueueKeys, job_id: str) -> AnySteps[list[ChildFacts]]:
    places = yield from ask(pick_pending(Place(keys, job_id), _AWAITED))
    nodes = yield from read_nodes(places)
    found = [
        ChildFacts(f"{node.job.name or place.queue.queue}#{node.job.id}", node.state)
        for place, node in zip(places, nodes, strict=True)
    ]
    return sorted(found, key=lambda child: child.label)


def _renewed(facts: QueueFacts, worker: str | None, lock: float | None) -> float | None:
    """Return the seconds since a lock was renewed, if its worker's lock duration is known."""
    for record in facts.records:
        if record.id == worker and lock is not None and 0 <= lock <= record.lock_duration:
            return record.lock_duration - lock
    return None
