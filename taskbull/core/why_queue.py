"""Why the jobs of a queue do not run: what holds for all of them, in the order of its weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from taskbull.core.checks import nearest
from taskbull.core.durations import instant_from_ms
from taskbull.core.queue_facts import QueueFacts
from taskbull.core.rates import empty_in
from taskbull.core.record import WorkerRecord
from taskbull.core.spans import ago, count_of, moment, span
from taskbull.core.states import MAX_SAFE_INTEGER, JobState


class Reason(Struct, frozen=True):
    """Why a job does not run, or what became of it."""

    code: str
    text: str
    """A sentence for people."""
    facts: Mapping[str, Any] = {}
    """What it is made of."""


def holding(
    queue: QueueFacts,
    task: str = "",
    unclaimed: tuple[datetime, datetime] | None = None,
    state: JobState = JobState.WAITING,
) -> Iterator[Reason]:
    """Name what keeps workers from taking jobs of a queue, or a job of one task, from the start."""
    if queue.paused:
        yield _paused(queue)
    if queue.workers == 0:
        yield _nobody(queue)
        return
    if task and (reason := _task_unknown(queue, task, unclaimed)) is not None:
        yield reason
    ours: Sequence[WorkerRecord] = () if queue.foreign else queue.records
    opened = [one for one in ours if one.circuit is not None and one.circuit.state == "open"]
    if ours and len(opened) == len(ours):
        yield _breaker(queue, opened)
    if state in _STARTING:
        yield from _limits(queue)
    if ours and all(record.stopping for record in ours):
        text = "The only worker is shutting down and takes no more."
        if len(ours) > 1:
            text = f"All {len(ours)} workers are shutting down and take no more."
        yield Reason("stopping", text, {"workers": len(ours)})


_STARTING = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED, JobState.UNKNOWN})


def explain_queue(queue: QueueFacts) -> list[Reason]:
    """Say what keeps the jobs of a queue from running; the cause first."""
    reasons = [*holding(queue)]
    if queue.lockless:
        jobs = count_of(queue.lockless, "running job")
        text = f"{jobs} lost {'its' if queue.lockless == 1 else 'their'} worker."
        reasons.append(Reason("stalled", text, {"jobs": queue.lockless}))
    reasons.append(_pace(queue, held=bool(reasons)))
    return reasons


def _paused(queue: QueueFacts) -> Reason:
    note = queue.note
    since = None if note is None else instant_from_ms(note.at_ms)
    text = "The queue is paused"
    facts: dict[str, Any] = {}
    if note is not None:
        if since is not None and note.at_ms:
            text = f"The queue has been paused for {span((queue.now - since).total_seconds())}"
            facts["since"] = since
        text += f" by {note.by}" if note.by else ""
        text += f" ({note.why})" if note.why else ""
        facts |= {"by": note.by, "why": note.why}
    return Reason("paused", f"{text}. Resume it.", facts)


def _nobody(queue: QueueFacts) -> Reason:
    facts: dict[str, Any] = {}
    if queue.connected is None:
        text = f"None of our workers serves {queue.name}, as far as is known: Redis does not list"
        text += " its connections"
    else:
        text = f"No worker is connected to {queue.name}"
    if queue.last_seen is not None:
        text += f"; the last of ours was seen {ago(queue.last_seen, queue.now)}"
        facts["last_seen"] = queue.last_seen
    return Reason("nobody", f"{text}. Start one.", facts)


def _task_unknown(
    queue: QueueFacts, task: str, unclaimed: tuple[datetime, datetime] | None
) -> Reason | None:
    records = queue.records
    if queue.foreign or not records or any(record.knows_all for record in records):
        return None
    known = sorted({name for record in records for name in record.tasks or ()})
    if task in known:
        return None
    all_of_them = "The only worker does not know"
    if len(records) > 1:
        all_of_them = f"None of the {len(records)} workers knows"
    near = nearest(task, known)
    hint = f"; did you mean {near}?" if near else "."
    text = f"{all_of_them} task {task}{hint}"
    if unclaimed is not None:
        first, last = unclaimed
        text += f" One met it first {ago(first, queue.now)}, and last {ago(last, queue.now)};"
        text += " that costs no attempt."
    return Reason("task_unknown", text, {"task": task, "workers": len(records), "nearest": near})


def _breaker(queue: QueueFacts, opened: Sequence[WorkerRecord]) -> Reason:
    circuits = [record.circuit for record in opened if record.circuit is not None]
    ends = [circuit.until_ms for circuit in circuits if circuit.until_ms is not None]
    until = instant_from_ms(min(ends)) if ends else None
    failures = max(circuit.failures for circuit in circuits)
    who = "The only worker has its" if len(opened) == 1 else f"All {len(opened)} workers have their"
    text = f"{who} circuit open"
    text += "" if until is None else f" until {moment(until, queue.now)}"
    text += f", after {count_of(failures, 'failure')} in a row." if failures else "."
    return Reason("breaker", text, {"until": until, "workers": len(opened), "failures": failures})


def _limits(queue: QueueFacts) -> Iterator[Reason]:
    most, window = _rate_limit(queue)
    if queue.limited_for is not None and most is not None and queue.started >= most:
        per = "" if window is None else f" per {_unit(window)}"
        allowed = f"{most:,}{per} are allowed"
        if queue.started >= MAX_SAFE_INTEGER:  # as `rate_limit` writes it
            allowed = "Somebody has stopped all starts for a while"
        text = f"{allowed}; the next start is in {span(queue.limited_for)}."
        yield Reason("limited", text, {"max": most, "seconds": queue.limited_for})
    active = queue.counts.get(JobState.ACTIVE, 0)
    if queue.concurrency is not None and queue.concurrency <= active:
        text = f"{queue.concurrency:,} may run at once, and {active:,} do."
        yield Reason("at_the_limit", text, {"concurrency": queue.concurrency, "active": active})


def _rate_limit(queue: QueueFacts) -> tuple[int | None, float | None]:
    """Return how many jobs may start, in how many seconds: the queue's rule, or our workers'."""
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
        text = "No job waits."
        delayed = queue.counts.get(JobState.DELAYED, 0)
        if delayed and queue.next_due is not None:
            first = (queue.next_due - queue.now).total_seconds()
            when = f"in {span(first)}" if first > 0 else f"{span(-first)} ago"
            text = f"No job waits; the first of {count_of(delayed, 'delayed job')} is due {when}."
        return Reason("idle", text, facts)
    text = f"{count_of(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}"
    if queue.waiting_since is not None:
        text += f", the next since {span((queue.now - queue.waiting_since).total_seconds())}"
    left = empty_in(waiting, out, queue.arrivals)
    if out and not held:
        text += f"; {out:.2g} per second end"
        if left is not None:
            text += ": it grows" if left == float("inf") else f": about {span(left)}"
    return Reason("waiting", f"{text}.", facts)
