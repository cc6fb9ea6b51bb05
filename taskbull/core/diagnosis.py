"""Explain why a job or a queue does not run, in sentences for users.

The functions are pure: they take facts that were read from Redis and return reasons, the main cause
first. A job's reasons are ordered by its own state, then its queue, then its place in the queue.
The module also formats times and numbers for these sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from taskbull.core.groups import GroupInfo, Limiter
from taskbull.core.keys import JobState
from taskbull.core.outcome import is_cancelled, is_expired
from taskbull.core.queue_health import QueueFacts, plain
from taskbull.core.steps import JobStep
from taskbull.core.validation import MAX_SAFE_INTEGER, command, instant_from_ms, nearest
from taskbull.core.worker_record import WorkerDeath, WorkerRecord

# Times and numbers in words.


_STEPS: Final = ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"))


def span(seconds: float) -> str:
    """Format a duration in its largest unit: `0.2 s`, `41 min`, `3 h`, `12 days`."""
    seconds = max(seconds, 0)
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for below, unit, name in _STEPS:
        if seconds < below:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def moment(instant: datetime, now: datetime) -> str:
    """Format a time in the time zone of `now`, with the date unless that is today."""
    local = instant.astimezone(now.tzinfo)
    near = abs((instant - now).total_seconds()) < 120
    clock = f"{local:%H:%M:%S}" if near else f"{local:%H:%M}"
    return clock if local.date() == now.date() else f"{local:%Y-%m-%d} {clock}"


def ago(instant: datetime, now: datetime) -> str:
    """Format the time since an instant: `41 min ago`."""
    return f"{span((now - instant).total_seconds())} ago"


def count_of(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 worker`, `12,840 workers`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


# Reasons that hold for all jobs of a queue, the most important first.


class Reason(Struct, frozen=True):
    """A reason why a job does not run, or a description of how it finished."""

    code: str
    """Short identifier, such as `paused` or `task_unknown`."""
    text: str
    """Explanation for users, in full sentences."""
    facts: Mapping[str, Any] = {}
    """Values that the text was built from."""


def holding(
    queue: QueueFacts,
    task: str = "",
    unknown_task: tuple[datetime, datetime] | None = None,
    state: JobState = JobState.WAITING,
) -> Iterator[Reason]:
    """Yield the reasons why workers fetch no jobs of a queue, or none of one task.

    Args:
        queue: Facts about the queue.
        task: Task name to check against the tasks that the workers know, or "" to skip that check.
        unknown_task: First and last time when a worker fetched the job without knowing its task.
        state: State of the job. Limits on starts are reported only for jobs that wait to start.
    """
    if queue.refusal:
        text = f"Redis refuses writes: {queue.refusal}. No worker can fetch a job."
        yield _reason("refused", text, reason=queue.refusal)
    if queue.paused:
        yield _paused(queue)
    if queue.workers == 0:
        yield _no_worker(queue)
        return
    if task and (reason := _task_unknown(queue, task, unknown_task)) is not None:
        yield reason
    if queue.is_unresponsive:
        yield _silent(queue)
    ours: Sequence[WorkerRecord] = () if queue.foreign else queue.responding
    opened = [one for one in ours if one.circuit is not None and one.circuit.state == "open"]
    if ours and len(opened) == len(ours):
        yield _breaker(queue, opened)
    if state in WAITING_TO_START:
        yield from _limits(queue)
    if ours and all(record.stopping or record.quiet for record in ours):
        yield _not_fetching(ours)


WAITING_TO_START = frozenset(
    {JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED, JobState.UNKNOWN}
)


def explain_queue(queue: QueueFacts) -> list[Reason]:
    """Return the reasons why the jobs of a queue do not run, the main cause first."""
    reasons = [*holding(queue)]
    is_held = bool(reasons) or queue.is_stuck
    if queue.waiting or queue.overdue is not None:
        reasons += _busy(queue)
    if queue.silent and not queue.is_unresponsive:
        reasons.append(_silent(queue))
    if queue.unknown_tasks:
        facts = {"tasks": dict(queue.unknown_tasks)}
        reasons.append(Reason("task_unknown", f"{unknown_tasks(queue)}.", facts))
    if queue.lockless:
        jobs = count_of(queue.lockless, "running job")
        text = f"{jobs} lost {'its' if queue.lockless == 1 else 'their'} worker."
        reasons.append(Reason("stalled", text, {"jobs": queue.lockless}))
    reasons.append(_pace(queue, held=is_held or bool(queue.lockless)))
    return reasons


def unknown_tasks(queue: QueueFacts) -> str:
    """Describe the jobs whose task no worker has."""
    counts = sorted(queue.unknown_tasks.items(), key=lambda item: (-item[1], item[0]))
    (task, count), *others = counts[:3]
    text = f"{count_of(count, 'job')} {'waits' if count == 1 else 'wait'} for task {task}"
    text += "".join(f", and {count_of(many, 'job')} for task {name}" for name, many in others)
    return f"{text}, which no worker has"


def _paused(queue: QueueFacts) -> Reason:
    note = queue.note
    since = None if note is None else instant_from_ms(note.at_ms)
    text = "The queue is paused"
    facts: dict[str, Any] = {}
    if note is not None:
        if since is not None and note.at_ms:
            text = f"The queue was paused {ago(since, queue.now)}"
            facts["since"] = since
        text += f" by {note.by}" if note.by else ""
        text += f" ({note.why})" if note.why else ""
        facts |= {"by": note.by, "why": note.why}
    advice = f"Resume it with `{command('resume', queue.name)}`."
    return Reason("paused", f"{text}. {advice}", facts)


def _not_fetching(workers: Sequence[WorkerRecord]) -> Reason:
    quiet = [record.id for record in workers if record.quiet and not record.stopping]
    is_one = len(workers) == 1
    who = "The only worker is" if is_one else f"All {len(workers)} workers are"
    fetches = "fetches" if is_one else "fetch"
    if not quiet:
        text = f"{who} shutting down and {fetches} no more jobs."
        return Reason("stopping", text, {"workers": len(workers)})
    text = f"{who} quiet and {fetches} no jobs. Run `{command('resume-worker', quiet[0])}`."
    return Reason("quiet", text, {"workers": quiet})


def _no_worker(queue: QueueFacts) -> Reason:
    facts: dict[str, Any] = {}
    if queue.connected is None:
        text = f"No taskbull worker is known to serve '{queue.name}', and Redis does not list its"
        text += " connections."
    else:
        text = f"No worker is connected to '{queue.name}'."
    if queue.last_seen is not None:
        text += f" The last taskbull worker was seen {ago(queue.last_seen, queue.now)}."
        facts["last_seen"] = queue.last_seen
    return Reason("no_worker", f"{text} Start one with `taskbull worker`.", facts)


def _silent(queue: QueueFacts) -> Reason:
    count, is_one = len(queue.silent), len(queue.silent) == 1
    who = "The only worker is" if is_one else f"All {count} workers are"
    if not queue.is_unresponsive:
        who = f"{count} of {queue.workers} workers {'is' if is_one else 'are'}"
    since = span((queue.now - max(queue.silent.values())).total_seconds())
    text = f"{who} connected but {'does' if is_one else 'do'} not respond (for {since}): {_FROZEN}."
    return Reason("not_responding", text, {"workers": sorted(queue.silent)})


_FROZEN: Final = "the process is frozen, or a task blocks its event loop"


def _task_unknown(
    queue: QueueFacts, task: str, unknown_task: tuple[datetime, datetime] | None
) -> Reason | None:
    records = queue.records
    if queue.foreign or not records or any(record.knows_all for record in records):
        return None
    known = sorted({name for record in records for name in record.tasks or ()})
    if task in known:
        return None
    all_of_them = "The only worker has no"
    if len(records) > 1:
        all_of_them = f"None of the {len(records)} workers has a"
    near = nearest(task, known)
    hint = f"; did you mean {near}?" if near else "."
    text = f"{all_of_them} task named {task}{hint}"
    if unknown_task is not None:
        first, last = unknown_task
        text += f" Workers have skipped it for {span((queue.now - first).total_seconds())}"
        text += f" (last {ago(last, queue.now)}). No attempt was used."
    return Reason("task_unknown", text, {"task": task, "workers": len(records), "nearest": near})


def _busy(queue: QueueFacts) -> Iterator[Reason]:
    slots = queue.busy_slots
    if not slots or queue.paused:
        return
    many = len(queue.responding)
    of = "the only worker" if many == 1 else f"all {many} workers"
    text = f"All {slots:,} slots of {of} are busy" if slots > 1 else f"The slot of {of} is busy"
    advice = ""
    if lost := queue.lost:
        text += f", {lost:,} of them with jobs that lost their lock, whose result will be ignored"
        advice = " If they do not end, restart the worker."
    elif queue.longest is not None:
        ran = span((queue.now - queue.longest.started).total_seconds())
        text += f"; the longest-running job, {queue.longest.label}, has run for {ran}"
    if queue.is_stuck and queue.longest is not None and not lost:
        stack = command("stack", queue.name, queue.longest.id)
        advice = f" `{stack}` shows where it is. Cancel it, or start another worker."
    yield Reason("busy", f"{text}.{advice}", {"slots": slots, "stuck": queue.is_stuck})


def _breaker(queue: QueueFacts, opened: Sequence[WorkerRecord]) -> Reason:
    circuits = [record.circuit for record in opened if record.circuit is not None]
    ends = [circuit.until_ms for circuit in circuits if circuit.until_ms is not None]
    until = instant_from_ms(min(ends)) if ends else None
    failures = max(circuit.failures for circuit in circuits)
    text = "The circuit breaker of the only worker is open"
    if len(opened) > 1:
        text = f"The circuit breakers of all {len(opened)} workers are open"
    text += "" if until is None else f" until {moment(until, queue.now)}"
    text += f", after {count_of(failures, 'failure')} in a row." if failures else "."
    return Reason("breaker", text, {"until": until, "workers": len(opened), "failures": failures})


def _limits(queue: QueueFacts) -> Iterator[Reason]:
    most, window = _rate_limit(queue)
    if queue.limited_for is not None and most is not None and queue.started >= most:
        per = "" if window is None else f" per {_unit(window)}"
        limit = f"The rate limit of {count_of(most, 'job')}{per} is reached"
        if queue.started >= MAX_SAFE_INTEGER:  # the value that `rate_limit` writes
            limit = "The queue is rate-limited manually"
        text = f"{limit}; the next job can start in {span(queue.limited_for)}."
        yield Reason("limited", text, {"max": most, "seconds": queue.limited_for})
    active = queue.counts.get(JobState.ACTIVE, 0)
    if queue.concurrency is not None and queue.concurrency <= active:
        text = f"The queue's concurrency limit of {queue.concurrency:,} is reached."
        yield Reason("at_the_limit", text, {"concurrency": queue.concurrency, "active": active})


def _rate_limit(queue: QueueFacts) -> tuple[int | None, float | None]:
    """Return the number of jobs and the seconds of the queue's limit, or of its workers'."""
    if queue.rate_max is not None:
        return queue.rate_max, queue.rate_window
    own = [record.limiter for record in queue.records if record.limiter is not None]
    if own and len(own) == queue.workers:
        return max(own)
    return None, None


def _unit(seconds: float) -> str:
    return {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}.get(
        seconds, span(seconds)
    )


def _pace(queue: QueueFacts, *, held: bool) -> Reason:
    waiting, out = queue.waiting, queue.out
    facts: dict[str, Any] = {"waiting": waiting, "out": out, "in": queue.arrivals}
    if waiting == 0:
        text = "No jobs are waiting."
        delayed = queue.counts.get(JobState.DELAYED, 0)
        if delayed and queue.next_due is not None:
            first = (queue.next_due - queue.now).total_seconds()
            which = f"the first of {delayed:,} delayed jobs" if delayed > 1 else "the delayed job"
            when = f"is due in {span(first)}" if first > 0 else f"was due {span(-first)} ago"
            text = f"No jobs are waiting; {which} {when}."
        return Reason("idle", text, facts)
    text = f"{count_of(waiting, 'job')} {'is' if waiting == 1 else 'are'} waiting"
    if queue.waiting_since is not None:
        waited = span((queue.now - queue.waiting_since).total_seconds())
        text += f"; {'it' if waiting == 1 else 'the next one'} has waited {waited}"
    left = queue.seconds_left
    if out and not held:
        if left is None:
            text += f". Workers finished {_rate(out)} in the last minute"
        elif left == float("inf"):
            text += f". Workers finish {_rate(out)} (last minute), but jobs are added faster"
        else:
            text += f". At {_rate(out)} (last minute), the queue is empty in about {span(left)}"
    return Reason("waiting", f"{text}.", facts)


# Reasons for a single job.


class ChildFacts(Struct, frozen=True):
    """A child that a job waits for."""

    label: str
    """Name and id of the child, such as `fetch#13`."""
    state: JobState
    id: str = ""


class JobFacts(Struct, frozen=True, kw_only=True):
    """Snapshot of a job and its queue. Unknown values are `None`."""

    queue: QueueFacts
    id: str
    stored: bool
    """True if the job exists in Redis."""
    state: JobState = JobState.UNKNOWN
    sure: bool = True
    """True if the state and the place are exact."""
    last_id: int = 0
    """Last id that the queue's counter assigned."""
    name: str = ""
    attempts_made: int = 0
    attempts: int = 1
    reason: str = ""
    """Error of the last attempt."""
    started: datetime | None = None
    finished: datetime | None = None
    worker: str = ""
    lock_seconds: float | None = None
    """Seconds until the lock expires, or `None` if the job has no lock."""
    deaths: Sequence[WorkerDeath] = ()
    """Deaths of workers while they ran the job, oldest first."""
    lock_renewed: float | None = None
    """Seconds since the lock was last renewed."""
    usual: float | None = None
    """Usual run time of such jobs in seconds."""
    stalled_interval: float = 30.0
    deferred_failure: str = ""
    """Reason why the next worker will fail the job without running it."""
    due: datetime | None = None
    schedule: str = ""
    unknown_task: tuple[datetime, datetime] | None = None
    """First and last time when a worker fetched the job without knowing its task."""
    is_held: bool = False
    """True if a worker delayed the job because it had stalled before."""
    pending: int = 0
    """Number of children that have not finished."""
    children: int = 0
    """Number of all children."""
    awaited: Sequence[ChildFacts] = ()
    """Some of the pending children."""
    waits: list[JobStep] = []
    """Signals that it waits for, and its sleep."""
    expires: datetime | None = None
    group: GroupInfo | None = None
    """Group of a job that waits to start."""
    before: int | None = None
    """Number of jobs ahead of this one."""
    before_unranked: int = 0
    """Number of jobs ahead that have no priority, if this one has a priority."""


