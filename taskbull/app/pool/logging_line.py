"""Log lines of a process, on their way to the worker's own handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from taskbull.core.failure import scrubbed, stack_of
from taskbull.observability.formats import STANDARD
from taskbull.worker.pool.messages import Message, Record


class LineHandler(logging.Handler):
    """Sends what is logged to the worker, which logs it with the fields of the job."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._send(_told(record))
        except Exception:  # noqa: BLE001 - as logging has it: no line is worth the job
            self.handleError(record)


def _told(record: logging.LogRecord) -> Record:
    stack = record.exc_text or ""
    if not stack and record.exc_info and record.exc_info[1] is not None:
        stack = stack_of(record.exc_info[1])
    extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
    return Record(
        record.name,
        record.levelno,
        scrubbed(record.getMessage()),
        record.created,
        (scrubbed(record.pathname), record.lineno, record.funcName or ""),
        record.threadName or "",
        "\n".join(filter(None, (stack, record.stack_info))),
        _encode(extra),
    )


def _encode(extra: dict[str, Any]) -> bytes:
    if not extra:
        return b"{}"
    try:
        return msgspec.json.encode(extra, enc_hook=str)
    except (TypeError, ValueError):  # what no JSON can hold
        return msgspec.json.encode({name: scrubbed(repr(value)) for name, value in extra.items()})
