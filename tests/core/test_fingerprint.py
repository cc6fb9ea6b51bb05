"""Errors that are alike have one form, and others do not."""

from __future__ import annotations

import pytest

from taskbull.core.fingerprint import common_part


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
        ("utf8 is fine, decade too", "utf8 is fine, decade too"),
        ("first line\nsecond line 5", "first line"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_left_open(message: str, form: str) -> None:
    assert common_part(message) == form


def test_only_the_beginning_of_a_message_counts() -> None:
    assert common_part("x" * 300) == common_part("x" * 100_000)