class Explanation(Struct, frozen=True):
    """An explanation of why a job or a queue does not run.

    The first reason is the main cause. The other reasons also hold.
    """

    queue: str
    id: str | None
    """Job id, or `None` if the explanation is about a queue."""
    state: str
    reasons: list[Reason]
    found: bool = True
    """False if the job does not exist."""

    @property
    def text(self) -> str:
        """All reasons in one paragraph."""
        first, *others = [reason.text for reason in self.reasons]
        return " ".join([first, *(f"Also: {text}" for text in others)])

    def describe(self) -> dict[str, Any]:
        """Return the explanation as the JSON object that `taskbull why --json` prints."""
        return {
            "queue": self.queue,
            "id": self.id,
            "state": self.state,
            "reasons": [
                {"code": each.code, "text": each.text, "facts": plain(each.facts)}
                for each in self.reasons
            ],
        }


def explain(job: JobFacts) -> Explanation:
    """Explain where a job is, since when, why it waits, and how to fix that."""
    reasons = [*_absent(job)] if not job.stored else [*_ended(job)] or [*_alive(job)]
    return Explanation(job.queue.name, job.id, str(job.state), reasons, job.stored)


def _absent(job: JobFacts) -> Iterator[Reason]:
    if job.id.isdigit() and int(job.id) > job.last_id:
        given = f"ids up to {job.last_id}" if job.last_id else "no ids yet"
        text = f"Job {job.id} was never added: the queue has assigned {given}."
        yield _reason("never_added", text, last_id=job.last_id)
    else:
        text = f"Job {job.id} no longer exists: it was removed, or its retention period has passed."
        yield _reason("gone", text)


