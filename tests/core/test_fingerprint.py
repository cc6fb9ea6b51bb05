"""Similar errors have the same fingerprint, and different ones do not."""

from __future__ import annotations

import pytest

from taskbull.core.fingerprint import common_part, frame_of, make_fingerprint
from taskbull.core.wire.job import unescape


@pytest.mark.parametrize(
    ("message", "form"),
    [
        ("smtp did not answer", "smtp did not answer"),
        ("KeyError: 'user'", "KeyError: <…>"),
        ("no job 42 in queue 7", "no job <…> in queue <…>"),
        ("took 1.5 s, not 2,000", "took <…> s, not <…>"),
        ("GET https://example.org/a?b=1 failed", "GET <…> failed"),
        ("ann@example.org is unknown", "<…> is unknown"),
        ("cannot open /srv/data/a-1.csv today", "cannot open <…> today"),
        ("order 0b5f0f5e-6f0e-4ac1-8a55-0b5f0f5e0000 is gone", "order <…> is gone"),
        ("object at 0x7f12ab90 is odd", "object at <…> is odd"),
        ("at 2026-11-17T13:00:05Z it broke", "at <…> it broke"),
        ("cannot reach smtp1.example.org:25", "cannot reach smtp<…>.example.org:<…>"),  # V29
        ("utf8 is fine, decade too", "utf8 is fine, decade too"),
        ("first line\nsecond line 5", "first line"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_left_open(message: str, form: str) -> None:
    assert common_part(message) == form


def test_only_the_beginning_of_a_message_counts() -> None:
    assert common_part("x" * 300) == common_part("x" * 100_000)


PYTHON = 'Traceback (most recent call last):\n  File "/srv/app/mail.py", line 88, in render\n'
NODE = "Error: smtp 17\n    at send (/srv/app/mail.js:10:5)\n    at run (/srv/lib/x.js:1:1)"


@pytest.mark.parametrize(
    ("reason", "head", "tail", "error"),
    [
        ("KeyError: 'user'", PYTHON, f"{PYTHON}KeyError: 'user'", "KeyError: <…>"),
        ("smtp 17", NODE, NODE, "Error: smtp <…>"),
        ("Timeout: smtp", "Error: Timeout: smtp\n    at x", "", "Error: Timeout: smtp"),
        (
            "task x is not there",
            PYTHON,
            f"{PYTHON}a.errors.Gone: task x",
            "Gone: task x is not there",
        ),
        ("job stalled more than allowable limit", "", "", "job stalled more than allowable limit"),
        ("", "", "", ""),
        ("TimeoutError", PYTHON, f"{PYTHON}TimeoutError", "TimeoutError"),
    ],
)
def test_the_class_of_an_error_is_where_its_language_writes_it(
    reason: str, head: str, tail: str, error: str
) -> None:
    assert make_fingerprint("send", reason, head, tail).error == error


def test_a_fingerprint_is_the_same_everywhere() -> None:
    one = make_fingerprint("send", "KeyError: 'a'", PYTHON, f"{PYTHON}KeyError: 'a'")
    other = make_fingerprint("send", "KeyError: 'b'", PYTHON, f"{PYTHON}KeyError: 'b'")
    assert one == other
    assert one.fingerprint == other.fingerprint == "f9a76ee705"
    assert make_fingerprint("read", "KeyError: 'a'", PYTHON, "").fingerprint != one.fingerprint
    assert make_fingerprint("send", "IndexError: 'a'", PYTHON, "").fingerprint != one.fingerprint


def test_the_frame_is_shown_and_does_not_count() -> None:
    moved = PYTHON.replace("88", "99")
    assert frame_of(PYTHON, PYTHON) == "mail.py:88 in render"
    assert frame_of(moved, moved) == "mail.py:99 in render"
    assert frame_of(NODE, NODE) == "mail.js:10 in send"
    assert frame_of("", "x") == ""
    assert (
        make_fingerprint("t", "K: 1", moved, "").fingerprint
        == make_fingerprint("t", "K: 2", PYTHON, "").fingerprint
    )


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "'" * 100_000, "1." * 50_000, "@" * 100_000, "/a" * 9]
)
def test_no_text_takes_long(text: str) -> None:
    assert len(make_fingerprint("t", text, text, text).fingerprint) == 10


def test_a_lone_surrogate_is_no_trouble() -> None:
    assert len(make_fingerprint("\ud800", "\udfff").fingerprint) == 10


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (r"a\nb\"c\\", 'a\nb"c\\'),
        (r"\u00e9\ud83d\ude00", "é😀"),
        (r"u00e9 cut \u00", "u00e9 cut u00"),
        (r"\ud83d cut", "� cut"),
        ("\\", "\\"),
    ],
)
def test_pieces_of_json_are_read_without_the_rest(chunk: str, text: str) -> None:
    assert unescape(chunk) == text
