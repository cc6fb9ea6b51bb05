"""How log lines look: text for people, JSON for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

LogFormat: TypeAlias = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class TextFormatter(logging.Formatter):
    """One line for people: time, level, worker, message."""

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
        line = f"{time} {level} [{worker}] {one_line(record.getMessage())}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


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
        fields |= {name: value for name, value in given.items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def one_line(text: str) -> str:
    """Keep what a task put into its errors from forging lines or driving a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def set_up_logging(
    level: str, form: LogFormat, worker_id: str = "", stream: TextIO | None = None
) -> None:
    """Let all loggers write to `stream` (standard error): what a program does, never a library."""
    target: TextIO = stream or sys.stderr
    handler = logging.StreamHandler(target)
    formatter: logging.Formatter = JsonFormatter(worker_id)
    if form == "text":
        formatter = TextFormatter(worker_id, coloured=target.isatty())
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
