"""Logging: job fields for log records, text and JSON formatters, and the worker's log lines."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias

import msgspec

from taskbull.core import events
from taskbull.core.job import current
from taskbull.core.outcome import Failure, Fields, Kind, Verdict, scrubbed
from taskbull.errors import ConfigurationError

SHOWN = 200
"""Maximum number of characters of a job's id or name in a log line, as producers choose both."""


class JobFilter(logging.Filter):
    """A logging filter that adds the fields of the running job to log records.

    The fields are `queue`, `job_id`, `job_name`, `attempt` and `worker_id`. Fields that a record
    already has from `extra` are kept. The filter never drops a record.

    `taskbull worker` installs one on its handler. In your own logging configuration, add it to each
    handler, because a filter on a logger does not see records from child loggers.

    Example:
        >>> handler = logging.StreamHandler()
        >>> handler.addFilter(JobFilter())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields of the running job, if there is one; always return True."""
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
    """Return a job's id or name for a log line, escaped and cut to `SHOWN` characters."""
    return one_line(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def one_line(text: str) -> str:
    """Escape characters that could forge log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Formats: text for people, JSON for machines.


LogFormat: TypeAlias = Literal["text", "json"]

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of every log record. All others come from `extra`."""

# Control characters, bidirectional marks, line separators and surrogates. JSON only contains them
# inside strings, where an escape has the same meaning.
_HOSTILE_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)

_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class TextFormatter(logging.Formatter):
    """A formatter that writes one line of text: time, level, worker and message.

    Lines that taskbull did not write also show the name of their logger and the running job. A
    traceback follows on indented lines.

    Args:
        worker_id: The worker id for records without one.
        coloured: True for a terminal: warnings and errors have a color, and times are short.
            Elsewhere, times have a date and an offset.
    """

    def __init__(self, worker_id: str = "", *, coloured: bool = False) -> None:
        super().__init__()
        self._worker_id = worker_id
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record, followed by its traceback."""
        now = datetime.fromtimestamp(record.created).astimezone()
        if self._coloured:
            time = now.strftime("%H:%M:%S.%f")[:-3]
        else:  # Processes with different time zones may write to one file.
            time = now.isoformat(" ", "milliseconds")
        level = record.levelname
        if self._coloured and level in _COLOURS:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        worker = getattr(record, "worker_id", self._worker_id)
        line = f"{time} {level} [{worker}] {one_line(_whose(record) + record.getMessage())}"
        return line + _indented(_stack(self, record))


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line, including all fields from `extra`.

    Args:
        worker_id: The worker id for records without one.
    """

    def __init__(self, worker_id: str = "") -> None:
        super().__init__()
        self._worker_id = worker_id

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object for a record."""
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
    """Return a prefix with the job and the logger; taskbull's own lines already name the job."""
    if record.name.partition(".")[0] == "taskbull":
        return ""
    job = vars(record)
    if "job_id" not in job:
        return f"{record.name}: "
    where = f" in {job['queue']}" if "queue" in job else ""
    attempt = f", attempt {job['attempt']}" if "attempt" in job else ""
    return f"[{job.get('job_name', 'job')} {job['job_id']}{where}{attempt}] {record.name}: "


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a record. The worker's own records carry one that is already cut."""
    stack = record.exc_text or ""
    if not stack and record.exc_info:
        stack = formatter.formatException(record.exc_info)
    return "\n".join(filter(None, (stack, record.stack_info)))


def _indented(stack: str) -> str:
    return "".join(f"\n    {one_line(line)}" for line in stack.splitlines())


def _encode(fields: dict[str, Any]) -> str:
    try:
        return escape_json(msgspec.json.encode(fields, enc_hook=_shown).decode())
    except (ValueError, TypeError):  # JSON cannot represent some values, such as a lone surrogate.
        plain = {scrubbed(_shown(name)): scrubbed(_shown(value)) for name, value in fields.items()}
        return escape_json(msgspec.json.encode(plain).decode())