def _ended(job: JobFacts) -> Iterator[Reason]:
    when = "" if job.finished is None else f" {ago(job.finished, job.queue.now)}"
    took = None
    if job.finished is not None and job.started is not None:
        took = (job.finished - job.started).total_seconds()
    if job.state is JobState.COMPLETED:
        where = f" on {job.worker}" if job.worker else ""
        after = "" if took is None else f" after running for {span(took)}"
        text = f"It completed{when}{where}{after}."
        yield _reason("completed", text, finished=job.finished, worker=job.worker, took=took)
    elif job.state is JobState.FAILED:
        text = f"It {_failure(job, when)}"
        yield _reason("failed", text, finished=job.finished, reason=job.reason)
        yield from _deaths(job)
    elif job.state is JobState.UNKNOWN and job.sure:
        text = (
            "It is in none of the queue's lists: an older BullMQ may have dropped it when the "
            "queue was resumed, or a part of it was removed by hand. Add it again."
        )
        yield _reason("lost", text)


def _failure(job: JobFacts, when: str) -> str:
    """Return the rest of the sentence that starts with "It": the cause and the remedy."""
    if is_cancelled(job.reason) or is_expired(job.reason):
        ended, _, why = (job.reason or "").partition(": ")
        was = "was " if is_cancelled(job.reason) else ""
        return f"{was}{ended}{when}: {_closed(why)} Retry it to run it anyway."
    last = f", the last with {job.reason}" if job.reason else ""
    made = f"{job.attempts_made} of {count_of(job.attempts, 'attempt')}{last}"
    return f"failed permanently{when}: {_closed(made)} Retry it once the cause is fixed."


