"""(9) Steps are not repeated, waits get their signals, and readers get all items of a stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from tests.nemesis.kinds import ITEMS, SIGNAL_TIMEOUT, STEPS
from tests.nemesis.ledger import JobKey, Signalled, StepNote, Streamed
from tests.nemesis.rules.case import Case, Violation
from tests.nemesis.rules.run import AFTERMATH


def steps_run_once(case: Case) -> Iterator[Violation]:
    """Compare the executions of each step with the value that the job got from it."""
    for intent in list(case.book.continued):
        places: defaultdict[int, list[StepNote]] = defaultdict(list)
        for note in _notes(case, intent, StepNote):
            places[note.place].append(note)
        for place, of_step in places.items():
            yield from _step_ran_once(case, intent, place, of_step)
    for key, intent, (_, *values) in _results(case, "steps", "steps_thread"):
        notes = _notes(case, intent, StepNote)
        got = {note.place: note.value for note in notes if note.returned}
        if values != [got.get(place) for place in range(STEPS)]:
            yield case.violation(9, f"steps of {key} returned {got}, it has {values}", key)


def _step_ran_once(
    case: Case, intent: str, place: int, notes: list[StepNote]
) -> Iterator[Violation]:
    key, step = min(case.jobs[intent], default=None), f"step {place} of {intent}"
    executed = [note for note in notes if not note.returned]
    returned = {note.value for note in notes if note.returned}
    for number, count in Counter(note.number for note in executed).items():
        if count > 1:
            what = f"{step} was executed {count} times in run {number}"
            yield case.violation(9, what, key, intent)
    if len(returned) > 1:
        yield case.violation(9, f"{step} returned {sorted(returned)}", key, intent)
    for value in returned:
        stored_by = int(value.rpartition("/")[2].partition(":")[0])
        for note in executed:
            near = (note.at - AFTERMATH, note.at + AFTERMATH)
            if note.number > stored_by:
                what = f"{step} was executed in run {note.number}, and stored in run {stored_by}"
                yield case.violation(9, what, key, intent)
            elif note.number < stored_by and not case.broken_between(*near):
                what = f"{step} was not stored in run {note.number}, and nothing was broken"
                yield case.violation(9, what, key, intent)


def waits_get_signals(case: Case) -> Iterator[Violation]:
    """Compare the signals that were sent with those that the waits returned."""
    for key, intent, (_, *values) in _results(case, "waiting"):
        got = [value for value in values if value is not None]
        sent = {one.value: one for one in _notes(case, intent, Signalled)}  # The last of each.
        began = min((run.at for run in case.book.runs[key]), default=0.0)
        in_time = {
            value
            for value, one in sent.items()
            if one.said == "added" and one.at < began + SIGNAL_TIMEOUT
        }
        possible = {value for value, one in sent.items() if one.said != "refused"}
        if got != sorted(set(got)) or not in_time <= set(got) <= possible:
            what = f"{intent} got the signals {values}; sent: {list(sent.values())}"
            yield case.violation(9, what, key)
        yield from _slept(case, key)


def _slept(case: Case, key: JobKey) -> Iterator[Violation]:
    queue, job = key
    delays = [one for one in case.events((queue, f"{job}-sleep-1")) if one.name == "delayed"]
    ended = [one.ms for one in case.events(key) if one.name == "completed"]
    if not delays:
        yield case.violation(9, f"{key} did not sleep", key)
    elif ended and ended[0] < int(delays[0].fields["delay"]):
        yield case.violation(9, f"{key} was completed before its sleep was over", key)


def readers_get_all_items(case: Case) -> Iterator[Violation]:
    """Compare the items that readers got with the result of the job, which has all items."""
    results: dict[str, list[str]] = {}
    for key, intent, items in _results(case, "streaming", "streaming_thread"):
        results[intent] = items
        run = f"{intent}/{len(case.takings[key])}"
        if items != [f"{run}:{number}" for number in range(ITEMS)]:
            yield case.violation(9, f"the result of {key} is not the items of {run}", key)
    for intent in list(case.book.continued):
        for read in _notes(case, intent, Streamed):
            if read.items != results.get(intent):
                of_intent = min(case.jobs[intent], default=None)
                what = f"{read.who} read {read.items} of {intent}"
                yield case.violation(9, what, of_intent, intent)


N = TypeVar("N", StepNote, Signalled, Streamed)


def _notes(case: Case, intent: str, kind: type[N]) -> list[N]:
    return [note for note in case.book.continued[intent] if isinstance(note, kind)]


def _results(case: Case, *kinds: str) -> Iterator[tuple[JobKey, str, list[Any]]]:
    """Return the completed jobs of these kinds with their intents and results."""
    for key in case.takings:
        kind, stored = case.kind(key), case.stored(key)
        if kind and kind.name in kinds and stored and "returnvalue" in stored:
            yield key, min(case.intents[key]), msgspec.json.decode(stored["returnvalue"])