def escape_json(text: str) -> str:
    """Return equivalent JSON that is safe to print to a terminal."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object's `__str__` may raise anything
        return f"an unprintable {type(value).__name__}"


class LogOptions(NamedTuple):
    """Logging options of a command."""

    level: str | None = None
    """Lowest level to log. None means INFO, or what the application has configured."""
    form: LogFormat | None = None
    """Format of the lines. None means text, or what the application has configured."""
    config: Path | None = None
    """File with a configuration for `logging.config.dictConfig`, in JSON or TOML."""
    is_off: bool = False
    """True to leave logging entirely to the application."""


def set_up_logging(options: LogOptions, worker_id: str = "", stream: TextIO | None = None) -> None:
    """Configure logging for a program, after the application has been imported.

    Handlers of the root logger that the application has configured stay as they are. Without any,
    lines go to `stream`, which defaults to standard error.

    Raises:
        ConfigurationError: If the configuration file cannot be used.
    """
    if options.config is not None:
        _apply_config(options.config)
    elif not options.is_off and not logging.getLogger().handlers:
        _log_to(stream or sys.stderr, options, worker_id)
    elif options.level is not None:
        logging.getLogger(_OWN).setLevel(options.level.upper())
    if options.is_off:
        return
    if options.form is not None and not any(
        isinstance(one.formatter, JsonFormatter | TextFormatter)
        for one in logging.getLogger().handlers
    ):
        logger.warning("Ignored --log-format: the application has configured logging")
    _enable_own_loggers()


_OWN: Final = "taskbull"
"""Name of the logger above all loggers of taskbull."""


def _enable_own_loggers() -> None:
    """Enable loggers that the application's configuration has disabled."""
    disabled = [
        one
        for name, one in logging.root.manager.loggerDict.items()
        if isinstance(one, logging.Logger)
        and one.disabled
        and (name == _OWN or name.startswith(f"{_OWN}."))
    ]
    for one in disabled:
        one.disabled = False
    if disabled:
        logger.warning(
            "Enabled taskbull's loggers, which the application's logging configuration disables; "
            "set disable_existing_loggers to false there"
        )


def _apply_config(path: Path) -> None:
    import json  # noqa: PLC0415 - few programs need these three
    import tomllib  # noqa: PLC0415
    from logging.config import dictConfig  # noqa: PLC0415

    try:
        text = path.read_text()
        config = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        dictConfig({"version": 1, "disable_existing_loggers": False, **config})
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        cause = error.__cause__ or error
        raise ConfigurationError(f"Cannot use log configuration {path}: {cause}") from error


def _log_to(target: TextIO, options: LogOptions, worker_id: str) -> None:
    handler = logging.StreamHandler(target)
    formatter: logging.Formatter = JsonFormatter(worker_id)
    if options.form != "json":
        formatter = TextFormatter(worker_id, coloured=target.isatty())
        handler.addFilter(_is_not_shown)
    handler.setFormatter(formatter)
    handler.addFilter(JobFilter())
    logging.basicConfig(level=(options.level or "info").upper(), handlers=[handler])


def _is_not_shown(record: logging.LogRecord) -> bool:
    """Return False for a record that the application's own handler writes to the same terminal."""
    own: logging.Logger | None = logging.getLogger(record.name)
    while own is not None and own is not logging.root:
        for each in own.handlers:
            if (
                getattr(each, "stream", each) in (sys.stderr, sys.stdout)
                and record.levelno >= each.level
                and each.filter(record)
            ):
                return False
        own = own.parent
    return True


# The worker's log lines, written by a listener for its events. Every line's fields, including the
# worker id, are also in `extra` for formatters. Arguments and results of jobs are never logged.


