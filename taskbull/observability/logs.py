"""The log lines of a worker: a listener that writes what happens by the standard `logging`.

Every line names the worker, and its fields are in `extra`, too, for formatters that want them.
A job's arguments and results are never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from taskbull.core import events

logger = logging.getLogger("taskbull.worker")

Fields: TypeAlias = Mapping[str, object]


def _job(event: events.JobEvent) -> dict[str, object]:
    return {"job_id": event.job.id, "job_name": event.job.name, "attempt": event.job.attempt}


def _ended(event: events.Ended) -> dict[str, object]:
    return {**_job(event), "duration": round(event.duration, 6)}


def _failed(event: events.Failed) -> dict[str, object]:
    failure = event.failure
    return {
        **_ended(event),
        "category": failure.category.value,
        "verdict": event.verdict.value,
        "reason": failure.reason,
    }


def _retried(event: events.Retried) -> dict[str, object]:
    failure = event.failure
    return {
        **_ended(event),
        "category": failure.category.value,
        "delay": event.delay,
        "reason": failure.reason,
    }


_JOB = "Job %(job_id)s (%(job_name)s) of queue %(queue)s"

# kind of event -> level, text, and its fields beside worker_id and queue
_LINES: dict[type[events.Event], tuple[int, str, Callable[[Any], Fields]]] = {
    events.Started: (logging.INFO, f"{_JOB} started, attempt %(attempt)d", _job),
    events.Completed: (logging.INFO, f"{_JOB} completed in %(duration).3f s", _ended),
    events.Failed: (
        logging.ERROR,
        f"{_JOB} failed for good (%(category)s error, %(verdict)s): %(reason)s",
        _failed,
    ),
    events.Retried: (
        logging.WARNING,
        f"{_JOB} failed (%(category)s error) and runs again in %(delay).1f s: %(reason)s",
        _retried,
    ),
    events.Released: (
        logging.INFO,
        f"{_JOB} was given back, to run again in %(delay).1f s",
        lambda event: {**_ended(event), "delay": event.delay},
    ),
    events.Lost: (
        logging.WARNING,
        f"{_JOB} is no longer ours, so its end is not written: %(reason)s",
        lambda event: {**_ended(event), "reason": event.reason},
    ),
    events.Stalled: (
        logging.WARNING,
        f"{_JOB} stalled and was put back (%(stalled_count)d times by now)",
        lambda event: {
            **_job(event),
            "stalled_count": event.job.stalled_count,
            "doomed": event.doomed,
        },
    ),
    events.HeartbeatFailed: (
        logging.WARNING,
        "The locks of %(count)d jobs of queue %(queue)s could not be renewed: %(reason)s",
        lambda event: {"count": event.count, "reason": event.reason},
    ),
    events.SweepSkipped: (
        logging.WARNING,
        "The sweep of queue %(queue)s took longer than its interval: one was skipped",
        lambda _: {},
    ),
    events.ThreadAbandoned: (
        logging.WARNING,
        f"{_JOB} is given up, but its function goes on in its thread (%(abandoned)d such threads)",
        lambda event: {**_job(event), "abandoned": event.abandoned},
    ),
    events.Recovered: (
        logging.INFO,
        "Lost reply, queue %(queue)s: %(adopted)d adopted, %(settled)d settled, %(resent)d resent",
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
        lambda event: {"test_job_id": event.test_job_id},
    ),
}


def write_line(event: events.Event) -> None:
    """Write the line of an event, if it has one: a listener to all events."""
    line = _LINES.get(type(event))
    if line is None or not logger.isEnabledFor(line[0]):
        return
    level, text, read = line
    fields = {"worker_id": event.worker_id, "queue": event.queue, **read(event)}
    logger.log(level, text, fields, extra=fields)
