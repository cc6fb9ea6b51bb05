"""Log lines: text for people, JSON for machines; each names its worker."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from taskbull.observability.logs import JsonFormatter, LogOptions, TextFormatter, set_up_logging


def record(message: str = "hello", level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "taskbull.worker", "msg": message, **extra})
    made.levelno, made.levelname = level, logging.getLevelName(level)
    return made


def test_text_has_time_level_worker_and_message() -> None:
    line = TextFormatter("me", coloured=True).format(record())
    time, rest = line.split(" ", 1)
    assert len(time) == len("12:34:56.789")
    assert rest == "INFO [me] hello"


def test_text_for_files_has_date_and_offset() -> None:  # U29
    date, time, rest = TextFormatter("me").format(record()).split(" ", 2)
    assert datetime.fromisoformat(f"{date} {time}").tzinfo is not None
    assert rest == "INFO [me] hello"


def test_a_record_that_names_its_worker_wins() -> None:
    assert "[other]" in TextFormatter("me").format(record(worker_id="other"))
    assert json.loads(JsonFormatter("me").format(record(worker_id="other")))["worker_id"] == "other"


def test_an_error_cannot_forge_lines_or_drive_the_terminal() -> None:
    line = TextFormatter("me").format(record("bad\n12:00 INFO [me] all is well \x1b[2J"))
    assert "\n" not in line
    assert "\x1b" not in line


def test_warnings_are_coloured_for_people_only() -> None:
    coloured = TextFormatter("me", coloured=True).format(record(level=logging.WARNING))
    assert "\x1b[33mWARNING\x1b[0m" in coloured
    assert "\x1b" not in TextFormatter("me").format(record(level=logging.WARNING))


def test_json_has_the_fields_that_were_given() -> None:
    line = JsonFormatter("me").format(record("x %s", args=("y",), job_id="7", odd=object))
    fields = json.loads(line)
    assert fields["message"] == "x y"
    assert fields["level"] == "info"
    assert fields["job_id"] == "7"
    assert fields["odd"] == str(object)
    assert "args" not in fields


@pytest.mark.parametrize("formatter", [TextFormatter("me"), JsonFormatter("me")])
def test_a_traceback_is_written(formatter: logging.Formatter) -> None:
    try:
        raise ZeroDivisionError("by hand")
    except ZeroDivisionError:
        line = formatter.format(record(exc_info=sys.exc_info()))
    assert "ZeroDivisionError: by hand" in line


@pytest.fixture
def loggers() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


@pytest.mark.usefixtures("loggers")
def test_set_up_logging_writes_to_the_stream() -> None:
    stream = io.StringIO()
    logging.getLogger().handlers.clear()  # pytest's own
    set_up_logging(LogOptions("warning", "json"), "me", stream)
    logging.getLogger("anything").info("too quiet")
    logging.getLogger("anything").warning("loud")
    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "loud"


def test_json_lines_have_no_raw_controls_or_direction_marks() -> None:  # S20
    hostile = "\x9b2J\u202e\u2028\u2029\u2066\u200b\ufeff\x7f\x1b\n\x85 ü 漢"
    extra: dict[str, Any] = {"job_id": hostile, f"k{hostile}": 1}
    line = JsonFormatter("me").format(record(hostile, **extra))
    assert [c for c in line if not c.isprintable()] == []
    fields = json.loads(line)
    assert (fields["message"], fields["job_id"], fields[f"k{hostile}"]) == (hostile, hostile, 1)
    assert "ü 漢" in line
    odd = JsonFormatter("me").format(record("\ud800\u202e"))  # a lone surrogate
    assert [c for c in odd if not c.isprintable()] == []
