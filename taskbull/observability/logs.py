"""The log lines of a worker: a listener that writes what happens by the standard `logging`.

Every line names the worker, and its fields are in `extra`, too, for formatters that want them.
A job's arguments and results are never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from taskbull.core import events
from taskbull.core.outcome import Failure, Fields, Kind, Verdict
from taskbull.observability.job_filter import cut, one_line

logger = logging.getLogger("taskbull.worker")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between two lines of a kind that repeats itself."""


def _job(event: events.JobEvent) -> dict[str, object]:
    job = event.job
    return {"job_id": cut(job.id), "job_name": cut(job.name), "attempt": job.attempt}


def _ended(event: events.Ended) -> dict[str, object]:
    return {**_job(event), "duration": round(event.duration, 6), **event.outcome.fields()}


_JOB = "Job %(job_id)s (%(job_name)s) of queue %(queue)s"

# kind of event -> level, text, and its fields beside worker_id and queue
_LINES: dict[type[events.Event], tuple[int, str, Callable[[Any], Fields]]] = {
    events.Started: (logging.INFO, f"{_JOB} started, attempt %(attempt)d", _job),
    **{events.told_as(kind): (kind.level, f"{_JOB} {kind.line}", _ended) for kind in Kind},
    events.Stalled: (
        logging.WARNING,
        f"{_JOB} stalled and was put back (stall number %(stalled_count)d)",
        lambda event: {
            **_job(event),
            "stalled_count": event.job.stalled_count,
            "doomed": event.doomed,
        },
    ),
    events.HeartbeatFailed: (
        logging.WARNING,
        "Locks of running jobs in queue %(queue)s could not be renewed (%(count)d): %(reason)s",
        lambda event: {"count": event.count, "reason": event.reason},
    ),
    events.LoopBlocked: (
        logging.WARNING,
        "The event loop runs again, after %(duration).1f s at %(where)s",
        lambda event: {
            "duration": round(event.duration, 6),
            "where": event.where,
            "job_id": None if event.job is None else cut(event.job.id),
        },
    ),
    events.RedisLost: (
        logging.WARNING,
        "Redis is lost; running jobs continue, and no new ones are taken: %(reason)s",
        lambda event: {"reason": event.reason},
    ),
    events.RedisBack: (
        logging.INFO,
        "Redis is back after %(duration).1f s (failed attempts to connect: %(attempts)d)",
        lambda event: {"duration": round(event.duration, 6), "attempts": event.attempts},
    ),
    events.SweepSkipped: (
        logging.WARNING,
        "A check for stalled jobs in queue %(queue)s was skipped: the previous one still runs",
        lambda _: {},
    ),
    events.ThreadAbandoned: (
        logging.WARNING,
        f"{_JOB} was given up, but its function still runs (abandoned threads: %(abandoned)d)",
        lambda event: {**_job(event), "abandoned": event.abandoned},
    ),
    events.ProcessEnded: (
        logging.WARNING,
        "Process %(pid)d of the pool has ended and is replaced: %(reason)s",
        lambda event: {
            "pid": event.pid,
            "reason": event.reason,
            "job_id": None if event.job is None else cut(event.job.id),
        },
    ),
    events.ProcessRecycled: (
        logging.INFO,
        "Process %(pid)d of the pool is replaced: %(reason)s",
        lambda event: {"pid": event.pid, "reason": event.reason},
    ),
    events.Recovered: (
        logging.INFO,
        "Queue %(queue)s, lost reply: %(adopted)d adopted, %(settled)d written, %(resent)d resent",
        lambda event: {
            "adopted": event.adopted,
            "settled": event.settled,
            "resent": event.resent,
        },
    ),
    events.CircuitOpened: (
        logging.WARNING,
        "The circuit of queue %(queue)s is open after %(failures)d failures in a row",
        lambda event: {"failures": event.failures, "threshold": event.threshold},
    ),
    events.CircuitHalfOpened: (
        logging.INFO,
        "The circuit of queue %(queue)s is half-open after %(duration)g s: a few jobs are tried",
        lambda event: {"duration": event.duration},
    ),
    events.CircuitClosed: (
        logging.INFO,
        "The circuit of queue %(queue)s is closed: job %(test_job_id)s succeeded",
        lambda event: {"test_job_id": cut(event.test_job_id)},
    ),
}


# How a job is told that failed, but not by an error of its task.
_APART: dict[Verdict, tuple[int, str]] = {
    Verdict.CANCELLED: (logging.INFO, f"{_JOB} was %(reason)s"),
    Verdict.EXPIRED: (logging.WARNING, f"{_JOB} %(reason)s"),
}


# Kinds of events that tell the same again and again while something is wrong.
_REPEATED = frozenset(
    {events.HeartbeatFailed, events.LoopBlocked, events.SweepSkipped, events.ThreadAbandoned}
)


class LogLines:
    """Writes the lines of one worker's events: a listener to all of them.

    What repeats itself is written at growing intervals, with a count of the lines left out.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._repeats: dict[tuple[type[events.Event], str], Repeats] = {}

    def hears(self, kind: type[events.Event]) -> bool:
        """Return whether events of a kind have a line that would be written."""
        line = _LINES.get(kind)
        return line is not None and logger.isEnabledFor(line[0])

    def __call__(self, event: events.Event) -> None:
        """Write the line of an event, if it has one and it is time for it."""
        kind = type(event)
        line = _LINES.get(kind)
        if line is None or not logger.isEnabledFor(line[0]):
            return
        level, text, read = line
        if isinstance(event, events.Failed):
            level, text = _APART.get(event.verdict, (level, text))
            if not logger.isEnabledFor(level):
                return
        fields = {"worker_id": event.worker_id, "queue": event.queue, **read(event)}
        if kind in _REPEATED:
            repeats = self._repeats.setdefault((kind, event.queue), Repeats())
            left_out = repeats.left_out(self._clock())
            if left_out is None:
                return
            if left_out:
                fields["left_out"] = left_out
                text += " (and %(left_out)d times since the last such line)"
        # That an attempt failed is no news, while others remain: its stack is for those who debug.
        has_stack = level >= logging.ERROR or logger.isEnabledFor(logging.DEBUG)
        failure = event.outcome.failure if isinstance(event, events.Ended) and has_stack else None
        _write(level, text, fields, failure)


def _write(level: int, text: str, fields: Fields, failure: Failure | None = None) -> None:
    error = None if failure is None else failure.error
    stack = None if error is None else error.__traceback__
    # Without a stack (it was never run, or our own words say all) the line has told everything.
    exc_info = None if error is None or stack is None else (type(error), error, stack)
    # Not `logger.log`: that looks for its caller, who is always this one.
    shown = {key: one_line(each) if isinstance(each, str) else each for key, each in fields.items()}
    record = logger.makeRecord(
        logger.name, level, __file__, 0, text, (shown,), exc_info, extra=fields
    )
    if failure is not None and stack is not None:
        record.exc_text = failure.stack  # cut to size, where the error may say whatever it likes
    logger.handle(record)


class Repeats:
    """Says when a line that repeats itself is to be written: at intervals that double."""

    def __init__(self) -> None:
        self._next_at = -inf
        self._pause = 0.0
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """Return how many lines were left out since the last one; None: leave this one out, too."""
        if now < self._next_at:
            self._left_out += 1
            return None
        quiet = now - self._next_at > self._pause  # nothing came for so long: it is news again
        self._pause = FIRST_PAUSE if quiet else min(2 * self._pause, LONGEST_PAUSE)
        self._next_at = now + self._pause
        left_out, self._left_out = self._left_out, 0
        return left_out
