"""Which job a line of a task's own belongs to."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

from taskbull.core import events
from taskbull.core.failure import scrubbed
from taskbull.core.middleware import current
from taskbull.core.outcome import Failure, Fields, Kind, Verdict

# Which job a line of a task's own belongs to.


SHOWN = 200
"""Characters of a job's id or name in a log line, at the most: others may have chosen them."""


class JobFilter(logging.Filter):
    """Adds `queue`, `job_id`, `job_name`, `attempt` and `worker_id` to lines written inside a job.

    It lets every line pass. `taskbull worker` has one on its handler; in a logging configuration of
    one's own it belongs on each handler (a filter on a logger does not see its children's lines).
    What a line brings itself, by `extra`, stays as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is known of the job that is running here, if one is."""
        job = current.get(None)
        if job is not None:
            fields = vars(record)
            fields.setdefault("queue", job.queue)
            fields.setdefault("job_id", cut(job.id))
            fields.setdefault("job_name", cut(job.name))
            fields.setdefault("attempt", job.attempt)
            fields.setdefault("worker_id", job.worker_id)
        return True


def cut(text: str) -> str:
    """Return a job's id or name for a log line: escaped, and cut if it is long."""
    return one_line(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def one_line(text: str) -> str:
    """Return a text with escapes for what would forge log lines or drive a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# How log lines look: text for people, JSON for machines.


LogFormat: TypeAlias = Literal["text", "json"]

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record of `logging` has; the rest was given in `extra`."""

# Control characters and those that turn the direction of a text, line separators, surrogates. In
# JSON they stand within strings only, where an escape means the same.
_HOSTILE_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)