def _alive(job: JobFacts) -> Iterator[Reason]:
    if job.state is JobState.ACTIVE:
        yield from _running(job)
        return
    own = [*_own(job), *_deaths(job)]
    held = [*holding(job.queue, job.name, job.unknown_task, job.state)]
    if job.state in WAITING_TO_START:
        held += _busy(job.queue)
    yield from (*own, *held)
    if job.state in WAITING_TO_START:
        yield from _queue_position(job, held=bool(own or held))


def _running(job: JobFacts) -> Iterator[Reason]:
    now = job.queue.now
    silent = job.queue.silent.get(job.worker)
    if job.lock_seconds is None:
        gone = f"Its worker {job.worker} is gone." if job.worker else "Its worker is gone."
        if silent is not None:
            gone = f"Its worker {job.worker} is connected but does not respond: {_FROZEN}."
        within = span(2 * job.stalled_interval)
        text = f"{gone} Another worker, if there is one, returns it to the queue within {within}."
        yield _reason("stalled", text, worker=job.worker, started=job.started)
        yield from _deaths(job)
        yield from holding(job.queue, job.name, job.unknown_task, job.state)
        return
    if (seen := job.queue.gone.get(job.worker)) is not None:
        unheard = span((now - seen).total_seconds())
        text = f"Its worker {job.worker} is gone: it has written no record for {unheard}. When "
        text += f"its lock expires in {span(job.lock_seconds)}, another worker can return it."
        yield _reason("worker_gone", text, worker=job.worker, started=job.started, seen=seen)
        yield from _deaths(job)
        yield from holding(job.queue, job.name, job.unknown_task, job.state)
        return
    if silent is not None:
        unheard = span((now - silent).total_seconds())
        text = (
            f"Its worker {job.worker} is connected but does not respond (for {unheard}): {_FROZEN}"
        )
        text += f". When its lock expires in {span(job.lock_seconds)}, another worker can return "
        text += "the job to the queue."
        yield _reason("not_responding", text, worker=job.worker, started=job.started, seen=silent)
        return
    who = job.worker or "A worker"
    since = "" if job.started is None else f" for {span((now - job.started).total_seconds())}"
    lock = ""
    if job.lock_renewed is not None:
        lock = f"; its lock was renewed {span(job.lock_renewed)} ago"
    elif job.lock_seconds < 1e9:
        lock = f"; its lock expires in {span(job.lock_seconds)}"
    usual = "" if job.usual is None else f" It usually takes {span(job.usual)}."
    if is_cancelled(job.deferred_failure):
        text = f"It was asked to stop ({job.deferred_failure}). A sync function in a thread cannot"
        text += " be stopped: it ends when it checks job.cancelled, or when its worker restarts."
        yield _reason("cancelling", text, reason=job.deferred_failure)
    yield _reason(
        "running",
        f"{who} has been running it{since}{lock}.{usual}",
        worker=job.worker,
        started=job.started,
        lock_seconds=job.lock_seconds,
        usual=job.usual,
    )


