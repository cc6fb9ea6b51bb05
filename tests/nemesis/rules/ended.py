"""(2) Every job finished as expected, none started too early; (4) parents after their children."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from tests.nemesis.kinds import BEAT, MAIN
from tests.nemesis.ledger import END_OF_SCHEDULE, JobKey
from tests.nemesis.rules.added import FLOWS, RESENT, is_lost_flow, is_resent_flow
from tests.nemesis.rules.case import Case, Violation
from tests.nemesis.rules.run import AFTERMATH
from tests.nemesis.truth import OPEN, Event

EARLY_MS = 1
"""Milliseconds lost by rounding."""

PATIENCE = 5.0
"""Maximum delay of a scheduled run on a busy machine, in seconds."""


def ended_as_asked(case: Case) -> Iterator[Violation]:
    """Compare each job's state and attempts with its kind."""
    for name, queue in case.truth.queues.items():
        for state in OPEN:
            for job in queue.states[state]:
                what = f"job {job} of {name} is still in {state}"
                yield case.violation(2, what, (name, job), theirs=_theirs(case, job))
        for job in queue.jobs:
            yield from _as_kind_asks(case, (name, job))
    for key in case.takings:
        names = case.names(key)
        ends = names["completed"] + names["failed"]
        if names["added"] and not names["removed"] and ends != 1:
            what = f"job {key} ended {ends} times"
            yield case.violation(2, what, key, theirs=_theirs(case, key[1]))


def _as_kind_asks(case: Case, key: JobKey) -> Iterator[Violation]:
    kind, (name, job) = case.kind(key), key
    queue = case.truth.queues[name]
    attempts = queue.jobs[job].get("atm")
    if kind is None:
        yield case.violation(2, f"job {key} was intended by nobody", key)
    elif job not in queue.states[kind.state]:
        what = f"{kind.name} {key} is not {kind.state}"
        yield case.violation(2, what, key, theirs=_theirs(case, job))
    elif attempts != str(kind.attempts):
        what = f"{kind.name} {key} spent {attempts} attempts"
        yield case.violation(2, what, key, theirs=case.redirected(key))


def _theirs(case: Case, job: str) -> str:
    """Return why BullMQ's own producer is to blame for a flow, if it is.

    The jobs of a flow are named by their intents.
    """
    if job not in case.book.intents:
        return ""
    return FLOWS if is_lost_flow(case, job) else RESENT if is_resent_flow(case, job) else ""


def began_in_time(case: Case) -> Iterator[Violation]:
    """Compare the first start of delayed jobs with their due time."""
    for key, taken in case.takings.items():
        for intent in case.intents[key]:
            intended = case.book.intents.get(intent)
            if intended and intended.delay and taken:
                due = (intended.at + intended.delay) * 1000
                if taken[0].began_ms < due - EARLY_MS:
                    early = due - taken[0].began_ms
                    yield case.violation(2, f"job {key} began {early:.0f} ms too early", key)


def parents_after_children(case: Case) -> Iterator[Violation]:
    """Compare the start of parents with the end of their children."""
    for child in case.book.intents.values():
        if not child.parent:
            continue
        parent = case.kind((child.queue, child.parent))
        # A growing job starts before its children, and completes after them.
        step = "completed" if parent and parent.name == "growing" else "active"
        began = _first(case.events((child.queue, child.parent)), step)
        ended = _first(case.events((child.queue, child.intent)), "completed", "failed")
        if began and ended and began.place < ended.place:
            what = f"{child.parent} began before its child {child.intent} had ended"
            theirs = RESENT if is_resent_flow(case, child.intent) else ""
            yield case.violation(4, what, (child.queue, child.parent), child.intent, theirs)


def parents_have_all_results(case: Case) -> Iterator[Violation]:
    """Compare the results that parents received with those that the children returned."""
    families: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for intent, one in case.book.intents.items():
        above = case.book.intents.get(one.parent)
        if above and above.kind in {"family", "growing"}:
            families[one.queue, one.parent].append(intent)
    for (queue, parent), children in families.items():
        stored = case.stored((queue, parent))
        if not stored or "returnvalue" not in stored:
            continue  # Another rule checks that it is completed.
        _, *got = msgspec.json.decode(stored["returnvalue"])
        ends = [(case.stored((queue, child)) or {}).get("returnvalue") for child in children]
        returned = [msgspec.json.decode(end) for end in ends if end]
        if sorted(got) != sorted(returned):
            what = f"{parent} was given {got}, and its children returned {returned}"
            yield case.violation(4, what, (queue, parent), parent)


def schedules_go_on(case: Case) -> Iterator[Violation]:
    """Look for duplicate and unexplained missing runs of our schedule.

    A worker that starts while the schedule is removed declares it again, and that begins with a
    run. So runs after the first removal do not count.
    """
    step = round(BEAT * 1000)
    removed = (call.at for call in case.book.calls if call.what == END_OF_SCHEDULE)
    end_ms = 1000 * min(removed, default=math.inf)
    ids = (
        job.split(":") for (queue, job), taken in case.takings.items() if taken and queue == MAIN
    )
    runs = (int(words[2]) for words in ids if words[:2] == ["repeat", "beat"])
    due = sorted(run for run in runs if run < end_ms)
    for one, other in pairwise(due):
        if other - one < step:
            yield Violation(2, f"the schedule ran twice, at {one} and at {other}", [])
        first, last = one / 1000 - AFTERMATH, other / 1000 + AFTERMATH
        if other - one > PATIENCE * 1000 and not case.broken_between(first, last):
            yield Violation(2, f"the schedule did not run from {one} to {other}", [])


def _first(events: list[Event], *names: str) -> Event | None:
    return next((one for one in events if one.name in names), None)