_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class TextFormatter(logging.Formatter):
    """One line for people: time, level, worker, message; a traceback stands below it.

    Lines of others have the name of their logger, and the job in which they were written.
    """

    def __init__(self, worker_id: str = "", *, coloured: bool = False) -> None:
        super().__init__()
        self._worker_id = worker_id
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Make the line; a traceback follows it."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = record.levelname
        if self._coloured and level in _COLOURS:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        worker = getattr(record, "worker_id", self._worker_id)
        line = f"{time} {level} [{worker}] {one_line(_whose(record) + record.getMessage())}"
        return line + _indented(_stack(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: the message, and every field that was given in `extra`."""

    def __init__(self, worker_id: str = "") -> None:
        super().__init__()
        self._worker_id = worker_id

    def format(self, record: logging.LogRecord) -> str:
        """Make the object."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "worker_id": self._worker_id,
        }
        given = vars(record)
        fields |= {name: value for name, value in given.items() if name not in STANDARD}
        if stack := _stack(self, record):
            fields["exception"] = stack
        return _encode(fields)


def _whose(record: logging.LogRecord) -> str:
    """Return who logged a line and in which job; our own lines say so themselves."""
    if record.name.partition(".")[0] == "taskbull":
        return ""
    job = vars(record)
    if "job_id" not in job:
        return f"{record.name}: "
    where = f" in {job['queue']}" if "queue" in job else ""
    attempt = f", attempt {job['attempt']}" if "attempt" in job else ""
    return f"[{job.get('job_name', 'job')} {job['job_id']}{where}{attempt}] {record.name}: "


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a record; the worker's own records bring one that is cut to size."""
    stack = record.exc_text or ""
    if not stack and record.exc_info:
        stack = formatter.formatException(record.exc_info)
    return "\n".join(filter(None, (stack, record.stack_info)))


def _indented(stack: str) -> str:
    return "".join(f"\n    {one_line(line)}" for line in stack.splitlines())


def _encode(fields: dict[str, Any]) -> str:
    try:
        return escape_json(msgspec.json.encode(fields, enc_hook=_shown).decode())
    except (ValueError, TypeError):  # what no JSON can hold, such as a lone surrogate
        plain = {scrubbed(_shown(name)): scrubbed(_shown(value)) for name, value in fields.items()}
        return escape_json(msgspec.json.encode(plain).decode())


def escape_json(text: str) -> str:
    """Return JSON that is safe to print, and still means the same."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - foreign code: an object's own __str__
        return f"an unprintable {type(value).__name__}"


def set_up_logging(
    level: str, form: LogFormat, worker_id: str = "", stream: TextIO | None = None
) -> None:
    """Make all loggers write to `stream` (standard error): for programs, never for a library."""
    target: TextIO = stream or sys.stderr
    handler = logging.StreamHandler(target)
    formatter: logging.Formatter = JsonFormatter(worker_id)
    if form == "text":
        formatter = TextFormatter(worker_id, coloured=target.isatty())
    handler.setFormatter(formatter)
    handler.addFilter(JobFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


# The log lines of a worker: a listener that writes what happens by the standard `logging`.
#
# Every line names the worker, and its fields are in `extra`, too, for formatters that want them. A
# job's arguments and results are never written.


logger = logging.getLogger("taskbull.worker")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between two lines of a kind that repeats itself."""


def _job(event: events.JobEvent) -> dict[str, object]:
    job = event.job
    return {"job_id": cut(job.id), "job_name": cut(job.name), "attempt": job.attempt}


def _ended(event: events.Ended) -> dict[str, object]:
    return {**_job(event), "duration": round(event.duration, 6), **event.outcome.fields()}


_JOB = "Job %(job_id)s (%(job_name)s) in queue %(queue)s"

# kind of event -> level, text, and its fields beside worker_id and queue
_LINES: dict[type[events.Event], tuple[int, str, Callable[[Any], Fields]]] = {
    events.Started: (logging.INFO, f"{_JOB} started, attempt %(attempt)d", _job),
    **{events.told_as(kind): (kind.level, f"{_JOB} {kind.line}", _ended) for kind in Kind},
    events.Stalled: (
        logging.WARNING,
        f"{_JOB} stalled and was returned to its queue (stall %(stalled_count)d)",
        lambda event: {
            **_job(event),
            "stalled_count": event.job.stalled_count,
            "doomed": event.doomed,
        },
    ),
    events.HeartbeatFailed: (
        logging.WARNING,
        "Could not renew job locks in queue %(queue)s (%(count)d): %(reason)s",
        lambda event: {"count": event.count, "reason": event.reason},
    ),
    events.LoopBlocked: (
        logging.WARNING,
        "Event loop was blocked for %(duration).1f s at %(where)s",
        lambda event: {
            "duration": round(event.duration, 6),
            "where": event.where,
            "job_id": None if event.job is None else cut(event.job.id),
        },
    ),
    events.RedisLost: (
        logging.WARNING,
        "Lost connection to Redis; running jobs continue, fetching is paused: %(reason)s",
        lambda event: {"reason": event.reason},
    ),
    events.RedisBack: (
        logging.INFO,
        "Reconnected to Redis after %(duration).1f s (failed attempts: %(attempts)d)",
        lambda event: {"duration": round(event.duration, 6), "attempts": event.attempts},
    ),
    events.SweepSkipped: (
        logging.WARNING,
        "Skipped a check for stalled jobs in queue %(queue)s: the previous one is still running",
        lambda _: {},
    ),
    events.ThreadAbandoned: (
        logging.WARNING,
        f"{_JOB} was stopped, but its thread is still running (abandoned threads: %(abandoned)d)",
        lambda event: {**_job(event), "abandoned": event.abandoned},
    ),
    events.ProcessEnded: (
        logging.WARNING,
        "Pool process %(pid)d ended and is being replaced: %(reason)s",
        lambda event: {
            "pid": event.pid,
            "reason": event.reason,
            "job_id": None if event.job is None else cut(event.job.id),
        },
    ),
    events.ProcessRecycled: (
        logging.INFO,
        "Pool process %(pid)d is being replaced: %(reason)s",
        lambda event: {"pid": event.pid, "reason": event.reason},
    ),
    events.Recovered: (
        logging.INFO,
        (
            "Recovered from a lost reply in queue %(queue)s: %(adopted)d jobs adopted, "
            "%(settled)d outcomes confirmed, %(resent)d resent"
        ),
        lambda event: {
            "adopted": event.adopted,
            "settled": event.settled,
            "resent": event.resent,
        },
    ),
    events.CircuitOpened: (
        logging.WARNING,
        "Circuit breaker of queue %(queue)s opened after %(failures)d consecutive failures",
        lambda event: {"failures": event.failures, "threshold": event.threshold},
    ),
    events.CircuitHalfOpened: (
        logging.INFO,
        "Circuit breaker of queue %(queue)s half-opened after %(duration)g s: trying a few jobs",
        lambda event: {"duration": event.duration},
    ),
    events.CircuitClosed: (
        logging.INFO,
        "Circuit breaker of queue %(queue)s closed: job %(test_job_id)s succeeded",
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
                text += " (similar lines suppressed: %(left_out)d)"
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