def _deaths(job: JobFacts) -> Iterator[Reason]:
    if not job.deaths:
        return
    them = _listed([str(death) for death in job.deaths[-3:]])
    workers = "A worker" if len(job.deaths) == 1 else f"{len(job.deaths)} workers"
    text = f"{workers} died while running it: {them}. With process=True, a task that crashes "
    text += "its process affects no other job."
    yield _reason("worker_died", text, deaths=[str(death) for death in job.deaths])


def _own(job: JobFacts) -> Iterator[Reason]:
    now = job.queue.now
    if job.deferred_failure:
        text = f"The next worker will fail it without running it: {_closed(job.deferred_failure)}"
        yield _reason("will_fail", text, reason=job.deferred_failure)
    if job.state is JobState.DELAYED and job.due is not None:
        late = (now - job.due).total_seconds()
        if late > 0:
            text = f"It was due {span(late)} ago, but no worker has fetched from this queue since."
            yield _reason("overdue", text, due=job.due)
        else:
            until = f"{moment(job.due, now)} (in {span(-late)})"
            yield _reason("delayed", f"It is delayed until {until}{_delayed_by(job)}", due=job.due)
    if job.state is JobState.WAITING_CHILDREN:
        yield from _lost_waits(job)
        for wait in job.waits:
            yield _wait(job, wait, now)
        if job.pending > len(job.waits) or not job.waits:
            yield _children(job)
    if job.group is not None:
        yield from _group(job.group, now)
    if job.expires is not None:
        yield _expiry(job, job.expires)


