"""Rules that find problems of a queue and describe each in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from taskbull.core.diagnosis import ago, count_of, span, unknown_tasks
from taskbull.core.queue_health import QueueFacts
from taskbull.core.states import JobState
from taskbull.core.validation import instant_from_ms

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
    if waiting and queue.workers == 0 and queue.connected is not None and not queue.paused:
        seen = queue.last_seen
        since = " connected" if seen is None else f" for {span((queue.now - seen).total_seconds())}"
        yield "no_worker", 90, f"{waiting:,} waiting, no worker{since}", "why"
    yield from _failures(queue)
    yield from _running(queue)
    opened = [one for one in queue.records if one.circuit and one.circuit.state == "open"]
    if opened:
        workers = f"{len(opened)} of {count_of(len(queue.records), 'worker')}"
        yield "breaker", 60, f"circuit breaker open in {workers}", "workers"
    if queue.waiting_since is not None and not queue.paused and queue.workers:
        age = (queue.now - queue.waiting_since).total_seconds()
        if age > LONGEST_WAIT:
            yield "old", 50, f"{waiting:,} waiting, the next for {span(age)}", "why"
    if queue.paused and waiting:
        yield "paused", 40, _paused(queue), "resume"
    yield from _oddities(queue)


def _failures(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    stored = queue.counts.get(JobState.FAILED, 0)
    if failed := _failing(queue):
        yield "failing", 80, failed, "errors"
    elif stored >= MANY_FAILED and stored > queue.counts.get(JobState.COMPLETED, 0):
        yield "failed", 25, f"{stored:,} failed jobs are stored, more than completed ones", "errors"


def _running(queue: QueueFacts) -> Iterator[tuple[str, int, str, Remedy]]:
    if queue.unknown_tasks:
        yield "task_unknown", 75, unknown_tasks(queue), "why"
    if queue.lockless:
        jobs = count_of(queue.lockless, "running job")
        yield "stalled", 70, f"{jobs} without a lock (worker gone)", "workers"
    if queue.is_stuck and queue.longest is not None and not queue.paused:
        ran = span((queue.now - queue.longest.started).total_seconds())
        text = f"all {count_of(queue.busy_slots, 'slot')} busy, nothing finished for a minute; "
        yield "busy", 65, f"{text}{queue.longest.label} has run for {ran}", "why"


def _failing(queue: QueueFacts) -> str:
    failed = queue.failed.total(MINUTES)
    ended = failed + queue.completed.total(MINUTES)
    if failed < LEAST_FAILED or failed <= MOST_FAILED * ended:
        return ""
    text = f"{failed:,} failed in {MINUTES} min"
    if queue.worst_error:
        return f"{text}, {queue.worst_share:.0%} of them {queue.worst_error}"
    return text


def _paused(queue: QueueFacts) -> str:
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
