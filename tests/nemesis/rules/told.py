"""(5) Each event was emitted once and correctly, by workers and in the stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from tests.nemesis.ledger import JobKey, Told
from tests.nemesis.rules.case import Case, Violation

ENDINGS: Final = {
    "Completed": "completed",
    "Failed": "failed",
    "Retried": "left",
    "Released": "left",
}
"""Stream event that must exist for each worker event about the end of a run."""


def told_once_and_truly(case: Case) -> Iterator[Violation]:
    """Compare the workers' events with the stream."""
    for key, told in case.book.told.items():
        taken = {one.number: one.ending for one in case.takings.get(key, [])}
        ends: defaultdict[int, list[Told]] = defaultdict(list)
        for one in told:
            if one.event in ENDINGS:
                ends[one.number].append(one)
        for number, said in ends.items():
            if len(said) > 1:
                yield case.violation(5, f"the end of run {number} of {key} was told twice", key)
            for one in said:
                if ENDINGS[one.event] != taken.get(number):
                    what = f"run {number} of {key} was told {one.event}, it is {taken.get(number)}"
                    yield case.violation(5, what, key)
                if one.event == "Completed" and not _has_value(case, key, one.value):
                    yield case.violation(5, f"{key} was told to return {one.value[:100]}", key)


def _has_value(case: Case, key: JobKey, value: str) -> bool:
    return any(one.fields.get("returnvalue") == value for one in case.events(key))


def every_end_told(case: Case) -> Iterator[Violation]:
    """Look for outcomes without an event, although the worker was not killed before emitting it."""
    killed = case.book.killed
    for key, runs in case.book.runs.items():
        taken = {one.number: one.ending for one in case.takings.get(key, [])}
        told = {one.number for one in case.book.told[key] if one.event in ENDINGS}
        for run in runs:
            could = run.who.startswith("worker-") and run.who not in killed
            if could and taken.get(run.number) in ENDINGS.values() and run.number not in told:
                yield case.violation(5, f"nobody told the end of run {run.number} of {key}", key)


def stream_heard_once(case: Case) -> Iterator[Violation]:
    """Compare the events of followers with the stream: each once, and in order."""
    for (who, queue), heard in case.book.heard.items():
        expected = [event.id for event in case.truth.queues[queue].stream]
        ids = [one.id for one in heard]
        if ids != expected:
            missing = sorted(set(expected) - set(ids))[:5]
            twice = [one for one, count in Counter(ids).items() if count > 1][:5]
            yield Violation(
                5,
                f"{who} heard {len(ids)} events of {queue}, which has {len(expected)}",
                [f"missing: {missing}", f"twice: {twice}"],
            )