def _expiry(job: JobFacts, expires: datetime) -> Reason:
    at = moment(expires, job.queue.now)
    again = "" if job.started is None else " again"
    text = f"It will expire at {at} if it has not started{again}."
    if expires <= job.queue.now:
        text = f"It expired at {at} and will not run{again}."
    return _reason("expires", text, expires=expires)


def describe_hold(group: GroupInfo, now: datetime) -> str:
    """Return in a few words why a group may start no job now, or an empty string."""
    if group.paused:
        return "paused"
    if group.concurrency is not None and group.active >= group.concurrency:
        return "at its limit"
    if group.limited_until is not None:
        return f"limited for {span((group.limited_until - now).total_seconds())}"
    return ""


def describe_limiter(limiter: Limiter | None) -> str:
    """Return a rate limit as text, such as "100 per 60 s", or "-"."""
    return "-" if limiter is None else f"{limiter.max:,} per {span(limiter.duration)}"


def _group(group: GroupInfo, now: datetime) -> Iterator[Reason]:
    if group.paused:
        text = f"Its group {group.id} is paused; queue.set_group(…, paused=False) resumes it"
    elif group.concurrency is not None and group.active >= group.concurrency:
        running = f"{group.active} of {group.concurrency}"
        text = f"Its group {group.id} is at its concurrency limit ({running})"
    elif group.limited_until is not None:
        left = span((group.limited_until - now).total_seconds())
        text = f"Its group {group.id} is rate-limited; its next job can start in {left}"
    else:
        return
    yield _reason(
        "group",
        f"{text}.",
        group=group.id,
        active=group.active,
        concurrency=group.concurrency,
        limited_until=group.limited_until,
        paused=group.paused,
    )


def _delayed_by(job: JobFacts) -> str:
    if job.unknown_task is not None:
        skipped = span((job.queue.now - job.unknown_task[0]).total_seconds())
        return f". Workers without its task {job.name} have skipped it for {skipped}."
    if job.is_held:
        return (
            " because its worker died earlier. A worker process starts such jobs one at a time, "
            "less than a second apart, in case one of them kills it. It delays a job for about "
            "30 s at most."
        )
    if job.schedule and not job.attempts_made:
        return f" by schedule {job.schedule}."
    if job.attempts_made and job.reason:
        return _closed(f" because attempt {job.attempts_made} failed with {job.reason}")
    return ", as requested when it was added."


def _lost_waits(job: JobFacts) -> Iterator[Reason]:
    lost = [child.id for child in job.awaited if child.state is JobState.UNKNOWN]
    if lost and job.waits:
        text = (
            f"Nothing will end its wait, because its child job '{lost[0]}' was deleted from Redis. "
            f"Cancel and then retry this job: {command('cancel', job.queue.name, job.id)}, "
            f"{command('retry', job.queue.name, job.id)}."
        )
        yield _reason("wait_lost", text, child=lost[0])


def _wait(job: JobFacts, wait: JobStep, now: datetime) -> Reason:
    until = ""
    if wait.until is not None:
        left = (wait.until - now).total_seconds()
        until = f" until {moment(wait.until, now)} (in {span(left)})"
    if wait.kind == "sleep":
        return _reason(
            "sleeping", f"It is sleeping{until} and occupies no worker slot.", until=wait.until
        )
    since = "" if wait.started is None else span((now - wait.started).total_seconds())
    limit = f", and will wait{until}" if until else ", with no time limit"
    text = (
        f"It has been waiting for the signal '{wait.name}' for {since}{limit}"
        f". Send it with: {command('signal', job.queue.name, job.id, wait.name, 'JSON')}."
    )
    return _reason("signal", text, signal=wait.name, until=wait.until)


