"""The table of outcomes agrees with the script, with the events, and with itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import pytest

from taskbull import events as public
from taskbull.core import events
from taskbull.core.events import event_class_for
from taskbull.core.outcome import Code, Discard, Kind, Loss, Outcome, Written
from taskbull.scripts.call import LUA


def test_the_script_knows_the_kinds_by_the_same_numbers() -> None:
    text = (LUA / "includes" / "settle_outcomes.lua").read_text()
    kinds = re.findall(r"^--   (\d+) ([a-z ]+): ", text, re.MULTILINE)
    assert {int(number): name for number, name in kinds} == {
        code.value: code.name.lower().replace("_", " ") for code in Code
    }


def test_each_outcome_has_a_row_of_its_own() -> None:
    kinds = [outcome.kind for outcome in get_args(Outcome)]
    assert sorted(kinds, key=str) == sorted(Kind, key=str)
    assert len({kind.label for kind in Kind}) == len(Kind)


def test_what_is_written_has_a_code() -> None:
    written = {outcome.kind for outcome in get_args(Written)}
    assert {kind for kind in Kind if kind.code is not None} == written


def test_outcomes_with_the_same_event_have_the_same_line() -> None:
    lines = {(event_class_for(kind), kind.level, kind.line) for kind in Kind}
    assert len(lines) == len({event for event, _, _ in lines})


def test_all_ends_of_jobs_are_reported() -> None:
    assert {event_class_for(kind) for kind in Kind} == set(events.Ended.__subclasses__())


def names_below(kind: type[events.Event]) -> Iterator[str]:
    yield kind.__name__
    for one in kind.__subclasses__():
        yield from names_below(one)


def test_every_event_is_public() -> None:
    assert sorted(public.__all__) == sorted([*names_below(events.Event), "Loss"])


@pytest.mark.parametrize(
    ("outcome", "label", "reason"),
    [
        (Discard(Loss.REDIS_AWAY, "2.0 s"), "redis_away", "Redis could not be reached for 2.0 s"),
        (
            Discard(Loss.LOOP_BLOCKED, "2.0 s"),
            "loop_blocked",
            "the event loop was blocked for 2.0 s",
        ),
        (Discard(Loss.NOT_RENEWED, "31.0 s"), "expired", "the lock was not renewed for 31.0 s"),
        (
            Discard(Loss.EXPIRED),
            "expired",
            "the lock expired before its outcome could be written",
        ),
        (Discard(Loss.DISOWNED, "Job {0} does not exist"), "taken", "Job {0} does not exist"),
        (Discard(Loss.REFUSED, "Redis refused it"), "refused", "Redis refused it"),
    ],
)
def test_a_loss_has_a_label_and_a_sentence(outcome: Discard, label: str, reason: str) -> None:
    assert (outcome.loss.label, outcome.reason) == (label, reason)
