"""The order of a job's steps for people."""

from __future__ import annotations

from msgspec import Raw

from taskbull.core.steps import StepRecord, WaitRecord, encode_record, steps_of


def step_at(at: int, place: int) -> bytes:
    return encode_record(StepRecord(at, 5, Raw(b"1"), place=place))


def test_steps_are_listed_in_their_order_although_clocks_differ() -> None:
    stored = {
        "step:last#1": step_at(900, 3),
        "signal:go#1": encode_record(WaitRecord(1000, place=2)),
        "step:first#1": step_at(1001, 1),
        "step:branch@0123456789abcdef#1": step_at(1002, 0),
        "count:go": b"1",
    }
    assert [one.name for one in steps_of(stored)] == ["first", "go", "last", "branch"]