logger = logging.getLogger("taskbull.worker")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Shortest and longest interval in seconds between repeated lines of one kind."""


def _job(event: events.JobEvent) -> dict[str, object]:
    job = event.job
    return {"job_id": cut(job.id), "job_name": cut(job.name), "attempt": job.attempt}


def _ended(event: events.Ended) -> dict[str, object]:
    return {**_job(event), "duration": round(event.duration, 6), **event.outcome.fields()}


_JOB = "Job %(job_id)s (%(job_name)s) in queue %(queue)s"

# event type -> level, text, and a function for the fields other than worker_id and queue
_LINES: dict[type[events.Event], tuple[int, str, Callable[[Any], Fields]]] = {
    events.Started: (logging.INFO, f"{_JOB} started, attempt %(attempt)d", _job),
    **{events.event_class_for(kind): (kind.level, f"{_JOB} {kind.line}", _ended) for kind in Kind},
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
        lambda event: {"adopted": event.adopted, "settled": event.settled, "resent": event.resent},
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


# Lines for jobs that failed without an error in their task.
_APART: dict[Verdict, tuple[int, str]] = {
    Verdict.CANCELLED: (logging.INFO, f"{_JOB} was %(reason)s"),
    Verdict.EXPIRED: (logging.WARNING, f"{_JOB} %(reason)s"),
}


# Event types that repeat while a problem lasts.
_REPEATED = frozenset(
    {events.HeartbeatFailed, events.LoopBlocked, events.SweepSkipped, events.ThreadAbandoned}
)


class LogLines:
    """An event listener that logs the events of one worker.

    Repeated lines are logged at growing intervals, with a count of the lines left out.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._repeats: dict[tuple[type[events.Event], str], Repeats] = {}

    def wants(self, kind: type[events.Event]) -> bool:
        """Return True if events of this type have a line and its level is enabled."""
        line = _LINES.get(kind)
        return line is not None and logger.isEnabledFor(line[0])

    def __call__(self, event: events.Event) -> None:
        """Log an event, unless it has no line or its line is being left out as a repeat."""
        kind = type(event)
        line = _LINES.get(kind)
        if line is None or not logger.isEnabledFor(line[0]):
            return
        level, text, read = line
        if isinstance(event, events.Failed):
            level, text = _APART.get(event.verdict, (level, text))
        if isinstance(event, events.Failed | events.Retried) and event.failure.is_expected:
            level = min(level, logging.INFO)
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
        # A failed attempt that will be retried is routine, so its stack is only logged for debug.
        has_stack = level >= logging.ERROR or logger.isEnabledFor(logging.DEBUG)
        failure = event.outcome.failure if isinstance(event, events.Ended) and has_stack else None
        _write(level, text, fields, failure)


def _write(level: int, text: str, fields: Fields, failure: Failure | None = None) -> None:
    error = None if failure is None else failure.error
    stack = None if error is None else error.__traceback__
    # Without a stack (the job never ran, or the error was never raised) the line says everything.
    exc_info = None if error is None or stack is None else (type(error), error, stack)
    # `logger.log` would search the stack for its caller, which is always this function.
    shown = {key: one_line(each) if isinstance(each, str) else each for key, each in fields.items()}
    record = logger.makeRecord(
        logger.name, level, __file__, 0, text, (shown,), exc_info, extra=fields
    )
    if failure is not None and stack is not None:
        record.exc_text = failure.stack  # The error's own text may be of any length; this is cut.
    logger.handle(record)


class Repeats:
    """A rate limiter for one repeated line, with intervals that double."""

    def __init__(self) -> None:
        self._next_at = -inf
        self._pause = 0.0
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """Return the number of lines left out since the last one, or `None` to skip this line."""
        if now < self._next_at:
            self._left_out += 1
            return None
        quiet = now - self._next_at > self._pause  # The problem had stopped; start over.
        self._pause = FIRST_PAUSE if quiet else min(2 * self._pause, LONGEST_PAUSE)
        self._next_at = now + self._pause
        left_out, self._left_out = self._left_out, 0
        return left_out