def _children(job: JobFacts) -> Reason:
    text = f"It is waiting for {job.pending} of {count_of(job.children, 'child', 'children')}"
    stuck = [child.label for child in job.awaited if child.state is JobState.FAILED]
    if stuck:
        names = _listed(stuck[:3])
        it = "it" if len(stuck) == 1 else "them"
        text += f". {names} failed; retry or remove {it} to unblock this job."
    else:
        shown = [f"{child.label} ({child.state})" for child in job.awaited[:3]]
        text += f": {', '.join(shown)}." if shown else "."
    return _reason("children", text, pending=job.pending, children=job.children, failed=stuck)


def _queue_position(job: JobFacts, *, held: bool) -> Iterator[Reason]:
    if not job.before:
        if not held:
            yield _reason("next", "Nothing is blocking it; a worker should start it within 5 s.")
        return
    about = "" if job.sure else "About "
    jobs = count_of(job.before, "job")
    text = f"{about}{jobs} {'is' if job.before == 1 else 'are'} ahead of it"
    if job.before_unranked:
        text += f" ({job.before_unranked:,} of them without priority, which run first)"
    out = job.queue.pace
    wait = None
    if out:
        wait = job.before / out
        text += f". At {_rate(out)} (last minute), that is about {span(wait)}"
    yield _reason(
        "behind",
        f"{text}.",
        before=job.before,
        unranked=job.before_unranked,
        sure=job.sure,
        per_second=out,
        seconds=wait,
    )


def _rate(per_second: float) -> str:
    if per_second >= 1:
        number, unit = f"{per_second:.0f}", "s"
    else:
        number, unit = f"{per_second * 60:.2g}", "min"
    return f"{number} {'job' if number == '1' else 'jobs'}/{unit}"


def _listed(names: Sequence[str]) -> str:
    """Return names as a phrase: `a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _closed(text: str) -> str:
    """Return the text with a period, unless it already ends like a sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _reason(code: str, text: str, **facts: Any) -> Reason:
    known: Mapping[str, Any] = {name: value for name, value in facts.items() if value is not None}
    return Reason(code, text, known)


# Rules that find problems of a queue and describe each in one line.


MOST_FAILED: Final = 0.05
"""Share of finished jobs that may fail before it is a problem."""

LEAST_FAILED: Final = 10
"""Minimum number of failed jobs to report."""
MANY_FAILED: Final = 100
"""Minimum number of stored failed jobs to report if fewer completed jobs are stored."""
MINUTES: Final = 10
LONGEST_WAIT: Final = 300.0
LATEST_SCHEDULE: Final = 60.0

Remedy: TypeAlias = Literal["errors", "why", "resume", "workers", "schedules", "queue"]
"""Action or view that helps to solve a problem."""


class Trouble(Struct, frozen=True):
    """A problem of a queue."""

    queue: str
    code: str
    """Short identifier, such as `paused` or `failing`."""
    weight: int
    """Severity. Larger is worse."""
    text: str
    """Description in one line."""
    remedy: Remedy

    @property
    def is_shared(self) -> bool:
        """True for a problem of a Redis server or of a worker's machine, not of one queue."""
        return self.code in {"refused", "clock", "own_clock", "not_responding"}

    @property
    def sentence(self) -> str:
        """The description with the name of the queue, unless other queues share the problem."""
        return self.text if self.is_shared else f"{self.queue}: {self.text}"


def find_trouble(queue: QueueFacts) -> list[Trouble]:
    """Return all problems of a queue, the worst first."""
    found = [
        Trouble(queue.name, code, weight, text, remedy)
        for code, weight, text, remedy in _troubles(queue)
    ]
    return sorted(found, key=lambda trouble: -trouble.weight)


