"""Search terms that users type to find jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taskbull.core.search import DataPath, Terms, read_terms
from taskbull.core.wire.job import wanted
from taskbull.errors import ConfigurationError

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "terms"),
    [
        ("", Terms()),
        ("ann@example.org", Terms(texts=("ann@example.org",))),
        ('name:send error:"no answer"', Terms(names=("send",), errors=("no answer",))),
        ("data:x data.user.id:42", Terms(texts=("x",), paths=(DataPath(("user", "id"), "42"),))),
        ("http://x:80/", Terms(texts=("http://x:80/",))),
        ("after:03:10", Terms(after=NOW.replace(hour=3, minute=10))),
        ("before:13:00:05", Terms(before=datetime(2026, 11, 16, 13, 0, 5, tzinfo=UTC))),
        ("after:-15min", Terms(after=NOW - timedelta(minutes=15))),
        ("after:2026-01-31T09:00", Terms(after=datetime(2026, 1, 31, 9, tzinfo=UTC))),
    ],
)
def test_terms_are_read(typed: str, terms: Terms) -> None:
    assert read_terms(typed, NOW) == terms


@pytest.mark.parametrize("typed", ["after:soon", "before:25:00", "after:2026-13-01", "x" * 501])
def test_what_cannot_be_meant_is_refused(typed: str) -> None:
    with pytest.raises(ConfigurationError):
        read_terms(typed, NOW)


@pytest.mark.parametrize(
    ("typed", "data", "fits"),
    [
        ("data.user.id:42", {"user": {"id": 42}}, True),
        ("data.user.id:42", {"user": {"id": "42"}}, True),
        ("data.user.id:42", {"user": {"id": 142}}, False),
        ("data.user.id:42", {"user": "id42"}, False),
        ("data.user.id:42", None, False),
        ("data.to.1:b", {"to": ["a", "b"]}, True),
        ("data.to.2:b", {"to": ["a", "b"]}, False),
        ("data.ok:true", {"ok": True}, True),
        ("data.ok:null", {}, False),
    ],
)
def test_a_value_has_to_be_at_its_place(typed: str, data: object, fits: bool) -> None:
    assert read_terms(typed, NOW).confirmed(data) is fits


def test_a_text_is_looked_for_in_each_form_that_json_has() -> None:
    assert wanted(Terms(texts=("é",))) == [(["data"], ["é", "\\u00e9"])]
    assert wanted(Terms(texts=('"',))) == [(["data"], ['"', '\\"'])]
