"""Compares the ledger with the contents of Redis, and describes the violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import itemgetter
from typing import Final

from msgspec import Struct

from taskbull.core.steps import WAIT_JOB
from tests.nemesis.kinds import KINDS, Kind
from tests.nemesis.ledger import Book, JobKey
from tests.nemesis.truth import Event, FetchOptions, Truth, takings


class Violation(Struct):
    """A violated rule, with its subject and everything known about it."""

    rule: int
    what: str
    evidence: list[str]
    theirs: str = ""
    """Reason why taskbull is not at fault, or an empty string if it is."""

    def __str__(self) -> str:
        return "\n  ".join([f"({self.rule}) {self.what}", *self.evidence])


REDIRECTED: Final = "ioredis gives up when the master changes, and Node's processor fails"
_REDIRECTED: Final = ("Too many Cluster redirections", "ReplyError: READONLY")


class Case:
    """Everything known about a run, by job and by intent."""

    def __init__(self, truth: Truth, book: Book) -> None:
        self.truth = truth
        self.book = book
        self.takings: dict[JobKey, list[FetchOptions]] = {
            (name, job): takings(events)
            for name, queue in truth.queues.items()
            for job, events in queue.events.items()
            if job and not any(one.fields.get("name") == WAIT_JOB for one in events[:1])
        }
        self.intents: defaultdict[JobKey, set[str]] = defaultdict(set)
        """By job. Each should have one."""
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
        """Return the kind of a job, or None if no producer intended it."""
        for intent in self.intents[key]:
            if intent in self.book.intents:
                return KINDS.get(self.book.intents[intent].kind)
        return None

    def stored(self, key: JobKey) -> dict[str, str] | None:
        """Return the hash of a job, if it exists."""
        return self.truth.queues[key[0]].jobs.get(key[1])

    def events(self, key: JobKey) -> list[Event]:
        """Return the stream's events about a job."""
        return self.truth.queues[key[0]].events.get(key[1], [])

    def names(self, key: JobKey) -> Counter[str]:
        """Count the events of a job by name."""
        return Counter(one.name for one in self.events(key))

    def broken_between(self, first: float, last: float) -> bool:
        """Return True if any fault was active between these times."""
        return any(one.began <= last and one.at >= first for one in self.book.faults)

    def starved(self, first: float, last: float) -> float:
        """Return the seconds for which the machine stalled."""
        return sum(
            max(0.0, min(last, fault.at) - max(first, fault.began))
            for fault in self.book.faults
            if fault.name == "starved"
        )

    def redirected(self, key: JobKey) -> str:
        """Return why a failed attempt is the fault of Node's Redis client, or ""."""
        job = self.truth.queues[key[0]].jobs.get(key[1], {})
        stacks = job.get("stacktrace", "")
        return REDIRECTED if any(error in stacks for error in _REDIRECTED) else ""

    def violation(
        self, rule: int, what: str, key: JobKey | None = None, intent: str = "", theirs: str = ""
    ) -> Violation:
        """Create a violation with everything known about the job or the intent."""
        lines: list[tuple[float, str]] = []
        for one in {intent, *(self.intents[key] if key else ())} - {""}:
            if one in self.book.intents:
                lines.append((self.book.intents[one].at, str(self.book.intents[one])))
            lines += [(answer.at, str(answer)) for answer in self.book.answers[one]]
        if key is not None:
            lines += [(run.at, str(run)) for run in self.book.runs[key]]
            lines += [(told.at, str(told)) for told in self.book.told[key]]
            lines += [(one.ms / 1000, f"stream: {one.fields}") for one in self.events(key)]
        if lines:
            first, last = min(lines)[0], max(lines)[0]
            lines += [
                (fault.began, str(fault))
                for fault in self.book.faults
                if fault.at >= first - 1 and fault.began <= last
            ]
        evidence = [f"{at:.3f} {line[:400]}" for at, line in sorted(lines, key=itemgetter(0))]
        if key is not None:
            evidence.append(f"stored: {str(self.stored(key))[:1000]}")
        return Violation(rule, what, evidence, theirs)
