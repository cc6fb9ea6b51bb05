"""What must hold when all is over: each rule is a function that gives the violations it finds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from tests.nemesis.kinds import KINDS, Kind
from tests.nemesis.ledger import Book, JobKey, Told
from tests.nemesis.truth import OPEN, Taking, Truth, takings

SLACK: Final = 3
"""How many times its deadline a call may take on a machine that is busy with other things."""


class Violation(Struct):
    """A rule that did not hold, for whom, and all that is known of it."""

    rule: int
    what: str
    evidence: list[str]

    def __str__(self) -> str:
        return "\n  ".join([f"({self.rule}) {self.what}", *self.evidence])


class Figures(Struct):
    """How much happened."""

    acknowledged: int
    runs: int
    extra: int
    """Runs beyond those that the kinds of jobs ask for."""
    faults: int


Check = Callable[["Case"], Iterator[Violation]]


class Case:
    """The ledger and the truth, put side by side."""

    def __init__(self, truth: Truth, book: Book) -> None:
        self.truth = truth
        self.book = book
        self.takings: dict[JobKey, list[Taking]] = {
            (name, job): takings(events)
            for name, queue in truth.queues.items()
            for job, events in queue.events.items()
            if job
        }
        self.intents: defaultdict[JobKey, set[str]] = defaultdict(set)
        """By job; there should be one of each."""
        for name, queue in truth.queues.items():
            for job in queue.jobs:
                self.intents[name, job].add(truth.intent_of((name, job)))
        for key, runs in book.runs.items():
            self.intents[key].update(run.intent for run in runs)
        self.jobs: defaultdict[str, set[JobKey]] = defaultdict(set)
        """By intent."""
        for key, intents in self.intents.items():
            for intent in intents:
                self.jobs[intent].add(key)

    def kind(self, key: JobKey) -> Kind | None:
        """Give the kind of a job; None for one that nobody intended."""
        for intent in self.intents[key]:
            if intent in self.book.intents:
                return KINDS.get(self.book.intents[intent].kind)
        return None

    def stored(self, key: JobKey) -> dict[str, str] | None:
        return self.truth.queues[key[0]].jobs.get(key[1])

    def names(self, key: JobKey) -> Counter[str]:
        """Count the events of a job in the stream."""
        return Counter(one.name for one in self.truth.queues[key[0]].events.get(key[1], []))

    def violation(
        self, rule: int, what: str, key: JobKey | None = None, intent: str = ""
    ) -> Violation:
        """Make a violation with everything that is known of the job or the intent."""
        lines: list[tuple[float, str]] = []
        for one in {intent, *(self.intents[key] if key else ())} - {""}:
            if one in self.book.intents:
                lines.append((self.book.intents[one].at, str(self.book.intents[one])))
            lines += [(answer.at, str(answer)) for answer in self.book.answers[one]]
        if key is not None:
            lines += [(run.at, str(run)) for run in self.book.runs[key]]
            lines += [(told.at, str(told)) for told in self.book.told[key]]
            events = self.truth.queues[key[0]].events.get(key[1], [])
            lines += [(event.ms / 1000, f"stream: {event.fields}") for event in events]
        if lines:
            first, last = min(lines)[0], max(lines)[0]
            lines += [
                (fault.began, str(fault))
                for fault in self.book.faults
                if fault.at >= first - 1 and fault.began <= last
            ]
        evidence = [f"{at:.3f} {line[:400]}" for at, line in sorted(lines)]
        if key is not None:
            evidence.append(f"stored: {str(self.stored(key))[:1000]}")
        return Violation(rule, what, evidence)


def acknowledged_once(case: Case) -> Iterator[Violation]:
    """(1) What was acknowledged is there once; what was surely refused is not."""
    for intent in case.book.intents:
        answers = case.book.answers[intent]
        said = {answer.said for answer in answers}
        jobs = case.jobs[intent]
        if "added" in said:
            yield from _added_once(case, intent)
        elif said == {"refused"} and jobs:
            yield case.violation(1, f"{intent} was refused, and is there", min(jobs), intent)
        if len(jobs) > 1:
            yield case.violation(1, f"{intent} is there {len(jobs)} times", min(jobs), intent)
    for key in case.takings:
        names = case.names(key)
        if names["added"] > 1:
            yield case.violation(1, f"job {key} was added {names['added']} times", key)
        if len(case.intents[key]) > 1:
            yield case.violation(1, f"job {key} is of two intents: {case.intents[key]}", key)


def _added_once(case: Case, intent: str) -> Iterator[Violation]:
    kind = KINDS[case.book.intents[intent].kind]
    queue = case.book.intents[intent].queue
    ids = {one.job for one in case.book.answers[intent] if one.said == "added" and one.job}
    if len(ids) > 1:
        yield case.violation(1, f"{intent} was acknowledged as {sorted(ids)}", None, intent)
    for job in ids:
        key = (queue, job)
        names = case.names(key)
        if not names["added"]:
            yield case.violation(1, f"{intent} was acknowledged, and never added", key, intent)
        elif names["removed"] and kind.name == "debounced":
            continue  # a later one took its place
        elif not case.stored(key) and kind.kept:
            yield case.violation(1, f"{intent} was acknowledged, and is gone", key, intent)
    if not ids and not case.jobs[intent]:
        yield case.violation(1, f"{intent} was acknowledged, and is not there", None, intent)


def ended_as_asked(case: Case) -> Iterator[Violation]:
    """(2) Every job ended, in the state its kind asks for, with the attempts it asks for."""
    for name, queue in case.truth.queues.items():
        for state in OPEN:
            for job in queue.states[state]:
                yield case.violation(2, f"job {job} of {name} is still in {state}", (name, job))
        for job, fields in queue.jobs.items():
            key = (name, job)
            kind = case.kind(key)
            if kind is None:
                yield case.violation(2, f"job {key} was intended by nobody", key)
                continue
            if job not in queue.states[kind.state]:
                yield case.violation(2, f"{kind.name} {key} is not {kind.state}", key)
            elif fields.get("atm") != str(kind.attempts):
                yield case.violation(
                    2, f"{kind.name} {key} spent {fields.get('atm')} attempts", key
                )
    for key in case.takings:
        names = case.names(key)
        ends = names["completed"] + names["failed"]
        if names["added"] and not names["removed"] and ends != 1:
            yield case.violation(2, f"job {key} ended {ends} times", key)


def began_in_time(case: Case) -> Iterator[Violation]:
    """(2) No delayed job began before its time."""
    for key, taken in case.takings.items():
        for intent in case.intents[key]:
            intended = case.book.intents.get(intent)
            if intended and intended.delay and taken:
                due = (intended.at + intended.delay) * 1000
                if taken[0].began_ms < due - 1:
                    early = due - taken[0].began_ms
                    yield case.violation(2, f"job {key} began {early:.0f} ms too early", key)


def last_run_counts(case: Case) -> Iterator[Violation]:
    """(3) No end was accepted from a run whose job had been taken again."""
    for key, taken in case.takings.items():
        fields = case.stored(key)
        if not fields or not taken or len(case.intents[key]) != 1:
            continue
        [intent] = case.intents[key]
        text = fields.get("returnvalue") or fields.get("failedReason") or ""
        found = re.search(re.escape(intent) + r"/(\d+)", text)
        if found is None:
            yield case.violation(3, f"the end of job {key} names no run: {text[:100]}", key)
        elif int(found[1]) != len(taken):
            yield case.violation(
                3, f"job {key} was taken {len(taken)} times, the end is of run {found[1]}", key
            )


def extra_runs_explained(case: Case) -> Iterator[Violation]:
    """(3) Each run beyond those that a kind asks for is explained by a fault."""
    for key, runs in case.book.runs.items():
        for number, count in Counter(run.number for run in runs).items():
            if count > 1:
                yield case.violation(3, f"run {number} of job {key} began {count} times", key)
    for key, taken in case.takings.items():
        kind = case.kind(key)
        given_back = sum(told.event == "Released" for told in case.book.told[key])
        stalled = [one for one in taken if one.ending == "stalled"]
        if kind and len(taken) - kind.runs > len(stalled) + given_back:
            yield case.violation(3, f"{kind.name} {key} was taken {len(taken)} times", key)
        for one in stalled:
            if not _broken_between(case, one.began_ms / 1000 - 1, one.ended_ms / 1000):
                yield case.violation(3, f"job {key} stalled, and nothing was broken", key)


def _broken_between(case: Case, first: float, last: float) -> bool:
    return any(fault.began <= last and fault.at >= first for fault in case.book.faults)


TRUE_ENDINGS: Final = {
    "Completed": "completed",
    "Failed": "failed",
    "Retried": "left",
    "Released": "left",
}
"""What the stream must show where a worker tells that a run has ended."""


def told_once_and_truly(case: Case) -> Iterator[Violation]:
    """(5) Workers tell each end once, and only what is so."""
    for key, told in case.book.told.items():
        taken = {one.number: one for one in case.takings.get(key, [])}
        ends: defaultdict[int, list[Told]] = defaultdict(list)
        for one in told:
            if one.event in TRUE_ENDINGS:
                ends[one.number].append(one)
        for number, said in ends.items():
            if len(said) > 1:
                yield case.violation(5, f"the end of run {number} of {key} was told twice", key)
            ending = taken[number].ending if number in taken else ""
            for one in said:
                if TRUE_ENDINGS[one.event] != ending:
                    yield case.violation(
                        5,
                        f"run {number} of {key}: told {one.event}, but it {ending or 'is not'}",
                        key,
                    )
                if one.event == "Completed" and not _has_value(case, key, one.value):
                    yield case.violation(5, f"{key} was told to return {one.value[:100]}", key)


def _has_value(case: Case, key: JobKey, value: str) -> bool:
    events = case.truth.queues[key[0]].events[key[1]]
    return any(one.fields.get("returnvalue") == value for one in events)


def every_end_told(case: Case) -> Iterator[Violation]:
    """(5) An end that Redis has was told, unless its worker was killed before it could."""
    killed = case.book.killed
    for key, runs in case.book.runs.items():
        taken = {one.number: one for one in case.takings.get(key, [])}
        told = {one.number for one in case.book.told[key] if one.event in TRUE_ENDINGS}
        for run in runs:
            ending = taken[run.number].ending if run.number in taken else ""
            could = run.who.startswith("worker-") and run.who not in killed
            if could and ending in TRUE_ENDINGS.values() and run.number not in told:
                yield case.violation(5, f"nobody told the end of run {run.number} of {key}", key)


def stream_heard_once(case: Case) -> Iterator[Violation]:
    """(5) Followers were given each event of the stream once and in order."""
    for (who, queue), heard in case.book.heard.items():
        expected = [event.id for event in case.truth.queues[queue].stream]
        ids = [one.id for one in heard]
        if ids[: len(expected)] != expected:
            missing = sorted(set(expected) - set(ids))[:5]
            twice = [one for one, count in Counter(ids).items() if count > 1][:5]
            yield Violation(
                5,
                f"{who} heard {len(ids)} events of {queue}, which has {len(expected)}",
                [f"missing: {missing}", f"twice: {twice}"],
            )


LASTING: Final = {"meta", "id", "events", "completed", "failed", "marker", "pc"}
"""Keys of a queue that stay when it is empty."""


def nothing_left(case: Case) -> Iterator[Violation]:
    """(6) No lock, no stray id, no key without expiry."""
    for name, queue in case.truth.queues.items():
        for key, life in queue.keys.items():
            job, _, part = key.partition(":")
            if part == "lock":
                yield case.violation(6, f"a lock is left in {name}: {key}", (name, job))
            elif key in LASTING or key in queue.jobs or (part == "logs" and job in queue.jobs):
                continue
            elif life == -1:
                yield Violation(6, f"a key is left in {name}, for ever: {key}", [])
        for state in ("completed", "failed"):
            for job in set(queue.states[state]) - set(queue.jobs):
                yield case.violation(6, f"{state} of {name} lists {job}, which is not", (name, job))


def calls_in_time(case: Case) -> Iterator[Violation]:
    """(8) Single calls stayed within their deadlines."""
    for call in case.book.calls:
        if call.deadline and call.took > call.deadline * SLACK:
            starved = _starved(case, call.at - call.took, call.at)
            if call.took - starved > call.deadline * SLACK:
                yield Violation(8, f"{call.what} took {call.took:.1f} s: {call}", [])


def _starved(case: Case, first: float, last: float) -> float:
    """Give the seconds for which the machine stood still."""
    return sum(
        max(0.0, min(last, fault.at) - max(first, fault.began))
        for fault in case.book.faults
        if fault.name == "starved"
    )


CHECKS: Final[tuple[Check, ...]] = (
    acknowledged_once,
    ended_as_asked,
    began_in_time,
    last_run_counts,
    extra_runs_explained,
    told_once_and_truly,
    every_end_told,
    stream_heard_once,
    nothing_left,
    calls_in_time,
)


def check_all(truth: Truth, book: Book) -> list[Violation]:
    """Give all violations of all rules."""
    case = Case(truth, book)
    return [found for check in CHECKS for found in check(case)]


def figures(truth: Truth, book: Book) -> Figures:
    """Count what happened."""
    case = Case(truth, book)
    extra = 0
    for key, taken in case.takings.items():
        if kind := case.kind(key):
            extra += max(0, len(taken) - kind.runs)
    return Figures(
        acknowledged=sum(
            any(one.said == "added" for one in answers) for answers in book.answers.values()
        ),
        runs=sum(len(runs) for runs in book.runs.values()),
        extra=extra,
        faults=sum(fault.name != "starved" for fault in book.faults),
    )
