"""How log lines look: text for people, JSON for machines."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

from taskbull.core.failure import scrubbed
from taskbull.observability.job_filter import JobFilter, one_line

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