def _troubles(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    if queue.problem is not None:
        yield "unreadable", 100, f"cannot be read: {queue.problem}", "queue"
    waiting = queue.waiting
    if queue.refusal:
        text = f"Redis refuses writes ({queue.refusal}): no job can be added or fetched"
        yield "refused", 95, text, "queue"
    jobs, age = _due(queue)
    if jobs and queue.workers == 0 and queue.connected is not None and not queue.paused:
        seen = queue.last_seen
        since = " connected" if seen is None else f" for {span((queue.now - seen).total_seconds())}"
        yield "no_worker", 90, f"{jobs}, no worker{since}", "why"
    yield from _failures(queue)
    yield from _running_trouble(queue)
    opened = [one for one in queue.records if one.circuit and one.circuit.state == "open"]
    if opened:
        workers = f"{len(opened)} of {count_of(len(queue.records), 'worker')}"
        yield "breaker", 60, f"circuit breaker open in {workers}", "workers"
    if age > LONGEST_WAIT and not queue.paused and queue.workers:
        text = f"{waiting:,} waiting, the next for {span(age)}" if waiting else jobs
        yield "old", 50, text, "why"
    if queue.paused and waiting:
        yield "paused", 40, _pause_line(queue), "resume"
    yield from _oddities(queue)


def _due(queue: QueueFacts) -> tuple[str, float]:
    """Describe the jobs that could run, and return for how long the next one could have run."""
    if queue.waiting:
        since = queue.waiting_since
        age = 0.0 if since is None else (queue.now - since).total_seconds()
        return f"{queue.waiting:,} waiting", age
    if queue.overdue is None:
        return "", 0.0
    delayed = queue.counts.get(JobState.DELAYED, 0)
    return f"{delayed:,} delayed, the next was due {span(queue.overdue)} ago", queue.overdue


def _failures(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    stored = queue.counts.get(JobState.FAILED, 0)
    if failed := _failing(queue):
        yield "failing", 80, failed, "errors"
    elif stored >= MANY_FAILED and stored > queue.counts.get(JobState.COMPLETED, 0):
        yield "failed", 25, f"{stored:,} failed jobs are stored, more than completed ones", "errors"


def _running_trouble(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    if queue.unknown_tasks:
        yield "task_unknown", 75, unknown_tasks(queue), "why"
    if queue.lockless:
        jobs = count_of(queue.lockless, "running job")
        yield "stalled", 70, f"{jobs} without a lock (worker gone, or cut off)", "workers"
    for worker, seen in queue.silent.items():
        since = span((queue.now - seen).total_seconds())
        text = f"worker {worker} is connected but has not responded for {since}: {_FROZEN}"
        yield "not_responding", 68, text, "workers"
    if queue.is_stuck and not queue.paused:
        text = f"all {count_of(queue.busy_slots, 'slot')} busy, nothing finished for a minute"
        if queue.lost:
            text += f"; {count_of(queue.lost, 'job')} lost {'its' if queue.lost == 1 else 'their'}"
            text += " lock but did not end"
        elif queue.longest is not None:
            ran = span((queue.now - queue.longest.started).total_seconds())
            text += f"; {queue.longest.label} has run for {ran}"
        yield "busy", 65, text, "why"


def _failing(queue: QueueFacts) -> str:
    failed = round(queue.failed.total(MINUTES) * (1 - queue.cancelled_share))
    ended = failed + queue.completed.total(MINUTES)
    if failed < LEAST_FAILED or failed <= MOST_FAILED * ended:
        return ""
    text = f"{failed:,} failed in {MINUTES} min"
    if queue.worst_error:
        them = f"the newest {queue.worst_of:,}" if queue.worst_of else "them"
        return f"{text}, {queue.worst_share:.0%} of {them} {queue.worst_error}"
    return text


def _pause_line(queue: QueueFacts) -> str:
    note = queue.note
    if note is None:
        return f"paused, {queue.waiting:,} waiting"
    since = instant_from_ms(note.at_ms) if note.at_ms else None
    text = "paused" if since is None else f"paused for {ago(since, queue.now)[:-4]}"
    text += f" by {note.by}" if note.by else ""
    return f"{text}: {note.why}" if note.why else text


def _oddities(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    if queue.next_scheduled is not None:
        late = (queue.now - queue.next_scheduled).total_seconds()
        if late > LATEST_SCHEDULE:
            yield "late", 30, f"a schedule is {span(late)} late", "schedules"
    if queue.ahead:
        side = "ahead of" if queue.ahead > 0 else "behind"
        text = f"the clock of this machine is {span(abs(queue.ahead))} {side} Redis's"
        yield "own_clock", 15, text, "queue"
    for record in queue.records:
        if record.skew:
            side = "ahead of" if record.skew > 0 else "behind"
            text = f"the clock of worker {record.id} is {span(abs(record.skew))} {side} Redis's"
            yield "clock", 15, text, "workers"
    majors = {major for version in queue.versions if (major := _major(version))}
    if {"5", "6"} <= majors:
        text = "BullMQ 5 and 6 both use this queue; resuming it with BullMQ 5 may lose jobs"
        yield "mixed", 20, text, "queue"
    if queue.counts.get(JobState.WAITING, 0) and queue.counts.get(JobState.PAUSED, 0):
        text = "jobs are in both the wait and paused lists; resume the queue with taskbull"
        yield "split", 35, text, "resume"


def _major(version: str) -> str:
    found = re.match(r"bullmq:(\d+)\.", version)
    return found[1] if found else ""
